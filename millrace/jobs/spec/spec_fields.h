// The list of all keys of the job file. Reading, printing and the guide's test all use this one list.
#pragma once

#include <fmt/format.h>

#include <array>
#include <string>
#include <string_view>

#include "millrace/base/bytes.h"
#include "millrace/engine/config/families.h"
#include "millrace/jobs/spec/run_fields.h"
#include "millrace/jobs/spec/spec.h"
#include "millrace/jobs/spec/spec_parallel.h"
#include "millrace/jobs/spec/spec_visitor.h"

namespace millrace::jobs {

inline constexpr int kMostRanks = 1 << 24, kMostStages = 1024, kMostMicrobatches = 1 << 20;
/// Keys that `layout: auto` chooses the values of.
inline constexpr std::string_view kChosenKeys[] = {"data",
                                                   "shard",
                                                   "tensor",
                                                   "sequence",
                                                   "schedule",
                                                   "pipeline",
                                                   "virtual_stages",
                                                   "zero",
                                                   "reshard",
                                                   "overlap",
                                                   "recompute",
                                                   "recompute_every",
                                                   "offload_activations",
                                                   "microbatches",
                                                   "partitions",
                                                   "active_microbatches",
                                                   "overlapping_allreduce"};

template <class Visitor>
void VisitModel(Visitor& v, ModelSpec& model) {
  v.Family("family", model.family);
  v.Text("from", model.from, TextKind::kUrl, false);
  v.OptionalInteger("num_labels", model.num_labels, 1, 1 << 20);
  if (!model.from.empty()) {
    return v.Refused("config", Code::kInvalidArgument, "leave it out: the folder of model.from has a config.json");
  }
  v.Section("config", [&](auto& c) {
    c.Integer("hidden_size", model.hidden_size, 8, 65536);
    c.Integer("num_layers", model.num_layers, 1, 1024);
    c.Integer("num_heads", model.num_heads, 1, 1024);
    c.OptionalInteger("num_kv_heads", model.num_kv_heads, 1, 1024);
    c.OptionalInteger("intermediate_size", model.intermediate_size, 1, 1 << 20);
    c.Integer("vocab_size", model.vocab_size, 0, 1 << 22);
    c.Integer("max_position_embeddings", model.max_position_embeddings, 0, 1 << 24);
    const engine::ModelFamily* family = engine::FindFamily(model.family);
    if (family != nullptr) c.Options(family->options, model.options);
  });
}

/// Visits a word whose value is not stored as text.
template <class Visitor, class Value, class Name, class Parse>
void VisitWordOf(Visitor& v, std::string_view key, Value& value, Choice choice, Name name, Parse parse) {
  std::string word(name(value));
  v.Word(key, word, choice);
  value = parse(word);
}

template <class Visitor>
void VisitSource(Visitor& v, data::DataSource& source) {
  v.Text("url", source.url, TextKind::kData, true);
  v.Number("weight", source.weight, 1e-6, 1000);
  v.Text("format", source.format, TextKind::kPlain, false);
  v.Text("split", source.split, TextKind::kPlain, false);
}

/// Refuses keys that belong only to other values of `name` in the same section.
template <class Visitor>
void RefuseKeys(Visitor& v, std::string_view name, std::initializer_list<std::string_view> keys) {
  for (const std::string_view key : keys) {
    v.Refused(key, Code::kInvalidArgument, fmt::format("leave it out: {} has no {}", name, key));
  }
}

template <class Visitor>
void VisitLayout(Visitor& v, data::DatasetOptions& data, std::initializer_list<std::string_view> words) {
  VisitWordOf(
      v, "layout", data.layout, {words, {}},
      [](const std::string& layout) { return layout.empty() ? "template" : layout; },
      [](const std::string& word) { return word == "template" ? "" : word; });
}

/// Visits the keys of rows that one objective has and the others lack.
template <class Visitor>
void VisitRows(Visitor& v, data::DatasetOptions& data) {
  const std::string objective = fmt::format("train.objective {}", data::ObjectiveName(data.objective));
  if (data.objective != data::Objective::kMlm) RefuseKeys(v, objective, {"mlm"});
  if (data.objective != data::Objective::kClassification) RefuseKeys(v, objective, {"classification"});
  if (data.objective != data::Objective::kDpo) RefuseKeys(v, objective, {"preference"});
  if (data.objective == data::Objective::kCausalLm) {
    VisitWordOf(v, "mode", data.mode, {{"pack", "pad", "sft"}, {}}, data::SequenceModeName,
                [&](const std::string& word) { return data::ParseSequenceMode(word).value_or(data.mode); });
    VisitLayout(v, data, {"template", "alpaca", "guanaco", "turns", "llama2", "llama3", "chatml", "zephyr", "gemma"});
    v.Text("response", data.response_text, TextKind::kPlain, true);
    if (data.layout == "turns") {
      v.Text("instruction_template", data.instruction_template, TextKind::kPlain, false);
      v.Text("response_template", data.response_template, TextKind::kPlain, true);
    } else {
      RefuseKeys(v, "another layout than turns", {"instruction_template", "response_template"});
    }
    v.Flag("best_fit", data.best_fit);
    v.Flag("split_long", data.split_long);
    v.Flag("boundaries", data.boundaries);
    return;
  }
  RefuseKeys(v, objective,
             {"mode", "response", "instruction_template", "response_template", "split_long", "boundaries"});
  if (data.objective == data::Objective::kDpo) {
    v.Flag("best_fit", data.best_fit);
    VisitLayout(v, data, {"template", "llama2", "llama3", "chatml", "zephyr", "gemma"});
    if (!data.layout.empty()) return RefuseKeys(v, "a layout of conversations", {"preference"});
    return v.Section("preference", [&](auto& p) {
      p.Text("prompt", data.preference.prompt, TextKind::kPlain, true);
      p.Text("chosen", data.preference.chosen, TextKind::kPlain, true);
      p.Text("rejected", data.preference.rejected, TextKind::kPlain, true);
    });
  }
  RefuseKeys(v, objective, {"layout", "best_fit"});
  if (data.objective == data::Objective::kMlm) {
    v.Section("mlm", [&](auto& m) {
      m.Number("probability", data.mlm.probability, 1e-6, 0.999);
      m.OptionalInteger("max_predictions", data.mlm.max_predictions, 1, 1 << 20);
      m.Flag("whole_word", data.mlm.whole_word);
      m.Flag("next_sentence", data.mlm.next_sentence);
      m.Number("short_sequences", data.mlm.short_sequences, 0, 1);
    });
  } else {
    v.Section("classification", [&](auto& c) {
      c.Text("text", data.classification.text, TextKind::kPlain, true);
      c.Text("pair", data.classification.pair, TextKind::kPlain, false);
      c.Text("label", data.classification.label, TextKind::kPlain, true);
      c.Texts("classes", data.classification.classes);
    });
  }
}

template <class Visitor>
void VisitData(Visitor& v, DataSpec& spec) {
  data::DatasetOptions& data = spec.dataset;
  v.Sources("sources", data.sources);
  if (data.objective == data::Objective::kClassification || data.objective == data::Objective::kDpo) {
    RefuseKeys(v, fmt::format("train.objective {}", data::ObjectiveName(data.objective)), {"template"});
  } else {
    v.Text("template", data.template_text, TextKind::kPlain, true);
  }
  v.Text("tokenizer", spec.tokenizer, TextKind::kUrl, true);
  v.Integer("sequence_length", data.sequence_length, 2, 1 << 20);
  VisitRows(v, data);
  v.Section("split", [&](auto& s) {
    s.Number("held_out", data.split.held_out, 0, 0.999);
    VisitWordOf(s, "part", data.split.part, {{"train", "held_out"}, {}}, data::SplitPartName,
                [&](const std::string& word) { return data::ParseSplitPart(word).value_or(data.split.part); });
    s.Integer("seed", data.split.seed, 0, kAnyCount);
  });
  v.Section("shuffle", [&](auto& s) {
    s.Integer("seed", data.shuffle_seed, 0, kAnyCount);
    s.Integer("window", data.shuffle_window, 0, std::int64_t{1} << 40);
  });
  v.OptionalInteger("max_broken", data.max_broken, 0, kAnyCount);
  v.Flag("same_by_size", data.same_by_size);
  v.Text("index_cache", data.cache_url, TextKind::kUrl, false);
  v.Section("cache", [&](auto& c) {
    std::string path = data.disk_cache.native();
    c.Text("path", path, TextKind::kFolder, false);
    data.disk_cache = path;
    c.Bytes("size", data.disk_cache_bytes, 3 * kMiB);
  });
  v.Integer("threads", data.threads, 1, 256);
}

template <class Visitor>
void VisitOptimizer(Visitor& v, OptimizerSpec& optimizer) {
  v.Word("name", optimizer.name, {{"adamw", "lamb", "sgd"}, {}});
  v.Number("lr", optimizer.lr, 1e-12, 10);
  if (optimizer.name == "sgd") {
    v.Number("momentum", optimizer.sgd.momentum, 0, 0.999999);
    v.Flag("nesterov", optimizer.sgd.nesterov);
    v.Number("weight_decay", optimizer.sgd.weight_decay, 0, 10);
    RefuseKeys(v, optimizer.name, {"betas", "eps"});
  } else {
    AdamSpec& adam = optimizer.name == "lamb" ? optimizer.lamb : optimizer.adamw;
    v.TwoNumbers("betas", adam.beta1, adam.beta2, 0, 0.999999);
    v.Number("eps", adam.eps, 1e-20, 1);
    v.Number("weight_decay", adam.weight_decay, 0, 10);
    RefuseKeys(v, optimizer.name, {"momentum", "nesterov"});
  }
  v.Texts("no_decay", optimizer.no_decay);
  v.Number("clip_norm", optimizer.clip_norm, 0, 1e9);
  v.Word("moments", optimizer.moments, {{"f32", "bf16"}, {}});
  v.Flag("stochastic_rounding", optimizer.stochastic_rounding);
  v.Flag("offload", optimizer.offload);
}

template <class Visitor>
void VisitSchedule(Visitor& v, ScheduleSpec& schedule) {
  v.Word("name", schedule.name, {{"cosine", "constant", "linear", "polynomial", "wsd", "inverse_sqrt"}, {}});
  v.Integer("warmup_steps", schedule.warmup_steps, 0, std::int64_t{1} << 40);
  v.Number("warmup_proportion", schedule.warmup_proportion, 0, 1);
  if (schedule.name == "constant") {
    RefuseKeys(v, schedule.name, {"min_lr"});
  } else {
    v.Number("min_lr", schedule.min_lr, 0, 10);
  }
  if (schedule.name == "polynomial") {
    v.Number("power", schedule.power, 1e-3, 100);
  } else {
    RefuseKeys(v, schedule.name, {"power"});
  }
  if (schedule.name == "wsd") {
    v.Number("stable_share", schedule.stable_share, 0, 1);
    v.Word("decay", schedule.decay, {{"1-sqrt", "linear"}, {}});
  } else {
    RefuseKeys(v, schedule.name, {"stable_share", "decay"});
  }
  if (schedule.name == "inverse_sqrt") {
    v.Integer("timescale", schedule.timescale, 0, std::int64_t{1} << 40);
  } else {
    RefuseKeys(v, schedule.name, {"timescale"});
  }
}

template <class Visitor>
void VisitPlacement(Visitor& v, std::string_view key, std::string& placement) {
  v.Word(key, placement, {{"cluster", "spread", "DPT", "DTP", "PDT", "PTD", "TDP", "TPD"}, {}});
}

/// The words of SageMaker's model-parallel library.
template <class Reader>
void ReadSageMakerWords(Reader& r, ParallelSpec& parallel) {
  engine::ParallelOptions& options = parallel.options;
  std::optional<int> partitions, active;
  std::optional<bool> ddp, overlapping;
  r.OptionalInteger("partitions", partitions, 1, kMostStages);
  if (partitions && options.pipeline != 1 && options.pipeline != *partitions) {
    return r.Refused("partitions", Code::kInvalidArgument, fmt::format("pipeline says {} stages", options.pipeline));
  }
  options.pipeline = partitions.value_or(options.pipeline);
  VisitPlacement(r, "placement_strategy", options.placement);
  r.OptionalFlag("ddp", ddp);
  if (ddp == false) {
    if (options.data > 1) return r.Refused("ddp", Code::kInvalidArgument, fmt::format("data says {}", options.data));
    options.data = 1;
  }
  r.OptionalInteger("active_microbatches", active, 1, kMostMicrobatches);
  const bool is_simple = options.schedule == engine::PipelineSchedule::kSimple;
  const int in_flight = is_simple ? parallel.microbatches.value_or(kMostMicrobatches) : options.pipeline;
  if (active && *active < in_flight) {
    r.Refused("active_microbatches", Code::kInvalidArgument,
              is_simple ? "schedule simple keeps all micro-batches of a step in flight; use schedule: 1f1b"
                        : fmt::format("a pipeline of {} stages keeps up to {} micro-batches in flight",
                                      options.pipeline, options.pipeline));
  }
  r.OptionalFlag("overlapping_allreduce", overlapping);
  options.overlap = overlapping.value_or(options.overlap);
}

template <class Visitor>
void VisitParallel(Visitor& v, ParallelSpec& parallel) {
  engine::ParallelOptions& options = parallel.options;
  std::string layout = parallel.automatic ? "auto" : "given";
  v.Word("layout", layout, {{"given", "auto"}, {}});
  parallel.automatic = layout == "auto";
  VisitPlacement(v, "placement", options.placement);
  v.Word("optimize", parallel.optimize, {{"speed", "memory"}, {}});
  v.OptionalNumber("memory_weight", parallel.memory_weight, 0, 1);
  VisitWordOf(
      v, "reduce", options.reduce_in_bf16, {{"f32", "bf16"}, {}}, [](bool bf16) { return bf16 ? "bf16" : "f32"; },
      [](const std::string& word) { return word == "bf16"; });
  if (parallel.automatic) {
    for (const std::string_view key : kChosenKeys)
      v.Refused(key, Code::kInvalidArgument, "leave it out: layout auto chooses it");
    return;
  }
  v.Extent("data", options.data, kMostRanks);
  v.Extent("shard", options.shard, kMostRanks);
  v.Integer("tensor", options.tensor, 1, 1024);
  v.Flag("sequence", options.sequence);
  VisitWordOf(v, "schedule", options.schedule, {{"1f1b", "simple", "interleaved", "zero_bubble"}, {}},
              engine::PipelineScheduleName,
              [&](const std::string& word) { return engine::ParsePipelineSchedule(word).value_or(options.schedule); });
  v.StagesOrSchedule("pipeline", options.pipeline, options.schedule, kMostStages);
  v.Integer("virtual_stages", options.virtual_stages, 1, 1024);
  v.Integer("zero", options.zero, 0, 3);
  v.Flag("reshard", options.reshard);
  v.Flag("overlap", options.overlap);
  VisitWordOf(v, "recompute", options.recompute, {{"none", "selective", "full"}, {}}, engine::RecomputeName,
              [&](const std::string& word) { return engine::ParseRecompute(word).value_or(options.recompute); });
  v.Integer("recompute_every", options.recompute_every, 1, 1024);
  v.Flag("offload_activations", options.offload_activations);
  v.OptionalInteger("microbatches", parallel.microbatches, 1, kMostMicrobatches);
  v.OnlyRead([&](auto& r) {
    ReadSageMakerWords(r, parallel);
    r.RefuseWords(ForeignParallelWords());
  });
}

/// `objective` is a member of the data's options, because it decides what rows hold.
template <class Visitor>
void VisitTrain(Visitor& v, TrainSpec& train, data::Objective& objective) {
  VisitWordOf(v, "objective", objective, {{"causal_lm", "mlm", "classification", "dpo"}, {}}, data::ObjectiveName,
              [&](const std::string& word) { return data::ParseObjective(word).value_or(objective); });
  v.OptionalNumber("epochs", train.epochs, 1e-6, 1e6);
  v.OptionalInteger("steps", train.steps, 1, std::int64_t{1} << 40);
  v.OptionalInteger("steps_this_run", train.steps_this_run, 1, std::int64_t{1} << 40);
  v.Integer("global_batch", train.global_batch, 1, 1 << 24);
  v.Integer("micro_batch", train.micro_batch, 1, 1 << 16);
  v.Word("precision", train.precision, {{"f32", "tf32", "bf16", "fp16", "fp8"}, {}});
  v.Word("fp8_scaling", train.fp8_scaling, {{"current", "delayed", "block"}, {}});
  v.Word("device", train.device, {{"auto", "cpu", "cuda"}, {}});
  v.Texts("freeze", train.freeze);
  v.Section("optimizer", [&](auto& s) { VisitOptimizer(s, train.optimizer); });
  v.Section("schedule", [&](auto& s) { VisitSchedule(s, train.schedule); });
  v.Number("neftune_alpha", train.neftune_alpha, 0, 1e6);
  if (objective == data::Objective::kDpo) {
    RefuseKeys(v, "train.objective dpo", {"loss"});
    v.Section("dpo", [&](auto& s) {
      s.Number("beta", train.dpo.beta, 1e-6, 1e3);
      s.Word("loss_type", train.dpo.loss_type, {{"sigmoid", "ipo"}, {}});
      if (train.dpo.loss_type == "sigmoid") {
        s.Number("label_smoothing", train.dpo.label_smoothing, 0, 0.5);
      } else {
        RefuseKeys(s, train.dpo.loss_type, {"label_smoothing"});
      }
    });
  } else {
    RefuseKeys(v, fmt::format("train.objective {}", data::ObjectiveName(objective)), {"dpo"});
    v.Section("loss", [&](auto& s) {
      s.Number("label_smoothing", train.loss.label_smoothing, 0, 0.999);
      s.Number("z_loss", train.loss.z_loss, 0, 1);
    });
  }
  v.Section("spikes", [&](auto& s) {
    s.Word("action", train.spikes.action, {{"none", "skip_step", "roll_back"}, {}});
    s.Number("sigma", train.spikes.sigma, 1, 1000);
    s.Integer("window", train.spikes.window, 4, 1 << 20);
  });
  v.SectionOr("parallel", "auto", train.parallel.automatic, [&](auto& p) { VisitParallel(p, train.parallel); });
  v.Refused("lora", Code::kInvalidArgument, "leave it out here: lora is a key beside train");
  v.Word("compile", train.compile, {{"auto", "on", "off"}, {}});
  v.Text("compile_cache", train.compile_cache, TextKind::kUrl, false);
  v.OptionalSection("profile", train.profile, [](auto& p, ProfileSpec& profile) {
    p.FirstAndLast("steps", profile.first_step, profile.last_step);
  });
  v.Integer("seed", train.seed, 0, kAnyCount);
  v.Integer("threads", train.threads, 0, 1024);
}

template <class Visitor>
void VisitLora(Visitor& v, LoraSpec& lora, const std::string& precision) {
  engine::LoraOptions& options = lora.options;
  v.Text("adapter", lora.adapter, TextKind::kUrl, false);
  if (lora.adapter.empty()) {
    v.Integer("r", options.rank, 1, 1 << 16);
    v.Number("alpha", options.alpha, 1e-6, 1e6);
    v.Flag("rslora", options.rslora);
    v.Flag("dora", options.dora);
    v.TextOrTexts("targets", options.targets);
  } else {
    for (const char* key : {"r", "alpha", "rslora", "dora", "targets"}) {
      v.Refused(key, Code::kInvalidArgument, "leave it out: the adapter's configuration says it");
    }
  }
  v.Number("dropout", options.dropout, 0, 0.999);
  v.Number("loraplus_lr_ratio", lora.loraplus_lr_ratio, 1e-6, 1e6);
  if (lora.base.empty()) lora.base = precision;
  v.Word("base", lora.base, {{"f32", "tf32", "bf16", "fp16", "fp8", "int8", "nf4"}, {}});
}

template <class Visitor>
void VisitEval(Visitor& v, EvalSpec& eval) {
  v.Integer("every_steps", eval.every_steps, 0, std::int64_t{1} << 40);
  v.Integer("samples", eval.samples, 1, 1 << 24);
  v.OptionalSources("sources", eval.sources);
  if (eval.sources.empty()) {
    v.Neutral("held_out", "true");
  } else {
    v.Refused("held_out", Code::kInvalidArgument, "leave it out: eval.sources are evaluated");
  }
  v.Words("metrics", eval.metrics, {{"loss", "perplexity", "accuracy"}, {}});
}

template <class Visitor>
void VisitCheckpoint(Visitor& v, CheckpointSpec& checkpoint) {
  v.Text("url", checkpoint.url, TextKind::kUrl, false);
  v.Refused("path", Code::kInvalidArgument, "leave it out: it is for run.command");
  v.Integer("every_steps", checkpoint.every_steps, 1, std::int64_t{1} << 40);
  v.Integer("keep_last", checkpoint.keep_last, 1, 1 << 20);
  v.Integer("keep_every", checkpoint.keep_every, 0, std::int64_t{1} << 40);
  v.Section("best", [&](auto& b) {
    b.Integer("keep", checkpoint.keep_best, 0, 1 << 20);
    b.Text("metric", checkpoint.best_metric, TextKind::kPlain, true);
    b.Word("mode", checkpoint.best_mode, {{"min", "max"}, {}});
  });
  v.Word("when_busy", checkpoint.when_busy, {{"wait", "skip", "delay"}, {}});
  v.Bytes("bandwidth", checkpoint.bandwidth, 0);
  v.TimeLimit("upload_limit", checkpoint.upload_limit, "none");
  v.Section("local", [&](auto& l) {
    l.Text("path", checkpoint.local_path, TextKind::kFolder, false);
    l.Integer("every_steps", checkpoint.local_every_steps, 1, std::int64_t{1} << 40);
    l.Integer("keep", checkpoint.local_keep, 1, 1 << 20);
    l.Integer("copies", checkpoint.local_copies, 1, 16);
    l.Flag("beside", checkpoint.local_beside);
  });
}

template <class Visitor>
void VisitCost(Visitor& v, CostSpec& cost) {
  v.Number("price_per_hour", cost.price_per_hour, 0, 1e9);
  v.Text("currency", cost.currency, TextKind::kPlain, true);
  v.OptionalNumber("cap", cost.cap, 0, 1e12);
}

template <class Visitor>
void VisitLog(Visitor& v, LogSpec& log) {
  v.Integer("every_steps", log.every_steps, 1, std::int64_t{1} << 40);
  v.Text("url", log.url, TextKind::kUrl, false);
  v.Text("tensorboard", log.tensorboard, TextKind::kUrl, false);
  v.Section("histograms", [&](auto& h) { h.Integer("every_steps", log.histograms_every, 0, std::int64_t{1} << 40); });
  v.Text("metrics_listen", log.metrics_listen, TextKind::kPlain, false);
  v.Text("metrics_key_file", log.metrics_key_file, TextKind::kFolder, false);
  v.Flag("metrics_insecure", log.metrics_insecure);
  v.Text("webhook", log.webhook, TextKind::kPlain, false);
  v.Text("webhook_file", log.webhook_file, TextKind::kFolder, false);
  v.MetricDefinitions("metric_definitions", log.metric_definitions);
}

/// The sections of a job whose ranks run a program of the user's own.
template <class Visitor>
void VisitForeign(Visitor& v, Spec& spec) {
  RefuseKeys(v, {"model", "data", "train", "lora", "eval"},
             "leave it out: the program of run.command decides it; pass it on in run.command or run.env");
  v.Section("checkpoint", [&](auto& s) {
    s.Text("url", spec.checkpoint.url, TextKind::kUrl, false);
    s.Text("path", spec.checkpoint.path, TextKind::kFolder, false);
    RefuseKeys(s, {"every_steps", "keep_last", "keep_every", "best", "when_busy", "bandwidth", "upload_limit", "local"},
               "leave it out: the program of run.command saves its checkpoints");
  });
}

template <class Visitor>
void VisitSpec(Visitor& v, Spec& spec) {
  v.Text("name", spec.name, TextKind::kPlain, true);
  if (spec.run.command.empty()) {
    v.Section("model", [&](auto& s) { VisitModel(s, spec.model); });
    v.Section("data", [&](auto& s) { VisitData(s, spec.data); });
    v.Section("train", [&](auto& s) { VisitTrain(s, spec.train, spec.data.dataset.objective); });
    v.OptionalSection("lora", spec.lora, [&](auto& s, LoraSpec& lora) { VisitLora(s, lora, spec.train.precision); });
    v.Section("eval", [&](auto& s) { VisitEval(s, spec.eval); });
    v.Section("checkpoint", [&](auto& s) { VisitCheckpoint(s, spec.checkpoint); });
  } else {
    VisitForeign(v, spec);
  }
  v.Section("run", [&](auto& s) { VisitRun(s, spec.run); });
  v.Section("cost", [&](auto& s) { VisitCost(s, spec.cost); });
  v.Section("log", [&](auto& s) { VisitLog(s, spec.log); });
}

}  // namespace millrace::jobs
