// The training loop: data, model, optimizer, checkpoints and reports, on one rank of a data-parallel job.
#pragma once

#include <functional>
#include <stop_token>

#include "millrace/base/result.h"
#include "millrace/checkpoint/save/writer.h"
#include "millrace/engine/parallel/collective.h"
#include "millrace/object/connection.h"
#include "millrace/train/compile/step_compiler.h"
#include "millrace/train/evaluator.h"
#include "millrace/train/options.h"
#include "millrace/train/reporting/report.h"

namespace millrace::train {

/// Callbacks of a run, called on rank 0 only: on_checkpoint on the writer's background thread, the others on the thread
/// of Train().
struct Observer {
  std::function<void(const CompileReport&)> on_compiled;  ///< before on_plan, with Compile::kOn
  std::function<void(const Plan&)> on_plan;
  std::function<void(const StepReport&)> on_step;  ///< every log_every steps, and after the last one
  std::function<void(const EvalReport&)> on_eval;  ///< after the on_step of its step
  /// A checkpoint was committed, or failed. Training continues after a failure.
  std::function<void(const Result<checkpoint::SaveStats>&)> on_checkpoint;
};

/// Runs a job. If `checkpoint_url` has a committed checkpoint, the run resumes from the newest one. With the same
/// number of ranks and threads, its losses are then bit for bit those of a run that did not stop. Every rank calls it
/// with the same options. Blocks until the last step is done and its checkpoint is committed.
///
/// If `stop` fires on any rank, all ranks finish their step, save a checkpoint and return with Outcome::stopped.
/// REQUIRES: `connection` and `group` outlive the call.
/// Errors: kUnavailable if another rank is lost; kInternal if the loss is not finite (nothing of that step is kept);
/// those of data and checkpoints.
Result<Outcome> Train(object::Connection& connection, engine::Collective& group, const Options& options,
                      const Observer& observer, std::stop_token stop);

}  // namespace millrace::train
