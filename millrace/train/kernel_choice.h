// The choice of the kernels that compute the passes of a run.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "millrace/base/result.h"
#include "millrace/engine/ops/common/step_kernels.h"
#include "millrace/engine/parallel/collective.h"
#include "millrace/object/connection.h"
#include "millrace/train/compile/step_compiler.h"
#include "millrace/train/layout.h"
#include "millrace/train/open_model.h"
#include "millrace/train/options.h"
#include "millrace/train/reporting/heartbeat.h"
#include "millrace/train/reporting/run_observer.h"
#include "millrace/train/run_model.h"

namespace millrace::train {

/// The kernels of the steps of a checkpoint's run: RunState.
struct EarlierKernels {
  std::uint64_t steps = 0;  ///< 0: there was no checkpoint
  std::string compile = "auto";
  std::optional<CompiledEntry> compiled = {};
};

struct KernelChoice {
  engine::ops::StepKernels kernels;
  std::optional<CompiledEntry> compiled;  ///< with Compile::kOn
};

/// Makes the passes of a step, and learns nothing from them.
using TryStep = std::function<Status(const engine::ops::StepKernels& kernels, engine::ops::SeenProducts& seen)>;

/// The run that the choice is made for.
struct ComputedRun {
  object::Connection& connection;
  engine::Collective& group;
  const Options& options;
  const RankLayout& layout;
  const OpenedModel& opened;
  const RunModel& model;
};

/// Decides it: with Compile::kOn, finds what is fastest, and tells `observer` on rank 0. Warns if a resumed run may not
/// compute the same bits. Collective; `heartbeat` beats meanwhile. The kernels borrow the scales of the model.
/// Errors: those of CompileStep() and CheckPlain().
Result<KernelChoice> ChooseKernels(const ComputedRun& run, const EarlierKernels& before, const TryStep& try_step,
                                   Heartbeat& heartbeat, RunObserver& observer);

}  // namespace millrace::train
