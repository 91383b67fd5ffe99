// Objects that hold one JSON array, as json.dump of a list writes it, with any white space. Its elements are the
// records.
#pragma once

#include <memory>
#include <string>

#include "millrace/data/compression/decoder.h"
#include "millrace/data/formats/format.h"
#include "millrace/data/formats/syntax.h"

namespace millrace::data {

/// Without a `field` the data are an array. With one they are an object, and the array is in its first field of that
/// name, compared as it is spelled. The content is as long as the data, and a record has the offset of its element:
/// line ends inside an element become spaces, and everything between elements becomes line ends. An element that is not
/// JSON is a broken record. Errors: kCorrupt if brackets do not match, a comma is too many, or the data are cut off.
std::unique_ptr<const Syntax> MakeJsonArraySyntax(std::string field);

/// Reads the beginning of an object that is called .json, and returns kJson if it begins with '[', kObjects if its
/// first JSON object has several lines, else kJsonLines. Blocks. Errors: kUnsupported, saying what to do, if the first
/// JSON object has several lines and is longer than what is read. It may be one around an array of records.
Result<RecordLayout> LookAtJson(const DataObject& object, Compression compression, object::Call call);

}  // namespace millrace::data
