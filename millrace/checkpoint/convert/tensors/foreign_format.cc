#include "millrace/checkpoint/convert/tensors/foreign_format.h"

#include <cstddef>
#include <iterator>

#include "millrace/base/text.h"

namespace millrace::checkpoint {
namespace {

constexpr std::string_view kFormatNames[] = {"hf", "peft", "torch", "dcp", "megatron", "deepspeed", "gguf"};

}  // namespace

std::string_view ForeignFormatName(ForeignFormat format) { return kFormatNames[static_cast<std::size_t>(format)]; }

Result<ForeignFormat> ParseForeignFormat(std::string_view name) {
  for (std::size_t i = 0; i < std::size(kFormatNames); ++i)
    if (kFormatNames[i] == name) return static_cast<ForeignFormat>(i);
  return Fail(Code::kInvalidArgument, "{}", UnknownName("format", name, kFormatNames));
}

}  // namespace millrace::checkpoint
