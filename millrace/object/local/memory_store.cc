#include "millrace/object/local/memory_store.h"

#include <algorithm>
#include <tuple>

#include "millrace/base/hash/digest.h"
#include "millrace/base/hash/random.h"
#include "millrace/base/hash/text_encoding.h"
#include "millrace/base/threads/sync.h"
#include "millrace/object/rules.h"
#include "millrace/object/support/listing.h"
#include "millrace/object/support/work_queue.h"

namespace millrace::object {
namespace {

using SharedBytes = std::shared_ptr<const std::string>;

struct Object {
  SharedBytes content;
  ObjectInfo info;
};

struct UploadedPart {
  SharedBytes content;
  PartInfo info;
};

struct Upload {
  std::string key;
  PutOptions options;
  WallTime initiated;
  std::map<int, UploadedPart> parts;
};

class MemoryStore final : public Store {
 public:
  explicit MemoryStore(MemoryStoreOptions options) : options_(std::move(options)) {
    if (!options_.inline_completions) queue_ = std::make_unique<WorkQueue>("memory-store", 1);
  }

  std::string Describe() const override { return "memory:" + options_.name; }
  Limits limits() const override { return options_.limits; }

  void Head(std::string key, Call call, Done<std::optional<ObjectInfo>> done) override {
    Run(std::move(call), std::move(done), [this, key = std::move(key)]() { return DoHead(key); });
  }
  void Get(std::string key, GetOptions options, MutableByteSpan into, Call call,
           Done<std::optional<GetResult>> done) override {
    Run(std::move(call), std::move(done),
        [this, key = std::move(key), options = std::move(options), into]() { return DoGet(key, options, into); });
  }
  void List(ListRequest request, Call call, Done<ListPage> done) override {
    Run(std::move(call), std::move(done), [this, request = std::move(request)]() { return DoList(request); });
  }
  void Put(std::string key, Payload body, PutOptions options, Call call, Done<PutResult> done) override {
    Run(std::move(call), std::move(done),
        [this, key = std::move(key), body, options = std::move(options)]() { return DoPut(key, body, options); });
  }
  void Delete(std::string key, Call call, Done<void> done) override {
    Run(std::move(call), std::move(done), [this, key = std::move(key)]() { return DoDelete(key); });
  }
  void DeleteMany(std::vector<std::string> keys, Call call, Done<std::vector<DeleteFailure>> done) override {
    Run(std::move(call), std::move(done), [this, keys = std::move(keys)]() -> Result<std::vector<DeleteFailure>> {
      std::vector<DeleteFailure> failures;
      for (const std::string& key : keys) {
        if (Status deleted = DoDelete(key); !deleted) failures.push_back({key, deleted.error()});
      }
      return failures;
    });
  }
  void Copy(std::string source, std::string destination, CopyOptions options, Call call,
            Done<PutResult> done) override {
    Run(std::move(call), std::move(done),
        [this, source = std::move(source), destination = std::move(destination), options = std::move(options)]() {
          return DoCopy(source, destination, options);
        });
  }
  void CreateMultipart(std::string key, PutOptions options, Call call, Done<std::string> done) override {
    Run(std::move(call), std::move(done),
        [this, key = std::move(key), options = std::move(options)]() { return DoCreate(key, options); });
  }
  void UploadPart(std::string key, std::string upload_id, int number, Payload body, Call call,
                  Done<PartInfo> done) override {
    Run(std::move(call), std::move(done), [this, key = std::move(key), id = std::move(upload_id), number, body]() {
      return AddPart(key, id, number, std::make_shared<const std::string>(AsText(body)));
    });
  }
  void CopyPart(std::string key, std::string upload_id, int number, std::string source, ByteRange range,
                CopyOptions options, Call call, Done<PartInfo> done) override {
    Run(std::move(call), std::move(done),
        [this, key = std::move(key), id = std::move(upload_id), number, source = std::move(source), range,
         options = std::move(options)]() { return DoCopyPart(key, id, number, source, range, options); });
  }
  void CompleteMultipart(std::string key, std::string upload_id, std::vector<PartInfo> parts, PutOptions options,
                         Call call, Done<PutResult> done) override {
    Run(std::move(call), std::move(done),
        [this, key = std::move(key), id = std::move(upload_id), parts = std::move(parts),
         options = std::move(options)]() { return DoComplete(key, id, parts, options); });
  }
  void AbortMultipart(std::string key, std::string upload_id, Call call, Done<void> done) override {
    Run(std::move(call), std::move(done), [this, key = std::move(key), id = std::move(upload_id)]() -> Status {
      MutexLock lock(mutex_);
      MR_TRY(FindUpload(key, id));
      uploads_.erase(id);
      return {};
    });
  }
  void ListParts(std::string key, std::string upload_id, Call call, Done<std::vector<PartInfo>> done) override {
    Run(std::move(call), std::move(done),
        [this, key = std::move(key), id = std::move(upload_id)]() -> Result<std::vector<PartInfo>> {
          MutexLock lock(mutex_);
          Upload* upload = MR_TRY(FindUpload(key, id));
          std::vector<PartInfo> parts;
          for (const auto& [number, part] : upload->parts) parts.push_back(part.info);
          return parts;
        });
  }
  void ListUploads(std::string prefix, Call call, Done<std::vector<UploadInfo>> done) override {
    Run(std::move(call), std::move(done), [this, prefix = std::move(prefix)]() -> Result<std::vector<UploadInfo>> {
      std::vector<UploadInfo> found;
      MutexLock lock(mutex_);
      for (const auto& [id, upload] : uploads_) {
        if (upload.key.starts_with(prefix)) found.push_back({upload.key, id, upload.initiated});
      }
      std::ranges::sort(found, {}, [](const UploadInfo& upload) { return std::tie(upload.key, upload.upload_id); });
      return found;
    });
  }
  Result<std::string> Presign(std::string_view, std::string_view, Duration) override {
    return Fail(Code::kUnsupported, "{} has no URLs to sign", Describe());
  }

