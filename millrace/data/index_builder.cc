#include "millrace/data/index_builder.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>
#include <set>
#include <utility>

#include "millrace/base/hash/digest.h"
#include "millrace/base/text.h"
#include "millrace/base/threads/channel.h"
#include "millrace/base/threads/parallel_for.h"
#include "millrace/base/threads/sync.h"
#include "millrace/base/threads/task_scope.h"
#include "millrace/data/compression/object_beginning.h"
#include "millrace/data/documents/field_mismatch.h"
#include "millrace/data/formats/megatron.h"
#include "millrace/data/hdf5/stored_sample.h"
#include "millrace/data/records/content.h"
#include "millrace/object/blocking.h"

namespace millrace::data {
namespace {

constexpr std::uint64_t kPartBytes = 4 * kMiB;      ///< plain lines of one part; as a frame (kFrameTarget)
constexpr std::uint64_t kExtendBytes = 256 * kKiB;  ///< least read behind a part for the end of its last line; a guess
constexpr std::uint64_t kMaxIndexBytes = 8 * kGiB;  ///< bounds the memory that a damaged index can take
constexpr int kLoadThreads = 16;                    ///< small requests at a time; a guess

IndexIdentity IdentityOf(const DataObject& object, const IndexOptions& options) {
  return {object.info.etag,
          object.info.size,
          options.form->identity(),
          options.tokenizer ? options.tokenizer->text_fingerprint() : "",
          object.content ? std::string(object.content->format()) : "",
          options.hashes};
}

/// The bytes of an object from a fixed offset on, as far as they were read.
class PartBytes {
 public:
  PartBytes(const DataObject& object, std::uint64_t offset) : object_(object), offset_(offset) {}

  std::uint64_t offset() const { return offset_; }
  std::uint64_t end() const { return offset_ + filled_; }
  bool at_object_end() const { return end() == object_.info.size; }
  /// Returns the bytes from `from`, an offset in the object, to end().
  std::string_view From(std::uint64_t from) const {
    return AsText(bytes_.span().subspan(from - offset_, end() - from));
  }

  Status ExtendTo(std::uint64_t wanted_end, object::Call call) {
    wanted_end = std::min(wanted_end, object_.info.size);
    std::uint64_t more = wanted_end - end();
    if (filled_ + more > bytes_.size()) {
      Buffer grown(std::max(filled_ + more, bytes_.size() * 2));
      if (filled_ > 0) std::memcpy(grown.data(), bytes_.data(), filled_);
      bytes_ = std::move(grown);
    }
    MR_TRY(ReadRange(object_, end(), bytes_.span().subspan(filled_, more), "indexing", std::move(call)));
    filled_ += more;
    return {};
  }

 private:
  const DataObject& object_;
  const std::uint64_t offset_;
  std::uint64_t filled_ = 0;
  Buffer bytes_;
};

/// Indexes the lines that start in one part of an object. One thread.
class PartIndexer {
 public:
  explicit PartIndexer(const IndexOptions& options) : options_(options), encoder_(*options.form, options.tokenizer) {
    if (options.tokenizer) added_ = options.form->added_tokens(*options.tokenizer);
  }

  /// Indexes a frame. Offsets count from its start.
  Result<RecordIndex> IndexFrame(Frame frame, const Buffer& content) {
    RecordIndexBuilder builder(options_.hashes);
    builder.SetFrame(std::move(frame), static_cast<std::uint32_t>(content.size()));
    std::string_view rest = AsText(content);
    for (std::uint64_t offset = 0; offset < rest.size();) {
      std::size_t newline = rest.find('\n', offset);
      std::string_view line = rest.substr(offset, newline == rest.npos ? newline : newline + 1 - offset);
      if (line.size() > kMaxRecordBytes) {
        builder.AddBroken(offset, BrokenReason::kTooLong);
      } else {
        MR_TRY(AddLine(offset, line, builder));
      }
      offset += line.size();
    }
    return builder.Finish();
  }

  /// Indexes a frame of stored samples, which all have the same size. Needs their content only for hashes.
  Result<RecordIndex> IndexSamples(Frame frame, const std::optional<Buffer>& content) {
    const StoredSampleFrame samples = MR_TRY(StoredSampleFrame::Decode(frame.state));
    const std::uint64_t bytes = samples.layout.bytes();
    RecordIndexBuilder builder(options_.hashes);
    builder.SetFrame(std::move(frame), static_cast<std::uint32_t>(samples.rows * bytes));
    for (std::uint32_t row = 0; row < samples.rows; ++row) {
      builder.Add(row * bytes, bytes, 0,
                  options_.hashes ? DocumentHash(AsText(*content).substr(row * bytes, bytes)) : std::uint16_t{0});
    }
    return builder.Finish();
  }

