// JSON objects one after another, however they are printed: what jq writes, or json.dump with an indent.
#pragma once

#include <memory>

#include "millrace/data/formats/syntax.h"

namespace millrace::data {

/// The objects are the records; what is between them is white space, or nothing. Line ends inside of one become spaces.
/// Brackets that do not match, anything else than objects and cut-off data are kCorrupt.
std::unique_ptr<const Syntax> MakeJsonObjectsSyntax();

}  // namespace millrace::data
