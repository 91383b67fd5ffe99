// The interface of a family of models: what the family tells the rest of the program.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "millrace/base/json.h"
#include "millrace/base/result.h"
#include "millrace/engine/config/model_config.h"

namespace millrace::engine {

/// The predictions of a model's heads: tokens, classes of rows, or both.
struct ModelHeads {
  bool tokens = true, rows = false;
};

/// The names of a family's weights in Hugging Face's folders. Folders of one family may differ in them.
struct FolderNames {
  /// The prefix of the base model's weights in a class with a head; a folder of the base model has no prefix.
  std::string_view prefix;
  std::string_view embedding;  ///< a weight of the base model, without the prefix; shows which class saved a folder
  bool tied = false;           ///< the default of config.json's tie_word_embeddings
  /// Weights that share the memory of another weight if the model is tied.
  std::span<const std::string_view> tied_names = {};
  /// Suffixes of tensors that are computed when the model is made, so they are not weights.
  std::span<const std::string_view> computed = {};
  bool transposed_blocks = false;  ///< the folder has the matrices of blocks as [in, out]
};

/// A family of models. Each family defines a function that returns this description.
struct ModelFamily {
  std::span<const std::string_view> model_types;  ///< values of config.json's model_type
  /// Reads a config.json of one of these types, and validates it.
  Result<std::shared_ptr<const ModelConfig>> (*parse)(const Json& json, std::string_view what);
  /// Returns the config.json of a new model of these sizes, without head_dim. If intermediate_size or num_kv_heads is
  /// 0, the family chooses its usual value. A member that is not in the result has the default of `parse`.
  Json (*new_model)(std::string_view model_type, const ModelSizes& sizes);
  /// Keys of config.json, beside the sizes, that a job file's model.config may have.
  std::span<const std::string_view> options;
  FolderNames names;
  /// True if the head for tokens predicts the next token; false if it predicts masked tokens.
  bool causal = true;
  /// Changes a config.json of the family so that its models have these heads, with this number of classes. If the
  /// family lacks a head, it chooses another one. Null: the models always have a head for tokens.
  void (*set_heads)(Json& json, ModelHeads heads, std::int64_t classes) = nullptr;
};

}  // namespace millrace::engine
