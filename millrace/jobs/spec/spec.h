// The content of a job file, with all defaults. docs/guide/job-file.md describes the text form.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/base/clock.h"
#include "millrace/base/json.h"
#include "millrace/base/result.h"
#include "millrace/data/options/dataset_options.h"
#include "millrace/engine/config/lora_options.h"
#include "millrace/engine/layout/parallel_options.h"
#include "millrace/engine/options/fp8_scaling.h"
#include "millrace/engine/quantized/quantization.h"
#include "millrace/jobs/output/metric_definitions.h"
#include "millrace/jobs/spec/cost_spec.h"
#include "millrace/jobs/spec/run_spec.h"
#include "millrace/tracking/options.h"
#include "millrace/train/options/checkpoint_options.h"
#include "millrace/train/options/eval_options.h"
#include "millrace/train/options/report_options.h"
#include "millrace/train/options/training_options.h"

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
/// The division of the work among the ranks. Words of other libraries are read as these (foreign_words.h).
struct ParallelSpec {
  bool automatic = false;           ///< layout: auto. The planner chooses `options`, all but placement
  engine::ParallelOptions options;  ///< as given
  std::optional<int> microbatches;  ///< in a step, of each data-parallel rank; nothing: they follow from micro_batch
  std::string optimize = "speed";   ///< what the planner looks for: speed | memory
  std::optional<double> memory_weight;  ///< nothing: 0 for speed; for memory 0.8, as in SageMaker's library
  double WeightOfMemory() const { return memory_weight.value_or(optimize == "memory" ? 0.8 : 0); }
  bool operator==(const ParallelSpec&) const = default;
};
struct TrainSpec : train::TrainingOptions {
  std::string precision = "f32";
  engine::ops::Fp8Scaling fp8_scaling = engine::ops::Fp8Scaling::kCurrent;  ///< with precision fp8
  std::string device = "auto";                                              ///< auto | cpu | cuda
  ParallelSpec parallel;
  int threads = 0;  ///< per rank; 0: the machine's cores divided by the ranks on it, or fewer for small models
  bool operator==(const TrainSpec&) const = default;
};
/// Adapters that are trained in place of the model (LoRA). Keys are described in lora_options.h.
struct LoraSpec {
  engine::LoraOptions options;
  std::string base;     ///< of the frozen weights of blocks: train.precision, or the name of a Quantization
  std::string adapter;  ///< the adapter to start from, which says all options but dropout; empty: a new one
  /// Returns nothing if the base is not quantized.
  std::optional<engine::Quantization> quantization() const { return engine::ParseQuantization(base); }
  bool operator==(const LoraSpec&) const = default;
};
struct CheckpointSpec : train::CheckpointOptions {
  std::string path;  ///< of run.command: where `url` is mounted; empty: a new folder
  bool operator==(const CheckpointSpec&) const = default;
};
struct LogSpec : train::ReportOptions {
  std::string url;                              ///< of the run's folder in a bucket; empty: none
  std::string webhook;                          ///< URL that gets notes of the job; empty: none
  std::string webhook_file;                     ///< file with that URL, if it is a secret, on the supervisor's machine
  std::optional<tracking::WandbOptions> wandb;  ///< nothing: no run there
  std::optional<tracking::MlflowOptions> mlflow;  ///< empty: none
  std::string callbacks;                          ///< a Python file on rank 0's machine; empty: none
  std::string python = "python3";                 ///< what runs `callbacks` and W&B's package
  std::vector<MetricDefinition> metric_definitions;
  bool operator==(const LogSpec&) const = default;
};

/// Returns whether notes can be posted to `url`: http:// or https:// and a host, without credentials or white space.
bool IsWebhookUrl(std::string_view url);

/// The purpose for which a job file is read. A plan may be made for machines that this version cannot start ranks on.
enum class SpecPurpose { kRun, kPlan };

/// A whole job. Plain data. A Spec that Parse() returned is valid and can be run.
struct Spec {
  static constexpr std::uint64_t kMaxFile = 4 * kMiB;  ///< of a job file

  std::string name;
  ModelSpec model;
  DataSpec data;
  TrainSpec train;
  std::optional<LoraSpec> lora;
  train::EvalOptions eval;
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
  /// Returns the job that ends when the step of this job is compiled. It has a name of its own, so that the status of
  /// this job stays.
  Spec CompileJob() const;
  /// Returns the classes of train.objective classification: model.num_labels, or as many as have names, or 2.
  int Classes() const;
  /// Returns the number of ranks of the whole job.
  int ranks() const { return run.nodes * run.processes_per_node; }
  bool operator==(const Spec&) const = default;
};

}  // namespace millrace::jobs
