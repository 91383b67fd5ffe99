// A meter of what a job has cost so far.
#pragma once

#include <string>
#include <utility>

#include "millrace/base/clock.h"
#include "millrace/jobs/spec/cost_spec.h"

namespace millrace::jobs {

/// Counts the cost of a supervisor's run, from the moment it is made. One owner, no locking.
class CostMeter {
 public:
  /// `before`: what earlier runs of the same job have cost.
  CostMeter(CostSpec spec, TimePoint now, double before) : spec_(std::move(spec)), last_(now), spent_(before) {}

  /// Adds the time since the last call for `machines` machines. Spare machines are paid, too.
  void Count(TimePoint now, std::size_t machines);
  bool known() const { return spec_.price_per_hour > 0; }
  double spent() const { return spent_; }
  bool capped() const { return known() && spec_.cap && spent_ >= *spec_.cap; }
  const CostSpec& spec() const { return spec_; }

 private:
  const CostSpec spec_;
  TimePoint last_;
  double spent_;
};

std::string FormatCost(double amount, const std::string& currency);  ///< "12.34 USD"

}  // namespace millrace::jobs
