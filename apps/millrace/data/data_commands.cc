// millrace data index | inspect | plan | cat; tokenize is in data_tokenize_command.cc
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "apps/common/flag_checks.h"
#include "apps/millrace/cli/cli.h"
#include "apps/millrace/cli/progress.h"
#include "apps/millrace/data/data_flags.h"
#include "apps/millrace/data/data_inspect.h"
#include "millrace/base/text.h"
#include "millrace/data/dataset.h"
#include "millrace/data/documents/field_mismatch.h"
#include "millrace/data/index_builder.h"
#include "millrace/data/simulate.h"
#include "millrace/data/sources/sources.h"
#include "millrace/tokenizer/open/open.h"

namespace millrace::cli {
namespace {

/// A data set and the objects that it uses. Members are destroyed from the last to the first.
struct OpenData {
  std::unique_ptr<object::Connection> connection;
  std::shared_ptr<const tokenizer::Tokenizer> tokenizer;
  std::shared_ptr<data::Dataset> dataset;
};

/// Shows how far the first read of the data is, which indexes the records.
class IndexingLine {
 public:
  explicit IndexingLine(const Context& context) {
    counters_.all_known = true;
    const Globals& globals = context.globals;
    if (WantsProgress(globals.progress, globals.quiet, globals.json)) line_.emplace(counters_);
  }
  std::function<void(std::uint64_t, std::uint64_t)> progress() {
    return [this](std::uint64_t done, std::uint64_t all) {
      counters_.bytes_known = all;
      counters_.bytes_moved = std::max(done, counters_.bytes_moved.load());
    };
  }

