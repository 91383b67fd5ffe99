// millrace tokenizer train | encode | decode | show
#include <charconv>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/common/flag_checks.h"
#include "apps/millrace/cli/cli.h"
#include "apps/millrace/cli/progress.h"
#include "apps/millrace/data/data_flags.h"
#include "apps/millrace/data/input_lines.h"
#include "apps/millrace/data/tokenizer_commands.h"
#include "millrace/base/text.h"
#include "millrace/data/documents/document_reader.h"
#include "millrace/object/blocking.h"
#include "millrace/tokenizer/formats/load.h"
#include "millrace/tokenizer/open/open.h"
#include "millrace/tokenizer/tokenizer.h"
#include "millrace/tokenizer/train/train.h"

namespace millrace::cli {
namespace {

using tokenizer::TokenId;

struct TrainFlags {
  std::vector<std::string> inputs;
  std::string field = "text", template_text, output;
  std::string max_input = "64MiB";
  tokenizer::TrainOptions options;
};

/// Asks the store for the output's bucket, before minutes of training.
Status CheckOutput(const Context& context, const object::Location& output, const std::string& url) {
  if (MR_TRY(object::ParseUrl(url)).scheme != object::Url::Scheme::kS3) return {};
  auto listed = object::List(*output.store, {.prefix = output.key, .max_keys = 1}, {.stop = context.stop});
  if (listed || listed.error().code() == Code::kPermissionDenied) return {};  // to write may be allowed
  return Fail(listed.error().Context(fmt::format("looking at the output {}", url)));
}

/// Trains on what the reader reads, and shows how far it is: the share of the data, then that it trains.
Result<std::string> TrainOn(const Context& context, data::DocumentReader& reader,
                            const tokenizer::TrainOptions& options) {
  transfer::BatchCounters counters;
  counters.bytes_known = reader.all_bytes();
  counters.all_known = true;
  const bool shows = WantsProgress(context.globals.progress, context.globals.quiet, context.globals.json);
  std::optional<ProgressLine> line;
  if (shows) line.emplace(counters);
  const auto next = [&](std::string& document) -> Result<bool> {
    const Result<bool> found = reader.Next(document);
    counters.bytes_moved = reader.bytes();
    if (found && !*found) {
      line.reset();
      if (shows) PrintError("training on {} documents", FormatCount(reader.documents()));
    }
    return found;
  };
  auto model = tokenizer::TrainSentencePieceBpe(next, options);
  line.reset();
  if (shows) WriteErrorControls("\r\033[K");
  return model;
}

Status Train(const Context& context, const TrainFlags& flags) {
  auto options = flags.options;
  options.max_input_bytes = MR_TRY(ParseBytes(flags.max_input));
  std::string text = flags.template_text.empty() ? "{" + flags.field + "}" : Unescape(flags.template_text);
  auto record_template = MR_TRY(data::RecordTemplate::Parse(text));
  std::vector<data::DataSource> sources;
  for (const std::string& url : flags.inputs) sources.push_back({url, 1.0});

  auto connection = MR_TRY(context.Connect());
  object::Location output = MR_TRY(object::Locate(*connection, flags.output));
  MR_TRY(CheckOutput(context, output, flags.output));
  auto reader = MR_TRY(data::DocumentReader::Open(*connection, sources, record_template, {.stop = context.stop}));
  TimePoint began = SystemClock().Now();
  auto trained_model = TrainOn(context, reader, options);
  if (!trained_model && reader.documents() == 0 && reader.broken() > 0) {
    const std::string mismatch = MR_TRY(reader.DescribeMismatch());
    if (!mismatch.empty()) {
      return Fail(Code::kInvalidArgument, "none of {} records can be used: {}; name others with --template or --field",
                  FormatCount(reader.broken()), mismatch);
    }
  }
  const std::string model = MR_TRY(std::move(trained_model));
  auto trained = MR_TRY(tokenizer::Load(AsBytes(model), flags.output));
  if (context.stop.stop_requested()) return Fail(Code::kCancelled, "interrupted; nothing was written");
  if (!context.globals.dry_run) {
    auto put = object::Put(*output.store, output.key, AsBytes(model), {}, {.stop = context.stop});
    if (!put) return Fail(put.error().Context("storing the model at " + flags.output));
  }
  Duration took = SystemClock().Now() - began;
  if (context.globals.json) {
    PrintJsonLine({{"event", "done"},
                   {"output", flags.output},
                   {"vocab_size", trained->vocab_size()},
                   {"fingerprint", trained->fingerprint()},
                   {"documents", reader.documents()},
                   {"broken", reader.broken()},
                   {"bytes", reader.bytes()},
                   {"seconds", SecondsOf(took)}});
  } else if (!context.globals.quiet) {
    Print("{}{}: {} pieces from {} documents of {} in {}\n", context.globals.dry_run ? "(dry run) " : "", flags.output,
          trained->vocab_size(), FormatCount(reader.documents()), FormatBytes(reader.bytes()), FormatDuration(took));
  }
  if (reader.broken() > 0) {
    PrintError("millrace: {} records could not be used; `millrace data inspect` names them\n", reader.broken());
  }
  return {};
}

struct DecodeFlags {
  std::string model;
};

Result<std::vector<TokenId>> ParseIds(const std::string& line, bool json, std::uint64_t number) {
  std::vector<TokenId> ids;
  if (json) {
    Json object = MR_TRY(ParseJson(line, fmt::format("line {}", number)));
    const Json* array = JsonFind(object, "ids");
    if (!array || !array->is_array())
      return Fail(Code::kInvalidArgument, "line {}: no array \"ids\"; expected {{\"ids\": [1, 2]}}", number);
    for (const Json& id : *array) {
      if (!id.is_number_integer() || id < INT32_MIN || id > INT32_MAX) {
        return Fail(Code::kInvalidArgument,
                    "line {}: {} is not a token id; expected a whole number below the vocabulary's size", number,
                    DumpJson(id));
      }
      ids.push_back(id.get<TokenId>());
    }
    return ids;
  }
  for (std::string_view word : Split(line, ' ')) {
    if (word.empty()) continue;
    TokenId id = 0;
    auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (error != std::errc() || end != word.data() + word.size()) {
      return Fail(Code::kInvalidArgument,
                  "line {}: \"{}\" is not a token id; expected whole numbers with blanks between them", number, word);
    }
    ids.push_back(id);
  }
  return ids;
}

Status Decode(const Context& context, const DecodeFlags& flags) {
  auto connection = MR_TRY(context.Connect());
  auto tokenizer = MR_TRY(tokenizer::OpenTokenizer(*connection, flags.model, context.log(), {.stop = context.stop}));
  InputLines input(context.stop);
  std::string line;
  for (std::uint64_t number = 1; MR_TRY(input.Next(line)); ++number) {
    auto ids = MR_TRY(ParseIds(line, context.globals.json, number));
    auto text = tokenizer->Decode(ids);
    if (!text) return Fail(text.error().Context(fmt::format("line {}", number)));
    if (context.globals.json) {
      PrintJsonListing({{"text", *text}});
    } else {
      PrintListing("{}\n", *text);
    }
  }
  return {};
}

struct ShowFlags {
  std::string model;
  bool pieces = false;
};

Status Show(const Context& context, const ShowFlags& flags) {
  auto connection = MR_TRY(context.Connect());
  auto tokenizer = MR_TRY(tokenizer::OpenTokenizer(*connection, flags.model, context.log(), {.stop = context.stop}));
  if (context.globals.json) {
    PrintJsonListing({{"model", flags.model},
                      {"kind", tokenizer->kind()},
                      {"vocab_size", tokenizer->vocab_size()},
                      {"bos", tokenizer->bos()},
                      {"eos", tokenizer->eos()},
                      {"unk", tokenizer->unk()},
                      {"fingerprint", tokenizer->fingerprint()}});
  } else {
    PrintListing("kind         {}\npieces       {}\nbos eos unk  {} {} {}\nfingerprint  {}\n", tokenizer->kind(),
                 FormatCount(tokenizer->vocab_size()), tokenizer->bos(), tokenizer->eos(), tokenizer->unk(),
                 tokenizer->fingerprint());
  }
  for (TokenId id = 0; flags.pieces && id < tokenizer->vocab_size(); ++id) {
    std::string piece = MR_TRY(tokenizer->Piece(id));
    if (context.globals.json) {
      PrintJsonListing({{"id", id}, {"piece", piece}});
    } else {
      PrintListing("{}\t{}\n", id, piece);
    }
  }
  return {};
}

template <class Flags>
std::function<int()> Runner(const Context& context, std::shared_ptr<Flags> flags,
                            Status (*run)(const Context&, const Flags&)) {
  return [&context, flags, run] {
    Status done = run(context, *flags);
    return done ? kExitOk : ReportError(context, done.error());
  };
}

void AddTrain(CLI::App& group, Context& context) {
  auto flags = std::make_shared<TrainFlags>();
  CLI::App* train = AddCommand(
      group, context, "train", "Train a SentencePiece BPE model (Llama's settings) on the records of a bucket",
      "  millrace tokenizer train --input 's3://corpus/wiki/*.jsonl' --vocab-size 32000 --output "
      "s3://models/wiki.model\n"
      "  millrace tokenizer train --input corpus/ --template '{title}\\n{text}' --vocab-size 4096 --output my.model",
      Runner(context, flags, &Train));
  train->add_option("--input", flags->inputs, "Objects, prefixes or globs of JSON-lines records")->required();
  auto* field = train->add_option("--field", flags->field, "Field that holds the text")->capture_default_str();
  train->add_option("--template", flags->template_text, "Fields in braces, as in a job's data.template")
      ->excludes(field);
  train->add_option("--vocab-size", flags->options.vocab_size, "Number of pieces, with special tokens and bytes")
      ->capture_default_str();
  train->add_option("--output", flags->output, "Where the model goes")->required();
  train
      ->add_option("--character-coverage", flags->options.character_coverage,
                   "Share of the text's characters that get pieces of their own; the rest falls back to bytes")
      ->check(Between(0.5, 1.0))
      ->capture_default_str();
  train->add_option("--max-input", flags->max_input, "Bytes of text to train on; of more text, a sample is taken")
      ->capture_default_str();
  train->add_option("--threads", flags->options.threads, "Threads that train")
      ->check(Between(1, 128))
      ->capture_default_str();
  train->add_option("--seed", flags->options.seed, "Of the sample")->capture_default_str();
}

void AddCodec(CLI::App& group, Context& context) {
  auto encode_flags = std::make_shared<EncodeOptions>();
  CLI::App* encode = AddCommand(group, context, "encode", "Turn text into ids, one document a line",
                                "  echo 'Hello world' | millrace tokenizer encode --model s3://models/tokenizer.model\n"
                                "  echo '{\"text\": \"a\\nb\"}' | millrace tokenizer encode --model my.model --json",
                                Runner(context, encode_flags, &EncodeInput));
  encode->add_option("--model", encode_flags->model, kTokenizerHelp)->required();
  encode->add_flag("--specials", encode_flags->specials, "Add BOS in front and EOS behind");
  auto decode_flags = std::make_shared<DecodeFlags>();
  CLI::App* decode = AddCommand(group, context, "decode", "Turn ids into text, one document a line",
                                "  echo '15043 3186' | millrace tokenizer decode --model s3://models/tokenizer.model",
                                Runner(context, decode_flags, &Decode));
  decode->add_option("--model", decode_flags->model, kTokenizerHelp)->required();
  auto show_flags = std::make_shared<ShowFlags>();
  CLI::App* show = AddCommand(group, context, "show", "Describe a model",
                              "  millrace tokenizer show --model s3://models/tokenizer.model --pieces | head",
                              Runner(context, show_flags, &Show));
  show->add_option("--model", show_flags->model, kTokenizerHelp)->required();
  show->add_flag("--pieces", show_flags->pieces, "List every piece");
}

}  // namespace

void AddTokenizerCommands(CLI::App& app, Context& context) {
  CLI::App* group = app.add_subcommand("tokenizer", "Train and use tokenizers");
  group->require_subcommand(1);
  AddTrain(*group, context);
  AddCodec(*group, context);
}

}  // namespace millrace::cli
