// The keys of `cost` in a job file.
#pragma once

#include <optional>
#include <string>

namespace millrace::jobs {

/// The price of a job's machines.
struct CostSpec {
  double price_per_hour = 0;  ///< of one machine; 0: unknown
  std::string currency = "USD";
  std::optional<double> cap;  ///< the job ends when it has cost this amount; nothing: no limit
  bool operator==(const CostSpec&) const = default;
};

}  // namespace millrace::jobs
