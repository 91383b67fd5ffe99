// Runs the passes of a training step, or of an evaluation, on one rank of a pipeline.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/result.h"
#include "millrace/engine/layout/pipeline_passes.h"
#include "millrace/engine/models/model.h"
#include "millrace/engine/parallel/collective.h"

namespace millrace::engine {

struct PipelineOptions {
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
  int virtual_stages = 1;  ///< stages a rank; above 1 with kInterleaved only
  int micro_batches = 1;   ///< a training step
};

/// The sums over the micro-batches of a call.
struct PipelineSums {
  double loss = 0;    ///< what Model::Forward() returned for the last stage; 0 on ranks without it
  Duration waited{};  ///< how long this rank waited for its neighbours
};

/// Passes micro-batches through the stages of a model, of which each rank has some. Hidden states go to the next stage
/// and their gradients to the one before. Messages are sent in the background. A rank receives in the order in which
/// the schedule makes the neighbour send, one message ahead of its work.
///
/// With one stage it is the plain training step: the forward and backward pass of each micro-batch in turn.
///
/// The weights' gradients have the same bits with every schedule and number of ranks. An exception is a tied embedding
/// (NamedParameter::shared_by_stages): the first and the last stage each have a part of its gradient, and the caller
/// adds the parts.
///
/// Borrows the model and the group. Not thread-safe.
class PipelineRunner {
 public:
  /// Returns the batch of a micro-batch, and whatever its spans point to with it.
  using BatchSource = std::function<Result<std::shared_ptr<const ModelBatch>>(int micro_batch)>;

  /// `pipeline`: the ranks that have the other stages, in the order of their stages; null: this rank has all stages.
  /// No one else uses the group for messages. Throws c10::Error if the model does not have `virtual_stages` stages.
  PipelineRunner(Model& model, Collective* pipeline, PipelineOptions options, Clock& clock = SystemClock());

  /// Adds the gradients of a step's micro-batches to those of the model. All ranks of the pipeline call it.
  ///
  /// Calls `next` with 0, 1, … once each, when this rank begins with the micro-batch, and keeps a batch until this
  /// rank's last forward pass of it. All batches of a call have the same number of tokens.
  ///
  /// Blocks until this rank's passes are done and its messages have arrived.
  /// Errors: those of `next`; kInvalidArgument if a batch has another number of tokens; those of CatchTorch;
  /// kUnavailable if another rank is lost, or the error that it reports. An error makes the group fail on all its
  /// ranks, so that none of them waits for this one. Gradients are undefined then.
  ///
  /// `loss_factor`: of the loss in the backward passes. The gradients have it, too; the sums do not.
  Result<PipelineSums> Train(const BatchSource& next, double loss_factor = 1);

  /// Computes the loss of the batches, in order, and changes nothing. All ranks of the pipeline call it, with batches
  /// of the same sizes; the sizes of different batches may differ. Blocks and fails as Train() does.
  Result<PipelineSums> Evaluate(std::span<const ModelBatch> batches);

 private:
  PipelineShape ShapeFor(int micro_batches) const;

  Model& model_;
  Collective* const pipeline_;
  const PipelineOptions options_;
  Clock& clock_;
};

}  // namespace millrace::engine