 private:
  /// Runs `work` and passes its result to `done`, on the thread that the options select.
  template <class T, class Work>
  void Run(Call call, Done<T> done, Work work) {
    auto run = [this, call = std::move(call), done = std::move(done), work = std::move(work)]() mutable {
      Status live = CheckCall(call, *options_.clock);
      if (live && queue_ && queue_->closing()) live = Fail(Code::kCancelled, "{} is closing", Describe());
      if (live) {
        done(work());
      } else {
        done(std::unexpected(live.error()));
      }
    };
    if (queue_) {
      queue_->Submit(std::move(run));
    } else {
      run();
    }
  }

  Result<std::optional<ObjectInfo>> DoHead(const std::string& key) MR_EXCLUDES(mutex_) {
    MR_TRY(CheckKey(key));
    MutexLock lock(mutex_);
    auto found = objects_.find(key);
    if (found == objects_.end()) return std::nullopt;
    return found->second.info;
  }

  Result<std::optional<GetResult>> DoGet(const std::string& key, const GetOptions& options, MutableByteSpan into)
      MR_EXCLUDES(mutex_) {
    MR_TRY(CheckKey(key));
    Object object;
    {
      MutexLock lock(mutex_);
      auto found = objects_.find(key);
      if (found == objects_.end()) return std::nullopt;
      object = found->second;
    }
    MR_TRY(CheckConditions(key, options.if_match, false, object.info.etag));
    ByteRange range = MR_TRY(FitRange(options.range, object.content->size(), into.size()));
    std::copy_n(AsBytes(*object.content).begin() + static_cast<std::ptrdiff_t>(range.offset), range.length,
                into.begin());
    return GetResult{range.length, std::move(object.info)};
  }

  Result<ListPage> DoList(const ListRequest& request) MR_EXCLUDES(mutex_) {
    PageBuilder page = MR_TRY(PageBuilder::Start(request));
    MutexLock lock(mutex_);
    auto next = objects_.lower_bound(page.start());
    while (next != objects_.end()) {
      PageBuilder::Next step = page.Offer(next->second.info);
      if (step == PageBuilder::Next::kDone) break;
      next = step == PageBuilder::Next::kSkip ? objects_.lower_bound(page.start()) : std::next(next);
    }
    return page.TakePage();
  }

