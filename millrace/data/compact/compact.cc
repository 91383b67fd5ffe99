#include "millrace/data/compact/compact.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "millrace/base/text.h"
#include "millrace/base/threads/channel.h"
#include "millrace/base/threads/sync.h"
#include "millrace/base/threads/task_scope.h"
#include "millrace/data/compact/compact_report.h"
#include "millrace/data/compact/near_index.h"
#include "millrace/data/compact/output_folder.h"
#include "millrace/data/compact/page_reader.h"
#include "millrace/data/compact/shard_builder.h"
#include "millrace/data/documents/document_reader.h"
#include "millrace/data/records/content.h"
#include "millrace/data/sources/sources.h"
#include "millrace/data/sources/survey.h"

namespace millrace::data {
namespace {

constexpr int kShardWriters = 2;  ///< one may compress while the other one waits for the store

std::string_view DuplicateSearchName(DuplicateSearch search) {
  return search == DuplicateSearch::kNone ? "none" : search == DuplicateSearch::kExact ? "exact" : "near";
}
std::string_view CompressionName(Compression compression) {
  return compression == Compression::kNone ? "none" : compression == Compression::kGzip ? "gzip" : "zstd";
}

/// A record of the input in 64 bits, as the indexes of duplicates store it.
struct RecordPlace {
  static constexpr int kLineBits = 40;
  static constexpr std::uint64_t kMaxObjects = 1ULL << (64 - kLineBits);
  std::uint32_t object = 0;
  std::uint64_t line = 0;  ///< from 0
  std::uint64_t Pack() const { return std::uint64_t{object} << kLineBits | line; }
  static RecordPlace Unpack(std::uint64_t packed) {
    return {static_cast<std::uint32_t>(packed >> kLineBits), packed & ((1ULL << kLineBits) - 1)};
  }
};

/// Compresses and stages shards on its own threads. One thread calls it.
class ShardStager {
 public:
  ShardStager(const OutputFolder& output, const CompactOptions& options, const object::Call& call)
      : output_(output), options_(options), call_(call) {
    for (int i = 0; i < kShardWriters; ++i) {
      working_.Spawn("compact-write", [this](std::stop_token stop) {
        while (auto shard = shards_.Pop(stop)) {
          if (Status staged = Stage(*std::move(shard)); !staged) return StopFor(std::move(staged));
        }
      });
    }
  }

  /// Blocks while three shards wait or are written. Errors: those of the shards before.
  Status Add(Shard shard) {
    if (shards_.Push(std::move(shard), call_.stop)) return {};
    MutexLock lock(mutex_);
    return outcome_ ? Fail(Code::kCancelled, "interrupted") : outcome_;
  }
  /// Blocks until all shards are staged. Returns them in their order.
  Result<std::vector<CompactedShard>> Finish() {
    shards_.Close();
    working_.Join();
    MutexLock lock(mutex_);
    if (!outcome_) return std::unexpected(outcome_.error());
    std::ranges::sort(done_, {}, &CompactedShard::name);
    return std::move(done_);
  }

 private:
  Status Stage(Shard shard) {
    CompactedShard done{.name = ShardName(shard.number, options_.compression),
                        .kept = {.records = shard.records, .bytes = shard.lines.size()}};
    if (options_.compression != Compression::kNone) {
      shard.lines = MR_TRY(CompressLines(shard.lines, options_.compression, options_.threads, call_.stop));
    }
    done.stored_bytes = shard.lines.size();
    MR_TRY(output_.Stage(done.name, shard.lines, call_));
    MutexLock lock(mutex_);
    done_.push_back(std::move(done));
    return {};
  }
  void StopFor(Status status) {
    {
      MutexLock lock(mutex_);
      if (outcome_) outcome_ = std::move(status);
    }
    shards_.Close();
  }

  const OutputFolder& output_;
  const CompactOptions& options_;
  const object::Call& call_;
  Mutex mutex_;
  Status outcome_ MR_GUARDED_BY(mutex_);
  std::vector<CompactedShard> done_ MR_GUARDED_BY(mutex_);
  Channel<Shard> shards_{1};
  TaskScope working_;
};

/// One call of Compact().
class Compaction {
 public:
  Compaction(object::Connection& connection, const CompactOptions& options, const CompactProgress& progress,
             const Logger& log, object::Call call)
      : connection_(connection),
        options_(options),
        progress_(progress),
        log_(log),
        call_(std::move(call)),
        banding_(Banding::For(std::clamp(options.similarity, kMinSimilarity, 1.0))),
        near_(banding_, options.similarity),
        builder_(options.shard_bytes) {}

