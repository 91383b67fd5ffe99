#include "millrace/data/tokenize.h"

#include <algorithm>
#include <map>

#include "millrace/base/hash/digest.h"
#include "millrace/base/hash/text_encoding.h"
#include "millrace/base/text.h"
#include "millrace/base/threads/parallel_for.h"
#include "millrace/data/formats/megatron.h"
#include "millrace/data/index_builder.h"
#include "millrace/data/records/content.h"
#include "millrace/data/sources/sources.h"
#include "millrace/data/token_parts.h"
#include "millrace/object/blocking.h"

namespace millrace::data {
namespace {

constexpr std::uint64_t kReadBytes =
    4 * kMiB;  ///< neighbouring records that one read fetches; as a frame (kFrameTarget)
/// Larger inputs get larger parts instead of more, because a multipart upload has at most 10,000. 3,000 is a guess.
constexpr std::uint64_t kMaxParts = 3000;
/// Megatron-LM writes a document for every record, so that documents have the numbers of the records.
constexpr bool kKeepsEmpty = true;
/// Between looks for the parts of other shares.
constexpr Duration kPartsInterval = std::chrono::seconds(1);

/// Consecutive blocks of one object's index. A frame is never divided.
struct InputPart {
  std::uint32_t object = 0;
  std::size_t first_block = 0, end_block = 0;
  std::uint64_t bytes = 0;  ///< of content
};

std::vector<InputPart> CutIntoParts(std::span<const RecordIndex> indexes, std::uint64_t part_bytes) {
  std::uint64_t total = 0;
  for (const RecordIndex& index : indexes) {
    for (std::size_t b = 0; b < index.blocks(); ++b) total += index.block(b).bytes;
  }
  part_bytes = std::max(part_bytes, total / kMaxParts);
  std::vector<InputPart> parts;
  for (std::uint32_t i = 0; i < indexes.size(); ++i) {
    const RecordIndex& index = indexes[i];
    const bool framed = !index.frames().empty();
    const IndexedFrame* frame = nullptr;
    for (std::size_t b = 0; b < index.blocks(); ++b) {
      RecordIndex::Block block = index.block(b);
      const IndexedFrame* next = framed ? &index.FrameAt(block.offset) : nullptr;
      bool may_cut = b == 0 || !framed || next != frame;
      frame = next;
      if (b == 0 || (may_cut && parts.back().bytes >= part_bytes)) parts.push_back({i, b, b, 0});
      parts.back().end_block = b + 1;
      parts.back().bytes += block.bytes;
    }
  }
  return parts;
}

/// Tokenizes parts. One thread.
class PartTokenizer {
 public:
  PartTokenizer(const RecordTemplate& record_template, const tokenizer::Tokenizer& tokenizer,
                const TokenizeOptions& options)
      : parser_(record_template, kKeepsEmpty), tokenizer_(tokenizer), options_(options) {}

  Result<TokenPart> Run(const DataObject& object, const RecordIndex& index, const InputPart& part, object::Call call) {
    TokenPart done;
    std::vector<RecordExtent> extents;
    for (std::size_t b = part.first_block; b < part.end_block; ++b) index.Decode(b, extents);
    for (std::size_t i = 0; i < extents.size();) {
      // One read fetches a frame, or neighbouring records.
      std::uint64_t begin = extents[i].offset, end = begin;
      Buffer bytes;
      std::size_t next = i;
      if (object.content) {
        const IndexedFrame& frame = index.FrameAt(begin);
        begin = frame.content_offset;
        end = begin + frame.content_bytes;
        bytes = MR_TRY(object.content->ReadFrame(frame.frame, call));
        if (bytes.size() != frame.content_bytes) return Fail(Differs(object, frame.frame.offset));
        while (next < extents.size() && extents[next].offset < end) ++next;
      } else {
        for (; next < extents.size(); ++next) {
          std::uint64_t reach = extents[next].offset + extents[next].bytes;
          if (next > i && reach - begin > kReadBytes) break;
          end = reach;
        }
        bytes = Buffer(end - begin);
        MR_TRY(ReadRange(object, begin, bytes.span(), "reading records of", call));
      }
      for (; i < next; ++i) {
        MR_TRY(AddRecord(object, extents[i], AsText(bytes).substr(extents[i].offset - begin, extents[i].bytes), done));
      }
    }
    return done;
  }

