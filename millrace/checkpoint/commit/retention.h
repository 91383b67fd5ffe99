// The rules of retention: which committed checkpoints stay. Pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>

namespace millrace::checkpoint {

/// A checkpoint stays if any of the rules keeps it.
struct Retention {
  int keep_last = 3;             ///< the newest; at least 1
  std::uint64_t keep_every = 0;  ///< keeps steps that are multiples of this; 0: none
  int keep_best = 0;             ///< how many of the best by `metric`, of the checkpoints whose manifest has it
  std::string metric = "loss";   ///< a name in SaveOptions::metrics
  bool greatest = false;         ///< whether the greatest value of `metric` is the best; else the least is
  bool operator==(const Retention&) const = default;
};

/// Returns the steps of `committed` that `retention` keeps. `metric` maps steps to their value of retention.metric.
/// If two steps have equal values, the newer step is the better one.
std::set<std::uint64_t> Retained(const std::set<std::uint64_t>& committed, const Retention& retention,
                                 const std::map<std::uint64_t, double>& metric = {});

}  // namespace millrace::checkpoint
