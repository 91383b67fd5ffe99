// The position of a run in its data, as checkpoints store it (docs/formats/state.md).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "millrace/base/error.h"

namespace millrace::data {

/// Small, and the same for every rank. A run can resume from it on any number of ranks.
struct LoaderState {
  std::uint64_t epoch = 0;    ///< the number of passes that are complete
  std::uint64_t samples = 0;  ///< samples of this epoch that all ranks together have consumed
  std::string fingerprint;    ///< names and short hashes of everything that the order depends on; under 700 bytes

  /// Returns the position as one line of JSON.
  std::string Serialize() const;
  /// Reads what Serialize() wrote. Errors: kInvalidArgument if the text is not of that form.
  static Result<LoaderState> Parse(std::string_view text);

  bool operator==(const LoaderState&) const = default;
};

}  // namespace millrace::data