 private:
  static Error Differs(const DataObject& object, std::uint64_t offset) {
    return {Code::kCorrupt, fmt::format("{}: what is at byte {} is not what its index says; delete the index beside it "
                                        "to have it rebuilt",
                                        object.url, offset)};
  }

  Status AddRecord(const DataObject& object, const RecordExtent& extent, std::string_view bytes, TokenPart& done) {
    auto document = parser_.Parse(bytes.substr(0, bytes.find('\n')));
    if (!document) return Fail(Differs(object, extent.offset));
    ids_.clear();
    if (options_.prepend_bos) ids_.push_back(tokenizer_.bos());
    MR_TRY(tokenizer_.Encode(*document, ids_));
    if (ids_.size() == (options_.prepend_bos ? 1u : 0u)) {
      ids_.clear();
    } else if (options_.append_eod) {
      ids_.push_back(tokenizer_.eos());
    }
    done.AddDocument(ids_, TokenBytesFor(tokenizer_.vocab_size()));
    return {};
  }

  RecordParser parser_;
  const tokenizer::Tokenizer& tokenizer_;
  const TokenizeOptions& options_;
  std::vector<TokenId> ids_;
};

/// One call of TokenizeToFile.
class Tokenization {
 public:
  Tokenization(object::Connection& connection, const tokenizer::Tokenizer& tokenizer, const TokenizeOptions& options,
               const TokenizeProgress& progress, const Logger& log, object::Call call)
      : connection_(connection),
        tokenizer_(tokenizer),
        options_(options),
        progress_(progress),
        log_(log),
        call_(std::move(call)) {}

  Result<TokenizeSummary> Run() {
    MR_TRY(Prepare());
    MR_TRY(FindFinished());
    MR_TRY(TokenizeMissing());
    if (options_.share.index > 0) {
      summary_.joined = false;
      return summary_;
    }
    MR_TRY(AwaitOtherShares());
    std::vector<StoredTokenPart> stored = MR_TRY(ReadParts());
    MR_TRY(AssembleTokenFile(*output_.store, output_.key, stored, summary_.token_bytes, 2 * options_.threads, call_));
    MR_TRY(RemoveParts());
    for (const StoredTokenPart& part : stored) {
      summary_.documents += part.lengths.size();
      for (std::uint32_t length : part.lengths) summary_.tokens += length;
    }
    return summary_;
  }