  Result<RecordIndex> IndexRange(const DataObject& object, object::ByteRange part, object::Call call) {
    RecordIndexBuilder builder(options_.hashes);
    std::uint64_t part_end = part.offset + part.length;
    // A line starts at the part's first byte if the byte before is a newline.
    PartBytes bytes(object, part.offset == 0 ? 0 : part.offset - 1);
    MR_TRY(bytes.ExtendTo(part_end, call));
    std::uint64_t line = 0;
    if (part.offset == 0) {
      const Status plain = RequireUncompressed(bytes.From(0));
      if (!plain) return Fail(plain.error().Context(object.url));
    }
    if (part.offset > 0) {
      std::size_t newline = bytes.From(bytes.offset()).find('\n');
      if (newline == std::string_view::npos) return builder.Finish();  // one line that starts before the part
      line = bytes.offset() + newline + 1;
    }
    while (line < part_end) {
      auto length = MR_TRY(LineLength(bytes, line, call));
      if (!length) {  // too long, so it ends behind this part
        builder.AddBroken(line, BrokenReason::kTooLong);
        break;
      }
      MR_TRY(AddLine(line, bytes.From(line).substr(0, *length), builder));
      line += *length;
    }
    return builder.Finish();
  }

  std::set<std::string, std::less<>> ignored_members() const { return encoder_.ignored_members(); }
  std::string template_refusal() const { return encoder_.template_refusal(); }

 private:
  /// Returns the length of the line at `line` with its newline. Nothing if it is too long for a record.
  Result<std::optional<std::uint64_t>> LineLength(PartBytes& bytes, std::uint64_t line, object::Call call) {
    std::size_t searched = 0;
    while (true) {
      std::string_view text = bytes.From(line);
      std::size_t newline = text.find('\n', searched);
      if (newline != text.npos) return newline + 1;
      if (text.size() > kMaxRecordBytes) return std::nullopt;
      if (bytes.at_object_end()) return text.size();
      searched = text.size();
      MR_TRY(bytes.ExtendTo(bytes.end() + std::max<std::uint64_t>(kExtendBytes, text.size()), call));
    }
  }

  Status AddLine(std::uint64_t offset, std::string_view line, RecordIndexBuilder& builder) {
    std::string_view record = line.ends_with('\n') ? line.substr(0, line.size() - 1) : line;
    if (IsBlank(record)) return {};
    if (auto broken = MR_TRY(encoder_.Encode(record, document_))) {
      builder.AddBroken(offset, *broken);
      return {};
    }
    std::size_t tokens = options_.tokenizer ? document_.ids.size() - added_ : 0;
    builder.Add(offset, line.size(), static_cast<std::uint32_t>(tokens),
                options_.hashes ? DocumentHash(encoder_.content()) : std::uint16_t{0});
    return {};
  }

  const IndexOptions& options_;
  DocumentEncoder encoder_;
  std::uint32_t added_ = 0;
  EncodedDocument document_;
};

/// Collects the parts of one object's index. Parts arrive in any order. Their number is known once all are found.
class ObjectBuild {
 public:
  ObjectBuild(std::size_t object, bool hashes) : object_(object), hashes_(hashes) {}

  std::size_t object() const { return object_; }

  /// The call that completes the object returns its index. Other calls return nothing.
  Result<std::optional<RecordIndex>> Deliver(std::size_t part, RecordIndex index) {
    MutexLock lock(mutex_);
    if (part >= parts_.size()) parts_.resize(part + 1);
    parts_[part] = std::move(index);
    ++delivered_;
    return FinishIfWhole();
  }
  Result<std::optional<RecordIndex>> SetCount(std::size_t parts) {
    MutexLock lock(mutex_);
    count_ = parts;
    return FinishIfWhole();
  }

 private:
  Result<std::optional<RecordIndex>> FinishIfWhole() MR_REQUIRES(mutex_) {
    if (delivered_ != count_) return std::nullopt;
    RecordIndexBuilder whole(hashes_);
    for (const RecordIndex& one : parts_) whole.Append(one);
    parts_.clear();
    return whole.Finish();
  }

