// What a family of models says of itself.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "millrace/base/json.h"
#include "millrace/base/result.h"
#include "millrace/engine/config/model_config.h"

namespace millrace::engine {

/// What the heads of a model predict: tokens, classes of rows, or both.
struct ModelHeads {
  bool tokens = true, rows = false;
};

/// How Hugging Face's folders name the weights of a family, where folders differ.
struct FolderNames {
  std::string_view prefix;     ///< of the base model's weights in the class with a head; folders of the base lack it
  std::string_view embedding;  ///< a weight of the base model, without the prefix. It tells which class saved a folder
  bool tied = false;           ///< the default of config.json's tie_word_embeddings
  std::span<const std::string_view> tied_names = {};  ///< weights that are another one, if the model is tied
  std::span<const std::string_view> computed = {};    ///< suffixes of tensors that are computed, so no weights
  bool transposed_blocks = false;                     ///< matrices of blocks stand there as [in, out]
};

/// A family of models. Each defines a function that returns its own.
struct ModelFamily {
  std::span<const std::string_view> model_types;  ///< values of config.json's model_type
  /// Reads a config.json of one of these types, and validates it.
  Result<std::shared_ptr<const ModelConfig>> (*parse)(const Json& json, std::string_view what);
  /// Returns the config.json of a new model of these sizes, without head_dim. An intermediate_size or num_kv_heads of 0
  /// is the family's usual one. Members that it leaves out have the defaults of `parse`.
  Json (*new_model)(std::string_view model_type, const ModelSizes& sizes);
  /// Keys of config.json, beside the sizes, that a job file's model.config may have.
  std::span<const std::string_view> options;
  FolderNames names;
  /// Models with a head for tokens predict the next one. False: they predict hidden ones.
  bool causal = true;
  /// Changes a config.json of the family so that its models have these heads, with so many classes of rows. Heads that
  /// the family lacks become others. Null: the heads are always the same, and predict tokens.
  void (*set_heads)(Json& json, ModelHeads heads, std::int64_t classes) = nullptr;
};

}  // namespace millrace::engine
