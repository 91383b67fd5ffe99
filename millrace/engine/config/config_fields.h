// Reads and checks members of Hugging Face's config.json.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include "millrace/base/json.h"
#include "millrace/base/result.h"
#include "millrace/engine/config/model_config.h"

namespace millrace::engine {

// A member that is absent or null has the value `absent`. Errors: kInvalidArgument if a member has another type.
Result<std::int64_t> OptionalInt(const Json& json, std::string_view key, std::int64_t absent);
Result<double> OptionalNumber(const Json& json, std::string_view key, double absent);
Result<bool> OptionalFlag(const Json& json, std::string_view key, bool absent);
Result<std::string> OptionalText(const Json& json, std::string_view key, std::string absent);

/// Returns a probability of dropout: 0 … below 1. Errors: kInvalidArgument outside.
Result<double> OptionalProbability(const Json& json, std::string_view key, double absent, std::string_view what);

/// Returns a standard deviation: 0 … 1. Errors: kInvalidArgument outside.
Result<double> OptionalDeviation(const Json& json, std::string_view key, double absent, std::string_view what);

/// Returns the number of classes of rows: num_labels or, as transformers writes it, as many as id2label has names.
/// Absent: 2. Errors: kInvalidArgument outside of 1 … 1048576.
Result<std::int64_t> OptionalClasses(const Json& json, std::string_view what);
/// Writes id2label and label2id with these names.
void NameClasses(Json& json, std::span<const std::string> names);
/// Writes them with transformers' default names.
void WriteClassNames(Json& json, std::int64_t classes);

/// Checks that the sizes are positive and bounded, and that heads divide as they must.
/// Errors: kInvalidArgument; the message names the size.
Status CheckSizes(const ModelSizes& sizes, std::string_view what);

}  // namespace millrace::engine
