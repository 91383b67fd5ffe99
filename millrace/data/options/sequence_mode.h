// The mode by which documents become sequences of one length.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace millrace::data {

/// The way a row is made of documents.
enum class SequenceMode : std::uint8_t {
  kPack,  ///< joins documents (BOS text EOS) and cuts them into full sequences; drops a tail shorter than a sequence
  kPad,   ///< one document a sequence, truncated, or padded with EOS
  kSft,   ///< as kPad, for prompts and answers: every label outside the answers is kIgnoreLabel
};

std::string_view SequenceModeName(SequenceMode mode);  ///< "pack", "pad", "sft"
/// Returns nothing if no mode has that name.
std::optional<SequenceMode> ParseSequenceMode(std::string_view name);

}  // namespace millrace::data
