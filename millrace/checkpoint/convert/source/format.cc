#include "millrace/checkpoint/convert/source/format.h"

#include <cstddef>
#include <iterator>

#include "millrace/base/text.h"

namespace millrace::checkpoint {
namespace {

constexpr std::string_view kFormatNames[] = {"hf", "peft", "torch", "dcp"};

}  // namespace

std::string_view FormatName(Format format) { return kFormatNames[static_cast<std::size_t>(format)]; }

Result<Format> ParseFormat(std::string_view name) {
  for (std::size_t i = 0; i < std::size(kFormatNames); ++i)
    if (kFormatNames[i] == name) return static_cast<Format>(i);
  return Fail(Code::kInvalidArgument, "{}", UnknownName("format", name, kFormatNames));
}

}  // namespace millrace::checkpoint
