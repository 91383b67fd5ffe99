// JSON objects one after another, each over any number of lines, as jq or json.dump with an indent writes them.
#pragma once

#include <memory>

#include "millrace/data/formats/syntax.h"

namespace millrace::data {

/// The objects are the records, with or without white space between them. Line ends inside an object become spaces.
/// Errors: kCorrupt if brackets do not match, something else than an object occurs, or the data are cut off.
std::unique_ptr<const Syntax> MakeJsonObjectsSyntax();

}  // namespace millrace::data
