#include <algorithm>

#include "millrace/base/hash/digest.h"
#include "millrace/base/text.h"
#include "millrace/data/documents/document_encoder.h"
#include "millrace/data/forecast/needs.h"
#include "millrace/data/forecast/simulate.h"
#include "millrace/data/formats/decoder.h"
#include "millrace/data/index/index_builder.h"
#include "millrace/data/loader.h"
#include "millrace/data/order/plan.h"
#include "millrace/data/reading/sample_reader.h"
#include "millrace/data/sources/sources.h"
#include "millrace/data/stage_trace.h"

namespace millrace::data {
namespace {

/// Of the definition in README.md. Whoever changes the order of any data counts it up.
constexpr int kOrderVersion = 2;
constexpr std::size_t kLongestSpelled = 64;

/// Contents, not names: data that moved to another bucket is still the same data.
std::string Fingerprint(const ResolvedSources& resolved, const DatasetOptions& options, const DocumentForm& form,
                        const tokenizer::Tokenizer& tokenizer) {
  std::string contents, weights, rows;
  for (std::size_t s = 0; s < resolved.by_source.size(); ++s) {
    for (std::uint32_t i : resolved.by_source[s]) {
      const object::ObjectInfo& info = resolved.objects[i].info;
      contents += fmt::format("{}:{}\n", info.size, info.etag);
      if (const auto& content = resolved.objects[i].content) contents += fmt::format("{}\n", content->format());
      if (resolved.objects[i].table) contents += fmt::format("{}\n", resolved.objects[i].table->etag);
    }
    contents += '\n';
    weights += fmt::format("{}{}", s ? "," : "", options.sources[s].weight);
  }
  if (weights.size() > kLongestSpelled) weights = ShortHash(weights);
  constexpr std::string_view kModes[] = {"pack", "pad", "sft"};
  std::string_view mode = kModes[static_cast<std::size_t>(options.mode)];
  for (auto [set, name] : {std::pair{options.best_fit, "best_fit"}, {options.split_long, "split_long"}}) {
    if (set) rows += fmt::format("{}{}", rows.empty() ? "" : ",", name);
  }
  std::string split = "none";
  if (options.split.held_out > 0) {
    split = fmt::format("{},{},{}", options.split.held_out, options.split.part == Part::kTrain ? "train" : "held_out",
                        options.split.seed);
  }
  return fmt::format(
      "order={} objects={} weights={} template={} tokenizer={} mode={} rows={} boundaries={} length={} split={} "
      "seed={} "
      "window={}",
      kOrderVersion, ShortHash(contents), weights, ShortHash(form.identity()), tokenizer.fingerprint(), mode,
      rows.empty() ? "plain" : rows, options.boundaries ? "kept" : "none", options.sequence_length, split,
      options.shuffle_seed, options.shuffle_window);
}

class IndexedDataset final : public Dataset {
 public:
  static Result<std::shared_ptr<Dataset>> Open(object::Connection& connection,
                                               std::shared_ptr<const tokenizer::Tokenizer> tokenizer,
                                               DatasetOptions options, Logger log, object::Call call) {
    MR_TRY(Check(options, *tokenizer));
    auto made = std::shared_ptr<IndexedDataset>(new IndexedDataset(std::move(options), std::move(tokenizer)));
    MR_TRY(made->Build(connection, log, call));
    return made;
  }

  std::uint64_t samples_per_epoch() const override { return plan_->samples(); }
  std::uint64_t tokens_per_epoch() const override { return plan_->samples() * options_.sequence_length; }
  std::uint64_t records() const override { return plan_->records(); }
  std::uint64_t broken_records() const override { return broken_; }
  std::uint64_t bytes() const override { return bytes_; }
  std::uint64_t bytes_fetched() const override { return bytes_fetched_; }
  std::uint64_t truncated_documents() const override { return plan_->truncated(); }
  std::vector<SourceShare> source_shares() const override {
    std::vector<SourceShare> shares;
    for (std::size_t s = 0; s < plan_->streams().size(); ++s) {
      shares.push_back({plan_->streams()[s].samples, plan_->blend().counts()[s]});
    }
    return shares;
  }
  const std::string& fingerprint() const override { return fingerprint_; }
  const DatasetOptions& options() const override { return options_; }

  Status ReadSample(std::uint64_t epoch, std::uint64_t index, Row& row, object::Call call) override {
    return reader_->Read(epoch, index, row, std::move(call));
  }

