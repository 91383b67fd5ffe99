#include "millrace/data/options/sequence_mode.h"

#include <algorithm>
#include <array>

namespace millrace::data {
namespace {

constexpr std::array<std::string_view, 3> kSequenceModes = {"pack", "pad", "sft"};

}  // namespace

std::string_view SequenceModeName(SequenceMode mode) { return kSequenceModes[static_cast<std::size_t>(mode)]; }

std::optional<SequenceMode> ParseSequenceMode(std::string_view name) {
  const auto* at = std::ranges::find(kSequenceModes, name);
  if (at == kSequenceModes.end()) return std::nullopt;
  return static_cast<SequenceMode>(at - kSequenceModes.begin());
}

}  // namespace millrace::data
