// The loss on records that are not trained on: a fixed set of sequences, the same at every evaluation.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "millrace/base/json.h"
#include "millrace/base/log.h"
#include "millrace/base/result.h"
#include "millrace/data/batch/batch.h"
#include "millrace/data/options/dataset_options.h"
#include "millrace/engine/pipeline/pipeline_runner.h"
#include "millrace/object/connection.h"
#include "millrace/tokenizer/tokenizer.h"
#include "millrace/train/layout.h"
#include "millrace/train/micro_batch.h"
#include "millrace/train/reporting/report.h"

namespace millrace::train {

/// Holds a rank's share of the evaluated sequences as tokens, in samples / ranks × 16 × sequence length bytes. Each
/// sequence is on one data rank, so reports do not depend on the number of ranks, but for rounding. A rank with fewer
/// sequences than others has a row without labels in place of one, because all ranks make the same collective calls.
///
/// Does not change gradients, random numbers or the position in the training data: a run has the same losses with and
/// without it. One owner thread.
class Evaluator {
 public:
  /// Reads the first `samples` sequences of a data set, or all if there are fewer. `dpo` is for Objective::kDpo.
  /// `device`: of the model.
  /// Collective: rank 0 indexes the data before the others. Errors: kInvalidArgument if there are no sequences; those
  /// of Dataset::Open. Blocks on the store.
  static Result<std::unique_ptr<Evaluator>> Open(object::Connection& connection,
                                                 std::shared_ptr<const tokenizer::Tokenizer> tokenizer,
                                                 const data::DatasetOptions& options, const engine::DpoOptions& dpo,
                                                 std::uint64_t samples, at::Device device, const RankLayout& layout,
                                                 const Logger& log);

  /// Computes the loss. A collective operation. The caller sets step, seconds and the metrics to report.
  Result<EvalReport> Evaluate(engine::PipelineRunner& passes);

 private:
  /// Counts the labels of all ranks.
  Status WeighRows();
  Status RunReference(engine::PipelineRunner& passes);
  Evaluator(std::vector<std::unique_ptr<MicroBatch>> rows, std::uint64_t samples, const RankLayout& layout)
      : rows_(std::move(rows)), samples_(samples), layout_(layout) {}

  std::vector<std::unique_ptr<MicroBatch>> rows_;  ///< one sequence each; as many on all ranks
  const std::uint64_t samples_;                    ///< of all ranks
  const RankLayout& layout_;
  LabelCounts labels_;          ///< of all ranks
  bool compares_ = false;       ///< the rows are pairs of answers
  bool has_reference_ = false;  ///< the reference's log-probabilities are there; they never change
};

}  // namespace millrace::train