 private:
  Status Prepare() {
    if (options_.append_eod && tokenizer_.eos() == tokenizer::kNoToken) {
      return Fail(Code::kInvalidArgument, "this tokenizer has no end-of-sequence token to append; say --no-append-eod");
    }
    if (options_.prepend_bos && tokenizer_.bos() == tokenizer::kNoToken) {
      return Fail(Code::kInvalidArgument,
                  "this tokenizer has no begin-of-sequence token to prepend; leave out --prepend-bos");
    }
    output_ = MR_TRY(object::Locate(connection_, options_.output));
    if (output_.key.empty() || output_.key.ends_with('/')) {
      return Fail(Code::kInvalidArgument, "{}: name what the .bin and the .idx are to have in common, not a folder",
                  options_.output);
    }
    template_ = MR_TRY(RecordTemplate::Parse(options_.template_text));
    sources_ = MR_TRY(ResolveSources(connection_, options_.sources, call_, template_->fields()));
    for (const DataObject& object : sources_.objects) {
      if (object.token_bytes > 0 || (object.content && object.content->holds_samples())) {
        return Fail(Code::kInvalidArgument, "{}: is tokenized already; name records of text", object.url);
      }
    }
    const DocumentForm form = DocumentForm::OfTemplate(*template_, kKeepsEmpty);
    const IndexOptions index_options{
        .form = &form, .tokenizer = nullptr, .cache_url = options_.cache_url, .threads = options_.threads};
    if (!options_.share.is_all()) {
      // Each share stores the indexes of its own objects first, so that few are made twice.
      std::vector<DataObject> own;
      for (std::size_t i = 0; i < sources_.objects.size(); ++i) {
        if (options_.share.Has(i)) own.push_back(sources_.objects[i]);
      }
      MR_TRY(LoadOrBuildIndexes(connection_, own, index_options, log_, call_));
    }
    indexes_ = MR_TRY(LoadOrBuildIndexes(connection_, sources_.objects, index_options, log_, call_));
    parts_ = CutIntoParts(indexes_, options_.part_bytes);
    summary_.parts = parts_.size();
    summary_.token_bytes = TokenBytesFor(tokenizer_.vocab_size());
    for (const RecordIndex& index : indexes_) summary_.broken += index.broken_count();
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      if (options_.share.Has(i)) ++summary_.own_parts;
      // The first share reports the work of all, for which it waits.
      if (options_.share.index == 0 || options_.share.Has(i)) summary_.input_bytes += parts_[i].bytes;
    }
    return {};
  }

  /// Returns the folder of the parts. Another input or other options have another folder.
  std::string PartsFolder() const {
    std::string identity =
        fmt::format("2\n{}\n{}\n{}\n{} {} {}\n", options_.template_text, tokenizer_.text_fingerprint(),
                    tokenizer_.vocab_size(), options_.append_eod, options_.prepend_bos, options_.part_bytes);
    for (const DataObject& object : sources_.objects) {
      identity +=
          fmt::format("{} {} {}\n", object.info.size, object.info.etag, object.content ? object.content->format() : "");
    }
    return AllPartsPrefix() + HexEncode(Sha256(AsBytes(identity))).substr(0, 16) + "/";
  }
  std::string AllPartsPrefix() const {
    std::size_t slash = output_.key.rfind('/');
    std::size_t name = slash == output_.key.npos ? 0 : slash + 1;
    return fmt::format("{}.millrace/{}.parts-", output_.key.substr(0, name), output_.key.substr(name));
  }
  std::string PartKey(std::size_t i) const { return fmt::format("{}{:06}", PartsFolder(), i); }

  Status FindFinished() {
    finished_.resize(parts_.size());
    std::map<std::string, std::size_t> numbers;
    for (std::size_t i = 0; i < parts_.size(); ++i) numbers.emplace(PartKey(i), i);
    auto visit = [&](const object::ListPage& page) {
      for (const object::ObjectInfo& info : page.objects) {
        auto known = numbers.find(info.key);
        if (known == numbers.end()) continue;
        finished_[known->second] = info;
        if (options_.share.index > 0 && !options_.share.Has(known->second)) continue;
        ++summary_.resumed;
        done_bytes_ += parts_[known->second].bytes;
      }
      return true;
    };
    return object::ListAll(*output_.store, {.prefix = PartsFolder()}, visit, call_);
  }

  Status TokenizeMissing() {
    std::vector<std::size_t> missing;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      if (!finished_[i] && options_.share.Has(i)) missing.push_back(i);
    }
    if (summary_.resumed > 0) {
      log_.Info("going on where an earlier run was stopped", {{"parts", summary_.resumed}, {"of", parts_.size()}});
    }
    Report(0);
    return ParallelFor("tokenize", missing.size(), 2 * options_.threads, call_.stop, [&] {
      auto worker = std::make_shared<PartTokenizer>(*template_, tokenizer_, options_);
      return [this, worker, &missing](std::uint64_t k, std::stop_token stop) -> Status {
        object::Call call{.stop = std::move(stop), .deadline = call_.deadline};
        const InputPart& part = parts_[missing[k]];
        TokenPart done = MR_TRY(worker->Run(sources_.objects[part.object], indexes_[part.object], part, call));
        std::string key = PartKey(missing[k]), bytes = done.Serialize();
        auto put = MR_TRY(object::Put(*output_.store, key, AsBytes(bytes), {}, call));
        finished_[missing[k]] = object::ObjectInfo{.key = key, .size = bytes.size(), .etag = put.etag};
        Report(part.bytes);
        return {};
      };
    });
  }

