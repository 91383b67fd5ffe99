#include "apps/millrace/data/data_flags.h"

#include "millrace/base/files/files.h"
#include "millrace/jobs/spec/spec.h"

namespace millrace::cli {
namespace {

bool IsJobFile(std::string_view name) { return name.ends_with(".yaml") || name.ends_with(".yml"); }

Result<data::SequenceMode> ParseMode(std::string_view name) {
  if (auto mode = data::ParseSequenceMode(name)) return *mode;
  return Fail(Code::kUnsupported, "data mode \"{}\" is not known; use pack, pad or sft", name);
}

Result<data::Objective> ParseObjectiveFlag(std::string_view name) {
  if (auto objective = data::ParseObjective(name)) return *objective;
  return Fail(Code::kInvalidArgument, "objective \"{}\" is not known; use causal_lm, mlm, classification or dpo", name);
}

Result<data::SplitPart> ParsePart(std::string_view name) {
  if (auto part = data::ParseSplitPart(name == "held-out" ? "held_out" : name)) return *part;
  return Fail(Code::kInvalidArgument, "part \"{}\" of the split is not known; use train or held_out", name);
}

Result<DataRequest> FromJob(const std::string& path, const std::vector<std::string>& set) {
  std::string text = MR_TRY(ReadFile(path));
  jobs::Spec job = MR_TRY(jobs::Spec::Parse(text, path, set));
  DataRequest request{.tokenizer = job.data.tokenizer,
                      .global_batch = job.train.global_batch,
                      .micro_batch = job.train.micro_batch,
                      .ranks = job.run.nodes * job.run.processes_per_node,
                      .steps = job.train.steps,
                      .epochs = job.train.epochs};
  request.options = job.data.dataset;
  // The disk cache is for the run. Commands that inspect the data must not fill it, nor wait for its folder.
  request.options.disk_cache.clear();
  return request;
}

Result<DataRequest> FromUrls(const DataFlags& flags) {
  if (!flags.weights.empty() && flags.weights.size() != flags.inputs.size()) {
    return Fail(Code::kInvalidArgument, "{} sources need as many weights, not {}", flags.inputs.size(),
                flags.weights.size());
  }
  DataRequest request;
  for (std::size_t i = 0; i < flags.inputs.size(); ++i) {
    if (IsJobFile(flags.inputs[i])) {
      return Fail(Code::kInvalidArgument, "{}: give either one job file or the URLs of the data", flags.inputs[i]);
    }
    const double weight = flags.weights.empty() ? 1.0 : flags.weights[i];
    request.options.sources.push_back({flags.inputs[i], weight, flags.format, flags.split});
  }
  return request;
}

}  // namespace

std::string Unescape(std::string_view text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    char next = i + 1 < text.size() ? text[i + 1] : '\0';
    bool escape = text[i] == '\\' && (next == 'n' || next == 't' || next == '\\');
    plain += !escape ? text[i] : next == 'n' ? '\n' : next == 't' ? '\t' : '\\';
    i += escape;
  }
  return plain;
}

