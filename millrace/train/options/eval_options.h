// Losses of records that are not trained on. Plain data.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/data/options/data_source.h"

namespace millrace::train {

struct EvalOptions {
  std::uint64_t every_steps = 0;  ///< steps between two evaluations; 0: none are made
  std::uint64_t samples = 256;    ///< the most sequences of an evaluation
  /// Their records, read with the other options of the data. Empty: the held-out part of the data.
  std::vector<data::DataSource> sources;
  std::vector<std::string> metrics = {"loss", "perplexity"};  ///< the reported ones: also "accuracy"

  bool Reports(std::string_view metric) const { return std::ranges::find(metrics, metric) != metrics.end(); }
  bool operator==(const EvalOptions&) const = default;
};

}  // namespace millrace::train
