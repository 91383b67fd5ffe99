// The reports of a run: its plan, each step, each evaluation, its end. As text and as JSON objects; train/README.md
// describes the keys.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "millrace/base/json.h"
#include "millrace/data/batch/stage_trace.h"
#include "millrace/engine/layout/parallel_options.h"

namespace millrace::train {

/// Rounds to nine significant digits. They distinguish every float32 from its neighbours, so printed losses of two runs
/// can be compared.
Json NineDigits(double value);

/// The plan of a run, computed before its first step.
struct Plan {
  std::string name;
  std::string precision;
  std::string device = "cpu";  ///< of rank 0: "cpu", "cuda:0"
  engine::ParallelOptions parallel;
  engine::MeshShape shape;
  int ranks = 1, global_batch = 0, micro_batch = 0;
  int sequence_length = 0;
  std::uint64_t accumulation = 0;  ///< micro-batches a rank and step
  std::uint64_t records = 0, data_bytes = 0, samples_per_epoch = 0, tokens_per_epoch = 0, steps_per_epoch = 0;
  std::uint64_t steps = 0;         ///< of the whole job
  std::uint64_t resumed_from = 0;  ///< steps already done
  std::uint64_t last_step = 0;     ///< after which this run ends: `steps`, or fewer with train.steps_this_run
  std::int64_t parameters = 0;
  double flops_per_token = 0;      ///< for full sequences; separated documents need fewer
  std::uint64_t memory_bytes = 0;  ///< estimate for the fullest rank: what `job plan` prints
  std::string checkpoint_url;

  Json ToJson() const;
  std::string ToText() const;  ///< several lines
};

/// One step, over all ranks, or the last of several steps with the means of their times. Waits are this rank's.
struct StepReport {
  std::uint64_t step = 0;      ///< from 1
  std::uint64_t averaged = 1;  ///< the number of steps, up to this one, whose means the times below are
  double loss = 0;             ///< mean over the batch's labels
  double lr = 0, grad_norm = 0;
  std::optional<double> loss_scale;        ///< the factor of the loss in this step, with float16
  bool overflow = false;                   ///< the step was not kept: with this factor, its gradient was not finite
  bool spike = false;                      ///< the step was not kept: its loss or gradient jumped
  bool unlabelled = false;                 ///< no label of the batch counts: there is no loss, and nothing to learn
  std::optional<std::uint64_t> went_back;  ///< the run went on from the checkpoint of this step
  std::uint64_t tokens = 0;
  /// Seconds of a step, and the seconds in which it stood still. checkpoint_wait_s is the time that saves take of the
  /// training's thread: waits for the save before and for the copy, and the metadata.
  double step_s = 0, data_wait_s = 0, comm_wait_s = 0, checkpoint_wait_s = 0;
  std::array<double, data::kLoadStages> data_wait_on_s{};  ///< data_wait_s by the stage that the loader waited for
  double flops_per_token = 0;                              ///< of this step's documents
  std::map<std::string, double> preferences;               ///< of Objective::kDpo: engine::PreferenceSums::Means()
  /// Metrics of an evaluation after this step, by name: "loss", "perplexity", "accuracy". ToJson() leaves them out.
  std::map<std::string, double> evaluated;

  double tokens_per_s() const { return step_s > 0 ? static_cast<double>(tokens) / step_s : 0; }
  Json ToJson() const;
  std::string ToText(std::uint64_t steps) const;
};

/// Averages the times of steps between two lines of figures. One thread.
class StepInterval {
 public:
  void Add(const StepReport& report);
  /// Returns the latest step with the means of the times since the last call. REQUIRES: Add() since then.
  StepReport TakeMeans();

 private:
  StepReport sums_;  ///< times are sums, the rest is the latest step's
};

/// One evaluation, over all ranks.
struct EvalReport {
  std::uint64_t step = 0;  ///< steps done
  double loss = 0;         ///< mean over the labels; of tokens plus of rows, if there are both
  std::uint64_t samples = 0, labels = 0;
  double accuracy = 0;      ///< the share of the labels that the model predicts: of tokens or, without any, of rows
  double row_accuracy = 0;  ///< of row labels beside those of tokens: of next sentences
  bool has_row_accuracy = false;
  double seconds = 0;
  bool tells_perplexity = true;  ///< e to the loss
  bool tells_accuracy = false;
  std::map<std::string, double> preferences;  ///< of Objective::kDpo: engine::PreferenceSums::Means()

  /// Returns the metrics, by name: "loss", "perplexity", "accuracy", "next_sentence_accuracy", and preferences.
  std::map<std::string, double> Metrics() const;
  Json ToJson() const;
  std::string ToText() const;
};

/// The end of a run, except by an error of its own.
struct RunOutcome {
  std::uint64_t step = 0;      ///< steps done since the beginning of the job
  std::uint64_t steps = 0;     ///< of the whole job
  std::optional<double> loss;  ///< of the last step made; nothing: this run made none
  bool stopped = false;        ///< asked to leave before the last step
  std::optional<Error> lost;   ///< why it ended, although steps may be left: another run saves to the same place
  /// Returns whether no step of the job is left.
  bool complete() const { return step >= steps; }
  Json ToJson() const;
  std::string ToText() const;  ///< one line
};

}  // namespace millrace::train