  Forecast Simulate(const SimulatedPlace& place, int rows, std::uint64_t batches) const override {
    SimulatedPlace with_cache = place;
    with_cache.cache_bytes = std::min(place.cache_bytes, needs_.best);
    return data::Simulate(
        NeedsOf(*plan_, static_cast<std::uint64_t>(rows), batches),
        [this](std::uint32_t chunk) { return std::uint64_t{plan_->chunks()[chunk].bytes}; }, with_cache);
  }

  Result<double> MeasureEncoding(object::Call call) override {
    constexpr std::uint64_t kEnoughBytes = 4 * kMiB, kMostSamples = 4096;
    auto reader = NewReader(needs_.least, 0);
    auto length = static_cast<std::size_t>(options_.sequence_length);
    std::vector<TokenId> inputs(length), labels(length);
    double seconds = 0;
    std::uint64_t bytes = 0;
    const std::uint64_t samples = std::min(kMostSamples, plan_->samples());
    std::vector<BatchNeeds> needs = NeedsOf(*plan_, 1, samples);
    for (std::uint64_t i = 0; i < samples && bytes < kEnoughBytes; ++i) {
      StageTrace trace;
      Row row{.inputs = inputs, .labels = labels};
      TimePoint began = SystemClock().Now();
      MR_TRY(reader->Read(0, i, row, call, &trace));
      auto spent = trace.Within(began, SystemClock().Now());
      spent[static_cast<std::size_t>(Stage::kNetwork)] = {};
      for (Duration one : spent) seconds += std::chrono::duration<double>(one).count();
      bytes += needs[i].bytes;
    }
    return seconds / static_cast<double>(std::max<std::uint64_t>(bytes, 1));
  }

  ReaderNeeds reader_needs() const override { return needs_; }

  std::unique_ptr<SampleReader> NewReader(std::uint64_t cache_bytes, int read_ahead_threads) override {
    return std::make_unique<CorpusReader>(
        corpus_, CorpusReader::Options{.cache_bytes = cache_bytes, .read_ahead_threads = read_ahead_threads});
  }

 private:
  IndexedDataset(DatasetOptions options, std::shared_ptr<const tokenizer::Tokenizer> tokenizer)
      : options_(std::move(options)), tokenizer_(std::move(tokenizer)) {}

  void CountFetched(const DataObject& object, const RecordIndex& index, const Logger& log) {
    std::uint64_t fetched = index.frames().empty() ? object.info.size : 0;
    for (const IndexedFrame& one : index.frames()) fetched += one.frame.bytes;
    bytes_fetched_ += fetched;
    if (fetched < 2 * object.info.size || index.frames().size() < 2) return;
    log.Warning("an object is fetched and decoded several times in a pass",
                {{"object", object.url},
                 {"times", static_cast<double>(fetched) / static_cast<double>(object.info.size)},
                 {"why", CureForDistantEntries(Compression::kZstd, object.url)}});
  }

  static Status Check(const DatasetOptions& options, const tokenizer::Tokenizer& tokenizer) {
    if (options.sequence_length < 1 || options.sequence_length > 1 << 24) {
      return Fail(Code::kInvalidArgument, "a sequence length of {} is not possible", options.sequence_length);
    }
    if (options.threads < 1) return Fail(Code::kInvalidArgument, "{} threads cannot load data", options.threads);
    if (options.mode == Mode::kPack && tokenizer.eos() == tokenizer::kNoToken) {
      return Fail(Code::kInvalidArgument,
                  "packing joins documents by an end-of-sequence token, which this tokenizer lacks; "
                  "use mode pad");
    }
    if (options.mode == Mode::kPack && (options.best_fit || options.split_long)) {
      return Fail(Code::kInvalidArgument,
                  "mode pack cuts documents wherever a row ends; best_fit and split_long are for pad and sft");
    }
    if (options.split_long && (options.best_fit || options.mode == Mode::kSft)) {
      return Fail(
          Code::kInvalidArgument, "split_long is for mode pad without best_fit: {}",
          options.best_fit ? "fitted documents stay whole" : "the rest of a split conversation lacks its beginning");
    }
    const HeldOutSplit& split = options.split;
    if (!(split.held_out >= 0 && split.held_out < 1) || (split.part == Part::kHeldOut && split.held_out == 0)) {
      return Fail(Code::kInvalidArgument, "a share of {} held out leaves one part without records", split.held_out);
    }
    return {};
  }

