// The options by which the ranks of a job divide the work: the job file's train.parallel.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "millrace/base/result.h"
#include "millrace/engine/layout/mesh.h"

namespace millrace::engine {

/// The order in which a pipeline's stages work on the micro-batches of a step.
enum class PipelineSchedule {
  kSimple,       ///< all forward passes, then all backward passes (GPipe, Huang et al. 2018)
  k1F1B,         ///< one forward, one backward pass in turn (PipeDream-Flush, Narayanan et al. 2021)
  kInterleaved,  ///< 1F1B with several stages a rank (Narayanan et al. 2021)
  kZeroBubble,   ///< 1F1B whose weight gradients fill the bubble (ZB-H1, Qi et al. 2023)
};
std::string_view PipelineScheduleName(PipelineSchedule schedule);  ///< "simple", "1f1b", "interleaved", "zero_bubble"
std::optional<PipelineSchedule> ParsePipelineSchedule(std::string_view name);

/// The activations that a forward pass does not keep, so that the backward pass computes them again.
enum class Recompute {
  kNone,
  kSelective,  ///< outputs of norms and of activation functions: cheap to compute, large to keep
  kFull,       ///< all but the input of a block
};
std::string_view RecomputeName(Recompute recompute);  ///< "none", "selective", "full"
std::optional<Recompute> ParseRecompute(std::string_view name);

struct ParallelOptions {
  int data = 0;           ///< ranks that see different samples; 0: those that tensor and pipeline leave
  int shard = 0;          ///< of these, ranks that divide state between them; 0: all with `zero`, else 1
  int tensor = 1;         ///< ranks that divide each layer
  bool sequence = false;  ///< they also divide the tokens between the layers
  int pipeline = 1;       ///< ranks that have different layers
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
  int virtual_stages = 1;  ///< stages a rank, with kInterleaved
  /// What the ranks along `shard` divide (Rajbhandari et al. 2019). 1: the optimizer's state; 2: gradients, too;
  /// 3: parameters, too.
  int zero = 0;
  bool reshard = true;          ///< with zero 3: a block's parameters are freed between its passes
  bool reduce_in_bf16 = false;  ///< gradients travel along `data` and `shard` in 16 bits (DataExchangeOptions)
  bool overlap = true;          ///< sums of gradients begin during the backward pass; false only with zero 0 and 1
  Recompute recompute = Recompute::kNone;
  int recompute_every = 1;            ///< with kFull and N: one of N blocks is computed again
  bool offload_activations = false;   ///< with kFull, on a GPU: inputs of these blocks wait in the host's memory
  std::string placement = "cluster";  ///< Mesh
  bool operator==(const ParallelOptions&) const = default;
};

/// Returns how many ranks there are along each axis.
/// Errors: kInvalidArgument, with the arithmetic, if the options contradict each other or the number of ranks.
Result<MeshShape> ShapeOf(const ParallelOptions& options, int ranks);

}  // namespace millrace::engine
