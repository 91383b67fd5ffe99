// The families of models that Millrace knows.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "millrace/base/json.h"
#include "millrace/base/result.h"
#include "millrace/engine/config/model_config.h"
#include "millrace/engine/config/model_family.h"

namespace millrace::engine {

/// Returns all families. Valid as long as the process.
std::span<const ModelFamily> ModelFamilies();

/// Returns the family of a model_type, or null. Valid as long as the process.
const ModelFamily* FindFamily(std::string_view model_type);
/// Returns the family of a config.json, or null.
const ModelFamily* FamilyOf(const Json& config);

/// Returns the model types of all families, with commas between them.
std::string KnownModelTypes();

/// Changes a config.json so that the model has these heads, with `classes` classes of rows. Does nothing to families
/// whose heads are always the same.
void SetHeads(Json& config, ModelHeads heads, std::int64_t classes);

/// Reads a config.json. Its model_type names the family; `what` names it in errors.
/// Errors: kUnsupported on families and options that change the numbers and are not implemented; kInvalidArgument on
/// impossible sizes.
Result<std::shared_ptr<const ModelConfig>> ParseModelConfig(const Json& config, std::string_view what);

/// Returns the first difference of two config.json that changes what a model computes, such as "its rope_theta is 1e4,
/// this job's is 5e5"; "" if there is none, or if one of the two does not parse. Ignores a wanted vocab_size of 0, the
/// heads, dropout, initial weights, and how many positions a sequence may have.
std::string DifferenceOfModels(const Json& stored, const Json& wanted);

}  // namespace millrace::engine
