// The order in which the ranks of a pipeline work on the micro-batches of a step. Arithmetic only: no tensors.
#pragma once

#include <string>
#include <vector>

#include "millrace/engine/layout/parallel_options.h"

namespace millrace::engine {

/// A step of a pipeline. Stage s of `stages()` is on rank s mod `ranks`; it is stage s / `ranks` of that rank.
struct PipelineShape {
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
  int ranks = 1;
  int virtual_stages = 1;  ///< stages a rank; above 1 with kInterleaved only
  int micro_batches = 1;
  int stages() const { return ranks * virtual_stages; }
  /// For people: "interleaved, 4 ranks × 2 stages, 8 micro-batches".
  std::string ToText() const;
};

enum class PassKind {
  kForward,
  kBackward,        ///< kBackwardInput and kBackwardWeight in one
  kBackwardInput,   ///< the gradient of the stage's input, and of its weights those that cost little
  kBackwardWeight,  ///< the gradients of the weights that kBackwardInput put off
};

/// One stage's work on one micro-batch.
struct PipelinePass {
  PassKind kind = PassKind::kForward;
  int stage = 0;  ///< of this rank: an index into Model::stages()
  int micro_batch = 0;
  bool operator==(const PipelinePass&) const = default;
};

/// Returns what a rank does in a training step, in order. If each rank follows its list, and a message waits for its
/// receiver, no rank waits forever. The gradients of a stage are added in the order of micro-batches. So they have the
/// same bits with every schedule and every number of ranks.
///
/// With p ranks, m micro-batches and v stages a rank, rank r holds the activations of at most this number of
/// micro-batches of a stage at once. (A micro-batch that waits for kBackwardWeight has only the activations that its
/// weight gradients need.)
///   kSimple       m
///   k1F1B         min(m, p - r)
///   kInterleaved  min(m · v, 2 (p - r - 1) + (v - 1) p + 1); as 1F1B with one stage a rank
///   kZeroBubble   min(m, p), of which min(m, p - r) have not begun their backward pass
/// With one stage, every schedule is the forward and the backward pass of each micro-batch in turn.
/// REQUIRES: 0 <= rank < shape.ranks; all counts are at least 1.
std::vector<PipelinePass> TrainingPasses(const PipelineShape& shape, int rank);

/// Returns what every rank does to evaluate: forward passes only, `ranks` micro-batches through all its stages, then
/// the next ones.
std::vector<PipelinePass> EvaluationPasses(const PipelineShape& shape);

/// Hidden states, or their gradient, between neighbouring stages.
struct PipelineMessage {
  bool is_gradient = false;
  int stage = 0;  ///< that receives it; counted over all ranks
  int micro_batch = 0;
  bool operator==(const PipelineMessage&) const = default;
};

/// Returns the messages that `sender` sends to `receiver` while it does `passes`, in order.
std::vector<PipelineMessage> MessagesBetween(const PipelineShape& shape, const std::vector<PipelinePass>& passes,
                                             int sender, int receiver);

}  // namespace millrace::engine
