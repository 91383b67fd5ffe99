// Folders as Hugging Face's libraries keep them: names of files, and of tensors. Pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/json.h"
#include "millrace/checkpoint/format/manifest.h"

namespace millrace::checkpoint {

/// The file that names of weights begin with: "model", "adapter_model"; and what the same was called as a pickle.
struct WeightsNames {
  std::string_view single, index, pickle, pickle_index, config;
};
inline constexpr std::uint64_t kMaxConfigBytes = 16 * kMiB;  ///< of a config.json or its like
inline constexpr WeightsNames kModelFiles{"model.safetensors", "model.safetensors.index.json", "pytorch_model.bin",
                                          "pytorch_model.bin.index.json", "config.json"};
inline constexpr WeightsNames kAdapterFiles{"adapter_model.safetensors", "", "adapter_model.bin", "",
                                            "adapter_config.json"};

/// Whether a folder's file has weights, or lists those that have: of any framework, in any sharding.
bool IsWeightsFile(std::string_view name);
/// Whether it is a file to be kept with a model's weights: tokenizer, configuration, licence, template.
bool IsModelFile(std::string_view name);

/// The name under which a tensor of a model of `config` is kept: that of the family's model with its language-model
/// head, whatever class saved it ("wte.weight" → "transformer.wte.weight"). Nothing for tensors that no model has as a
/// parameter, but that old versions saved: causal masks, frequencies of rotary embeddings, positions.
class ModelNames {
 public:
  /// `names` are all of the folder: whether they have the prefix tells which class saved them.
  ModelNames(const Json& config, const std::vector<std::string>& names);
  std::optional<std::string> operator()(const std::string& name) const;

 private:
  std::string prefix_;                      ///< to be put in front of names of the base model; may be empty
  std::vector<std::string_view> computed_;  ///< ends of the names that are left out
};

/// Whether `name` is the second name of a matrix that `config` ties to another: one that no Hugging Face library saves.
bool IsTiedName(const Json& config, std::string_view name);

}  // namespace millrace::checkpoint