  const std::size_t object_;
  const bool hashes_;
  Mutex mutex_;
  std::vector<RecordIndex> parts_ MR_GUARDED_BY(mutex_);
  std::size_t delivered_ MR_GUARDED_BY(mutex_) = 0;
  std::optional<std::size_t> count_ MR_GUARDED_BY(mutex_);
};

/// One call of LoadOrBuildIndexes.
class Indexing {
 public:
  Indexing(object::Connection& connection, std::span<const DataObject> objects, const IndexOptions& options,
           const Logger& log, object::Call call)
      : connection_(connection), objects_(objects), options_(options), log_(log), call_(call), found_(objects.size()) {}

  Result<std::vector<RecordIndex>> Run() {
    MR_TRY(LoadAll());
    MR_TRY(BuildMissing());
    MR_TRY(CheckBroken());
    std::vector<RecordIndex> indexes;
    indexes.reserve(found_.size());
    for (auto& one : found_) indexes.push_back(*std::move(one));
    return indexes;
  }

 private:
  object::Call CallWith(std::stop_token stop) const { return {.stop = std::move(stop), .deadline = call_.deadline}; }

  Status LoadAll() {
    return ParallelFor("data-index", objects_.size(), kLoadThreads, call_.stop, [this] {
      return [this](std::uint64_t i, std::stop_token stop) { return LoadOne(i, CallWith(std::move(stop))); };
    });
  }

  /// Leaves found_[i] empty if there is no usable index.
  Status LoadOne(std::size_t i, object::Call call) {
    if (objects_[i].token_bytes > 0) {
      found_[i] = MR_TRY(IndexTokenFile(objects_[i], std::move(call)));
      return {};
    }
    object::Location at = MR_TRY(IndexLocation(connection_, objects_[i], options_));
    auto content = object::GetAll(*at.store, at.key, kMaxIndexBytes, call);
    if (!content) return Fail(content.error().Context(fmt::format("reading the index of {}", objects_[i].url)));
    if (!*content) return {};
    auto index = RecordIndex::Parse((*content)->bytes, IdentityOf(objects_[i], options_));
    if (index) {
      found_[i] = *std::move(index);
    } else {
      log_.Info("index is not usable, building it anew", {{"object", objects_[i].url}, {"why", index.error()}});
    }
    return {};
  }

  /// A unit of work: a range of plain lines, or a frame, with its content if finding it has decoded it.
  struct IndexingPart {
    ObjectBuild* build = nullptr;
    std::size_t number = 0;
    object::ByteRange range;
    Frame frame;
    std::optional<Buffer> content;
  };

  /// Some threads find parts, and others index them. So a long object that is decoded front to back keeps all of the
  /// indexing threads busy.
  Status BuildMissing() {
    std::vector<std::unique_ptr<ObjectBuild>> builds;
    std::uint64_t bytes = 0;
    for (std::size_t i = 0; i < objects_.size(); ++i) {
      if (found_[i]) continue;
      builds.push_back(std::make_unique<ObjectBuild>(i, options_.hashes));
      bytes += objects_[i].info.size;
    }
    if (builds.empty()) return {};
    log_.Info("building record indexes", {{"objects", builds.size()}, {"bytes", bytes}});
    to_read_ = bytes;
    Report(0);
    Channel<IndexingPart> parts(static_cast<std::size_t>(options_.threads));
    std::stop_source cancel;
    std::stop_callback relay(call_.stop, [&] { cancel.request_stop(); });
    Status found, indexed;
    {
      TaskScope finding;
      finding.Spawn("find", [&](std::stop_token) {
        found = ParallelFor("data-index", builds.size(), options_.threads, cancel.get_token(), [&] {
          return [&](std::uint64_t i, std::stop_token stop) { return FindParts(*builds[i], parts, CallWith(stop)); };
        });
        parts.Close();
      });
      const int indexers = 2 * options_.threads;
      indexed = ParallelFor("data-index", indexers, indexers, call_.stop, [&] {
        return [&](std::uint64_t, std::stop_token stop) { return IndexParts(parts, CallWith(stop)); };
      });
      if (!indexed) cancel.request_stop();
    }
    MutexLock lock(mutex_);
    if (!ignored_members_.empty()) {
      log_.Warning("messages have members that no layout reads",
                   {{"members", fmt::format("{}", fmt::join(ignored_members_, ", "))}});
    }
    if (!template_refusal_.empty()) {
      log_.Warning("the chat template of the tokenizer refuses records (template_error)", {{"why", template_refusal_}});
    }
    return indexed ? found : indexed;
  }