  Result<CompactResult> Run() {
    MR_TRY(CheckOptions());
    MR_TRY(FindSources());
    if (!options_.output.empty()) {
      if (auto finished = MR_TRY(PrepareOutput())) return *std::move(finished);
    }
    MR_TRY(ReadHeldOut());
    MR_TRY(ReadSources());
    report_.index_bytes = IndexBytes();
    CompactResult result{.report = report_.ToJson(OptionsJson())};
    if (options_.dry_run) return result;
    const std::string text = DumpJsonPretty(result.report) + "\n";
    MR_TRY(output_->Stage(kReportName, text, call_));
    MR_TRY(output_->Publish(ShardNames(result.report), text, call_));
    return result;
  }

 private:
  Status CheckOptions() const {
    if (options_.output.empty() && !options_.dry_run) {
      return Fail(Code::kInvalidArgument, "name a folder for the shards (--output), or only look (--dry-run)");
    }
    if (!(options_.similarity >= kMinSimilarity && options_.similarity <= 1)) {
      return Fail(Code::kInvalidArgument, "a similarity of {} is not between {} and 1", options_.similarity,
                  kMinSimilarity);
    }
    if (options_.shard_bytes == 0 || options_.shard_bytes > kMaxShardBytes) {
      return Fail(Code::kInvalidArgument, "shards of {} bytes: give a size of up to 1 GiB, because some are in memory",
                  options_.shard_bytes);
    }
    if (options_.min_chars && options_.max_chars && *options_.min_chars > *options_.max_chars) {
      return Fail(Code::kInvalidArgument, "no text has at least {} and at most {} characters", *options_.min_chars,
                  *options_.max_chars);
    }
    const std::vector<std::string_view> scripts = ScriptNames();
    for (const std::string& script : options_.scripts) {
      if (script != "none" && std::ranges::find(scripts, script) == scripts.end()) {
        return Fail(Code::kInvalidArgument, "{}; known are {} and none", UnknownName("script", script, scripts),
                    fmt::join(scripts, ", "));
      }
    }
    if (options_.held_out_words == 0) return Fail(Code::kInvalidArgument, "held-out texts need runs of a word or more");
    return {};
  }

  Status FindSources() {
    template_ = MR_TRY(RecordTemplate::Parse(options_.template_text));
    patterns_ = MR_TRY(TextPatterns::Compile(options_.match, options_.reject));
    sources_ = MR_TRY(ResolveSources(connection_, options_.sources, call_));
    if (sources_.objects.size() > RecordPlace::kMaxObjects) {
      return Fail(Code::kUnsupported,
                  "{} objects are more than the {} of one compaction; compact them folder by folder",
                  sources_.objects.size(), RecordPlace::kMaxObjects);
    }
    for (const DataObject& object : sources_.objects) {
      if (object.token_bytes > 0 || (object.content && object.content->holds_samples())) {
        return Fail(Code::kInvalidArgument, "{}: holds token ids or samples, no text; name sources that have text",
                    object.url);
      }
      report_.object_bytes += object.info.size;
    }
    report_.objects = sources_.objects.size();
    return {};
  }

  Json OptionsJson() const {
    Json options{{"template", options_.template_text},
                 {"shard_size", options_.shard_bytes},
                 {"compression", CompressionName(options_.compression)},
                 {"dedup", DuplicateSearchName(options_.duplicates)}};
    if (options_.duplicates == DuplicateSearch::kNear) {
      options["similarity"] = options_.similarity;
      options["minhash"] = {
          {"hashes", kMinHashes}, {"bands", banding_.bands}, {"rows", banding_.rows}, {"words", kShingleWords}};
    }
    if (options_.min_chars) options["min_chars"] = *options_.min_chars;
    if (options_.max_chars) options["max_chars"] = *options_.max_chars;
    if (!options_.match.empty()) options["match"] = options_.match;
    if (!options_.reject.empty()) options["reject"] = options_.reject;
    if (!options_.scripts.empty()) options["script"] = options_.scripts;
    if (!options_.languages.empty()) options["language"] = options_.languages;
    if (!options_.held_out.empty()) options["held_out_words"] = options_.held_out_words;
    return options;
  }

  static std::vector<std::string> ShardNames(const Json& report) {
    std::vector<std::string> names;
    for (const Json& shard : report.at("shards")) names.push_back(shard.at("name").get<std::string>());
    return names;
  }

