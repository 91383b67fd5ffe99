// The families of models that Millrace knows.
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "millrace/base/json.h"
#include "millrace/base/result.h"
#include "millrace/engine/models/model_config.h"
#include "millrace/engine/models/model_family.h"

namespace millrace::engine {

/// Returns all families. Valid as long as the process.
std::span<const ModelFamily> ModelFamilies();

/// Changes a config.json so that the model has these heads, with so many classes of rows. Does nothing to families
/// whose heads are always the same.
void SetHeads(Json& json, ModelHeads heads, std::int64_t classes);

/// Reads a config.json. Its model_type names the family; `what` names it in errors.
/// Errors: kUnsupported on families and options that change the numbers and are not implemented; kInvalidArgument on
/// impossible sizes.
Result<std::shared_ptr<const ModelConfig>> ParseModelConfig(const Json& json, std::string_view what);

}  // namespace millrace::engine
