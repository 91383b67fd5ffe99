// The position of a run as a member of a JSON document (docs/formats/state.md).
#pragma once

#include "millrace/base/json.h"
#include "millrace/base/result.h"
#include "millrace/data/loader_state.h"

namespace millrace::data {

Json LoaderStateToJson(const LoaderState& state);
/// Errors: those of JsonUint and JsonString if a member is missing or has another type.
Result<LoaderState> LoaderStateFromJson(const Json& json);

}  // namespace millrace::data