  /// Returns the result if an earlier run had everything but the end.
  Result<std::optional<CompactResult>> PrepareOutput() {
    output_ = MR_TRY(OutputFolder::Open(connection_, options_.output));
    for (const DataObject& object : sources_.objects) {
      if (output_->Holds(*object.store, object.info.key)) {
        return Fail(Code::kInvalidArgument, "{}: lies in the output folder; choose another one", object.url);
      }
    }
    std::string identity = fmt::format("1\n{}\n", DumpJson(OptionsJson()));
    auto add = [&](const DataObject& object) {
      identity += fmt::format("{} {} {} {}\n", object.url, object.info.size, object.info.etag,
                              object.content ? object.content->format() : "");
    };
    std::ranges::for_each(sources_.objects, add);
    if (!options_.held_out.empty()) {
      const auto held_out = MR_TRY(ResolveSources(connection_, options_.held_out, call_));
      std::ranges::for_each(held_out.objects, add);
    }
    output_->SetIdentity(identity);
    if (!options_.dry_run) {
      if (auto staged = MR_TRY(output_->FindStagedReport(call_))) return PublishStaged(*staged);
    }
    MR_TRY(output_->CheckFree({}, options_.force, call_));
    if (!options_.dry_run) MR_TRY(output_->RemoveStaged(call_));
    return std::optional<CompactResult>();
  }

  Result<std::optional<CompactResult>> PublishStaged(const std::string& staged) {
    Json report = MR_TRY(ParseJson(staged, "the staged report"));
    if (MR_TRY(output_->IsPublished(staged, call_))) {
      MR_TRY(output_->RemoveStaged(call_));
      return CompactResult{.report = std::move(report), .resumed = true};
    }
    std::vector<std::string> own = ShardNames(report);
    own.emplace_back(kReportName);
    MR_TRY(output_->CheckFree(own, options_.force, call_));
    log_.Info("an earlier run was stopped at its end; publishing its shards", {{"shards", own.size() - 1}});
    own.pop_back();
    MR_TRY(output_->Publish(own, staged, call_));
    return CompactResult{.report = std::move(report), .resumed = true};
  }

  Status ReadHeldOut() {
    if (options_.held_out.empty()) return {};
    auto reader = MR_TRY(DocumentReader::Open(connection_, options_.held_out, *template_, call_));
    std::string document;
    while (MR_TRY(reader.Next(document))) held_out_.Add(document);
    if (held_out_.size() == 0) {
      return Fail(Code::kInvalidArgument, "{}: holds no text by the template {}; change --template or --held-out",
                  options_.held_out.front().url, options_.template_text);
    }
    return {};
  }

  Status ReadSources() {
    const JudgeOptions judging{.min_chars = options_.min_chars,
                               .max_chars = options_.max_chars,
                               .scripts = options_.scripts,
                               .languages = options_.languages,
                               .patterns = &*patterns_,
                               .held_out = options_.held_out.empty() ? nullptr : &held_out_,
                               .duplicates = options_.duplicates,
                               .banding = banding_};
    // Each thread has a guesser of its own; the first one says whether there is a library.
    if (!options_.languages.empty()) {
      if (const auto library = LanguageDetector::Open(); !library) return Fail(library.error());
    }
    const auto make_judge = [&] {
      auto guesser = options_.languages.empty() ? nullptr : LanguageDetector::Open().value();
      return RecordJudge(*template_, judging, std::move(guesser));
    };
    std::optional<ShardStager> stager;
    if (!options_.dry_run) stager.emplace(*output_, options_, call_);
    {
      PageReader reader(sources_.objects, options_.threads, make_judge, call_);
      while (auto page = MR_TRY(reader.Next())) MR_TRY(AddPage(*page, stager ? &*stager : nullptr));
    }
    if (!stager) return {};
    if (auto last = builder_.Finish()) MR_TRY(stager->Add(*std::move(last)));
    report_.shards = MR_TRY(stager->Finish());
    return {};
  }

