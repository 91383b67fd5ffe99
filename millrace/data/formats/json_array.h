// One JSON array an object: what json.dump of a list writes, however it is printed. Its elements are the records.
#pragma once

#include <memory>
#include <string>

#include "millrace/data/formats/decoder.h"
#include "millrace/data/formats/format.h"
#include "millrace/data/formats/syntax.h"

namespace millrace::data {

/// Of the array that the data are, or, with a `field`, of the array in that field of the object that the data are (its
/// first of that name, as it is written there). Content is as long as the data, and every record is where its element
/// is: line ends inside of an element become spaces, everything between elements becomes line ends. An element that is
/// no JSON is a broken record; brackets that do not match, commas too many and cut-off data are kCorrupt.
std::unique_ptr<const Syntax> MakeJsonArraySyntax(std::string field);

/// What an object that is called .json holds: kJson if it begins with '[', kObjects if its first object goes on over
/// several lines, else kJsonLines. Reads its beginning. Fails with kUnsupported, saying what to do, when that first
/// object is longer than what is read: it may be one around an array of records. Blocks.
Result<Layout> LookAtJson(const DataObject& object, Compression compression, object::Call call);

}  // namespace millrace::data
