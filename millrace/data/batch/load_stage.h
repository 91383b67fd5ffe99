// The stages of a thread that makes batches.
#pragma once

#include <cstdint>
#include <string_view>

namespace millrace::data {

/// The work that a thread does while it makes a batch.
enum class LoadStage : std::uint8_t {
  kNetwork,   ///< waits for bytes of the store, or decompresses them
  kParse,     ///< makes text of records
  kTokenize,  ///< makes tokens of text
  kPack,      ///< anything else
};
/// The number of stages.
inline constexpr int kLoadStages = 4;
std::string_view LoadStageName(LoadStage stage);  ///< "network", "parse", "tokenize", "pack"

}  // namespace millrace::data
