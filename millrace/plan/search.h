// Looks for the best layout of a job: train.parallel: auto.
#pragma once

#include <cstddef>

#include "millrace/base/result.h"
#include "millrace/plan/plan.h"

namespace millrace::plan {

/// The goal of the search. The chosen layout minimises
///   (1 - memory_weight) · time / (least time) + memory_weight · memory / (least memory)
/// among the layouts that fit the memory. Memory is that of the fullest rank.
struct SearchGoal {
  double memory_weight = 0;           ///< 0: the fastest, and of equally fast ones that with least memory
  std::string placement = "cluster";  ///< of the chosen layout
  bool reduce_in_bf16 = false;        ///< of the chosen layout
};

struct SearchResult {
  engine::ParallelOptions options;
  std::size_t tried = 0, fitting = 0;  ///< layouts
};

/// Looks at every number of tensor-parallel ranks and stages, schedule, ZeRO stage and recomputation. Deterministic:
/// all ranks get the same from the same arguments. Takes less than a second for 16,384 ranks.
/// Errors: kResourceExhausted if no layout fits, with what the smallest one needs; kInvalidArgument if none divides the
/// batch.
Result<SearchResult> ChooseLayout(const TrainingSetup& setup, const Machine& machine, const SearchGoal& goal = {});

}  // namespace millrace::plan
