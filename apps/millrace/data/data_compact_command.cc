// millrace data compact
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/common/flag_checks.h"
#include "apps/millrace/cli/cli.h"
#include "apps/millrace/cli/progress.h"
#include "apps/millrace/data/data_flags.h"
#include "millrace/base/process/cores.h"
#include "millrace/base/text.h"
#include "millrace/data/compact/compact.h"
#include "millrace/data/compact/compact_report.h"
#include "millrace/jobs/health/node_checks.h"

namespace millrace::cli {
namespace {

struct CompactFlags {
  DataFlags data;
  std::string output, shard_size = "128MiB", compression = "none", dedup = "none";
  double similarity = 0.8;
  std::optional<std::uint64_t> min_chars, max_chars;
  std::vector<std::string> match, reject, scripts, languages, held_out;
  std::string index_memory;
  std::size_t held_out_words = 13;
  int threads = 0;  ///< 0: one a core
  bool force = false;
};

Result<data::CompactOptions> ResolveFlags(const Context& context, const CompactFlags& flags) {
  const DataRequest request = MR_TRY(ResolveDataFlags(flags.data));
  const std::uint64_t shard_bytes = MR_TRY(ParseBytes(flags.shard_size));
  data::CompactOptions options{.sources = request.options.sources,
                               .template_text = request.options.template_text,
                               .output = flags.output,
                               .shard_bytes = shard_bytes,
                               .similarity = flags.similarity,
                               .min_chars = flags.min_chars,
                               .max_chars = flags.max_chars,
                               .match = flags.match,
                               .reject = flags.reject,
                               .scripts = flags.scripts,
                               .languages = flags.languages,
                               .held_out_words = flags.held_out_words,
                               .force = flags.force,
                               .dry_run = context.globals.dry_run};
  if (!flags.index_memory.empty()) {
    options.index_bytes = MR_TRY(ParseBytes(flags.index_memory));
  } else if (const auto memory = jobs::ReadMemoryState({})) {
    options.index_bytes = memory->available / 4 * 3;
  }
  if (flags.compression == "gzip") options.compression = data::Compression::kGzip;
  if (flags.compression == "zstd") options.compression = data::Compression::kZstd;
  if (flags.dedup == "exact") options.duplicates = data::DuplicateSearch::kExact;
  if (flags.dedup == "near") options.duplicates = data::DuplicateSearch::kNear;
  for (const std::string& url : flags.held_out) options.held_out.push_back({.url = url});
  options.threads = flags.threads > 0 ? flags.threads : UsableCores();
  return options;
}

void PrintCompacted(const Context& context, const data::CompactOptions& options, const data::CompactResult& done,
                    Duration took) {
  if (context.globals.json) {
    Json line{{"event", options.dry_run ? "would_compact" : "compacted"},
              {"output", options.output},
              {"resumed", done.resumed}};
    line.update(done.report);
    PrintJsonLine(line);
    return;
  }
  if (context.globals.quiet) return;
  auto counted = [](std::uint64_t count, std::string_view noun) {
    return fmt::format("{} {}{}", FormatCount(count), noun, count == 1 ? "" : "s");
  };
  const std::string read = counted(done.report["read"]["objects"], "object");
  if (options.dry_run) {
    cli::Print("nothing is written (--dry-run); {} read in {}\n", read, FormatDuration(took));
  } else {
    cli::Print("{}: {} became {} in {}{}\n", options.output, read, counted(done.report["shards"].size(), "shard"),
               FormatDuration(took), done.resumed ? ", begun by an earlier run" : "");
  }
  cli::Print("{}", data::CompactReportText(done.report));
}

Result<int> RunCompact(const Context& context, const CompactFlags& flags) {
  const data::CompactOptions options = MR_TRY(ResolveFlags(context, flags));
  auto connection = MR_TRY(context.Connect());
  const TimePoint began = SystemClock().Now();
  transfer::BatchCounters counters;
  std::unique_ptr<ProgressLine> line;
  if (WantsProgress(context.globals.progress, context.globals.quiet, context.globals.json)) {
    line = std::make_unique<ProgressLine>(counters);
  }
  auto progress = [&](std::uint64_t done, std::uint64_t known) {
    counters.all_known = true;
    counters.bytes_known = known;
    counters.bytes_moved = done;
  };
  auto done = data::Compact(*connection, options, progress, context.log(), {.stop = context.stop});
  line.reset();
  if (!done) return Fail(done.error());
  PrintCompacted(context, options, *done, SystemClock().Now() - began);
  return kExitOk;
}

}  // namespace

void AddDataCompactCommand(CLI::App& group, Context& context) {
  auto flags = std::make_shared<CompactFlags>();
  CLI::App* command =
      AddCommand(group, context, "compact", "Merge records into few shards, without duplicates and unwanted records",
                 "  millrace data compact s3://corpus/pages/ --output s3://corpus/compacted/ --compression zstd\n"
                 "  millrace data compact 's3://corpus/*/*.parquet' --output s3://corpus/clean/ --dedup near \\\n"
                 "      --min-chars 200 --script Latin --held-out s3://corpus/test.jsonl\n"
                 "  millrace data compact job.yaml --dry-run --dedup near     # only says what would go, and why\n"
                 "The shards and report.json appear when all are there.",
                 [&context, flags] {
                   Result<int> status = RunCompact(context, *flags);
                   return status ? *status : ReportError(context, status.error());
                 });
  command->add_option("inputs", flags->data.inputs, "JOB.yaml, or objects, prefixes, globs and @lists of records")
      ->required();
  command->add_option("--output", flags->output, "URL of a folder for the shards and report.json");
  command->add_option("--set", flags->data.set, "Change a key of the job file: data.template='{title}'");
  command->add_option("--format", flags->data.format,
                      "Format of the records (default: as names say); see data inspect");
  command->add_option("--split", flags->data.split,
                      "Split of a Hugging Face data set: train; or write #config:train behind the URL");
  command->add_option("--template", flags->data.keys["template"],
                      "Text of a record that filters and duplicates are about: fields in braces (default: {text})");
  command->add_option("--shard-size", flags->shard_size, "Size of a shard before compression, up to 1GiB")
      ->capture_default_str();
  command->add_option("--compression", flags->compression, "none, gzip or zstd")
      ->capture_default_str()
      ->check(OneOf({"none", "gzip", "zstd"}));
  command
      ->add_option("--dedup", flags->dedup,
                   "none; exact: remove records with the text of an earlier one; near: also nearly the text")
      ->capture_default_str()
      ->check(OneOf({"none", "exact", "near"}));
  command
      ->add_option("--similarity", flags->similarity,
                   "With near: the least share of runs of 5 words that duplicates have in common, 0.5 to 1")
      ->capture_default_str();
  command->add_option("--min-chars", flags->min_chars, "Remove shorter texts");
  command->add_option("--max-chars", flags->max_chars, "Remove longer texts");
  command->add_option("--match", flags->match, "Keep texts in which this regular expression (RE2) matches somewhere")
      ->allow_extra_args(false);
  command->add_option("--reject", flags->reject, "Remove texts in which this regular expression matches somewhere")
      ->allow_extra_args(false);
  command
      ->add_option("--script", flags->scripts,
                   "Keep texts with most letters of these scripts: Latin,Han; data inspect --text names those there")
      ->delimiter(',')
      ->allow_extra_args(false);
  command
      ->add_option("--language", flags->languages,
                   "Keep texts that may be of these languages: en,de; unknown: too short to tell (needs libexttextcat)")
      ->delimiter(',')
      ->allow_extra_args(false);
  command
      ->add_option("--held-out", flags->held_out,
                   "URLs of texts that must not be learnt: remove records that share a run of words with one")
      ->allow_extra_args(false);
  command->add_option("--held-out-words", flags->held_out_words, "Words of such a run")
      ->capture_default_str()
      ->check(Between(1, 1000));
  command->add_option("--index-memory", flags->index_memory,
                      "Most memory for the texts that duplicates are searched among [3/4 of what is available]");
  command->add_flag("--force", flags->force, "Replace the shards and the report of an earlier run");
  command->add_option("--threads", flags->threads, "Threads that read and judge records (default: one a core)")
      ->check(Between(1, 512));
}

}  // namespace millrace::cli
