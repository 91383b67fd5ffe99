// millrace data tokenize
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "apps/common/flag_checks.h"
#include "apps/millrace/cli/cli.h"
#include "apps/millrace/cli/progress.h"
#include "apps/millrace/cli/share_flag.h"
#include "apps/millrace/data/data_flags.h"
#include "millrace/base/text.h"
#include "millrace/data/tokenize.h"
#include "millrace/tokenizer/open/open.h"

namespace millrace::cli {
namespace {

struct TokenizeFlags {
  std::vector<std::string> sources;
  std::string tokenizer, output, index_cache, template_text = "{text}", progress = "auto", share;
  bool append_eod = true, prepend_bos = false;
  int threads = 2;
};

void PrintTokenized(const Context& context, const TokenizeFlags& flags, const data::TokenizeSummary& done,
                    Duration took) {
  if (context.globals.json) {
    PrintJsonLine({{"event", "tokenized"},
                   {"output", flags.output},
                   {"documents", done.documents},
                   {"tokens", done.tokens},
                   {"broken", done.broken},
                   {"bytes", done.input_bytes},
                   {"token_bytes", done.token_bytes},
                   {"parts", done.parts},
                   {"own_parts", done.own_parts},
                   {"joined", done.joined},
                   {"resumed", done.resumed}});
    return;
  }
  if (context.globals.quiet) return;
  if (!done.joined) {
    cli::Print("share {} of {}: {} of {} parts are done in {}; the first share joins all\n", flags.share, flags.output,
               FormatCount(done.own_parts), FormatCount(done.parts), FormatDuration(took));
    return;
  }
  cli::Print("{}.bin and .idx: {} documents, {} tokens of {} bytes, {} broken records left out, in {}\n", flags.output,
             FormatCount(done.documents), FormatCount(done.tokens), done.token_bytes, FormatCount(done.broken),
             FormatDuration(took));
}

Result<int> Tokenize(const Context& context, const TokenizeFlags& flags) {
  MR_TRY(RefuseDryRun(context, "data tokenize"));
  const WorkShare share = MR_TRY(ReadShare(flags.share));
  auto connection = MR_TRY(context.Connect());
  auto tokenizer =
      MR_TRY(tokenizer::OpenTokenizer(*connection, flags.tokenizer, context.log(), {.stop = context.stop}));
  data::TokenizeOptions options{.template_text = Unescape(flags.template_text),
                                .output = flags.output,
                                .append_eod = flags.append_eod,
                                .prepend_bos = flags.prepend_bos,
                                .cache_url = flags.index_cache,
                                .threads = flags.threads,
                                .share = share};
  for (const std::string& url : flags.sources) options.sources.push_back({url});

  TimePoint began = SystemClock().Now();
  transfer::BatchCounters counters;
  std::unique_ptr<ProgressLine> line;
  if (WantsProgress(flags.progress, context.globals.quiet, context.globals.json)) {
    line = std::make_unique<ProgressLine>(counters);
  }
  auto progress = [&](std::uint64_t done, std::uint64_t known) {
    // The first report counts the parts that an earlier run finished.
    if (!counters.all_known.exchange(true)) counters.bytes_resumed = done;
    counters.bytes_known = known;
    counters.bytes_moved = done - counters.bytes_resumed;
  };
  auto done = data::TokenizeToFile(*connection, *tokenizer, options, progress, context.log(), {.stop = context.stop});
  line.reset();
  if (!done) return Fail(done.error());
  PrintTokenized(context, flags, *done, SystemClock().Now() - began);
  return kExitOk;
}

}  // namespace

void AddDataTokenizeCommand(CLI::App& group, Context& context) {
  auto flags = std::make_shared<TokenizeFlags>();
  CLI::App* command =
      AddCommand(group, context, "tokenize", "Tokenize data once, into a .bin and .idx as Megatron-LM reads them",
                 "  millrace data tokenize 's3://corpus/wiki/*.jsonl' --tokenizer s3://models/tokenizer.model \\\n"
                 "      --output s3://corpus/wiki-tokens\n"
                 "  millrace data plan s3://corpus/wiki-tokens --tokenizer s3://models/tokenizer.model\n"
                 "  millrace data tokenize … --share 0/2   # on one machine, and --share 1/2 on another\n"
                 "A run that was stopped, even by kill -9, goes on where it was when it is started again.",
                 [&context, flags] {
                   Result<int> status = Tokenize(context, *flags);
                   return status ? *status : ReportError(context, status.error());
                 });
  command->add_option("sources", flags->sources, "Objects, prefixes and globs of records")->required();
  command->add_option("--tokenizer", flags->tokenizer, kTokenizerHelp)->required();
  command->add_option("--output", flags->output, "URL; .bin and .idx are appended")->required();
  command->add_option("--template", flags->template_text, "Fields in braces")->capture_default_str();
  command->add_flag("--append-eod,!--no-append-eod", flags->append_eod,
                    "End-of-sequence behind every document that is not empty (the default)");
  command->add_flag("--prepend-bos", flags->prepend_bos, "Begin-of-sequence in front of every such document");
  command->add_option("--index-cache", flags->index_cache, "URL for indexes when the data's bucket is read-only");
  command->add_option("--threads", flags->threads, "Threads that tokenize")
      ->capture_default_str()
      ->check(Between(1, 512));
  AddShareFlag(*command, flags->share);
  command->add_option("--progress", flags->progress, "auto, on or off")
      ->capture_default_str()
      ->check(OneOf({"auto", "on", "off"}));
}

}  // namespace millrace::cli
