// The formats of other programs.
#pragma once

#include <string_view>

#include "millrace/base/result.h"

namespace millrace::checkpoint {

enum class Format { kHuggingFace, kPeft, kTorch, kDcp };
std::string_view FormatName(Format format);  ///< "hf", "peft", "torch", "dcp"
Result<Format> ParseFormat(std::string_view name);

}  // namespace millrace::checkpoint
