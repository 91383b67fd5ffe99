// The names and values that MLflow takes. Source: the module mlflow.utils.validation of MLflow 2 and 3.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace millrace::tracking {

/// Limits of one request of runs/log-batch.
inline constexpr std::size_t kMaxMlflowMetrics = 1000, kMaxMlflowParameters = 100;
/// The most bytes of a parameter's value: in MLflow 2.8 and later, in 1.28 and later, and in older versions.
inline constexpr std::size_t kMlflowValueLimits[] = {6000, 500, 250};
inline constexpr std::size_t kMaxMlflowKey = 250;

/// Returns `name` as the key of a metric, a parameter or a tag: ASCII letters, digits, "_-. " and single "/" between
/// parts that are no "." or "..". "data.sources[0].url" becomes "data.sources.0.url"; other characters become '_'. A
/// name that is too long keeps its beginning and gets a checksum. Never empty.
std::string MlflowKey(std::string_view name);

/// Returns the first `most` bytes of `value` at most, without half a character of UTF-8 at the end.
std::string CutText(std::string_view value, std::size_t most);

}  // namespace millrace::tracking