void AddDataFlags(CLI::App& command, DataFlags& flags) {
  command.add_option("inputs", flags.inputs, "JOB.yaml, or objects, prefixes, globs and @lists of records")->required();
  command.add_option("--set", flags.set, "Change a key of the job file: data.sequence_length=512");
  command.add_option("--weight", flags.weights, "Passes over each source in an epoch, in the order of the sources");
  command.add_option("--format", flags.format,
                     "jsonl, json[:FIELD], objects, lines, text, csv, tsv, tar, arrow, parquet, hdf5 (default: as "
                     "names say); csv and tsv "
                     "may end in +no_header, and tsv in +quotes");
  command.add_option("--split", flags.split,
                     "Split of a Hugging Face data set: train; or write #config:train behind the URL");
  command.add_option("--max-broken", flags.max_broken, "Most records that may be unusable (default 100, or 0.1 %)");
  command.add_option("--tokenizer", flags.tokenizer, kTokenizerHelp);
  command.add_option("--template", flags.template_text, "Fields in braces (default {text})");
  command.add_option("--objective", flags.objective,
                     "causal_lm, mlm, classification or dpo (default causal_lm); a job file has their settings");
  command.add_option("--mode", flags.mode, "pack, pad or sft (default pack)");
  command.add_option(
      "--layout", flags.layout,
      "Chat format of sft: alpaca, guanaco, turns, llama2, llama3, chatml, zephyr or gemma (default: the templates)");
  command.add_option("--response", flags.response, "Template of the answer in sft (default {response})");
  command.add_option("--instruction-template", flags.instruction_template,
                     "With --layout turns: the text that begins a prompt (default: only the last answer is learnt)");
  command.add_option("--response-template", flags.response_template,
                     "With --layout turns: the text that begins an answer");
  command.add_flag("--best-fit", flags.best_fit, "With pad and sft: fill rows with several whole documents");
  command.add_flag("--split-long", flags.split_long, "With pad: divide long documents into several samples");
  command.add_flag("--boundaries", flags.boundaries, "Keep documents that share a row apart");
  command.add_option("--held-out", flags.held_out, "Share of the records to hold out, chosen by their content")
      ->check(CLI::Range(0.0, 0.999));
  command.add_option("--part", flags.part, "train or held_out (default train)");
  command.add_option("--split-seed", flags.split_seed, "Default 1");
  command.add_option("--sequence-length", flags.sequence_length, "Tokens (default 256)")->check(CLI::PositiveNumber);
  command.add_option("--shuffle-seed", flags.seed, "Default 1");
  command.add_option("--shuffle-window", flags.window, "Records; 0: keep the order of the sources");
  command.add_option("--index-cache", flags.index_cache, "URL for indexes when the data's bucket is read-only");
  command.add_option("--threads", flags.threads, "Threads that tokenize (default 2)")->check(CLI::Range(1, 512));
}

Result<DataRequest> ResolveDataFlags(const DataFlags& flags) {
  bool job = flags.inputs.size() == 1 && IsJobFile(flags.inputs[0]);
  if (!job && !flags.set.empty()) return Fail(Code::kInvalidArgument, "--set changes a job file, and none is given");
  DataRequest request = job ? MR_TRY(FromJob(flags.inputs[0], flags.set)) : MR_TRY(FromUrls(flags));
  data::DatasetOptions& options = request.options;
  if (!flags.tokenizer.empty()) request.tokenizer = flags.tokenizer;
  if (!flags.template_text.empty()) options.template_text = Unescape(flags.template_text);
  if (!flags.objective.empty()) options.objective = MR_TRY(ParseObjectiveFlag(flags.objective));
  if (!flags.mode.empty()) options.mode = MR_TRY(ParseMode(flags.mode));
  if (!flags.layout.empty()) options.layout = flags.layout == "template" ? "" : flags.layout;
  if (!flags.response.empty()) options.response_text = Unescape(flags.response);
  if (!flags.instruction_template.empty()) options.instruction_template = Unescape(flags.instruction_template);
  if (!flags.response_template.empty()) options.response_template = Unescape(flags.response_template);
  options.best_fit |= flags.best_fit;
  options.split_long |= flags.split_long;
  options.boundaries |= flags.boundaries;
  options.split.held_out = flags.held_out.value_or(options.split.held_out);
  if (!flags.part.empty()) options.split.part = MR_TRY(ParsePart(flags.part));
  options.split.seed = flags.split_seed.value_or(options.split.seed);
  if (flags.sequence_length > 0) options.sequence_length = flags.sequence_length;
  if (flags.threads > 0) options.threads = flags.threads;
  if (flags.global_batch > 0) request.global_batch = flags.global_batch;
  options.shuffle_seed = flags.seed.value_or(options.shuffle_seed);
  options.shuffle_window = flags.window.value_or(options.shuffle_window);
  if (flags.max_broken) options.max_broken = flags.max_broken;
  if (!flags.format.empty() && job) {
    return Fail(Code::kInvalidArgument, "--format is for URLs; a job file's sources have a format each");
  }
  if (!flags.split.empty() && job) {
    return Fail(Code::kInvalidArgument, "--split is for URLs; a job file's sources have a split each");
  }
  if (!flags.index_cache.empty()) options.cache_url = flags.index_cache;
  return request;
}

}  // namespace millrace::cli