  Status Build(object::Connection& connection, const Logger& log, object::Call call) {
    form_ = MR_TRY(DocumentForm::Make(options_));
    ResolvedSources resolved = MR_TRY(ResolveSources(connection, options_.sources, call, form_->fields()));
    fingerprint_ = Fingerprint(resolved, options_, *form_, *tokenizer_);
    if (options_.mode == Mode::kSft) {
      MR_TRY(RequireText(resolved, "do not tell prompts from answers; mode sft needs records"));
    }
    if (options_.split.held_out > 0) MR_TRY(RequireText(resolved, "cannot be split by what they say"));
    const bool counted = CountsTokens(options_);
    IndexOptions index_options{.form = &*form_,
                               .tokenizer = counted ? tokenizer_.get() : nullptr,
                               .cache_url = options_.cache_url,
                               .hashes = options_.split.held_out > 0,
                               .max_broken = options_.max_broken,
                               .threads = options_.threads};
    indexes_ = MR_TRY(LoadOrBuildIndexes(connection, resolved.objects, index_options, log, call));
    for (std::size_t i = 0; i < indexes_.size(); ++i) {
      broken_ += indexes_[i].broken_count();
      bytes_ += resolved.objects[i].info.size;
      CountFetched(resolved.objects[i], indexes_[i], log);
      if (indexes_[i].broken().empty()) continue;
      const BrokenLine& first = indexes_[i].broken().front();
      log.Warning("records are skipped", {{"object", resolved.objects[i].url},
                                          {"count", indexes_[i].broken_count()},
                                          {"first_at", first.offset},
                                          {"first_reason", BrokenName(first.reason)}});
    }
    plan_ = MR_TRY(Plan::Make(indexes_, resolved.by_source, options_.sources,
                              {.mode = options_.mode,
                               .sequence_length = static_cast<std::uint64_t>(options_.sequence_length),
                               .seed = options_.shuffle_seed,
                               .window = options_.shuffle_window,
                               .added_tokens = form_->added_tokens(*tokenizer_),
                               .best_fit = options_.best_fit,
                               .split_long = options_.split_long,
                               .split = options_.split}));
    if (plan_->truncated() > 0) {
      log.Warning("documents are cut because they are longer than a row",
                  {{"count", plan_->truncated()}, {"row", options_.sequence_length}});
    }
    std::shared_ptr<ChunkDisk> disk;
    if (!options_.disk_cache.empty()) {
      disk = MR_TRY(ChunkDisk::Open(options_.disk_cache, options_.disk_cache_bytes, log));
    }
    corpus_ = std::make_shared<Corpus>(Corpus{.objects = std::move(resolved.objects),
                                              .plan = &*plan_,
                                              .form = &*form_,
                                              .tokenizer = tokenizer_.get(),
                                              .disk = std::move(disk),
                                              .counted = counted,
                                              .boundaries = options_.boundaries,
                                              .patience = options_.patience,
                                              .clock = options_.clock});
    MeasureNeeds();
    reader_ = NewReader(needs_.least, 0);
    return {};
  }

  static Status RequireText(const ResolvedSources& resolved, std::string_view why) {
    for (const DataObject& object : resolved.objects) {
      if (object.token_bytes > 0) {
        return Fail(Code::kInvalidArgument, "{}: token ids {}", object.url, why);
      }
    }
    return {};
  }

  /// Windows of other passes are made of other chunks, but of as many: an eighth covers the difference.
  void MeasureNeeds() {
    std::uint64_t window = 0;
    for (std::uint32_t s = 0; s < plan_->streams().size(); ++s) window += plan_->OrderOf(s, 0).largest_window_bytes;
    window += window / 8 + kChunkBytes;
    needs_ = {window + CorpusReader::kDocumentCacheBytes, 2 * window + CorpusReader::kDocumentCacheBytes};
  }

  const DatasetOptions options_;
  const std::shared_ptr<const tokenizer::Tokenizer> tokenizer_;
  std::optional<DocumentForm> form_;
  std::vector<RecordIndex> indexes_;
  std::optional<Plan> plan_;
  std::shared_ptr<const Corpus> corpus_;
  std::string fingerprint_;
  std::uint64_t broken_ = 0, bytes_ = 0;
  std::uint64_t bytes_fetched_ = 0;
  ReaderNeeds needs_;
  std::unique_ptr<SampleReader> reader_;
};

}  // namespace

bool CountsTokens(const DatasetOptions& options) {
  return options.mode == Mode::kPack || options.best_fit || options.split_long;
}

Result<std::shared_ptr<Dataset>> Dataset::Open(object::Connection& connection,
                                               std::shared_ptr<const tokenizer::Tokenizer> tokenizer,
                                               DatasetOptions options, Logger log, object::Call call) {
  return IndexedDataset::Open(connection, std::move(tokenizer), std::move(options), std::move(log), call);
}

}  // namespace millrace::data
