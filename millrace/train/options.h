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
#include "millrace/checkpoint/retention/retention.h"
#include "millrace/checkpoint/tier/local_tier_options.h"
#include "millrace/data/options/dataset_options.h"
#include "millrace/engine/adapters/lora_options.h"
#include "millrace/engine/layout/parallel_options.h"
#include "millrace/engine/models/preference.h"
#include "millrace/engine/ops/cross_entropy.h"
#include "millrace/engine/optim/make_optimizer.h"
#include "millrace/engine/optim/schedule.h"
#include "millrace/engine/quantized/quantization.h"
#include "millrace/http/server/access.h"
#include "millrace/metrics/tensorboard.h"
#include "millrace/plan/layout.h"
#include "millrace/train/compile/step_compiler.h"
#include "millrace/train/step_end/spikes.h"
#include "millrace/train/tracing/profile_options.h"

namespace millrace::train {

struct Options {
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
  /// The loss has a factor that follows the gradients (LossScale), and begins with this one. For float16.
  std::optional<double> loss_scale;

  std::int64_t classes = 2;  ///< of rows, with Objective::kClassification
  data::DatasetOptions data;
  std::string tokenizer_url;  ///< of its file, or of a model that came with one

  int global_batch = 8, micro_batch = 1;  ///< in sequences
  std::optional<std::uint64_t> steps;     ///< one of these two
  std::optional<double> epochs;
  std::optional<std::uint64_t> steps_this_run;  ///< stop after so many steps; the schedule keeps its length
  engine::OptimizerOptions optimizer;
  std::vector<std::string> freeze;          ///< globs over names of parameters that are not trained
  std::optional<engine::LoraOptions> lora;  ///< adapters are trained, and not the model
  /// The frozen weights of the model's blocks are kept in so many bits. With `lora`. Nothing: as `precision` says.
  std::optional<engine::Quantization> base_quantization;
  /// Where quantized models are kept on this machine: checkpoint::OpenQuantizedModel. Empty: in the user's cache.
  std::filesystem::path quantized_folder;
  /// The adapter to start from: a checkpoint or PEFT folder. Its configuration replaces `lora`, all but the dropout.
  /// Empty: a new one.
  std::string adapter_url;
  engine::Schedule schedule;     ///< its total_steps is computed
  double warmup_proportion = 0;  ///< of all steps; if it is not 0, schedule.warmup_steps is computed
  engine::ops::LossOptions loss;
  engine::DpoOptions dpo;    ///< of Objective::kDpo
  double neftune_alpha = 0;  ///< of the noise of embeddings in training; 0: none
  double clip_norm = 1;      ///< 0: none
  SpikeOptions spikes;
  engine::ParallelOptions parallel;
  /// If it is there, the planner chooses `parallel`, all but placement and reduce_in_bf16: plan::SearchGoal.
  std::optional<double> auto_memory_weight;
  std::string machine;  ///< for the planner: plan::Machine::Find; empty: this machine
  /// What the planner cannot see in the other options: `ranks_per_machine`, `moments`, `snapshots`, `data_bytes`. The
  /// rest is ignored.
  plan::TrainingSetup setup;
  std::uint64_t seed = 42;

  Compile compile = Compile::kAuto;
  std::string compile_cache;  ///< of kOn: the folder of compiled steps; empty: CompileCache::DefaultUrl()
  bool compile_only = false;  ///< with kOn: end when the step is compiled, and leave no checkpoint

  std::string checkpoint_url;  ///< empty: none are made
  std::uint64_t checkpoint_every = 100;
  checkpoint::Retention retention;
  std::optional<checkpoint::LocalTierOptions> local;  ///< nothing: the store alone
  std::uint64_t local_every = 10;                     ///< a checkpoint there at each multiple of it
  bool local_beside = true;                           ///< while one to the store is on its way, from a second copy
  /// What to do if a checkpoint is due while the one before is still being uploaded: wait, skip it, or make it after
  /// the first step at which the upload is done.
  enum class WhenBusy { kWait, kSkip, kDelay };
  WhenBusy when_busy = WhenBusy::kWait;
  std::uint64_t checkpoint_bandwidth = 0;  ///< bytes a second of each rank; 0: no limit
  Duration checkpoint_upload_limit{0};     ///< of each rank, to the store; zero: none
  checkpoint::Provenance written_by;       ///< into checkpoints
  std::string run_id;  ///< of all attempts of a supervisor, as checkpoint::RunLineage; rank 0's counts; empty: random
  int attempt = 1;     ///< the number of this start under `run_id`
  std::string job;     ///< likewise: the job file, rendered

  std::uint64_t eval_every = 0;      ///< steps between two evaluations; 0: none are made
  std::uint64_t eval_samples = 256;  ///< at most so many sequences
  /// The sources that evaluations read, with the other options of `data`. Empty: they read the held-out part of `data`.
  std::vector<data::DataSource> eval_sources;
  bool eval_perplexity = true;  ///< report it beside the loss
  bool eval_accuracy = false;   ///< likewise

  bool check_network = false;             ///< measure the network between machines before the first step
  std::optional<ProfileOptions> profile;  ///< nothing: no step is traced
  std::uint64_t log_every = 1;
  std::string tensorboard_url;               ///< empty: none
  std::uint64_t histograms_every = 0;        ///< steps between two histograms of parameters there; 0: none
  std::string shown_job;                     ///< the job file, rendered without secrets, for TensorBoard
  metrics::HyperParameters hyperparameters;  ///< likewise
  std::string metrics_listen;  ///< where rank 0 serves /metrics for Prometheus ("127.0.0.1:9465"); empty: nowhere
  http::AccessOptions metrics_access;
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