 private:
  transfer::BatchCounters counters_;
  std::optional<ProgressLine> line_;
};

Result<OpenData> OpenDataset(const Context& context, const DataRequest& request) {
  if (request.tokenizer.empty()) {
    return Fail(Code::kInvalidArgument, "no tokenizer: give --tokenizer URL, or a job file that names one");
  }
  OpenData open;
  open.connection = MR_TRY(context.Connect());
  open.tokenizer =
      MR_TRY(tokenizer::OpenTokenizer(*open.connection, request.tokenizer, context.log(), {.stop = context.stop}));
  IndexingLine line(context);
  open.dataset = MR_TRY(data::Dataset::Open(*open.connection, open.tokenizer, request.options, context.log(),
                                            {.stop = context.stop}, line.progress()));
  return open;
}

struct Indexed {
  data::ResolvedSources sources;
  std::vector<data::RecordIndex> indexes;
  std::shared_ptr<const tokenizer::Tokenizer> tokenizer;  ///< the form refers to it
  data::DocumentForm form;
  bool counts_tokens = false;
};

/// Tokens are not counted without a tokenizer, and not for padding.
Result<Indexed> LoadIndexes(const Context& context, const DataRequest& request,
                            std::optional<std::uint64_t> max_broken) {
  auto connection = MR_TRY(context.Connect());
  std::shared_ptr<const tokenizer::Tokenizer> tokenizer;
  const bool writes = request.options.layout == "auto";
  if (!request.tokenizer.empty() && (writes || data::CountsTokens(request.options))) {
    tokenizer = MR_TRY(tokenizer::OpenTokenizer(*connection, request.tokenizer, context.log(), {.stop = context.stop}));
  }
  auto form = MR_TRY(data::DocumentForm::Make(request.options, tokenizer.get()));
  object::Call call{.stop = context.stop};
  IndexingLine line(context);
  Indexed result{.sources = MR_TRY(data::ResolveSources(*connection, request.options.sources, call, form.all_fields())),
                 .tokenizer = tokenizer,
                 .form = form,
                 .counts_tokens = tokenizer && data::CountsTokens(request.options)};
  result.indexes = MR_TRY(data::LoadOrBuildIndexes(*connection, result.sources.objects,
                                                   {.form = &form,
                                                    .tokenizer = result.counts_tokens ? tokenizer.get() : nullptr,
                                                    .cache_url = request.options.cache_url,
                                                    .max_broken = max_broken,
                                                    .threads = request.options.threads,
                                                    .progress = line.progress()},
                                                   context.log(), call));
  return result;
}

struct Totals {
  std::uint64_t objects = 0, bytes = 0, records = 0, tokens = 0, broken = 0;
  void Add(const data::DataObject& object, const data::RecordIndex& index) {
    ++objects;
    bytes += object.info.size;
    records += index.records();
    tokens += index.tokens();
    broken += index.broken_count();
  }
};

Totals Sum(const Indexed& indexed) {
  Totals totals;
  for (std::size_t i = 0; i < indexed.indexes.size(); ++i) totals.Add(indexed.sources.objects[i], indexed.indexes[i]);
  return totals;
}

void PrintTotals(const Context& context, const Totals& t, bool counts_tokens, std::string_view event) {
  if (context.globals.json) {
    Json line{
        {"event", event}, {"objects", t.objects}, {"bytes", t.bytes}, {"records", t.records}, {"broken", t.broken}};
    if (counts_tokens) line["tokens"] = t.tokens;
    PrintJsonLine(line);
    return;
  }
  Print("{} object{}, {}, {} record{}", FormatCount(t.objects), t.objects == 1 ? "" : "s", FormatBytes(t.bytes),
        FormatCount(t.records), t.records == 1 ? "" : "s");
  if (counts_tokens) Print(", {} tokens", FormatCount(t.tokens));
  Print(", {} broken\n", FormatCount(t.broken));
}

Result<int> Index(const Context& context, const DataFlags& flags) {
  DataRequest request = MR_TRY(ResolveDataFlags(flags));
  TimePoint began = SystemClock().Now();
  Indexed indexed = MR_TRY(LoadIndexes(context, request, request.options.max_broken));
  Totals totals = Sum(indexed);
  PrintTotals(context, totals, indexed.counts_tokens, "indexed");
  if (!context.globals.quiet && !context.globals.json) {
    Print("in {}\n", FormatDuration(SystemClock().Now() - began));
  }
  if (totals.broken > 0) PrintError("millrace: `millrace data inspect` names the broken records\n");
  return kExitOk;
}

/// Prints an object. People see the places of `most` unusable records, and scripts see all that the index names.
Status PrintObject(const Context& context, const data::DataObject& object, const data::RecordIndex& index, bool tokens,
                   std::size_t most) {
  const std::size_t shown = context.globals.json ? index.broken().size() : std::min(most, index.broken().size());
  const std::span<const data::BrokenLine> named = std::span(index.broken()).first(shown);
  const std::vector<std::string> places = MR_TRY(data::NameBroken(object, index, named.size(), {.stop = context.stop}));
  if (context.globals.json) {
    Json skipped = Json::object(), broken = Json::array();
    for (int i = 0; i < data::kBrokenReasons; ++i) {
      std::uint64_t count = index.broken_by_reason()[i];
      if (count > 0) skipped[std::string(data::BrokenReasonName(static_cast<data::BrokenReason>(i)))] = count;
    }
    for (std::size_t i = 0; i < named.size(); ++i) {
      broken.push_back(
          {{"offset", named[i].offset}, {"place", places[i]}, {"reason", data::BrokenReasonName(named[i].reason)}});
    }
    Json line{
        {"url", object.url}, {"etag", object.info.etag}, {"bytes", object.info.size}, {"records", index.records()}};
    if (tokens) line["tokens"] = index.tokens();
    line["skipped"] = std::move(skipped);
    line["broken"] = std::move(broken);
    PrintJsonListing(line);
    return {};
  }
  PrintListing("{}  {}  {} record{}", object.url, FormatBytes(object.info.size), FormatCount(index.records()),
               index.records() == 1 ? "" : "s");
  if (tokens) PrintListing("  {} tokens", FormatCount(index.tokens()));
  PrintListing("\n");
  for (std::size_t i = 0; i < named.size(); ++i) {
    PrintListing("    {}: {}\n", places[i], data::BrokenReasonName(named[i].reason));
  }
  if (index.broken_count() > named.size()) {
    PrintListing("    and {} more\n", FormatCount(index.broken_count() - named.size()));
  }
  return {};
}

/// Prints the left-out objects in one line, because a folder may have many.
void PrintLeftOut(const Context& context, const std::vector<std::string>& urls) {
  constexpr std::size_t kNamed = 5;  // a guess: fits on a line
  if (urls.empty()) return;
  if (context.globals.json) return PrintJsonLine({{"event", "left_out"}, {"urls", urls}, {"reason", "name"}});
  std::string names;
  for (std::size_t i = 0; i < std::min(kNamed, urls.size()); ++i) {
    names += fmt::format("{}{}", i > 0 ? ", " : "", urls[i].substr(urls[i].rfind('/') + 1));
  }
  if (urls.size() > kNamed) names += fmt::format(" and {} more", FormatCount(urls.size() - kNamed));
  Print("left out, because their names say that they hold no records: {}\n", names);
}

/// Says which fields the records have, if they lack those that are read.
Status PrintMismatch(const Context& context, const Indexed& indexed) {
  constexpr auto kMissing = static_cast<std::size_t>(data::BrokenReason::kMissingField);
  std::uint64_t lacking = 0, records = 0;
  std::optional<data::FieldMismatch> mismatch;
  for (std::size_t i = 0; i < indexed.indexes.size(); ++i) {
    const data::RecordIndex& index = indexed.indexes[i];
    records += index.records() + index.broken_count();
    lacking += index.broken_by_reason()[kMissing];
    if (mismatch || index.broken_by_reason()[kMissing] == 0) continue;
    mismatch = MR_TRY(data::FindFieldMismatch(indexed.sources.objects[i], indexed.form, {.stop = context.stop}));
  }
  if (!mismatch) return {};
  if (context.globals.json) {
    PrintJsonLine({{"event", "missing_fields"},
                   {"records", lacking},
                   {"missing", mismatch->missing},
                   {"present", mismatch->present}});
    return {};
  }
  Print("{} of {} records cannot be used: {}\n", FormatCount(lacking), FormatCount(records), mismatch->ToString());
  Print("    --template names other fields, as in --template '{{{}}}'\n",
        mismatch->present.empty() ? "text" : mismatch->present.back());
  return {};
}

struct InspectFlags : DataFlags {
  std::string picture;
  bool text = false, all = false;
};

Result<int> Inspect(const Context& context, const InspectFlags& flags) {
  DataRequest request = MR_TRY(ResolveDataFlags(flags));
  Indexed indexed = MR_TRY(LoadIndexes(context, request, data::kAnyNumber));
  constexpr std::size_t kFew = 5;  // more would scroll the rest out of a terminal
  const std::size_t most = flags.all ? SIZE_MAX : kFew;
  for (std::size_t i = 0; i < indexed.indexes.size(); ++i) {
    MR_TRY(PrintObject(context, indexed.sources.objects[i], indexed.indexes[i], indexed.counts_tokens, most));
  }
  PrintLeftOut(context, indexed.sources.left_out);
  PrintTotals(context, Sum(indexed), indexed.counts_tokens, "total");
  MR_TRY(PrintMismatch(context, indexed));
  MR_TRY(PrintLengths(context, indexed.indexes, indexed.counts_tokens, flags.picture));
  if (flags.text) MR_TRY(PrintSurvey(context, request.options));
  return kExitOk;
}

struct PlanFlags : DataFlags {
  std::string simulate;
};

/// Parses "bandwidth=100MB,latency=50ms,step=200ms": bytes a second, the latency of a request, the work on a batch.
Result<data::SimulationParameters> ParseSimulationParameters(std::string_view text) {
  data::SimulationParameters parameters;
  for (std::string_view word : Split(text, ',')) {
    std::size_t equals = word.find('=');
    std::string_view name = word.substr(0, equals), value = equals == word.npos ? "" : word.substr(equals + 1);
    if (name == "bandwidth") {
      parameters.bandwidth = static_cast<double>(MR_TRY(ParseBytes(value.substr(0, value.find("/s")))));
    } else if (name == "latency" || name == "step") {
      double seconds = std::chrono::duration<double>(MR_TRY(ParseDuration(value))).count();
      (name == "step" ? parameters.step : parameters.latency) = seconds;
    } else {
      return Fail(Code::kInvalidArgument, "--simulate: {} is not known; give bandwidth=100MB,latency=50ms,step=200ms",
                  name);
    }
  }
  if (parameters.bandwidth <= 0) return Fail(Code::kInvalidArgument, "--simulate: a bandwidth of 0 brings nothing");
  return parameters;
}

/// Prints how long a rank on another machine would wait for the data of its first steps.
Status PrintForecast(const Context& context, const DataRequest& request, data::Dataset& dataset,
                     const std::string& text) {
  constexpr std::uint64_t kBatches = 2000;  // a guess
  data::SimulationParameters parameters = MR_TRY(ParseSimulationParameters(text));
  parameters.threads = request.options.threads;
  parameters.seconds_per_byte = MR_TRY(dataset.MeasureEncoding({.stop = context.stop}));
  const int rows = request.global_batch / request.ranks;
  data::Forecast forecast = dataset.Simulate(parameters, rows, kBatches);
  if (context.globals.json) {
    PrintJsonLine({{"event", "forecast"},
                   {"seconds_per_byte", parameters.seconds_per_byte},
                   {"first_batch_s", forecast.first_batch},
                   {"seconds", forecast.seconds},
                   {"waited_s", forecast.waited},
                   {"waited_on_network_s", forecast.waited_on_network},
                   {"waited_on_encoding_s", forecast.waited_on_encoding},
                   {"stall_share", forecast.stall_share()}});
    return {};
  }
  double after_first = forecast.seconds - forecast.first_batch;
  Print("there        first batch after {:.2f} s, then {:.2f} % of the time waiting for data\n", forecast.first_batch,
        after_first > 0 ? 100 * (forecast.waited - forecast.first_batch) / after_first : 0.0);
  Print("             ({:.2f} s for the store, {:.2f} s for tokenizing, of {:.1f} s; {:.1f} MB/s a thread here)\n",
        forecast.waited_on_network, forecast.waited_on_encoding, forecast.seconds, 1e-6 / parameters.seconds_per_byte);
  return {};
}

Result<int> Plan(const Context& context, const PlanFlags& flags) {
  DataRequest request = MR_TRY(ResolveDataFlags(flags));
  OpenData open = MR_TRY(OpenDataset(context, request));
  const data::Dataset& dataset = *open.dataset;
  std::uint64_t steps_per_epoch = dataset.samples_per_epoch() / request.global_batch;
  std::uint64_t steps = request.steps.value_or(
      static_cast<std::uint64_t>(std::ceil(request.epochs.value_or(1.0) * static_cast<double>(steps_per_epoch))));
  std::uint64_t batch_tokens = static_cast<std::uint64_t>(request.global_batch) * request.options.sequence_length;
  const auto broken = dataset.broken_by_reason();
  if (context.globals.json) {
    PrintJsonLine({{"event", "plan"},
                   {"records", dataset.records()},
                   {"broken", dataset.broken_records()},
                   {"skipped", Json(std::map<std::string, std::uint64_t>(broken.begin(), broken.end()))},
                   {"bytes", dataset.bytes()},
                   {"bytes_fetched", dataset.bytes_fetched()},
                   {"samples_per_epoch", dataset.samples_per_epoch()},
                   {"tokens_per_epoch", dataset.tokens_per_epoch()},
                   {"steps_per_epoch", steps_per_epoch},
                   {"tokens_per_step", batch_tokens},
                   {"steps", steps},
                   {"truncated", dataset.truncated_documents()},
                   {"fingerprint", dataset.fingerprint()}});
    if (!flags.simulate.empty()) MR_TRY(PrintForecast(context, request, *open.dataset, flags.simulate));
    return kExitOk;
  }
  Print("records      {} ({}; {} broken)\n", FormatCount(dataset.records()), FormatBytes(dataset.bytes()),
        FormatCount(dataset.broken_records()));
  for (const auto& [reason, records] : broken) {
    Print("skipped      {} {}{}\n", FormatCount(records), reason,
          reason == "no_label" ? ": no answer begins within a row" : "");
  }
  if (dataset.bytes_fetched() >= 2 * dataset.bytes()) {
    Print("fetched      {} in a pass: compressed data are read again and again, see the warnings\n",
          FormatBytes(dataset.bytes_fetched()));
  }
  Print("an epoch     {} samples of {} tokens = {} tokens\n", FormatCount(dataset.samples_per_epoch()),
        request.options.sequence_length, FormatCount(dataset.tokens_per_epoch()));
  Print("             {} steps of {} samples = {} tokens a step\n", FormatCount(steps_per_epoch), request.global_batch,
        FormatCount(batch_tokens));
  if (request.steps || request.epochs) {
    Print("the job      {} steps = {} tokens\n", FormatCount(steps), FormatCount(steps * batch_tokens));
  }
  if (dataset.truncated_documents() > 0) {
    Print("cut          {} documents, which are longer than a row\n", FormatCount(dataset.truncated_documents()));
  }
  auto shares = dataset.source_shares();
  for (std::size_t s = 0; shares.size() > 1 && s < shares.size(); ++s) {
    Print("source       {}: {} of its {} samples an epoch\n", request.options.sources[s].url,
          FormatCount(shares[s].samples_per_epoch), FormatCount(shares[s].samples_per_pass));
  }
  if (!flags.simulate.empty()) MR_TRY(PrintForecast(context, request, *open.dataset, flags.simulate));
  return kExitOk;
}

struct CatFlags : DataFlags {
  std::uint64_t epoch = 0, start = 0, count = 4;
  bool tokens = false;
};

/// Prints a sample of an objective for BERT.
Status PrintBertSample(const Context& context, const OpenData& open, std::uint64_t epoch, std::uint64_t sample) {
  std::vector<tokenizer::TokenId> inputs(open.dataset->options().sequence_length), labels(inputs.size());
  std::vector<std::int32_t> segments(inputs.size());
  data::SequenceRow row{.inputs = inputs, .labels = labels, .segments = segments};
  MR_TRY(open.dataset->ReadSample(epoch, sample, row, {.stop = context.stop}));
  const bool labelled = row.row_label != data::kIgnoreLabel;
  if (context.globals.json) {
    const std::string text = MR_TRY(open.tokenizer->Decode(inputs));
    Json line{{"epoch", epoch},   {"sample", sample},     {"text", text},        {"inputs", inputs},
              {"labels", labels}, {"segments", segments}, {"length", row.length}};
    if (labelled) line["row_label"] = row.row_label;
    PrintJsonListing(line);
    return {};
  }
  std::string about;
  if (open.dataset->options().objective == data::Objective::kClassification) {
    about = fmt::format(", class {}", row.row_label);
  } else if (labelled) {
    about = row.row_label == 0 ? ", the second text follows the first" : ", the second text is a random one";
  }
  PrintListing("--- sample {}{}\n{}\n", sample, about, MR_TRY(ShowBertRow(*open.tokenizer, row)));
  return {};
}

Status PrintSample(const Context& context, const CatFlags& flags, const OpenData& open, std::uint64_t sample) {
  std::vector<tokenizer::TokenId> inputs(open.dataset->options().sequence_length), labels(inputs.size());
  MR_TRY(open.dataset->ReadSample(flags.epoch, sample, inputs, labels, {.stop = context.stop}));
  std::string text = flags.tokens && !context.globals.json ? MR_TRY(ShowTokens(*open.tokenizer, inputs, labels))
                                                           : MR_TRY(open.tokenizer->Decode(inputs));
  if (context.globals.json) {
    PrintJsonListing(
        {{"epoch", flags.epoch}, {"sample", sample}, {"text", text}, {"inputs", inputs}, {"labels", labels}});
  } else {
    PrintListing("--- sample {}\n{}\n", sample, text);
  }
  return {};
}

Result<int> Cat(const Context& context, const CatFlags& flags) {
  DataRequest request = MR_TRY(ResolveDataFlags(flags));
  OpenData open = MR_TRY(OpenDataset(context, request));
  std::uint64_t end = open.dataset->samples_per_epoch();
  if (flags.start >= end) {
    return Fail(Code::kInvalidArgument, "sample {} is beyond the epoch's {}; lower --start", flags.start, end);
  }
  end = flags.start + std::min(flags.count, end - flags.start);
  for (std::uint64_t i = flags.start; i < end; ++i) {
    if (request.options.IsForBert()) {
      MR_TRY(PrintBertSample(context, open, flags.epoch, i));
    } else {
      MR_TRY(PrintSample(context, flags, open, i));
    }
  }
  return kExitOk;
}

template <class Flags>
CLI::App* Add(CLI::App& group, Context& context, std::string name, std::string description, std::string examples,
              Result<int> (*run)(const Context&, const Flags&), std::shared_ptr<Flags> flags) {
  const auto act = [&context, flags, run, shown = "data " + name]() -> Result<int> {
    MR_TRY(RefuseDryRun(context, shown));  // records are indexed, and the index is kept beside the data
    return run(context, *flags);
  };
  CLI::App* command =
      AddCommand(group, context, std::move(name), std::move(description), std::move(examples), [&context, act] {
        Result<int> status = act();
        return status ? *status : ReportError(context, status.error());
      });
  AddDataFlags(*command, *flags);
  return command;
}

}  // namespace

void AddDataCommands(CLI::App& app, Context& context) {
  CLI::App* group = app.add_subcommand("data", "Index, inspect and read training data");
  group->require_subcommand(1);
  Add(*group, context, "index", "Build the record indexes of a job's data, once and in parallel",
      "  millrace data index job.yaml\n"
      "  millrace data index 's3://corpus/wiki/*.jsonl' --tokenizer s3://models/tokenizer.model --template "
      "'{title}\\n{text}'",
      &Index, std::make_shared<DataFlags>());
  auto inspect_flags = std::make_shared<InspectFlags>();
  CLI::App* inspect = Add(*group, context, "inspect", "List objects, their records, and records that cannot be used",
                          "  millrace data inspect s3://corpus/wiki/ --text --picture lengths.svg\n"
                          "  millrace data inspect s3://corpus/wiki/ --template '{title} {body.text}' --all",
                          &Inspect, inspect_flags);
  inspect->add_flag("--all", inspect_flags->all,
                    "Name up to a thousand unusable records of each object, instead of a few");
  inspect->add_option("--picture", inspect_flags->picture, "SVG file for a picture of the records' lengths");
  inspect->add_flag("--text", inspect_flags->text, "Read all documents; report their scripts and duplicates");
  auto plan_flags = std::make_shared<PlanFlags>();
  CLI::App* plan = Add(*group, context, "plan", "Say how many samples, tokens and steps an epoch has",
                       "  millrace data plan job.yaml --set data.sequence_length=2048\n"
                       "  millrace data plan job.yaml --simulate bandwidth=100MB/s,latency=50ms,step=200ms",
                       &Plan, plan_flags);
  plan->add_option("--global-batch", plan_flags->global_batch, "Samples a step (default: 8)")->check(AtLeast(1));
  plan->add_option(
      "--simulate", plan_flags->simulate,
      "Print how long a rank would wait for data, with this bandwidth and latency of the store and this step time");
  auto cat_flags = std::make_shared<CatFlags>();
  CLI::App* cat = Add(*group, context, "cat", "Print samples as the model sees them",
                      "  millrace data cat job.yaml --start 1000 --count 2", &Cat, cat_flags);
  cat->add_option("--epoch", cat_flags->epoch, "Passage through the data, which decides the order")
      ->capture_default_str();
  cat->add_option("--start", cat_flags->start, "First sample")->capture_default_str();
  cat->add_option("--count", cat_flags->count, "Samples")->capture_default_str();
  cat->add_flag("--tokens", cat_flags->tokens, "Show where tokens end, and in ‹› those that are not learned");
  AddDataTokenizeCommand(*group, context);
  AddDataCompactCommand(*group, context);
}

}  // namespace millrace::cli
