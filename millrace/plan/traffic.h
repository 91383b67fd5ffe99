// The bytes that a rank exchanges in a step. docs/scale.md has the formulas.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "millrace/plan/layout_cost.h"

namespace millrace::plan {

enum class ExchangeKind { kAllReduce, kAllGather, kReduceScatter, kSend, kReceive };
std::string_view ExchangeKindName(ExchangeKind kind);  ///< "all-reduce", …

/// The purpose of what the passes of the reference exchange (TrainingSetup::compares_pairs).
inline constexpr std::string_view kReferencePurpose = "reference";

/// The operations of one kind along one axis in a step.
struct TrafficLine {
  std::string_view axis;     ///< tensor, data, shard, replica, pipeline, ends, stage, model or all
  std::string_view purpose;  ///< "activations", "gradients", "weights", kReferencePurpose, …
  ExchangeKind kind = ExchangeKind::kAllReduce;
  RankSpan span;
  std::int64_t operations = 0;
  std::int64_t bytes = 0;         ///< of the tensors; of a gather or a scatter, of the whole tensor (engine::Traffic)
  std::int64_t microbatches = 1;  ///< in which they happen; 1: once a step

  /// Returns the bytes that the rank sends. A group of n ranks sends (n-1)/n of a tensor in a gather or a scatter,
  /// twice that in an all-reduce.
  double sent() const;
  /// Returns the time of all the operations, each by itself.
  double Seconds(const Machine& machine, int ranks_per_machine) const;
};

/// Returns the lines of one rank of the pipeline.
std::vector<TrafficLine> TrafficOf(const TrainingSetup& setup, const Layout& layout, const LayoutCost& cost,
                                   const RankShare& share);

}  // namespace millrace::plan
