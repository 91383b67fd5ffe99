// The training loop: data, model, optimizer, checkpoints and reports, on one rank of a data-parallel job.
#pragma once

#include <functional>
#include <stop_token>

#include "millrace/base/result.h"
#include "millrace/checkpoint/save/writer.h"
#include "millrace/engine/parallel/collective.h"
#include "millrace/object/connection.h"
#include "millrace/train/evaluator.h"
#include "millrace/train/options.h"
#include "millrace/train/report.h"

namespace millrace::train {

/// Where a run's news go. Called on rank 0 only; on_checkpoint on the writer's background thread, the rest on Train's.
struct Observer {
  std::function<void(const Plan&)> on_plan;
  std::function<void(const StepReport&)> on_step;  ///< every log_every steps, and the last
  std::function<void(const EvalReport&)> on_eval;  ///< after the on_step of its step
  /// A checkpoint was committed, or could not be: training goes on with the ones before.
  std::function<void(const Result<checkpoint::SaveStats>&)> on_checkpoint;
};

/// Runs a job, or what is left of it: when `checkpoint_url` holds a committed checkpoint the run goes on from the
/// newest, with the same losses bit for bit as if it had not stopped, as long as the number of ranks and threads is the
/// same. Every rank calls it with the same options. Blocks until the last step is made and its checkpoint committed.
///
/// When `stop` fires on any rank, all finish the step under way, save a checkpoint and return with Outcome::stopped.
/// Fails with kUnavailable when another rank is lost, with kInternal when the loss is not a finite number (nothing of
/// that step is kept), and with what data and checkpoints say. `connection` and `group` must outlive the call.
Result<Outcome> Train(object::Connection& connection, engine::Collective& group, const Options& options,
                      const Observer& observer, std::stop_token stop);

}  // namespace millrace::train
