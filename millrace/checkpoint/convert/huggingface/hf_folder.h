// Names of files and tensors in folders of Hugging Face's libraries. Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/base/json.h"

namespace millrace::checkpoint {

/// The names of the files of weights and of the configuration. A name is empty if the library has no such file.
struct WeightsNames {
  std::string_view single, index;         ///< safetensors: one file, or the index of several
  std::string_view pickle, pickle_index;  ///< the same for files of torch.save
  std::string_view config;
};
/// The largest config.json or adapter_config.json that is read. A guess: real ones have some kilobytes.
inline constexpr std::uint64_t kMaxConfigBytes = 16 * kMiB;
inline constexpr WeightsNames kModelFiles{"model.safetensors", "model.safetensors.index.json", "pytorch_model.bin",
                                          "pytorch_model.bin.index.json", "config.json"};
inline constexpr WeightsNames kAdapterFiles{"adapter_model.safetensors", "", "adapter_model.bin", "",
                                            "adapter_config.json"};

/// Returns whether the name is that of a file of weights or of their index, of any framework.
bool IsWeightsFile(std::string_view name);
/// The subfolder of transformers in which a tokenizer has chat templates beside the usual one.
inline constexpr std::string_view kTemplateFolder = "additional_chat_templates/";
/// Returns whether an import keeps the file beside the weights: tokenizer, configuration, licence, template. Files of
/// subfolders are left out, but for the templates of kTemplateFolder.
bool IsModelFile(std::string_view name);

/// Maps a tensor's name in the folder to its name in the checkpoint. The checkpoint has the names of the model class
/// with a language-model head ("wte.weight" → "transformer.wte.weight"), whichever class saved the folder.
class ModelNames {
 public:
  /// `config` is the folder's config.json. `names` are all tensors of the folder; they show which class saved the
  /// folder.
  ModelNames(const Json& config, const std::vector<std::string>& names);
  /// Returns the name in the checkpoint. Returns nothing for computed tensors that old versions saved: causal masks,
  /// frequencies of rotary embeddings, position ids.
  std::optional<std::string> operator()(const std::string& name) const;

 private:
  std::string prefix_;                          ///< for the names of the base model; may be empty
  std::span<const std::string_view> computed_;  ///< suffixes of computed tensors
};

/// Returns whether `config` ties the tensor to another one. Hugging Face's libraries save a tied matrix under the other
/// name.
bool IsTiedName(const Json& config, std::string_view name);

}  // namespace millrace::checkpoint
