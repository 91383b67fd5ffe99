// How a family of models is found and read.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "millrace/base/json.h"
#include "millrace/base/result.h"
#include "millrace/engine/models/model_config.h"

namespace millrace::engine {

/// What heads predict: the tokens, classes of rows, or both.
enum class ModelHeads { kTokens, kTokensAndRows, kRows };

/// A family of models. Each defines a function that returns its own.
struct ModelFamily {
  std::span<const std::string_view> model_types;  ///< values of config.json's model_type
  /// Reads a config.json of one of these types, and validates it.
  Result<std::shared_ptr<const ModelConfig>> (*parse)(const Json& json, std::string_view what);
  /// Changes a config.json of the family so that its models have these heads. Null: the heads are always the same.
  void (*set_heads)(Json& json, ModelHeads heads, std::int64_t classes) = nullptr;
};

}  // namespace millrace::engine