  Status FindParts(ObjectBuild& build, Channel<IndexingPart>& parts, object::Call call) {
    const DataObject& object = objects_[build.object()];
    std::size_t count = 0;
    auto push = [&](IndexingPart part) -> Status {
      part.build = &build;
      part.number = count++;
      if (parts.Push(std::move(part), call.stop)) return {};
      return Fail(Code::kCancelled, "interrupted while indexing {}", object.url);
    };
    if (object.content) {
      auto found = [&](Frame frame, std::optional<Buffer> content) {
        return push({.frame = std::move(frame), .content = std::move(content)});
      };
      MR_TRY(object.content->FindFrames(found, call));
    } else {
      for (std::uint64_t at = 0; at < object.info.size; at += kPartBytes) {
        MR_TRY(push({.range = {at, std::min(kPartBytes, object.info.size - at)}}));
      }
    }
    return Finish(build, MR_TRY(build.SetCount(count)), call);
  }

  Status IndexParts(Channel<IndexingPart>& parts, object::Call call) MR_EXCLUDES(mutex_) {
    PartIndexer indexer(options_);
    while (auto part = parts.Pop(call.stop)) {
      const DataObject& object = objects_[part->build->object()];
      const bool samples = object.content && object.content->holds_samples();
      if (object.content && !part->content && (!samples || options_.hashes)) {
        part->content = MR_TRY(object.content->ReadFrame(part->frame, call));
      }
      const std::uint64_t read = object.content ? part->frame.bytes : part->range.length;
      RecordIndex index = samples          ? MR_TRY(indexer.IndexSamples(std::move(part->frame), part->content))
                          : object.content ? MR_TRY(indexer.IndexFrame(std::move(part->frame), *part->content))
                                           : MR_TRY(indexer.IndexRange(object, part->range, call));
      Report(read);
      MR_TRY(Finish(*part->build, MR_TRY(part->build->Deliver(part->number, std::move(index))), call));
    }
    MutexLock lock(mutex_);
    ignored_members_.merge(indexer.ignored_members());
    if (template_refusal_.empty()) template_refusal_ = indexer.template_refusal();
    return {};
  }

  void Report(std::uint64_t more) {
    // Neighbouring frames may overlap, so their bytes may be more than those of the objects.
    const std::uint64_t done = read_ += more;
    if (options_.progress) options_.progress(std::min(done, to_read_), to_read_);
  }

  Status Finish(const ObjectBuild& build, std::optional<RecordIndex> whole, object::Call call) {
    if (!whole) return {};
    const DataObject& object = objects_[build.object()];
    log_.Debug("indexed", {{"object", object.url}, {"records", whole->records()}, {"broken", whole->broken_count()}});
    Save(object, *whole, call);
    found_[build.object()] = *std::move(whole);
    return {};
  }

  /// Fails if more records are broken than max_broken allows. Names the first few.
  Status CheckBroken() const {
    std::uint64_t broken = 0, records = 0, unlabelled = 0;
    for (const auto& index : found_) {
      broken += index->broken_count();
      records += index->records();
      unlabelled += index->broken_by_reason()[static_cast<std::size_t>(BrokenReason::kNoLabel)];
    }
    const std::uint64_t limit = options_.max_broken.value_or(std::max<std::uint64_t>(100, (records + broken) / 1000));
    if (broken == 0 || (broken - unlabelled <= limit && records > 0) || limit == kAnyNumber) return {};
    if (broken == unlabelled) {
      return Fail(
          Code::kInvalidArgument,
          "{} of {} records have no label: no answer begins within a row, or all have the weight 0. Make rows longer "
          "(sequence_length), or mend the weights",
          FormatCount(broken), FormatCount(broken));
    }
    const std::string allowed =
        records == 0 ? "which leaves none" : fmt::format("and {} are allowed", FormatCount(limit));
    if (const auto mismatch = MR_TRY(FindMismatch())) {
      // If no record fits, the template is wrong, and not the data.
      return Fail(records == 0 ? Code::kInvalidArgument : Code::kCorrupt,
                  "{} of {} records cannot be used, {}: {}. Change the template, or allow as many (max_broken)",
                  FormatCount(broken), FormatCount(records + broken), allowed, mismatch->ToString());
    }
    constexpr std::size_t kNamed = 5;  // a guess: the message stays short
    std::string first;
    std::size_t named = 0;
    for (std::size_t i = 0; i < found_.size() && named < kNamed; ++i) {
      const std::size_t here = std::min(found_[i]->broken().size(), kNamed - named);
      const std::vector<std::string> places = MR_TRY(NameBroken(objects_[i], *found_[i], here, call_));
      for (std::size_t k = 0; k < here; ++k) {
        first += fmt::format("{}{} {} {}", named++ == 0 ? "" : "; ", objects_[i].url, places[k],
                             BrokenReasonName(found_[i]->broken()[k].reason));
      }
    }
    return Fail(Code::kCorrupt,
                "{} of {} records cannot be used, {}: {}{}. Mend the records, or the template, or allow as many "
                "(max_broken); `millrace data inspect` names them",
                FormatCount(broken), FormatCount(records + broken), allowed, first, broken > named ? "…" : "");
  }

