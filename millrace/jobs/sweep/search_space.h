// The search space of a sweep: all combinations of lists of values, or values drawn at random.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/base/result.h"

namespace millrace::jobs {

/// A key of the job file that differs from run to run, and its values.
struct VariedKey {
  enum class Draw {
    kList,     ///< one of `values`
    kUniform,  ///< uniform between `least` and `most`
    kLog,      ///< its logarithm is uniform: for learning rates
    kInteger,  ///< a whole number from `least` to `most`, both included
  };
  std::string key;
  Draw draw = Draw::kList;
  std::vector<std::string> values;  ///< YAML
  double least = 0, most = 0;
  bool operator==(const VariedKey&) const = default;
};

/// Reads "KEY=A,B,C", "KEY=uniform:LO..HI", "KEY=log:LO..HI" or "KEY=int:LO..HI". A comma within brackets, braces or
/// quotes belongs to a value. Errors: kInvalidArgument.
Result<VariedKey> ParseVariedKey(std::string_view text);

/// The values of one run: keys of the job file, and YAML.
using RunValues = std::vector<std::pair<std::string, std::string>>;

/// The most runs of a sweep: a mistyped grid is noticed before it fills a disk.
inline constexpr std::size_t kMaxSweepRuns = 10'000;

/// Returns all combinations of the keys' values. The last key varies fastest.
/// Errors: kInvalidArgument if a key has a range, is there twice, or there are more than kMaxSweepRuns combinations.
Result<std::vector<RunValues>> GridRuns(const std::vector<VariedKey>& keys);

/// Draws the values of `count` runs. Those of run n depend on `seed`, n and the keys alone, so that a larger count
/// begins with the same runs. Errors: kInvalidArgument if a key is there twice.
Result<std::vector<RunValues>> RandomRuns(const std::vector<VariedKey>& keys, std::size_t count, std::uint64_t seed);

}  // namespace millrace::jobs
