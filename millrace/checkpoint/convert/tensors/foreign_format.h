// The checkpoint formats of other programs.
#pragma once

#include <string_view>

#include "millrace/base/result.h"

namespace millrace::checkpoint {

enum class ForeignFormat { kHuggingFace, kPeft, kTorch, kDcp, kMegatron, kDeepSpeed, kGguf };
std::string_view ForeignFormatName(ForeignFormat format);  ///< "hf", "peft", "torch", "dcp", …
/// Errors: kInvalidArgument if `name` is unknown.
Result<ForeignFormat> ParseForeignFormat(std::string_view name);

}  // namespace millrace::checkpoint
