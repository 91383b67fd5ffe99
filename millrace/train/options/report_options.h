// The reports of a run, and who gets them. Plain data.
#pragma once

#include <cstdint>
#include <string>

namespace millrace::train {

struct ReportOptions {
  std::uint64_t every_steps = 1;       ///< steps between two lines of figures
  std::string tensorboard;             ///< URL of the folder of event files; empty: none
  std::uint64_t histograms_every = 0;  ///< steps between two histograms of weights and gradients there; 0: none
  std::string metrics_listen;     ///< where rank 0 serves /metrics for Prometheus ("127.0.0.1:9465"); empty: nowhere
  std::string metrics_key_file;   ///< file with the keys of scrapers, on rank 0's machine; empty: loopback only
  bool metrics_insecure = false;  ///< beyond loopback without keys
  bool operator==(const ReportOptions&) const = default;
};

}  // namespace millrace::train
