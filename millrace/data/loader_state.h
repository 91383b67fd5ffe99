// The position of a run in its data, as checkpoints store it (docs/formats/state.md).
#pragma once

#include <cstdint>
#include <string>

#include "millrace/base/json.h"
#include "millrace/base/result.h"

namespace millrace::data {

/// Small, and the same for every rank. A run can resume from it on any number of ranks.
struct LoaderState {
  std::uint64_t epoch = 0;
  std::uint64_t samples = 0;  ///< samples of this epoch that all ranks together have consumed
  std::string fingerprint;    ///< names and short hashes of everything that the order depends on; under 700 bytes
  Json ToJson() const;
  /// Errors: those of JsonUint and JsonString if a member is missing or has another type.
  static Result<LoaderState> FromJson(const Json& json);
};

}  // namespace millrace::data
