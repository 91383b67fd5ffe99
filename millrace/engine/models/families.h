// The families of models that Millrace knows.
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "millrace/base/json.h"
#include "millrace/base/result.h"
#include "millrace/engine/models/model_config.h"

namespace millrace::engine {

/// How a family is found and read.
struct ModelFamily {
  std::span<const std::string_view> model_types;  ///< values of config.json's model_type
  /// Reads a config.json of one of these types, and validates it.
  Result<std::shared_ptr<const ModelConfig>> (*parse)(const Json& json, std::string_view what);
};

/// Returns all families. Valid as long as the process.
std::span<const ModelFamily> ModelFamilies();

}  // namespace millrace::engine
