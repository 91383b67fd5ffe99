// Runs the forward and backward passes of a training step on one rank.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/data/loader.h"
#include "millrace/engine/config/model_shape.h"
#include "millrace/engine/pipeline/pipeline_runner.h"
#include "millrace/engine/sharding/data_exchange.h"
#include "millrace/train/layout.h"
#include "millrace/train/micro_batch.h"
#include "millrace/train/options.h"
#include "millrace/train/reporting/report.h"

namespace millrace::train {

/// Sums over the passes of a step, for this rank's samples. All are 0 on ranks that do not count their samples.
struct PassSums {
  double loss = 0;
  LabelCounts labels;
  /// The sum over all tokens of ModelShape::AttendedLength() for the document of the token.
  double context = 0;
  engine::PreferenceSums preferences;  ///< of Objective::kDpo
};

/// Takes the micro-batches of a step from the loader, and runs them through the model. Borrows all arguments of the
/// constructor.
class StepRunner {
 public:
  StepRunner(const RankLayout& layout, const Options& options, const plan::ModelShape& shape, data::Loader& loader,
             engine::PipelineRunner& passes, engine::DataExchange& exchange, int micro_batches)
      : layout_(layout),
        options_(options),
        shape_(shape),
        loader_(loader),
        passes_(passes),
        exchange_(exchange),
        micro_batches_(micro_batches) {}

  /// Runs the passes of the step after `step` finished steps. Afterwards the owned gradients are those of the sum of
  /// all ranks' losses. Adds this rank's waits to the report. `loss_factor` multiplies the loss in the backward passes,
  /// and so the gradients.
  /// Collective: all ranks call it. Errors: those of the data; kUnavailable if a rank is lost.
  Result<PassSums> Run(std::uint64_t step, StepReport& report, double loss_factor = 1);

 private:
  Result<std::shared_ptr<MicroBatch>> Load(std::uint64_t step, StepReport& report);
  Status RunReference(const std::vector<std::shared_ptr<MicroBatch>>& loaded, StepReport& report);
  Result<double> RowWeight(const std::vector<std::shared_ptr<MicroBatch>>& loaded, StepReport& report) const;

  const RankLayout& layout_;
  const Options& options_;
  const plan::ModelShape& shape_;
  data::Loader& loader_;
  engine::PipelineRunner& passes_;
  engine::DataExchange& exchange_;
  const int micro_batches_;
};

}  // namespace millrace::train
