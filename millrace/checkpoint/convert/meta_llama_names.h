// The names of weights in Meta's Llama, which Mistral's own files and torchtitan have, too. Sources: the class
// Transformer of meta-llama/llama, and the classes Llama3StateDictAdapter and Qwen3StateDictAdapter of torchtitan.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "millrace/engine/config/model_config.h"

namespace millrace::checkpoint {

/// A weight's name in Hugging Face's files, and how its rows differ there.
struct TranslatedName {
  std::string name;
  /// Heads whose rows are interleaved: rows 2i and 2i+1 of a head, which RoPE turns together, are rows i and
  /// i + head_dim/2 in Hugging Face's files. 0: the rows have the same order.
  std::int64_t interleaved_heads = 0;
};

/// Returns nothing if the name is none of Meta's. Qwen's models of torchtitan have Hugging Face's order of rows.
std::optional<TranslatedName> TranslateMetaName(std::string_view name, const engine::ModelConfig& config);

}  // namespace millrace::checkpoint
