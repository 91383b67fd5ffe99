// The options of a training run. Plain data.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "millrace/base/clock.h"
#include "millrace/base/json.h"
#include "millrace/base/log.h"
#include "millrace/checkpoint/format/provenance.h"
#include "millrace/data/options/dataset_options.h"
#include "millrace/engine/config/lora_options.h"
#include "millrace/engine/layout/parallel_options.h"
#include "millrace/engine/options/fp8_scaling.h"
#include "millrace/engine/quantized/quantization.h"
#include "millrace/metrics/tensorboard.h"
#include "millrace/plan/layout.h"
#include "millrace/tracking/options.h"
#include "millrace/train/options/checkpoint_options.h"
#include "millrace/train/options/eval_options.h"
#include "millrace/train/options/report_options.h"
#include "millrace/train/options/training_options.h"

namespace millrace::train {

/// The keys of a job file about steps (TrainingOptions), checkpoints, evaluations and reports, and the options that
/// only the program that trains knows.
struct Options : TrainingOptions {
  std::string name;
  /// The config.json of a model with random weights. vocab_size 0: the tokenizer's. Ignored where there is a
  /// `model_url`.
  Json model_config;
  std::string model_url;  ///< checkpoint or Hugging Face folder to start from; empty: random weights
  at::ScalarType precision = at::kFloat;
  bool tf32 = false;  ///< products of float32 numbers may round to TF32
  /// How linear layers multiply in FP8, with `precision` bfloat16. kNone: they don't.
  engine::ops::Fp8Scaling fp8 = engine::ops::Fp8Scaling::kNone;
  at::Device device = at::kCPU;  ///< of this rank: engine::ChooseDevice
  bool limit_threads = false;    ///< compute with fewer threads if products are too small for all: engine::LimitThreads
  /// The loss has a factor that follows the gradients (LossScale), and begins with this one. For float16.
  std::optional<double> loss_scale;

  std::int64_t classes = 2;  ///< of rows, with Objective::kClassification
  data::DatasetOptions data;
  std::string tokenizer_url;  ///< of its file, or of a model that came with one

  std::optional<engine::LoraOptions> lora;  ///< adapters are trained, and not the model
  /// The bits in which the frozen weights of the model's blocks are kept. With `lora`. Nothing: as `precision` says.
  std::optional<engine::Quantization> base_quantization;
  /// Where quantized models are kept on this machine: checkpoint::OpenQuantizedModel. Empty: in the user's cache.
  std::filesystem::path quantized_folder;
  /// The adapter to start from: a checkpoint or PEFT folder. Its configuration replaces `lora`, all but the dropout.
  /// Empty: a new one.
  std::string adapter_url;
  engine::ParallelOptions parallel;
  /// If it is there, the planner chooses `parallel`, all but placement and reduce_in_bf16: plan::SearchGoal.
  std::optional<double> auto_memory_weight;
  std::string machine;  ///< for the planner: plan::Machine::Find; empty: this machine
  /// What the planner cannot see in the other options: `ranks_per_machine`, `moments`, `snapshots`, `data_bytes`. The
  /// rest is ignored.
  plan::TrainingSetup setup;
  bool compile_only = false;  ///< with kOn: end when the step is compiled, and leave no checkpoint

  CheckpointOptions checkpoint;
  checkpoint::Provenance written_by;  ///< into checkpoints
  std::string run_id;  ///< of all attempts of a supervisor, as checkpoint::RunLineage; rank 0's counts; empty: random
  int attempt = 1;     ///< the number of this start under `run_id`
  bool takes_over = false;  ///< end a living run that owns checkpoint.url, in the first attempt
  std::string job;          ///< the job file of this start, rendered

  EvalOptions eval;
  ReportOptions reports;

  bool check_network = false;                ///< measure the network between machines before the first step
  std::string shown_job;                     ///< the job file, rendered without secrets, for TensorBoard
  metrics::HyperParameters hyperparameters;  ///< for TensorBoard
  tracking::TrackingOptions tracking;        ///< trackers that rank 0 reports to, and how sidecars run
  std::string callbacks;                     ///< a Python file whose functions get the run's events; empty: none
  /// Where rank 0 keeps the history of the run: history::RunHistory. Empty: nowhere.
  std::filesystem::path history_file;
  /// How often the ranks exchange their figures, for the history and the metrics. Rank 0's counts. Zero: never.
  Duration rank_interval{0};
  /// Rewritten with "<steps done>\n" after each step, for the supervisor. Empty: none.
  std::filesystem::path heartbeat_file;
  std::uint64_t memory_budget = 512 * kMiB;  ///< of data in flight
  Clock* clock = &SystemClock();
  Logger log;
};

}  // namespace millrace::train