  Result<PutResult> DoPut(const std::string& key, ByteSpan body, const PutOptions& options) MR_EXCLUDES(mutex_) {
    MR_TRY(CheckKey(key));
    MR_TRY(CheckSize(key, body.size()));
    auto content = std::make_shared<const std::string>(AsText(body));
    MutexLock lock(mutex_);
    std::string etag = NextETag(*content);
    return Publish(key, std::move(content), std::move(etag), options);
  }

  Status DoDelete(const std::string& key) MR_EXCLUDES(mutex_) {
    MR_TRY(CheckKey(key));
    MutexLock lock(mutex_);
    objects_.erase(key);
    return {};
  }

  Result<PutResult> DoCopy(const std::string& source, const std::string& destination, const CopyOptions& options)
      MR_EXCLUDES(mutex_) {
    MR_TRY(CheckKey(destination));
    MutexLock lock(mutex_);
    Object object = MR_TRY(FindSource(source, options));
    MR_TRY(CheckSize(source, object.content->size()));
    PutOptions put{.if_none_match = options.if_none_match,
                   .content_type = options.metadata ? options.content_type : object.info.content_type,
                   .metadata = options.metadata ? *options.metadata : object.info.metadata,
                   .attributes = options.attributes};
    if (!options.metadata) {
      put.attributes.cache_control = object.info.attributes->cache_control;
      put.attributes.content_encoding = object.info.attributes->content_encoding;
      put.attributes.content_disposition = object.info.attributes->content_disposition;
    }
    std::string etag = NextETag(*object.content);
    return Publish(destination, std::move(object.content), std::move(etag), put);
  }

  Result<std::string> DoCreate(const std::string& key, const PutOptions& options) MR_EXCLUDES(mutex_) {
    MR_TRY(CheckKey(key));
    MutexLock lock(mutex_);
    std::string id = fmt::format("upload-{:016x}", Mix64(++last_upload_));
    uploads_[id] = Upload{key, options, options_.clock->Wall(), {}};
    return id;
  }

  Result<PartInfo> AddPart(const std::string& key, const std::string& id, int number, SharedBytes content)
      MR_EXCLUDES(mutex_) {
    if (number < 1 || number > options_.limits.max_parts || content->size() > options_.limits.max_part) {
      return Fail(Code::kInvalidArgument, "part {} of {} bytes: numbers go from 1 to {}, sizes to {}", number,
                  content->size(), options_.limits.max_parts, options_.limits.max_part);
    }
    MutexLock lock(mutex_);
    Upload* upload = MR_TRY(FindUpload(key, id));
    PartInfo info{.number = number, .etag = NextETag(*content), .size = content->size()};
    upload->parts[number] = UploadedPart{std::move(content), info};
    return info;
  }

  Result<PartInfo> DoCopyPart(const std::string& key, const std::string& id, int number, const std::string& source,
                              ByteRange range, const CopyOptions& options) MR_EXCLUDES(mutex_) {
    Object object;
    {
      MutexLock lock(mutex_);
      object = MR_TRY(FindSource(source, options));
    }
    if (ClipRange(range, object.content->size()) != range) {
      return Fail(Code::kInvalidArgument, "bytes {}+{} reach beyond the {} of {}; expected a range within them",
                  range.offset, range.length, object.content->size(), source);
    }
    return AddPart(key, id, number,
                   std::make_shared<const std::string>(object.content->substr(range.offset, range.length)));
  }

