#include <algorithm>

#include "millrace/base/digest.h"
#include "millrace/base/text.h"
#include "millrace/data/index_builder.h"
#include "millrace/data/loader.h"
#include "millrace/data/plan.h"
#include "millrace/data/record_template.h"
#include "millrace/data/sample_reader.h"
#include "millrace/data/sources.h"

namespace millrace::data {
namespace {

std::string ShortHash(std::string_view text) { return HexEncode(Sha256(AsBytes(text))).substr(0, 16); }

/// Contents, not names: data that moved to another bucket is still the same data.
std::string Fingerprint(const ResolvedSources& resolved, const DatasetOptions& options,
                        const tokenizer::Tokenizer& tokenizer) {
  std::string contents, weights;
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
  return fmt::format("objects={} weights={} template={} tokenizer={} mode={} length={} seed={} window={}",
                     ShortHash(contents), weights, ShortHash(options.template_text), tokenizer.fingerprint(),
                     options.mode == Mode::kPack ? "pack" : "pad", options.sequence_length, options.shuffle_seed,
                     options.shuffle_window);
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
  std::uint64_t records() const override { return records_; }
  std::uint64_t broken_records() const override { return broken_; }
  std::uint64_t bytes() const override { return bytes_; }
  const std::string& fingerprint() const override { return fingerprint_; }
  const DatasetOptions& options() const override { return options_; }

  Status ReadSample(std::uint64_t epoch, std::uint64_t index, std::span<TokenId> inputs, std::span<TokenId> labels,
                    object::Call call) override {
    return reader_->Read(epoch, index, inputs, labels, call);
  }

  ReaderNeeds reader_needs() const override { return needs_; }

  std::unique_ptr<SampleReader> NewReader(std::uint64_t cache_bytes, int read_ahead_threads) override {
    return std::make_unique<CorpusReader>(
        corpus_, CorpusReader::Options{.cache_bytes = cache_bytes, .read_ahead_threads = read_ahead_threads});
  }

 private:
  IndexedDataset(DatasetOptions options, std::shared_ptr<const tokenizer::Tokenizer> tokenizer)
      : options_(std::move(options)), tokenizer_(std::move(tokenizer)) {}

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
    return {};
  }

  Status Build(object::Connection& connection, const Logger& log, object::Call call) {
    template_ = MR_TRY(RecordTemplate::Parse(options_.template_text));
    ResolvedSources resolved = MR_TRY(ResolveSources(connection, options_.sources, call, template_->fields()));
    fingerprint_ = Fingerprint(resolved, options_, *tokenizer_);
    bool pack = options_.mode == Mode::kPack;
    IndexOptions index_options{.record_template = &*template_,
                               .tokenizer = pack ? tokenizer_.get() : nullptr,
                               .cache_url = options_.cache_url,
                               .threads = options_.threads};
    indexes_ = MR_TRY(LoadOrBuildIndexes(connection, resolved.objects, index_options, log, call));
    for (std::size_t i = 0; i < indexes_.size(); ++i) {
      records_ += indexes_[i].records();
      broken_ += indexes_[i].broken_count();
      bytes_ += resolved.objects[i].info.size;
      if (indexes_[i].broken().empty()) continue;
      const BrokenLine& first = indexes_[i].broken().front();
      log.Warning("records are skipped", {{"object", resolved.objects[i].url},
                                          {"count", indexes_[i].broken_count()},
                                          {"first_at", first.offset},
                                          {"first_reason", BrokenName(first.reason)}});
    }
    auto added = static_cast<std::uint32_t>((tokenizer_->bos() != tokenizer::kNoToken) +
                                            (tokenizer_->eos() != tokenizer::kNoToken));
    plan_ = MR_TRY(Plan::Make(indexes_, resolved.by_source, options_.sources,
                              {.mode = options_.mode,
                               .sequence_length = static_cast<std::uint64_t>(options_.sequence_length),
                               .seed = options_.shuffle_seed,
                               .window = options_.shuffle_window,
                               .added_tokens = added}));
    corpus_ = std::make_shared<Corpus>(Corpus{.objects = std::move(resolved.objects),
                                              .plan = &*plan_,
                                              .record_template = &*template_,
                                              .tokenizer = tokenizer_.get()});
    MeasureNeeds();
    reader_ = NewReader(needs_.least, 0);
    return {};
  }

  /// Windows of other epochs are made of other chunks, but of as many: an eighth covers the difference.
  void MeasureNeeds() {
    std::uint64_t window = plan_->OrderOf(0).largest_window_bytes;
    window += window / 8 + kChunkBytes;
    needs_ = {window + CorpusReader::kDocumentCacheBytes, 2 * window + CorpusReader::kDocumentCacheBytes};
  }

  const DatasetOptions options_;
  const std::shared_ptr<const tokenizer::Tokenizer> tokenizer_;
  std::optional<RecordTemplate> template_;
  std::vector<RecordIndex> indexes_;
  std::optional<Plan> plan_;
  std::shared_ptr<const Corpus> corpus_;
  std::string fingerprint_;
  std::uint64_t records_ = 0, broken_ = 0, bytes_ = 0;
  ReaderNeeds needs_;
  std::unique_ptr<SampleReader> reader_;
};

}  // namespace

Result<std::shared_ptr<Dataset>> Dataset::Open(object::Connection& connection,
                                               std::shared_ptr<const tokenizer::Tokenizer> tokenizer,
                                               DatasetOptions options, Logger log, object::Call call) {
  return IndexedDataset::Open(connection, std::move(tokenizer), std::move(options), std::move(log), call);
}

}  // namespace millrace::data