  /// If most of the unusable records of an object lack a field, returns how they differ from what is read.
  Result<std::optional<FieldMismatch>> FindMismatch() const {
    constexpr auto kMissing = static_cast<std::size_t>(BrokenReason::kMissingField);
    for (std::size_t i = 0; i < found_.size(); ++i) {
      if (2 * found_[i]->broken_by_reason()[kMissing] <= found_[i]->broken_count()) continue;
      if (auto mismatch = MR_TRY(FindFieldMismatch(objects_[i], *options_.form, call_))) return mismatch;
    }
    return std::nullopt;
  }

  /// Stores the index. A failure is only logged, because this run can use the index anyway.
  void Save(const DataObject& object, const RecordIndex& index, object::Call call) {
    std::string bytes = index.Serialize(IdentityOf(object, options_));
    auto at = IndexLocation(connection_, object, options_);
    Status stored;
    if (!at) {
      stored = std::unexpected(at.error());
    } else if (auto put = object::Put(*at->store, at->key, AsBytes(bytes), {}, call); !put) {
      stored = std::unexpected(put.error());
    }
    if (!stored) {
      log_.Warning(
          "cannot keep the record index, it will be built again next time; name a writable place as index cache",
          {{"object", object.url}, {"why", stored.error()}});
    }
  }

  object::Connection& connection_;
  const std::span<const DataObject> objects_;
  const IndexOptions& options_;
  const Logger& log_;
  const object::Call call_;
  std::uint64_t to_read_ = 0;  ///< constant once parts are found
  std::atomic<std::uint64_t> read_ = 0;
  Mutex mutex_;
  std::set<std::string, std::less<>> ignored_members_ MR_GUARDED_BY(mutex_);
  std::string template_refusal_ MR_GUARDED_BY(mutex_);  ///< what it said of a record
  std::vector<std::optional<RecordIndex>> found_;       ///< each element is written by one thread at a time
};

}  // namespace

Result<std::vector<std::string>> NameBroken(const DataObject& object, const RecordIndex& index, std::size_t count,
                                            object::Call call) {
  std::vector<std::string> names;
  if (object.content && count > 0) {
    std::vector<std::uint64_t> records;
    for (std::size_t i = 0; i < count; ++i) records.push_back(index.RecordsBefore(i));
    names = MR_TRY(object.content->NameRecords(records, std::move(call)));
  }
  for (std::size_t i = names.size(); i < count; ++i) {
    names.push_back(
        fmt::format("at byte {}{}", index.broken()[i].offset, object.content ? " of what it decodes to" : ""));
  }
  return names;
}

Result<object::Location> IndexLocation(object::Connection& connection, const DataObject& object,
                                       const IndexOptions& options) {
  std::string view = options.form->identity();
  view += '\0';
  if (options.tokenizer) view += options.tokenizer->text_fingerprint();
  std::string_view key = object.info.key;
  std::size_t slash = key.rfind('/');
  std::string_view folder = slash == key.npos ? "" : key.substr(0, slash + 1);
  std::string name = fmt::format("{}.{}.index", key.substr(folder.size()), ShortHash(view));
  if (options.cache_url.empty()) return object::Location{object.store, fmt::format("{}.millrace/{}", folder, name)};
  object::Location cache = MR_TRY(object::Locate(connection, options.cache_url));
  std::string_view separator = cache.key.empty() || cache.key.ends_with('/') ? "" : "/";
  cache.key += fmt::format("{}index/{}/{}", separator, ShortHash(object.url), name);
  return cache;
}

Result<std::vector<RecordIndex>> LoadOrBuildIndexes(object::Connection& connection, std::span<const DataObject> objects,
                                                    const IndexOptions& options, const Logger& log, object::Call call) {
  return Indexing(connection, objects, options, log, call).Run();
}

}  // namespace millrace::data
