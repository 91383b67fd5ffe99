#include "millrace/data/dataset.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <string_view>

#include "millrace/base/hash/digest.h"
#include "millrace/base/text.h"
#include "millrace/data/batch/sequence_row.h"
#include "millrace/data/batch/stage_trace.h"
#include "millrace/data/compression/decoder.h"
#include "millrace/data/documents/document_encoder.h"
#include "millrace/data/index_builder.h"
#include "millrace/data/order/plan.h"
#include "millrace/data/reading/bert_sampler.h"
#include "millrace/data/reading/sample_reader.h"
#include "millrace/data/records/content.h"
#include "millrace/data/simulate.h"
#include "millrace/data/sources/sources.h"

namespace millrace::data {
namespace {

/// The version of the order that README.md defines. Any change of the order of any data increments it.
constexpr int kOrderVersion = 2;
/// Longer lists of weights are hashed, so that a fingerprint stays below 700 bytes (loader_state.h).
constexpr std::size_t kLongestSpelled = 64;

/// Returns everything that samples of BERT's pre-training depend on beside the text.
std::string MlmWords(const MlmOptions& mlm) {
  return fmt::format("{},{},{},{},{}", mlm.probability,
                     mlm.max_predictions ? fmt::to_string(*mlm.max_predictions) : "auto",
                     mlm.whole_word ? "words" : "pieces", mlm.next_sentence ? "pairs" : "texts", mlm.short_sequences);
}

/// Returns the fingerprint. It depends on the objects' contents, not on their URLs, so data can move to another bucket.
std::string Fingerprint(const ResolvedSources& resolved, const DatasetOptions& options, const DocumentForm& form,
                        const tokenizer::Tokenizer& tokenizer, bool stored_samples) {
  std::string contents, weights, rows;
  for (std::size_t s = 0; s < resolved.by_source.size(); ++s) {
    for (std::uint32_t i : resolved.by_source[s]) {
      const object::ObjectInfo& info = resolved.objects[i].info;
      contents += fmt::format("{}:{}\n", info.size, options.same_by_size ? "" : info.etag);
      if (const auto& content = resolved.objects[i].content) contents += fmt::format("{}\n", content->format());
      if (const auto& table = resolved.objects[i].table) {
        contents += fmt::format("{}\n", options.same_by_size ? fmt::to_string(table->size) : table->etag);
      }
    }
    contents += '\n';
    weights += fmt::format("{}{}", s ? "," : "", options.sources[s].weight);
  }
  if (weights.size() > kLongestSpelled) weights = ShortHash(weights);
  std::string_view mode = SequenceModeName(options.mode);
  if (options.objective != Objective::kCausalLm) mode = ObjectiveName(options.objective);
  for (auto [set, name] : {std::pair{options.best_fit, "best_fit"}, {options.split_long, "split_long"}}) {
    if (set) rows += fmt::format("{}{}", rows.empty() ? "" : ",", name);
  }
  if (options.objective == Objective::kMlm) rows = stored_samples ? "stored" : MlmWords(options.mlm);
  std::string split = "none";
  if (options.split.held_out > 0) {
    split = fmt::format("{},{},{}", options.split.held_out, SplitPartName(options.split.part), options.split.seed);
  }
  return fmt::format(
      "order={} objects={} weights={} template={} tokenizer={} mode={} rows={} boundaries={} length={} split={} "
      "seed={} "
      "window={}",
      kOrderVersion, ShortHash(contents), weights, ShortHash(form.identity()), tokenizer.text_fingerprint(), mode,
      rows.empty() ? "plain" : rows, options.boundaries ? "kept" : "none", options.sequence_length, split,
      options.shuffle_seed, options.shuffle_window);
}

/// Returns the options with the members that the objective does not leave open.
DatasetOptions Settle(DatasetOptions options) {
  if (options.objective == Objective::kCausalLm) return options;
  options.mode = SequenceMode::kPad;
  if (options.objective != Objective::kDpo) options.layout.clear();
  options.best_fit = options.best_fit && options.objective == Objective::kDpo;
  options.split_long = false;
  options.boundaries = true;  // padding and each answer are documents of their own
  return options;
}

Status CheckDatasetOptions(const DatasetOptions& options, const tokenizer::Tokenizer& tokenizer) {
  if (options.sequence_length < 1 || options.sequence_length > 1 << 24) {
    return Fail(Code::kInvalidArgument,
                "a sequence length of {} is not possible; data.sequence_length must be at least 1 and at most 16777216",
                options.sequence_length);
  }
  if (options.objective == Objective::kDpo && options.sequence_length < 4) {
    return Fail(Code::kInvalidArgument,
                "a sequence length of {} leaves no room for two answers to a prompt; expected at least 4",
                options.sequence_length);
  }
  if (options.threads < 1)
    return Fail(Code::kInvalidArgument, "{} threads cannot load data; expected at least 1", options.threads);
  if (options.mode == SequenceMode::kPack && tokenizer.eos() == tokenizer::kNoToken) {
    return Fail(Code::kInvalidArgument,
                "packing joins documents by an end-of-sequence token, which this tokenizer lacks; name one as "
                "eos_token in a tokenizer_config.json beside the tokenizer's file");
  }
  if (options.mode == SequenceMode::kPack && (options.best_fit || options.split_long)) {
    return Fail(Code::kInvalidArgument,
                "mode pack cuts documents wherever a row ends; best_fit and split_long need mode pad or sft");
  }
  if (options.split_long && (options.best_fit || options.mode == SequenceMode::kSft)) {
    return Fail(
        Code::kInvalidArgument, "split_long needs mode pad without best_fit: {}",
        options.best_fit ? "fitted documents stay whole" : "the rest of a split conversation lacks its beginning");
  }
  const HeldOutSplit& split = options.split;
  if (!(split.held_out >= 0 && split.held_out < 1) || (split.part == SplitPart::kHeldOut && split.held_out == 0)) {
    return Fail(Code::kInvalidArgument,
                "a share of {} held out leaves one part without records; expected one between 0 and 1, such as 0.01",
                split.held_out);
  }
  return {};
}

/// Errors: kInvalidArgument if texts or answers would have no end that a model can learn.
Status RequireEnd(const ResolvedSources& resolved, const DocumentForm& form, const DatasetOptions& options,
                  const tokenizer::Tokenizer& tokenizer) {
  if (!form.ends_with_eos() || options.IsForBert() || tokenizer.eos() != tokenizer::kNoToken) return {};
  const auto is_text = [](const DataObject& object) { return object.token_bytes == 0; };
  if (std::ranges::none_of(resolved.objects, is_text)) return {};
  return Fail(Code::kInvalidArgument,
              "documents end with an end-of-sequence token, which this tokenizer lacks; name one as eos_token in a "
              "tokenizer_config.json beside the tokenizer's file");
}

/// Warns of a layout whose special tokens the vocabulary lacks: texts that spell them crowd the answers out of a
/// sample.
void WarnOfSpelledTokens(const DocumentForm& form, const DatasetOptions& options, const tokenizer::Tokenizer& tokenizer,
                         const Logger& log) {
  std::vector<std::string_view> missing;
  for (const std::string_view piece : form.special_tokens()) {
    if (tokenizer.IdOf(piece) == tokenizer::kNoToken) missing.push_back(piece);
  }
  if (missing.empty()) return;
  log.Warning(
      "the tokenizer lacks special tokens of the layout and spells each as several tokens; use a tokenizer "
      "that has them, or another layout",
      {{"layout", options.layout}, {"missing", fmt::format("{}", fmt::join(missing, " "))}});
}

Status RequireText(const ResolvedSources& resolved, std::string_view why) {
  for (const DataObject& object : resolved.objects) {
    if (object.token_bytes > 0) {
      return Fail(Code::kInvalidArgument, "{}: token ids {}", object.url, why);
    }
  }
  return {};
}

/// Returns true if the sources are samples that were stored with their masks.
/// Errors: kInvalidArgument, naming an object, if the objective has no use for them, or others are no such samples.
Result<bool> HoldStoredSamples(const ResolvedSources& resolved, const DatasetOptions& options) {
  const auto holds = [](const DataObject& object) { return object.content && object.content->holds_samples(); };
  const auto first = std::ranges::find_if(resolved.objects, holds);
  if (first == resolved.objects.end()) return false;
  if (options.objective != Objective::kMlm) {
    return Fail(
        Code::kInvalidArgument,
        "{}: HDF5 files hold samples for the objective mlm, not for {}; change train.objective, or name other sources",
        first->url, ObjectiveName(options.objective));
  }
  const auto other = std::ranges::find_if_not(resolved.objects, holds);
  if (other == resolved.objects.end()) return true;
  return Fail(Code::kInvalidArgument, "{} holds samples with masks and {} does not; use sources of one kind",
              first->url, other->url);
}

}  // namespace

struct Dataset::Rep {
  Rep(DatasetOptions o, std::shared_ptr<const tokenizer::Tokenizer> t)
      : options(Settle(std::move(o))), tokenizer(std::move(t)) {}