  /// Waits until all parts are there.
  Status AwaitOtherShares() {
    std::map<std::string, std::size_t> missing;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      if (!finished_[i]) missing.emplace(PartKey(i), i);
    }
    if (!missing.empty()) log_.Info("waiting for parts of other shares", {{"parts", missing.size()}});
    while (!missing.empty()) {
      const auto visit = [&](const object::ListPage& page) {
        for (const object::ObjectInfo& info : page.objects) {
          const auto found = missing.find(info.key);
          if (found == missing.end()) continue;
          finished_[found->second] = info;
          Report(parts_[found->second].bytes);
          missing.erase(found);
        }
        return true;
      };
      MR_TRY(object::ListAll(*output_.store, {.prefix = PartsFolder()}, visit, call_));
      if (!missing.empty() && !SystemClock().SleepFor(kPartsInterval, call_.stop)) {
        return Fail(Code::kCancelled, "stopped while {} of {} parts of other shares were missing", missing.size(),
                    parts_.size());
      }
    }
    return {};
  }

  Result<std::vector<StoredTokenPart>> ReadParts() {
    std::vector<StoredTokenPart> stored(parts_.size());
    MR_TRY(ParallelFor("tokenize", parts_.size(), 8, call_.stop, [&] {
      return [&](std::uint64_t i, std::stop_token stop) -> Status {
        object::Call call{.stop = std::move(stop), .deadline = call_.deadline};
        stored[i] = MR_TRY(ReadStoredTokenPart(*output_.store, *finished_[i], call));
        return {};
      };
    }));
    return stored;
  }

  /// Removes all parts of this output, also those of runs with other options, which nothing can use any more.
  Status RemoveParts() {
    std::vector<std::string> keys;
    auto visit = [&](const object::ListPage& page) {
      for (const object::ObjectInfo& info : page.objects) keys.push_back(info.key);
      return true;
    };
    MR_TRY(object::ListAll(*output_.store, {.prefix = AllPartsPrefix()}, visit, call_));
    auto failed = MR_TRY(object::DeleteMany(*output_.store, std::move(keys), call_));
    if (failed.empty()) return {};
    return Fail(failed[0].error.Context(fmt::format("{} is complete, but {} of its parts cannot be removed, such as {}",
                                                    options_.output, failed.size(), failed[0].key)));
  }

  void Report(std::uint64_t bytes) MR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    done_bytes_ += bytes;
    if (progress_) progress_(done_bytes_, summary_.input_bytes);
  }

  object::Connection& connection_;
  const tokenizer::Tokenizer& tokenizer_;
  const TokenizeOptions& options_;
  const TokenizeProgress& progress_;
  const Logger& log_;
  const object::Call call_;
  object::Location output_;
  std::optional<RecordTemplate> template_;
  ResolvedSources sources_;
  std::vector<RecordIndex> indexes_;
  std::vector<InputPart> parts_;
  std::vector<std::optional<object::ObjectInfo>> finished_;  ///< each element is written by one thread at a time
  TokenizeSummary summary_;
  Mutex mutex_;
  std::uint64_t done_bytes_ = 0;  ///< guarded by mutex_ while there are workers
};

}  // namespace

Result<TokenizeSummary> TokenizeToFile(object::Connection& connection, const tokenizer::Tokenizer& tokenizer,
                                       const TokenizeOptions& options, const TokenizeProgress& progress,
                                       const Logger& log, object::Call call) {
  return Tokenization(connection, tokenizer, options, progress, log, std::move(call)).Run();
}

}  // namespace millrace::data
