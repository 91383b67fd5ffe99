// The content of a job file, with all defaults. docs/guide/job-file.md describes the text form.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/json.h"
#include "millrace/base/result.h"
#include "millrace/data/options/dataset_options.h"
#include "millrace/engine/adapters/lora_options.h"
#include "millrace/engine/layout/parallel_options.h"
#include "millrace/engine/quantized/quantization.h"
#include "millrace/jobs/output/metric_definitions.h"
#include "millrace/jobs/spec/cost_spec.h"
#include "millrace/jobs/spec/run_spec.h"

namespace millrace::jobs {

struct ModelSpec {
  std::string family = "llama";  ///< config.json's model_type
  std::string from;              ///< Hugging Face folder; empty: random weights from the sizes below
  int hidden_size = 256, num_layers = 4, num_heads = 4;
  std::optional<int> num_kv_heads, intermediate_size;  ///< nothing: the family's usual ones
  int vocab_size = 0;                                  ///< 0: the tokenizer's
  int max_position_embeddings = 0;                     ///< 0: data.sequence_length
  /// The other keys of model.config: those of the family's config.json (engine::ModelFamily::options), as given.
  Json options = Json::object();
  std::optional<int> num_labels;  ///< classes of train.objective classification; nothing: 2
  bool operator==(const ModelSpec&) const = default;
};
/// The key `tokenizer` beside the options of the data set, which have a key each (spec_fields.h).
struct DataSpec {
  data::DatasetOptions dataset;
  std::string tokenizer;
  bool operator==(const DataSpec&) const = default;
};
/// Keys that only AdamW and LAMB have.
struct AdamSpec {
  double beta1, beta2, eps, weight_decay;
  bool operator==(const AdamSpec&) const = default;
};
/// Keys that only SGD has.
struct SgdSpec {
  double momentum = 0.9;
  bool nesterov = false;
  double weight_decay = 0;
  bool operator==(const SgdSpec&) const = default;
};
struct OptimizerSpec {
  std::string name = "adamw";  ///< adamw | lamb | sgd
  double lr = 3e-4;
  AdamSpec adamw{.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
  AdamSpec lamb{.beta1 = 0.9, .beta2 = 0.999, .eps = 1e-6, .weight_decay = 0.01};  ///< NVIDIA's defaults
  SgdSpec sgd;
  std::vector<std::string> no_decay;  ///< globs over parameter names
  double clip_norm = 1.0;             ///< 0: no clipping
  std::string moments = "f32";        ///< f32 | bf16
  bool stochastic_rounding = false;   ///< of bfloat16 weights, in place of a float32 master copy
  bool offload = false;               ///< moments and master copy are in the host's memory
  bool operator==(const OptimizerSpec&) const = default;
};
struct ScheduleSpec {
  std::string name = "cosine";  ///< constant | cosine | linear | polynomial | wsd | inverse_sqrt
  std::uint64_t warmup_steps = 0;
  double warmup_proportion = 0;  ///< of all steps; at most one of the two is not 0
  double min_lr = 0;
  double power = 1;              ///< of polynomial
  double stable_share = 0.9;     ///< of wsd
  std::string decay = "1-sqrt";  ///< of wsd: linear | 1-sqrt
  std::uint64_t timescale = 0;   ///< of inverse_sqrt; 0: warmup_steps
  bool operator==(const ScheduleSpec&) const = default;
};
/// Terms that the training loss has beside the cross-entropy.
struct LossSpec {
  double label_smoothing = 0, z_loss = 0;
  bool operator==(const LossSpec&) const = default;
};
/// The loss of the objective dpo.
struct DpoSpec {
  double beta = 0.1, label_smoothing = 0;
  std::string loss_type = "sigmoid";  ///< sigmoid | ipo
  bool operator==(const DpoSpec&) const = default;
};
/// How the ranks divide the work. Words of other libraries are read as these (spec_parallel.h).
struct ParallelSpec {
  bool automatic = false;           ///< layout: auto. The planner chooses `options`, all but placement
  engine::ParallelOptions options;  ///< as given
  std::optional<int> microbatches;  ///< in a step, of each data-parallel rank; nothing: they follow from micro_batch
  std::string optimize = "speed";   ///< what the planner looks for: speed | memory
  std::optional<double> memory_weight;  ///< nothing: 0 for speed; for memory 0.8, as in SageMaker's library
  double WeightOfMemory() const { return memory_weight.value_or(optimize == "memory" ? 0.8 : 0); }
  bool operator==(const ParallelSpec&) const = default;
};
struct SpikeSpec {
  std::string action = "none";
  double sigma = 6;
  int window = 128;
  bool operator==(const SpikeSpec&) const = default;
};
/// The steps whose trace is written. Both are traced.
struct ProfileSpec {
  std::uint64_t first_step = 0, last_step = 0;  ///< counted from 1
  bool operator==(const ProfileSpec&) const = default;
};
struct TrainSpec {
  std::optional<double> epochs;
  std::optional<std::uint64_t> steps;           ///< exactly one of the two
  std::optional<std::uint64_t> steps_this_run;  ///< nothing: all that are left
  int global_batch = 8, micro_batch = 1;
  std::string precision = "f32";
  std::string fp8_scaling = "current";  ///< current | delayed | block; with precision fp8
  std::string device = "auto";          ///< auto | cpu | cuda
  std::vector<std::string> freeze;      ///< globs over names of parameters that are not trained
  OptimizerSpec optimizer;
  ScheduleSpec schedule;
  LossSpec loss;
  DpoSpec dpo;
  double neftune_alpha = 0;  ///< noise of embeddings; 0: none
  SpikeSpec spikes;
  ParallelSpec parallel;
  std::string compile = "auto";  ///< auto | on | off
  std::string compile_cache;     ///< folder of compiled steps; empty: in the user's cache
  std::optional<ProfileSpec> profile;
  std::uint64_t seed = 42;
  int threads = 0;  ///< per rank; 0: the machine's cores divided by the ranks on it
  bool operator==(const TrainSpec&) const = default;
};
/// Adapters that are trained in place of the model (LoRA). Keys are described in lora_options.h.
struct LoraSpec {
  engine::LoraOptions options;
  std::string base;              ///< of the frozen weights of blocks: train.precision, or the name of a Quantization
  std::string adapter;           ///< the adapter to start from, which says all options but dropout; empty: a new one
  double loraplus_lr_ratio = 1;  ///< the learning rate of B, divided by that of A (LoRA+)
  /// Returns nothing if the base is not quantized.
  std::optional<engine::Quantization> quantization() const { return engine::ParseQuantization(base); }
  bool operator==(const LoraSpec&) const = default;
};
/// Losses of records that are not trained on.
struct EvalSpec {
  std::uint64_t every_steps = 0;                              ///< 0: never
  std::vector<data::DataSource> sources;                      ///< their records; empty: the held-out part of the data
  std::uint64_t samples = 256;                                ///< at most so many of their sequences
  std::vector<std::string> metrics = {"loss", "perplexity"};  ///< the reported ones
  bool operator==(const EvalSpec&) const = default;
};
struct CheckpointSpec {
  std::string url;   ///< empty: none
  std::string path;  ///< of run.command: where `url` is mounted; empty: a new folder
  std::uint64_t every_steps = 100;
  int keep_last = 3;
  std::uint64_t keep_every = 0;
  int keep_best = 0;
  std::string best_metric = "loss", best_mode = "min";  ///< min | max
  std::string when_busy = "wait";                       ///< wait | skip | delay
  std::uint64_t bandwidth = 0;                          ///< bytes a second of each rank; 0: no limit
  std::optional<Duration> upload_limit;                 ///< nothing: none; whole milliseconds
  std::string local_path;                               ///< folder of the local tier; empty: none
  std::uint64_t local_every_steps = 10;
  bool local_beside = true;
  int local_keep = 2;
  int local_copies = 1;  ///< machines that each rank's file is on
  bool operator==(const CheckpointSpec&) const = default;
};
struct LogSpec {
  std::uint64_t every_steps = 1;
  std::string url;                     ///< of the run's folder in a bucket; empty: none
  std::string tensorboard;             ///< URL; empty: none
  std::uint64_t histograms_every = 0;  ///< steps between two histograms of weights and gradients there; 0: none
  std::string metrics_listen;          ///< address; empty: none
  std::string metrics_key_file;        ///< file with the keys of scrapers, on rank 0's machine; empty: loopback only
  bool metrics_insecure = false;       ///< beyond loopback without keys
  std::string webhook;                 ///< URL that gets notes of the job; empty: none
  std::string webhook_file;            ///< file with that URL, if it is a secret, on the supervisor's machine
  std::vector<MetricDefinition> metric_definitions;
  bool operator==(const LogSpec&) const = default;
};

/// Returns whether notes can be posted to `url`: http:// or https:// and a host, without credentials or white space.
bool IsWebhookUrl(std::string_view url);

/// What a job file is read for. A plan may be made for machines that this version cannot start ranks on.
enum class SpecPurpose { kRun, kPlan };

/// A whole job. Plain data. A Spec that Parse() returned is valid and can be run.
struct Spec {
  std::string name;
  ModelSpec model;
  DataSpec data;
  TrainSpec train;
  std::optional<LoraSpec> lora;
  EvalSpec eval;
  CheckpointSpec checkpoint;
  RunSpec run;
  CostSpec cost;
  LogSpec log;

  /// Parses a job file. `overrides` are the assignments of --set.
  /// Errors: kInvalidArgument, kUnsupported; messages have file, line and column, and suggest the nearest known key.
  static Result<Spec> Parse(std::string_view yaml, std::string file_name,
                            const std::vector<std::string>& overrides = {}, SpecPurpose purpose = SpecPurpose::kRun);
  /// Returns the job as YAML with all defaults. Parse() turns it back into the same Spec.
  std::string Render() const;
  /// Returns the classes of train.objective classification: model.num_labels, or as many as have names, or 2.
  int Classes() const;
  /// Returns the number of ranks of the whole job.
  int ranks() const { return run.nodes * run.processes_per_node; }
  bool operator==(const Spec&) const = default;
};

}  // namespace millrace::jobs