  using Progress = std::function<void(std::uint64_t, std::uint64_t)>;
  Status Build(object::Connection& connection, const Logger& log, object::Call call, Progress progress);
  Status CheckSources(const ResolvedSources& resolved) const;
  Status LoadIndexes(object::Connection& connection, const ResolvedSources& resolved, bool counted, const Logger& log,
                     const object::Call& call, Progress progress);
  Status MakePlan(const ResolvedSources& resolved, bool counted, const Logger& log);
  void CountFetched(const DataObject& object, const RecordIndex& index, const Logger& log);
  void MeasureNeeds();
  std::unique_ptr<SampleReader> NewReader(std::uint64_t cache_bytes, int read_ahead_threads) const {
    return std::make_unique<SampleReader>(
        corpus, SampleReader::Options{.cache_bytes = cache_bytes, .read_ahead_threads = read_ahead_threads});
  }

  // Constant after Build.
  const DatasetOptions options;
  const std::shared_ptr<const tokenizer::Tokenizer> tokenizer;
  std::optional<DocumentForm> form;
  std::optional<BertSampler> bert;  ///< with an objective for BERT
  std::vector<RecordIndex> indexes;
  std::optional<Plan> plan;
  std::shared_ptr<const Corpus> corpus;
  std::string fingerprint;
  std::uint64_t broken = 0, bytes = 0;
  std::uint64_t bytes_fetched = 0;
  ReaderNeeds needs;
  std::unique_ptr<SampleReader> reader;
};

/// Errors: kInvalidArgument if the sources have token ids where the options need records.
Status Dataset::Rep::CheckSources(const ResolvedSources& resolved) const {
  if (options.mode == SequenceMode::kSft) {
    MR_TRY(RequireText(resolved, "do not tell prompts from answers; mode sft needs records"));
  }
  if (options.objective == Objective::kDpo) {
    MR_TRY(RequireText(resolved, "do not tell prompts from answers; the objective dpo needs records"));
  }
  if (options.IsForBert())
    MR_TRY(RequireText(resolved, "are no text, which rows for BERT are made of; name records of text"));
  if (options.split.held_out > 0)
    MR_TRY(RequireText(resolved, "cannot be split by what they say; leave out data.split, or name records of text"));
  return {};
}

/// `counted`: the indexes have the documents' numbers of tokens.
Status Dataset::Rep::LoadIndexes(object::Connection& connection, const ResolvedSources& resolved, bool counted,
                                 const Logger& log, const object::Call& call, Progress progress) {
  IndexOptions index_options{.form = &*form,
                             .tokenizer = counted ? tokenizer.get() : nullptr,
                             .cache_url = options.cache_url,
                             .hashes = options.split.held_out > 0,
                             .max_broken = options.max_broken,
                             .threads = options.threads,
                             .progress = std::move(progress)};
  indexes = MR_TRY(LoadOrBuildIndexes(connection, resolved.objects, index_options, log, call));
  std::uint64_t with_broken = 0;  // objects
  std::string first;
  for (std::size_t i = 0; i < indexes.size(); ++i) {
    broken += indexes[i].broken_count();
    bytes += resolved.objects[i].info.size;
    CountFetched(resolved.objects[i], indexes[i], log);
    if (indexes[i].broken().empty()) continue;
    const BrokenLine& line = indexes[i].broken().front();
    if (with_broken++ == 0) {
      first = fmt::format("{} at byte {}: {}", resolved.objects[i].url, line.offset, BrokenReasonName(line.reason));
    }
  }
  if (broken > 0) {
    log.Warning("records are skipped; `millrace data inspect` names them",
                {{"records", broken}, {"objects", with_broken}, {"first", first}});
  }
  return {};
}

Status Dataset::Rep::MakePlan(const ResolvedSources& resolved, bool counted, const Logger& log) {
  plan = MR_TRY(Plan::Make(indexes, resolved.by_source, options.sources,
                           {.mode = options.mode,
                            .sequence_length = static_cast<std::uint64_t>(options.sequence_length),
                            .seed = options.shuffle_seed,
                            .window = options.shuffle_window,
                            .added_tokens = form->added_tokens(*tokenizer),
                            .best_fit = options.best_fit,
                            .pairs = options.objective == Objective::kDpo,
                            .split_long = options.split_long,
                            .piece = counted && options.objective == Objective::kMlm ? bert->text_tokens() : 0,
                            .split = options.split}));
  if (plan->truncated() > 0) {
    log.Warning("documents are cut because they are longer than a row",
                {{"count", plan->truncated()}, {"row", options.sequence_length}});
  }
  return {};
}

Status Dataset::Rep::Build(object::Connection& connection, const Logger& log, object::Call call, Progress progress) {
  form = MR_TRY(DocumentForm::Make(options, tokenizer.get()));
  ResolvedSources resolved = MR_TRY(ResolveSources(connection, options.sources, call, form->all_fields()));
  MR_TRY(RequireEnd(resolved, *form, options, *tokenizer));
  WarnOfSpelledTokens(*form, options, *tokenizer, log);
  const bool stored_samples = MR_TRY(HoldStoredSamples(resolved, options));
  fingerprint = Fingerprint(resolved, options, *form, *tokenizer, stored_samples);
  MR_TRY(CheckSources(resolved));
  if (options.IsForBert()) bert = MR_TRY(BertSampler::Make(options, *tokenizer));
  const bool counted = CountsTokens(options) && !stored_samples;
  MR_TRY(LoadIndexes(connection, resolved, counted, log, call, std::move(progress)));
  MR_TRY(MakePlan(resolved, counted, log));
  std::shared_ptr<ChunkDisk> disk;
  if (!options.disk_cache.empty()) {
    disk = MR_TRY(ChunkDisk::Open(options.disk_cache, options.disk_cache_bytes, log));
  }
  corpus = std::make_shared<Corpus>(Corpus{.objects = std::move(resolved.objects),
                                           .plan = &*plan,
                                           .form = &*form,
                                           .tokenizer = tokenizer.get(),
                                           .disk = std::move(disk),
                                           .counted = counted,
                                           .bert = bert ? &*bert : nullptr,
                                           .objective = options.objective,
                                           .stored_samples = stored_samples,
                                           .boundaries = options.boundaries,
                                           .patience = options.patience,
                                           .clock = options.clock});
  MeasureNeeds();
  reader = NewReader(needs.least, 0);
  return {};
}

void Dataset::Rep::CountFetched(const DataObject& object, const RecordIndex& index, const Logger& log) {
  std::uint64_t fetched = index.frames().empty() ? object.info.size : 0;
  for (const IndexedFrame& one : index.frames()) fetched += one.frame.bytes;
  bytes_fetched += fetched;
  if (fetched < 2 * object.info.size || index.frames().size() < 2) return;
  log.Warning("an object is fetched and decoded several times in a pass",
              {{"object", object.url},
               {"times", static_cast<double>(fetched) / static_cast<double>(object.info.size)},
               {"why", CureForDistantSeekPoints(Compression::kZstd, object.url)}});
}

/// Windows of other passes hold other chunks, of about the same size. An eighth covers the difference.
void Dataset::Rep::MeasureNeeds() {
  std::uint64_t window = 0;
  for (std::uint32_t s = 0; s < plan->streams().size(); ++s) window += plan->OrderOf(s, 0).largest_window_bytes;
  window += window / 8 + kChunkBytes;
  needs = {window + SampleReader::kDocumentCacheBytes, 2 * window + SampleReader::kDocumentCacheBytes};
}

Result<std::shared_ptr<Dataset>> Dataset::Open(object::Connection& connection,
                                               std::shared_ptr<const tokenizer::Tokenizer> tokenizer,
                                               DatasetOptions options, Logger log, object::Call call,
                                               std::function<void(std::uint64_t, std::uint64_t)> progress) {
  auto rep = std::make_unique<Rep>(std::move(options), std::move(tokenizer));
  MR_TRY(CheckDatasetOptions(rep->options, *rep->tokenizer));
  MR_TRY(rep->Build(connection, log, std::move(call), std::move(progress)));
  return std::shared_ptr<Dataset>(new Dataset(std::move(rep)));
}

Dataset::Dataset(std::unique_ptr<Rep> rep) : rep_(std::move(rep)) {}
Dataset::~Dataset() = default;

std::uint64_t Dataset::samples_per_epoch() const { return rep_->plan->samples(); }
std::uint64_t Dataset::tokens_per_epoch() const { return rep_->plan->samples() * rep_->options.sequence_length; }
std::uint64_t Dataset::records() const { return rep_->plan->records(); }
std::uint64_t Dataset::broken_records() const { return rep_->broken; }

std::vector<std::pair<std::string, std::uint64_t>> Dataset::broken_by_reason() const {
  std::vector<std::pair<std::string, std::uint64_t>> reasons;
  for (std::size_t i = 0; i < kBrokenReasons; ++i) {
    std::uint64_t records = 0;
    for (const RecordIndex& index : rep_->indexes) records += index.broken_by_reason()[i];
    if (records > 0) reasons.emplace_back(BrokenReasonName(static_cast<BrokenReason>(i)), records);
  }
  return reasons;
}

std::uint64_t Dataset::bytes() const { return rep_->bytes; }
std::uint64_t Dataset::bytes_fetched() const { return rep_->bytes_fetched; }
std::uint64_t Dataset::truncated_documents() const { return rep_->plan->truncated(); }

std::vector<Dataset::SourceShare> Dataset::source_shares() const {
  const Plan& plan = *rep_->plan;
  std::vector<SourceShare> shares;
  for (std::size_t s = 0; s < plan.streams().size(); ++s) {
    shares.push_back({plan.streams()[s].samples, plan.blend().counts()[s]});
  }
  return shares;
}

const std::string& Dataset::fingerprint() const { return rep_->fingerprint; }
const DatasetOptions& Dataset::options() const { return rep_->options; }

Status Dataset::ReadSample(std::uint64_t epoch, std::uint64_t index, SequenceRow& row, object::Call call) {
  return rep_->reader->Read(epoch, index, row, std::move(call));
}

Status Dataset::ReadSample(std::uint64_t epoch, std::uint64_t index, std::span<TokenId> inputs,
                           std::span<TokenId> labels, object::Call call) {
  SequenceRow row{.inputs = inputs, .labels = labels};
  return ReadSample(epoch, index, row, std::move(call));
}

Forecast Dataset::Simulate(const SimulationParameters& parameters, int rows, std::uint64_t batches) const {
  const Plan& plan = *rep_->plan;
  SimulationParameters with_cache = parameters;
  with_cache.cache_bytes = std::min(parameters.cache_bytes, rep_->needs.best);
  return data::Simulate(
      NeedsOf(plan, static_cast<std::uint64_t>(rows), batches),
      [&plan](std::uint32_t chunk) { return std::uint64_t{plan.chunks()[chunk].bytes}; }, with_cache);
}

Result<double> Dataset::MeasureEncoding(object::Call call) {
  // Guesses: enough documents for a mean.
  constexpr std::uint64_t kEnoughBytes = 4 * kMiB, kMaxSamples = 4096;
  auto reader = NewReader(rep_->needs.least, 0);
  auto length = static_cast<std::size_t>(rep_->options.sequence_length);
  std::vector<TokenId> inputs(length), labels(length);
  double seconds = 0;
  std::uint64_t bytes = 0;
  const std::uint64_t samples = std::min(kMaxSamples, rep_->plan->samples());
  std::vector<BatchNeeds> needs = NeedsOf(*rep_->plan, 1, samples);
  for (std::uint64_t i = 0; i < samples && bytes < kEnoughBytes; ++i) {
    StageTrace trace;
    SequenceRow row{.inputs = inputs, .labels = labels};
    TimePoint began = SystemClock().Now();
    MR_TRY(reader->Read(0, i, row, call, &trace));
    auto spent = trace.Within(began, SystemClock().Now());
    spent[static_cast<std::size_t>(LoadStage::kNetwork)] = {};
    for (Duration one : spent) seconds += SecondsOf(one);
    bytes += needs[i].bytes;
  }
  return seconds / static_cast<double>(std::max<std::uint64_t>(bytes, 1));
}

Dataset::ReaderNeeds Dataset::reader_needs() const { return rep_->needs; }

std::unique_ptr<SampleReader> Dataset::NewReader(std::uint64_t cache_bytes, int read_ahead_threads) {
  return rep_->NewReader(cache_bytes, read_ahead_threads);
}

}  // namespace millrace::data