  Status AddPage(const RecordPage& page, ShardStager* stager) {
    if (page.object != object_) {
      for (; object_ < page.object; ++object_) bytes_before_ += sources_.objects[object_].info.size;
      lines_before_ = 0;
    }
    std::size_t signature = 0;
    for (const JudgedRecord& record : page.judged.records) {
      const std::string_view line = AsText(page.lines).substr(record.begin, record.bytes);
      const std::uint64_t bytes = line.size() + 1;
      report_.read.Add(bytes);
      const RecordPlace place{page.object, lines_before_ + record.line};
      const std::size_t own_signature = signature;
      signature += record.has_signature ? 1 : 0;
      Removal removal =
          record.removal ? Removal{.reason = record.removal} : FindDuplicate(page.judged, record, own_signature, place);
      if (removal.reason) {
        Remove(removal, record, place, line);
        continue;
      }
      report_.kept.Add(bytes);
      if (!stager) continue;
      if (auto full = builder_.Add(line)) MR_TRY(stager->Add(*std::move(full)));
    }
    MR_TRY(CheckIndex());
    lines_before_ += page.judged.lines;
    if (progress_) progress_(bytes_before_ + page.object_end, report_.object_bytes);
    return {};
  }

  std::uint64_t IndexBytes() const { return digests_.bytes() + near_.bytes() + held_out_.bytes(); }

  Status CheckIndex() const {
    if (IndexBytes() <= options_.index_bytes) return {};
    return Fail(Code::kResourceExhausted,
                "after {} records, the indexes of texts need {}, and --index-memory allows {}; nothing was published.\n"
                "Allow more, take --dedup exact (64 bytes a record, near: 0.9 kB), or compact folder by folder",
                report_.read.records, FormatBytes(IndexBytes()), FormatBytes(options_.index_bytes));
  }

  struct Removal {
    std::optional<RemovalReason> reason;
    std::optional<std::uint64_t> earlier;  ///< the packed place of the record that stays
    std::optional<double> similarity;
  };
  Removal FindDuplicate(const JudgedPage& page, const JudgedRecord& record, std::size_t signature, RecordPlace place) {
    if (options_.duplicates == DuplicateSearch::kNone) return {};
    if (auto earlier = digests_.FindOrAdd(record.digest, place.Pack())) {
      return {.reason = RemovalReason::kExactDuplicate, .earlier = earlier, .similarity = {}};
    }
    if (!record.has_signature) return {};
    const auto bands = std::span(page.band_hashes).subspan(signature * banding_.bands, banding_.bands);
    const auto match = near_.FindOrAdd(page.signatures[signature], bands, place.Pack());
    if (!match) return {};
    digests_.Move(record.digest, match->place);
    return {.reason = RemovalReason::kNearDuplicate, .earlier = match->place, .similarity = match->similarity};
  }

  void Remove(const Removal& removal, const JudgedRecord& record, RecordPlace place, std::string_view line) {
    const auto reason = static_cast<std::size_t>(*removal.reason);
    report_.removed[reason].Add(line.size() + 1);
    if (report_.examples[reason].size() == kRemovalExamples) return;
    RemovalExample example{.source = sources_.objects[place.object].url, .line = place.line + 1};
    if (record.removal == RemovalReason::kBroken) {
      example.broken = BrokenReasonName(record.broken);
      example.text = Excerpt(line);
    } else {
      RecordParser parser(*template_);
      const auto text = parser.Parse(line);
      example.text = Excerpt(text ? *text : line);
    }
    if (removal.earlier) {
      const RecordPlace earlier = RecordPlace::Unpack(*removal.earlier);
      example.earlier = fmt::format("{}:{}", sources_.objects[earlier.object].url, earlier.line + 1);
    }
    example.similarity = removal.similarity;
    report_.examples[reason].push_back(std::move(example));
  }

  object::Connection& connection_;
  const CompactOptions& options_;
  const CompactProgress& progress_;
  const Logger& log_;
  const object::Call call_;
  const Banding banding_;
  std::optional<RecordTemplate> template_;
  std::optional<TextPatterns> patterns_;
  ResolvedSources sources_;
  std::optional<OutputFolder> output_;
  HeldOutRuns held_out_{options_.held_out_words};
  DigestIndex digests_;
  NearIndex near_;
  ShardBuilder builder_;
  CompactReport report_;
  std::uint32_t object_ = 0;        ///< of the last page
  std::uint64_t lines_before_ = 0;  ///< of this object, in the pages before
  std::uint64_t bytes_before_ = 0;  ///< of the objects before
};

}  // namespace

Result<CompactResult> Compact(object::Connection& connection, const CompactOptions& options,
                              const CompactProgress& progress, const Logger& log, object::Call call) {
  return Compaction(connection, options, progress, log, std::move(call)).Run();
}

}  // namespace millrace::data
