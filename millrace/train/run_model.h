// A rank's share of the model, the optimizer, and what moves their numbers.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/result.h"
#include "millrace/engine/models/model.h"
#include "millrace/engine/optim/optimizer.h"
#include "millrace/engine/parallel/collective.h"
#include "millrace/engine/pipeline/pipeline_runner.h"
#include "millrace/engine/sharding/data_exchange.h"
#include "millrace/train/layout.h"
#include "millrace/train/open_model.h"
#include "millrace/train/options.h"
#include "millrace/train/state/run_state.h"
#include "millrace/train/step_end/delayed_scales.h"

namespace millrace::train {

/// Parts of one rank, which refer to each other. Borrows the layout.
struct RunModel {
  std::string base_fingerprint;  ///< of the frozen weights, in hexadecimal digits, if an adapter is trained
  std::unique_ptr<engine::Model> model;
  std::unique_ptr<engine::Optimizer> optimizer;
  std::unique_ptr<engine::DataExchange> exchange;  ///< goes before the model
  std::unique_ptr<engine::PipelineRunner> passes;
  std::vector<StateTensor> tensors;       ///< what a checkpoint has of them
  std::unique_ptr<DelayedScales> scales;  ///< null, except with delayed scaling in FP8
};

/// Returns how many micro-batches a rank has in a step.
int MicroBatchesOf(const Options& options, const RankLayout& layout);

/// Makes this rank's share of a model, with the weights of what was opened, and its optimizer. Closes what was opened.
/// Collective over `group`. Blocks on reading weights. REQUIRES: `layout` and `options.clock` outlive the result.
/// Errors: those of reading; kInvalidArgument if patterns of names match nothing; kResourceExhausted.
Result<RunModel> MakeRunModel(OpenedModel& opened, const RankLayout& layout, engine::Collective& group,
                              const Options& options);

}  // namespace millrace::train
