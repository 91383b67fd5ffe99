// Parses templates.
#pragma once

#include <string_view>

#include "millrace/base/result.h"
#include "millrace/serve/jinja/syntax.h"

namespace millrace::serve::jinja {

/// Returns the statements of a template.
/// Errors: kInvalidArgument with the line; kUnsupported for what Jinja has and Millrace does not.
Result<Block> ParseTemplate(std::string_view source);

}  // namespace millrace::serve::jinja
