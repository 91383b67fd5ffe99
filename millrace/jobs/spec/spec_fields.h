// The declarations of all keys of the job file. A key is declared here, once: its name, its sentence, its type and
// range, what else it goes with, and the member that has its value. The member's initializer is the default. The
// parser, `job render` and the schema (spec_schema.h) walk these declarations.
#pragma once

#include <fmt/format.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "millrace/engine/config/families.h"
#include "millrace/engine/options/optimizer_options.h"
#include "millrace/engine/options/schedule.h"
#include "millrace/jobs/spec/data_fields.h"
#include "millrace/jobs/spec/run_fields.h"
#include "millrace/jobs/spec/spec.h"
#include "millrace/jobs/spec/spec_visitor.h"

namespace millrace::jobs {

inline constexpr int kMaxRanks = 1 << 24, kMaxStages = 1024, kMaxMicrobatches = 1 << 20;

template <class Visitor>
void VisitModelConfig(Visitor& c, ModelSpec& model) {
  c.Integer(Key("hidden_size", "Width of the residual stream: a multiple of 2 × `num_heads`."), model.hidden_size, 8,
            65536);
  c.Integer(Key("num_layers", "Number of blocks."), model.num_layers, 1, 1024);
  c.Integer(Key("num_heads", "Attention heads."), model.num_heads, 1, 1024);
  c.OptionalInteger(Key("num_kv_heads", "Key and value heads.").Form("a divisor of `num_heads`").Unset("`num_heads`"),
                    model.num_kv_heads, 1, 1024);
  c.OptionalInteger(Key("intermediate_size", "Width of the feed-forward layer.").Unset("the family's"),
                    model.intermediate_size, 1, 1 << 20);
  c.Integer(Key("vocab_size", "Size of the vocabulary; 0: the tokenizer's."), model.vocab_size, 0, 1 << 22);
  c.Integer(Key("max_position_embeddings", "Most positions of a sequence; 0: `data.sequence_length`."),
            model.max_position_embeddings, 0, 1 << 24);
  const engine::ModelFamily* family = engine::FindFamily(model.family);
  if (family != nullptr) c.Options(family->options, model.options);
}

template <class Visitor>
void VisitModel(Visitor& v, ModelSpec& model) {
  v.Family(Key("family", "Architecture: the `model_type` of Hugging Face's `config.json`. Ignored with `from`."),
           model.family);
  v.Text(Key("from", "The model to start from: a run, an import, a folder of Hugging Face or a GGUF file."), model.from,
         TextKind::kUrl, false);
  v.OptionalInteger(Key("num_labels", "Classes of `train.objective: classification`.").Unset("2"), model.num_labels, 1,
                    1 << 20);
  v.Only({model.from.empty(), "model.from", {kIsAbsent}, "leave it out: the folder of model.from has a config.json"},
         [&](auto& o) {
           o.Section(Key("config", "Sizes of a model with random weights."),
                     [&](auto& c) { VisitModelConfig(c, model); });
         });
}

/// The condition that a key of the same section is one of some words.
inline Condition WithName(std::string_view key, std::string_view name, std::initializer_list<std::string_view> words) {
  return {std::ranges::find(words, name) != words.end(), key, words, fmt::format("leave it out: {} has no {{}}", name)};
}

template <class Visitor, class Adam>
void VisitAdam(Visitor& v, Adam& adam) {
  v.TwoNumbers(Key("betas", "Decay of the two moments."), adam.beta1, adam.beta2, 0, 0.999999);
  v.Number(Key("eps", "Added to the root of the second moment."), adam.eps, 1e-20, 1);
  v.Number(Key("weight_decay", "Weight decay, on matrices only."), adam.weight_decay, 0, 10);
}

/// Visits the keys of one method. Those of a method that was not chosen have no place: they are only declared.
template <class Method, class Visitor, class Fields>
void VisitMethod(Visitor& v, engine::OptimizerOptions& optimizer, std::initializer_list<std::string_view> name,
                 Fields fields) {
  Method unchosen;
  auto* const chosen = std::get_if<Method>(&optimizer.method);
  v.Only(WithName("train.optimizer.name", engine::OptimizerName(optimizer), name),
         [&](auto& o) { fields(o, chosen != nullptr ? *chosen : unchosen); });
}

template <class Visitor>
void VisitOptimizer(Visitor& v, TrainSpec& train) {
  engine::OptimizerOptions& optimizer = train.optimizer;
  std::string name(engine::OptimizerName(optimizer));
  v.Word(Key("name", "The optimizer."), name, {{"adamw", "lamb", "sgd"}, {}});
  engine::ChooseOptimizer(name, optimizer);
  v.Number(Key("lr", "Peak learning rate."), train.schedule.lr, 1e-12, 10);
  VisitMethod<engine::AdamwOptions>(v, optimizer, {"adamw"}, [](auto& o, auto& adamw) { VisitAdam(o, adamw); });
  VisitMethod<engine::LambOptions>(v, optimizer, {"lamb"}, [](auto& o, auto& lamb) { VisitAdam(o, lamb); });
  VisitMethod<engine::SgdOptions>(v, optimizer, {"sgd"}, [](auto& o, auto& sgd) {
    o.Number(Key("momentum", "Momentum."), sgd.momentum, 0, 0.999999);
    o.Flag(Key("nesterov", "Nesterov's momentum."), sgd.nesterov);
    o.Number(Key("weight_decay", "Weight decay, on matrices only."), sgd.weight_decay, 0, 10);
  });
  v.Texts(Key("no_decay", "Parameters that do not decay either.").Form("list of patterns"), optimizer.rules.no_decay);
  v.Number(Key("clip_norm", "Limit of the gradient's global norm; 0: none."), train.clip_norm, 0, 1e9);
  VisitWordOf(
      v, Key("moments", "What the optimizer's moments are kept in."), optimizer.storage.bf16_moments,
      {{"f32", "bf16"}, {}}, [](bool bf16) { return bf16 ? "bf16" : "f32"; },
      [](const std::string& word) { return word == "bf16"; });
  v.Flag(Key("stochastic_rounding", "Keep no master copy of bfloat16 weights."), optimizer.storage.rounds_weights);
  v.Flag(Key("offload", "Keep moments and master copy in the host's memory."), optimizer.storage.on_host);
}

template <class Visitor>
void VisitSchedule(Visitor& v, TrainSpec& train) {
  engine::Schedule& schedule = train.schedule;
  VisitWordOf(v, Key("name", "Shape after the warm-up: see below."), schedule.shape,
              {{"cosine", "constant", "linear", "polynomial", "wsd", "inverse_sqrt"}, {}}, engine::ScheduleShapeName,
              [&](const std::string& word) { return engine::ParseScheduleShape(word).value_or(schedule.shape); });
  v.Integer(Key("warmup_steps", "Length of the linear rise from 0.").In("steps"), schedule.warmup_steps, 0, kMaxSteps);
  v.Number(Key("warmup_proportion", "The same as a share of all steps. Give at most one of the two."),
           train.warmup_proportion, 0, 1);
  const auto with_name = [&](std::initializer_list<std::string_view> names) {
    return WithName("train.schedule.name", engine::ScheduleShapeName(schedule.shape), names);
  };
  v.Only(with_name({"cosine", "linear", "polynomial", "wsd", "inverse_sqrt"}),
         [&](auto& o) { o.Number(Key("min_lr", "Rate at the last step.").Form("0 … `lr`"), schedule.min_lr, 0, 10); });
  v.Only(with_name({"polynomial"}),
         [&](auto& o) { o.Number(Key("power", "The exponent."), schedule.power, 1e-3, 100); });
  v.Only(with_name({"wsd"}), [&](auto& o) {
    o.Number(Key("stable_share", "The share of all steps before the decay."), schedule.stable_share, 0, 1);
    VisitWordOf(o, Key("decay", "How the rate falls."), schedule.decay, {{"1-sqrt", "linear"}, {}},
                engine::ScheduleDecayName,
                [&](const std::string& word) { return engine::ParseScheduleDecay(word).value_or(schedule.decay); });
  });
  v.Only(with_name({"inverse_sqrt"}), [&](auto& o) {
    o.Integer(Key("timescale", "Steps of the fall; 0: the warm-up steps, or 10,000 without a warm-up.").In("steps"),
              schedule.timescale, 0, kMaxSteps);
  });
}

template <class Visitor>
void VisitPlacement(Visitor& v, const Key& key, std::string& placement) {
  v.Word(key, placement, {{"cluster", "spread", "DPT", "DTP", "PDT", "PTD", "TDP", "TPD"}, {}});
}

/// The words of SageMaker's model-parallel library.
template <class Reader>
void ReadSageMakerWords(Reader& r, ParallelSpec& parallel) {
  engine::ParallelOptions& options = parallel.options;
  std::optional<int> partitions, active;
  std::optional<bool> ddp, overlapping;
  r.OptionalInteger(Key("partitions", "SageMaker's word for `pipeline`."), partitions, 1, kMaxStages);
  if (partitions && options.pipeline != 1 && options.pipeline != *partitions) {
    return r.Refused("partitions", Code::kInvalidArgument, fmt::format("pipeline says {} stages", options.pipeline));
  }
  options.pipeline = partitions.value_or(options.pipeline);
  VisitPlacement(r, Key("placement_strategy", "SageMaker's word for `placement`."), options.placement);
  r.OptionalFlag(Key("ddp", "SageMaker's word; false is `data: 1`."), ddp);
  if (ddp == false) {
    if (options.data > 1) return r.Refused("ddp", Code::kInvalidArgument, fmt::format("data says {}", options.data));
    options.data = 1;
  }
  r.OptionalInteger(Key("active_microbatches", "SageMaker's word, which follows from `schedule`."), active, 1,
                    kMaxMicrobatches);
  const bool is_simple = options.schedule == engine::PipelineSchedule::kSimple;
  const int in_flight = is_simple ? parallel.microbatches.value_or(kMaxMicrobatches) : options.pipeline;
  if (active && *active < in_flight) {
    r.Refused("active_microbatches", Code::kInvalidArgument,
              is_simple ? "schedule simple keeps all micro-batches of a step in flight; use schedule: 1f1b"
                        : fmt::format("a pipeline of {} stages keeps up to {} micro-batches in flight",
                                      options.pipeline, options.pipeline));
  }
  r.OptionalFlag(Key("overlapping_allreduce", "SageMaker's word for `overlap`."), overlapping);
  options.overlap = overlapping.value_or(options.overlap);
}

/// The keys that `layout: auto` chooses the values of.
template <class Visitor>
void VisitGivenLayout(Visitor& v, ParallelSpec& parallel) {
  engine::ParallelOptions& options = parallel.options;
  v.Extent(Key("data", "Ranks that see different samples.").In("ranks"), options.data, kMaxRanks);
  v.Extent(Key("shard", "Of these, ranks that divide state between them.").In("ranks"), options.shard, kMaxRanks);
  v.Integer(Key("tensor", "Ranks that divide each layer between them.").In("ranks"), options.tensor, 1, 1024);
  v.Flag(Key("sequence", "They also divide the tokens between the layers."), options.sequence);
  VisitWordOf(v, Key("schedule", "Order of a pipeline's work: see below."), options.schedule,
              {{"1f1b", "simple", "interleaved", "zero_bubble"}, {}}, engine::PipelineScheduleName,
              [&](const std::string& word) { return engine::ParsePipelineSchedule(word).value_or(options.schedule); });
  v.StagesOrSchedule(Key("pipeline", "Ranks that have different layers: the number of stages.").In("stages"),
                     options.pipeline, options.schedule, kMaxStages);
  v.Integer(Key("virtual_stages", "Stages of each rank; 2 or more with `interleaved`.").In("stages"),
            options.virtual_stages, 1, 1024);
  v.Integer(Key("zero", "What the ranks of `shard` divide: see below."), options.zero, 0, 3);
  v.Flag(Key("reshard", "With `zero: 3`: free a block's weights between its passes."), options.reshard);
  v.Flag(Key("overlap", "Sum gradients while backward passes run."), options.overlap);
  VisitWordOf(v, Key("recompute", "What a backward pass computes again."), options.recompute,
              {{"none", "selective", "full"}, {}}, engine::RecomputeName,
              [&](const std::string& word) { return engine::ParseRecompute(word).value_or(options.recompute); });
  v.Integer(Key("recompute_every", "With `recompute: full` and N: one of N blocks is computed again.").In("blocks"),
            options.recompute_every, 1, 1024);
  v.Flag(Key("offload_activations", "With `recompute: full`: inputs of these blocks wait on the host."),
         options.offload_activations);
  v.OptionalInteger(Key("microbatches", "Micro-batches of each data-parallel rank in a step."), parallel.microbatches,
                    1, kMaxMicrobatches);
  v.OnlyRead([&](auto& r) { ReadSageMakerWords(r, parallel); });
}

template <class Visitor>
void VisitParallel(Visitor& v, ParallelSpec& parallel) {
  engine::ParallelOptions& options = parallel.options;
  std::string layout = parallel.automatic ? "auto" : "given";
  v.Word(Key("layout", "`auto`: the planner chooses all but `placement` and `reduce`."), layout,
         {{"given", "auto"}, {}});
  parallel.automatic = layout == "auto";
  VisitPlacement(v, Key("placement", "Which ranks are neighbours."), options.placement);
  v.Word(Key("optimize", "What `layout: auto` looks for."), parallel.optimize, {{"speed", "memory"}, {}});
  v.OptionalNumber(
      Key("memory_weight", "How much memory counts for `layout: auto`.").Unset("0; 0.8 with `optimize: memory`"),
      parallel.memory_weight, 0, 1);
  VisitWordOf(
      v, Key("reduce", "Type in which ranks exchange gradients."), options.reduce_in_bf16, {{"f32", "bf16"}, {}},
      [](bool bf16) { return bf16 ? "bf16" : "f32"; }, [](const std::string& word) { return word == "bf16"; });
  v.Only({!parallel.automatic, "train.parallel.layout", {"given"}, "leave it out: layout auto chooses it"},
         [&](auto& o) { VisitGivenLayout(o, parallel); });
}

/// Visits what is minimised, by the objective.
template <class Visitor>
void VisitLosses(Visitor& v, TrainSpec& train, data::Objective objective) {
  v.Only(WithObjective(objective, {"dpo"}), [&](auto& o) {
    o.Section(Key("dpo", "The loss of pairs of answers."), [&](auto& s) {
      s.Number(Key("beta", "How close the model stays to the reference."), train.dpo.beta, 1e-6, 1e3);
      VisitWordOf(s, Key("loss_type", "The loss."), train.dpo.loss, {{"sigmoid", "ipo"}, {}}, engine::DpoLossName,
                  [&](const std::string& word) { return engine::ParseDpoLoss(word).value_or(train.dpo.loss); });
      s.Only(WithName("train.dpo.loss_type", engine::DpoLossName(train.dpo.loss), {"sigmoid"}), [&](auto& l) {
        l.Number(Key("label_smoothing", "Share of pairs that are the wrong way round."), train.dpo.label_smoothing, 0,
                 0.5);
      });
    });
  });
  v.Only(WithObjective(objective, {"causal_lm", "mlm", "classification"}), [&](auto& o) {
    o.Section(Key("loss", "What is minimised beside the cross-entropy."), [&](auto& s) {
      s.Number(Key("label_smoothing", "As in torch's `cross_entropy`."), train.loss.label_smoothing, 0, 0.999);
      s.Number(Key("z_loss", "Adds `z_loss` · logsumexp(logits)² per token; PaLM has 1e-4."), train.loss.z_loss, 0, 1);
    });
  });
}

/// `objective` is a member of the data's options, because it decides what rows hold.
template <class Visitor>
void VisitTrain(Visitor& v, TrainSpec& train, data::Objective& objective) {
  VisitObjective(v, objective);
  v.ExactlyOne({"epochs", "steps"});
  v.OptionalNumber(Key("epochs", "Passes over the data. The steps follow from the data's length."), train.epochs, 1e-6,
                   1e6);
  v.OptionalInteger(Key("steps", "Length of the run.").In("steps"), train.steps, 1, kMaxSteps);
  v.OptionalInteger(Key("steps_this_run", "The steps after which this run ends. The schedule keeps its length.")
                        .In("steps")
                        .Unset("all that are left"),
                    train.steps_this_run, 1, kMaxSteps);
  v.Integer(Key("global_batch", "Sequences per optimizer step, over all ranks.").In("sequences"), train.global_batch, 1,
            1 << 24);
  v.Integer(Key("micro_batch", "Sequences per forward and backward pass on one rank.").In("sequences"),
            train.micro_batch, 1, 1 << 16);
  v.Word(Key("precision", "Of weights and products."), train.precision, {{"f32", "tf32", "bf16", "fp16", "fp8"}, {}});
  VisitWordOf(v, Key("fp8_scaling", "With `precision: fp8`: which numbers share a scale, and where it comes from."),
              train.fp8_scaling, {{"current", "delayed", "block"}, {}}, engine::ops::Fp8ScalingName,
              [&](const std::string& word) { return engine::ops::ParseFp8Scaling(word).value_or(train.fp8_scaling); });
  v.Word(Key("device", "Where the ranks compute."), train.device, {{"auto", "cpu", "cuda"}, {}});
  v.Texts(Key("freeze", "Parameters that are not trained.").Form("list of patterns"), train.freeze);
  v.Section(Key("optimizer", "AdamW, LAMB or SGD."), [&](auto& s) { VisitOptimizer(s, train); });
  v.Section(Key("schedule", "Learning rate over the steps."), [&](auto& s) { VisitSchedule(s, train); });
  v.Number(Key("neftune_alpha", "Noise of the embeddings."), train.neftune_alpha, 0, 1e6);
  VisitLosses(v, train, objective);
  v.Section(Key("spikes", "What to do when the loss jumps."), [&](auto& s) {
    VisitWordOf(s, Key("action", "What follows a jump."), train.spikes.action, {{"none", "skip_step", "roll_back"}, {}},
                train::SpikeActionName,
                [&](const std::string& word) { return train::ParseSpikeAction(word).value_or(train.spikes.action); });
    s.Number(Key("sigma", "Standard deviations above the mean that make a jump."), train.spikes.sigma, 1, 1000);
    s.Integer(Key("window", "Steps whose losses and norms it is measured by.").In("steps"), train.spikes.window, 4,
              1 << 20);
  });
  v.SectionOr(Key("parallel", "How the work is divided among ranks."), "auto", train.parallel.automatic,
              [&](auto& p) { VisitParallel(p, train.parallel); });
  v.Refused("lora", Code::kInvalidArgument, "leave it out here: lora is a key beside train");
  VisitWordOf(v, Key("compile", "How the passes are computed."), train.compile, {{"auto", "on", "off"}, {}},
              train::CompileName,
              [&](const std::string& word) { return train::ParseCompile(word).value_or(train.compile); });
  v.Text(
      Key("compile_cache", "With `compile: on`: the folder where compiled steps are kept.").Unset("the user's cache"),
      train.compile_cache, TextKind::kUrl, false);
  v.OptionalSection(Key("profile", "A trace of some steps.").Form("map of `steps`"), train.profile,
                    [](auto& p, train::ProfileOptions& profile) {
                      p.FirstAndLast(Key("steps", "The first and the last step of the trace."), profile.first_step,
                                     profile.last_step);
                    });
  v.Integer(Key("seed", "Seed of random weights."), train.seed, 0, kAnyCount);
  v.Integer(Key("threads", "Compute threads per rank; 0: as many as the machine has for it."), train.threads, 0, 1024);
}

template <class Visitor>
void VisitLora(Visitor& v, LoraSpec& lora, TrainSpec& train) {
  engine::LoraOptions& options = lora.options;
  v.Text(Key("adapter", "Start from this adapter: a run's checkpoint, an imported one or a folder of PEFT."),
         lora.adapter, TextKind::kUrl, false);
  v.Only({lora.adapter.empty(), "lora.adapter", {kIsAbsent}, "leave it out: the adapter's configuration says it"},
         [&](auto& o) {
           o.Integer(Key("r", "Rank: rows of A, columns of B."), options.rank, 1, 1 << 16);
           o.Number(Key("alpha", "The product of B and A counts `alpha`/`r` times."), options.alpha, 1e-6, 1e6);
           o.Flag(Key("rslora", "`alpha`/√`r` instead (Kalajdzievski 2023)."), options.rslora);
           o.Flag(Key("dora", "Learn the norms of the weights' rows by themselves."), options.dora);
           o.TextOrTexts(Key("targets", "The layers that get an adapter.").Form("name or list of names"),
                         options.targets);
         });
  v.Number(Key("dropout", "Probability of dropping an element of an adapter's input."), options.dropout, 0, 0.999);
  v.Number(Key("loraplus_lr_ratio", "LoRA+: how much faster B learns than A."), train.optimizer.rules.loraplus_lr_ratio,
           1e-6, 1e6);
  if (lora.base.empty()) lora.base = train.precision;
  v.Word(Key("base", "How the model's weights are kept.")
             .Form("`train.precision`, `nf4`, `int8`, `fp8`")
             .Unset("`train.precision`"),
         lora.base, {{"f32", "tf32", "bf16", "fp16", "fp8", "int8", "nf4"}, {}});
}

template <class Visitor>
void VisitEval(Visitor& v, train::EvalOptions& eval) {
  v.Integer(Key("every_steps", "Steps between two evaluations; 0: none.").In("steps"), eval.every_steps, 0, kMaxSteps);
  v.Integer(Key("samples", "Most sequences of an evaluation.").In("sequences"), eval.samples, 1, 1 << 24);
  v.OptionalSources(Key("sources", "Records to evaluate, as in `data.sources`.").Unset("the held-out part"),
                    eval.sources);
  v.Only({eval.sources.empty(), "eval.sources", {kIsAbsent}, "leave it out: eval.sources are evaluated"},
         [](auto& o) { o.Neutral(Key("held_out", "Evaluate the held-out part of the data."), "true"); });
  v.Words(Key("metrics", "The reported figures."), eval.metrics, {{"loss", "perplexity", "accuracy"}, {}});
}

template <class Visitor>
void VisitLocalTier(Visitor& v, train::CheckpointOptions& options) {
  checkpoint::LocalTierOptions local = options.local.value_or(checkpoint::LocalTierOptions());
  v.Text(Key("path", "Folder on the machine."), local.path, TextKind::kFolder, false);
  v.Integer(Key("every_steps", "Steps between two checkpoints there.").In("steps"), options.local_every_steps, 1,
            kMaxSteps);
  v.Integer(Key("keep", "How many of the newest stay there.").In("checkpoints"), local.keep, 1, 1 << 20);
  v.Integer(Key("copies", "Machines that each rank's file is on.").In("machines"), local.copies, 1, 16);
  v.Flag(Key("beside", "Save there while a checkpoint to `url` is on its way."), options.local_beside);
  options.local = local.path.empty() ? std::nullopt : std::optional(std::move(local));
}

/// Visits the keys of checkpoints that Millrace's own training makes.
template <class Visitor>
void VisitSaving(Visitor& v, train::CheckpointOptions& options) {
  checkpoint::Retention& retention = options.retention;
  v.Integer(Key("every_steps", "Steps between two checkpoints.").In("steps"), options.every_steps, 1, kMaxSteps);
  v.Integer(Key("keep_last", "How many of the newest checkpoints stay.").In("checkpoints"), retention.keep_last, 1,
            1 << 20);
  v.Integer(Key("keep_every", "Steps that are multiples of it stay for ever; 0: none.").In("steps"),
            retention.keep_every, 0, kMaxSteps);
  v.Section(Key("best", "The best checkpoints by a metric, which stay too."), [&](auto& b) {
    b.Integer(Key("keep", "How many of the best stay.").In("checkpoints"), retention.keep_best, 0, 1 << 20);
    b.Text(Key("metric", "The metric: `loss`, or with `eval` `eval_loss`, `eval_accuracy` and others.").Form("name"),
           retention.metric, TextKind::kPlain, true);
    VisitWordOf(
        b, Key("mode", "Which values are best."), retention.greatest, {{"min", "max"}, {}},
        [](bool greatest) { return greatest ? "max" : "min"; }, [](const std::string& word) { return word == "max"; });
  });
  VisitWordOf(v, Key("when_busy", "What happens if the last checkpoint is still being uploaded."), options.when_busy,
              {{"wait", "skip", "delay"}, {}}, train::WhenBusyName,
              [&](const std::string& word) { return train::ParseWhenBusy(word).value_or(options.when_busy); });
  v.Bytes(Key("bandwidth", "Bytes a second that a rank uploads at most; 0: no limit.").In("bytes per second"),
          options.bandwidth, 0);
  v.TimeLimit(Key("upload_limit", "Most time of a rank's upload."), options.upload_limit, "none");
  v.Section(Key("local", "Checkpoints on the machines' own disks, made more often."),
            [&](auto& l) { VisitLocalTier(l, options); });
}

/// The conditions that a program of the user's own runs as the ranks, or that none does.
inline Condition WithCommand(const RunSpec& run, std::string why = "leave it out: it is for run.command") {
  return {!run.command.empty(), "run.command", {kIsGiven}, std::move(why)};
}
inline Condition WithoutCommand(const RunSpec& run, std::string why) {
  return {run.command.empty(), "run.command", {kIsAbsent}, std::move(why)};
}

template <class Visitor>
void VisitCheckpoint(Visitor& v, CheckpointSpec& checkpoint, const RunSpec& run) {
  v.Text(Key("url", "Where checkpoints go."), checkpoint.url, TextKind::kUrl, false);
  v.Only(WithCommand(run), [&](auto& o) {
    o.Text(Key("path", "Where `url` is mounted, if it is a bucket.").Unset("a new folder"), checkpoint.path,
           TextKind::kFolder, false);
  });
  v.Only(WithoutCommand(run, "leave it out: the program of run.command saves its checkpoints"),
         [&](auto& o) { VisitSaving(o, checkpoint); });
}

template <class Visitor>
void VisitCost(Visitor& v, CostSpec& cost) {
  v.Number(Key("price_per_hour", "Price of one machine; 0: unknown."), cost.price_per_hour, 0, 1e9);
  v.Text(Key("currency", "Printed behind amounts."), cost.currency, TextKind::kPlain, true);
  v.OptionalNumber(Key("cap", "The job saves and ends when it has cost this amount."), cost.cap, 0, 1e12);
}

template <class Visitor>
void VisitLog(Visitor& v, LogSpec& log) {
  v.Integer(Key("every_steps", "Steps between two lines of figures.").In("steps"), log.every_steps, 1, kMaxSteps);
  v.Text(Key("url", "The folder where status, events and logs are kept."), log.url, TextKind::kUrl, false);
  v.Text(Key("tensorboard", "The folder where event files go: figures, the job file, hyperparameters."),
         log.tensorboard, TextKind::kUrl, false);
  v.Section(
      Key("histograms", "Histograms of weights and gradients, in TensorBoard: steps between two, in `every_steps`.")
          .Form("map of `every_steps`"),
      [&](auto& h) {
        h.Integer(Key("every_steps", "Steps between two of them; 0: none.").In("steps"), log.histograms_every, 0,
                  kMaxSteps);
      });
  v.Text(Key("metrics_listen", "Where rank 0 answers `GET /metrics`.").Form("host:port"), log.metrics_listen,
         TextKind::kPlain, false);
  v.Text(Key("metrics_key_file", "Keys that a scraper must send, a key in each line."), log.metrics_key_file,
         TextKind::kFolder, false);
  v.Flag(Key("metrics_insecure", "Listen beyond loopback without keys."), log.metrics_insecure);
  v.Text(Key("webhook", "Gets notes when the job starts, fails and ends.").Form("URL"), log.webhook, TextKind::kPlain,
         false);
  v.Text(Key("webhook_file", "A file with that URL, if the URL is a secret."), log.webhook_file, TextKind::kFolder,
         false);
  v.OptionalSection(
      Key("wandb", "Logs the run in Weights & Biases.").Form("map of the keys below").Unset("none"), log.wandb,
      [](auto& w, tracking::WandbOptions& wandb) {
        w.Text(Key("project", "The project. `WANDB_PROJECT` comes before the default.").Unset("the job's name"),
               wandb.project, TextKind::kPlain, false);
        w.Text(Key("entity", "The user or team.").Unset("W&B's"), wandb.entity, TextKind::kPlain, false);
        w.Text(Key("name", "The run's name.").Unset("the job's name"), wandb.name, TextKind::kPlain, false);
        w.Text(Key("group", "Runs that belong together.").Unset("none; a sweep's name, in a sweep"), wandb.group,
               TextKind::kPlain, false);
        w.Texts(Key("tags", "Tags of the run."), wandb.tags);
        w.Word(Key("mode", "`auto`: `WANDB_MODE`, or else online if there is a key."), wandb.mode,
               {{"auto", "online", "offline"}, {}});
        w.Text(Key("folder", "Where the files go. `WANDB_DIR` comes before the default.").Unset("the job's folder"),
               wandb.folder, TextKind::kFolder, false);
      });
  v.OptionalSection(Key("mlflow", "Logs the run in MLflow.").Form("map of the keys below").Unset("none"), log.mlflow,
                    [](auto& m, tracking::MlflowOptions& mlflow) {
                      m.Text(Key("url", "The tracking server, without a user's name or password.")
                                 .Form("URL of http or https")
                                 .Unset("`MLFLOW_TRACKING_URI`"),
                             mlflow.url, TextKind::kPlain, false);
                      m.Text(Key("experiment", "The experiment. `MLFLOW_EXPERIMENT_NAME` comes before the default.")
                                 .Unset("the job's name; a sweep's, in a sweep"),
                             mlflow.experiment, TextKind::kPlain, false);
                      m.Text(Key("run_name", "The run's name.").Unset("the job's name"), mlflow.run_name,
                             TextKind::kPlain, false);
                      m.TextMap(Key("tags", "Tags of the run."), mlflow.tags);
                    });
  v.Text(Key("callbacks", "A Python file whose functions get the run's events.").Form("file"), log.callbacks,
         TextKind::kFolder, false);
  v.Text(Key("python", "Runs `callbacks` and W&B's package: a path, or a name in `PATH`."), log.python,
         TextKind::kPlain, true);
  v.MetricDefinitions(Key("metric_definitions", "Metrics found in the output of rank 0."), log.metric_definitions);
}

template <class Visitor>
void VisitSpec(Visitor& v, Spec& spec) {
  v.Text(Key("name", "Name of the job: in `millrace job status`, in the logs and for the state folder.")
             .Form("up to 63 letters, digits, `-` `_` `.`"),
         spec.name, TextKind::kPlain, true);
  v.Only(WithoutCommand(spec.run,
                        "leave it out: the program of run.command decides it; pass it on in run.command or "
                        "run.env"),
         [&](auto& o) {
           o.Section(Key("model", "The model that learns."), [&](auto& s) { VisitModel(s, spec.model); });
           o.Section(Key("data", "What it learns from."), [&](auto& s) { VisitData(s, spec.data); });
           o.Section(Key("train", "How it learns."),
                     [&](auto& s) { VisitTrain(s, spec.train, spec.data.dataset.objective); });
           o.OptionalSection(Key("lora", "Adapters that are trained in place of the model (LoRA)."), spec.lora,
                             [&](auto& s, LoraSpec& lora) { VisitLora(s, lora, spec.train); });
           o.Section(Key("eval", "Losses of records that are not trained on."),
                     [&](auto& s) { VisitEval(s, spec.eval); });
         });
  v.Section(Key("checkpoint", "Where the state of the run is saved, and when."),
            [&](auto& s) { VisitCheckpoint(s, spec.checkpoint, spec.run); });
  v.Section(Key("run", "What starts the ranks, and where."), [&](auto& s) { VisitRun(s, spec.run); });
  v.Section(Key("cost", "The price of the machines."), [&](auto& s) { VisitCost(s, spec.cost); });
  v.Section(Key("log", "What is told of the job, and to whom."), [&](auto& s) { VisitLog(s, spec.log); });
}

}  // namespace millrace::jobs