  Result<PutResult> DoComplete(const std::string& key, const std::string& id, const std::vector<PartInfo>& parts,
                               const PutOptions& conditions) MR_EXCLUDES(mutex_) {
    MR_TRY(CheckPartOrder(parts, options_.limits));
    MutexLock lock(mutex_);
    Upload* upload = MR_TRY(FindUpload(key, id));
    std::string whole, digests;
    for (const PartInfo& part : parts) {
      auto found = upload->parts.find(part.number);
      if (found == upload->parts.end() || found->second.info.etag != part.etag) {
        return Fail(Code::kInvalidArgument,
                    "part {} of {} was not uploaded, or has another ETag; upload it again, or start the upload anew",
                    part.number, key);
      }
      const std::string& content = *found->second.content;
      if (content.size() < options_.limits.min_part && &part != &parts.back()) {
        return Fail(Code::kInvalidArgument, "part {} of {} has {} bytes; all but the last need {}", part.number, key,
                    content.size(), options_.limits.min_part);
      }
      whole += content;
      if (options_.md5_etags) digests += AsText(Md5(AsBytes(content)));
    }
    PutOptions put = upload->options;
    put.if_match = conditions.if_match;
    put.if_none_match = conditions.if_none_match;
    std::string etag = NextETag(digests);
    if (options_.md5_etags) etag += fmt::format("-{}", parts.size());
    PutResult result =
        MR_TRY(Publish(key, std::make_shared<const std::string>(std::move(whole)), std::move(etag), put));
    uploads_.erase(id);
    return result;
  }

  Status CheckSize(const std::string& key, std::uint64_t size) const {
    if (size <= options_.limits.max_put) return {};
    return Fail(Code::kInvalidArgument, "{}: {} bytes in one request; beyond {}, only a multipart upload is possible",
                key, size, options_.limits.max_put);
  }

  Result<PutResult> Publish(const std::string& key, SharedBytes content, std::string etag, const PutOptions& options)
      MR_REQUIRES(mutex_) {
    auto found = objects_.find(key);
    MR_TRY(CheckConditions(key, options.if_match, options.if_none_match,
                           found == objects_.end() ? "" : found->second.info.etag));
    ObjectInfo info{.key = key,
                    .size = content->size(),
                    .etag = etag,
                    .modified = options_.clock->Wall(),
                    .content_type = options.content_type,
                    .metadata = options.metadata,
                    .attributes = std::make_shared<Attributes>(options.attributes)};
    objects_[key] = Object{std::move(content), std::move(info)};
    return PutResult{std::move(etag)};
  }

  Result<Object> FindSource(const std::string& source, const CopyOptions& options) MR_REQUIRES(mutex_) {
    if (!options.source_bucket.empty() && options.source_bucket != options_.name) {
      return Fail(Code::kNotFound, "{} cannot reach bucket {}; name a bucket of the same store", Describe(),
                  options.source_bucket);
    }
    auto found = objects_.find(source);
    if (found == objects_.end())
      return Fail(Code::kNotFound, "no object {} in {} to copy; `millrace ls` lists what is there", source, Describe());
    MR_TRY(CheckConditions(source, options.source_if_match, false, found->second.info.etag));
    return found->second;
  }

  Result<Upload*> FindUpload(const std::string& key, const std::string& id) MR_REQUIRES(mutex_) {
    auto found = uploads_.find(id);
    if (found == uploads_.end() || found->second.key != key) {
      return Fail(Code::kNotFound, "no upload {} of {}: completed or aborted before?", id, key);
    }
    return &found->second;
  }

  std::string NextETag(std::string_view content) MR_REQUIRES(mutex_) {
    if (options_.md5_etags) return HexEncode(Md5(AsBytes(content)));
    return fmt::format("{:016x}", ++last_etag_);
  }

  const MemoryStoreOptions options_;
  Mutex mutex_;
  std::map<std::string, Object> objects_ MR_GUARDED_BY(mutex_);
  std::map<std::string, Upload> uploads_ MR_GUARDED_BY(mutex_);
  std::uint64_t last_etag_ MR_GUARDED_BY(mutex_) = 0;
  std::uint64_t last_upload_ MR_GUARDED_BY(mutex_) = 0;
  std::unique_ptr<WorkQueue> queue_;  // last: its destruction completes calls that use the rest
};

}  // namespace

std::shared_ptr<Store> MakeMemoryStore(MemoryStoreOptions options) {
  return std::make_shared<MemoryStore>(std::move(options));
}

}  // namespace millrace::object
