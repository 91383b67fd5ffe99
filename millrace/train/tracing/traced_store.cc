#include "millrace/train/tracing/traced_store.h"

#include <algorithm>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "millrace/base/threads/sync.h"

namespace millrace::train {

using object::Call;
using object::Done;

namespace {

/// What a run reads is data, but for its model, and what it writes are checkpoints.
constexpr trace::Category kRead = trace::Category::kData, kWrite = trace::Category::kCheckpoint;

}  // namespace

/// The spans, and the threads that they are shown on. A request has a thread for as long as it is in flight.
class TracedConnection::Lanes {
 public:
  void Follow(const trace::Recorder& recorder) { recorder_.store(&recorder); }
  trace::OtherSpans spans() const MR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return spans_;
  }

  /// Returns `done`, with a recording in front if the recorder is on. `bytes` are those that a write sends.
  template <class T>
  Done<T> Traced(const char* name, trace::Category category, std::string key, std::uint64_t bytes, Done<T> done,
                 const std::shared_ptr<Lanes>& self) {
    const trace::Recorder* const recorder = recorder_.load(std::memory_order_relaxed);
    if (recorder == nullptr || !recorder->is_on()) return done;
    trace::TraceEvent span{.name = name, .category = category, .thread = Take(), .begin = recorder->Now()};
    return [self, recorder, span = std::move(span), key = std::move(key), bytes,
            done = std::move(done)](Result<T> result) mutable {
      span.arguments = {{"key", std::move(key)}};
      std::uint64_t moved = bytes;
      if constexpr (std::is_same_v<T, std::optional<object::GetResult>>) {
        if (result && *result) moved = (*result)->bytes;
      }
      if (moved > 0) span.arguments["bytes"] = moved;
      if (!result) span.arguments["error"] = CodeName(result.error().code());
      span.end = recorder->Now();
      self->Release(std::move(span), recorder->is_on());
      done(std::move(result));
    };
  }

 private:
  /// The most spans: as a quarter of a recorder's.
  static constexpr std::size_t kMaxSpans = trace::Recorder::kMaxEvents / 4;

  int Take() MR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    const auto free = std::ranges::find(taken_, false);
    const auto lane = static_cast<std::size_t>(free - taken_.begin());
    if (free == taken_.end()) {
      taken_.push_back(true);
      spans_.threads.push_back(fmt::format("store {}", taken_.size()));
    }
    taken_[lane] = true;
    return static_cast<int>(lane);
  }
  void Release(trace::TraceEvent span, bool keep) MR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    taken_[static_cast<std::size_t>(span.thread)] = false;
    if (!keep) return;
    if (spans_.events.size() < kMaxSpans) {
      spans_.events.push_back(std::move(span));
    } else {
      ++spans_.dropped;
    }
  }

  std::atomic<const trace::Recorder*> recorder_ = nullptr;
  mutable Mutex mutex_;
  std::vector<bool> taken_ MR_GUARDED_BY(mutex_);
  trace::OtherSpans spans_ MR_GUARDED_BY(mutex_);
};

class TracedConnection::TracedStore final : public object::Store {
 public:
  TracedStore(std::shared_ptr<object::Store> inner, std::shared_ptr<Lanes> lanes)
      : inner_(std::move(inner)), lanes_(std::move(lanes)) {}

  std::string Describe() const override { return inner_->Describe(); }
  std::string Identity() const override { return inner_->Identity(); }
  object::Limits limits() const override { return inner_->limits(); }
  void WillRead(std::span<const std::string> keys) override { inner_->WillRead(keys); }
  Result<std::string> Presign(std::string_view method, std::string_view key, Duration valid_for) override {
    return inner_->Presign(method, key, valid_for);
  }

  void Head(std::string key, Call call, Done<std::optional<object::ObjectInfo>> done) override {
    auto traced = Traced("look up", kRead, key, 0, std::move(done));
    inner_->Head(std::move(key), std::move(call), std::move(traced));
  }
  void Get(std::string key, object::GetOptions options, MutableByteSpan into, Call call,
           Done<std::optional<object::GetResult>> done) override {
    auto traced = Traced("read", kRead, key, 0, std::move(done));
    inner_->Get(std::move(key), std::move(options), into, std::move(call), std::move(traced));
  }
  void GetTo(std::string key, object::GetOptions options, std::uint64_t limit, object::Sink& sink, Call call,
             Done<std::optional<object::GetResult>> done) override {
    auto traced = Traced("read", kRead, key, 0, std::move(done));
    inner_->GetTo(std::move(key), std::move(options), limit, sink, std::move(call), std::move(traced));
  }
  void HeadPart(std::string key, std::string etag, int number, Call call,
                Done<std::optional<std::uint64_t>> done) override {
    auto traced = Traced("look up", kRead, key, 0, std::move(done));
    inner_->HeadPart(std::move(key), std::move(etag), number, std::move(call), std::move(traced));
  }
  void List(object::ListRequest request, Call call, Done<object::ListPage> done) override {
    auto traced = Traced("list", kRead, request.prefix, 0, std::move(done));
    inner_->List(std::move(request), std::move(call), std::move(traced));
  }
  void ListVersions(object::VersionsRequest request, Call call, Done<object::VersionsPage> done) override {
    auto traced = Traced("list", kRead, request.prefix, 0, std::move(done));
    inner_->ListVersions(std::move(request), std::move(call), std::move(traced));
  }
  void Put(std::string key, object::Payload body, object::PutOptions options, Call call,
           Done<object::PutResult> done) override {
    auto traced = Traced("write", kWrite, key, body.size(), std::move(done));
    inner_->Put(std::move(key), body, std::move(options), std::move(call), std::move(traced));
  }
  void PutFrom(std::string key, object::Source& body, object::PutOptions options, Call call,
               Done<object::PutResult> done) override {
    auto traced = Traced("write", kWrite, key, body.size(), std::move(done));
    inner_->PutFrom(std::move(key), body, std::move(options), std::move(call), std::move(traced));
  }
  void Delete(std::string key, Call call, Done<void> done) override {
    auto traced = Traced("delete", kWrite, key, 0, std::move(done));
    inner_->Delete(std::move(key), std::move(call), std::move(traced));
  }
  void DeleteMany(std::vector<std::string> keys, Call call, Done<std::vector<object::DeleteFailure>> done) override {
    auto traced = Traced("delete", kWrite, keys.empty() ? std::string() : keys.front(), 0, std::move(done));
    inner_->DeleteMany(std::move(keys), std::move(call), std::move(traced));
  }
  void Copy(std::string source, std::string destination, object::CopyOptions options, Call call,
            Done<object::PutResult> done) override {
    auto traced = Traced("copy", kWrite, destination, 0, std::move(done));
    inner_->Copy(std::move(source), std::move(destination), std::move(options), std::move(call), std::move(traced));
  }
  void CreateMultipart(std::string key, object::PutOptions options, Call call, Done<std::string> done) override {
    auto traced = Traced("begin an upload", kWrite, key, 0, std::move(done));
    inner_->CreateMultipart(std::move(key), std::move(options), std::move(call), std::move(traced));
  }
  void UploadPart(std::string key, std::string upload_id, int number, object::Payload body, Call call,
                  Done<object::PartInfo> done) override {
    auto traced = Traced("upload a part", kWrite, key, body.size(), std::move(done));
    inner_->UploadPart(std::move(key), std::move(upload_id), number, body, std::move(call), std::move(traced));
  }
  void UploadPartFrom(std::string key, std::string upload_id, int number, object::Source& body, Call call,
                      Done<object::PartInfo> done) override {
    auto traced = Traced("upload a part", kWrite, key, body.size(), std::move(done));
    inner_->UploadPartFrom(std::move(key), std::move(upload_id), number, body, std::move(call), std::move(traced));
  }
  void CopyPart(std::string key, std::string upload_id, int number, std::string source, object::ByteRange range,
                object::CopyOptions options, Call call, Done<object::PartInfo> done) override {
    auto traced = Traced("copy", kWrite, key, 0, std::move(done));
    inner_->CopyPart(std::move(key), std::move(upload_id), number, std::move(source), range, std::move(options),
                     std::move(call), std::move(traced));
  }
  void CompleteMultipart(std::string key, std::string upload_id, std::vector<object::PartInfo> parts,
                         object::PutOptions options, Call call, Done<object::PutResult> done) override {
    auto traced = Traced("end an upload", kWrite, key, 0, std::move(done));
    inner_->CompleteMultipart(std::move(key), std::move(upload_id), std::move(parts), std::move(options),
                              std::move(call), std::move(traced));
  }
  void AbortMultipart(std::string key, std::string upload_id, Call call, Done<void> done) override {
    auto traced = Traced("give up an upload", kWrite, key, 0, std::move(done));
    inner_->AbortMultipart(std::move(key), std::move(upload_id), std::move(call), std::move(traced));
  }
  void ListParts(std::string key, std::string upload_id, Call call, Done<std::vector<object::PartInfo>> done) override {
    auto traced = Traced("list", kRead, key, 0, std::move(done));
    inner_->ListParts(std::move(key), std::move(upload_id), std::move(call), std::move(traced));
  }
  void ListUploads(std::string prefix, Call call, Done<std::vector<object::UploadInfo>> done) override {
    auto traced = Traced("list", kRead, prefix, 0, std::move(done));
    inner_->ListUploads(std::move(prefix), std::move(call), std::move(traced));
  }

 private:
  template <class T>
  Done<T> Traced(const char* name, trace::Category category, const std::string& key, std::uint64_t bytes,
                 Done<T> done) {
    return lanes_->Traced(name, category, key, bytes, std::move(done), lanes_);
  }

  const std::shared_ptr<object::Store> inner_;
  const std::shared_ptr<Lanes> lanes_;
};

TracedConnection::TracedConnection(object::Connection& inner) : inner_(inner), lanes_(std::make_shared<Lanes>()) {}

TracedConnection::~TracedConnection() = default;

void TracedConnection::FollowRecorder(const trace::Recorder& recorder) { lanes_->Follow(recorder); }

trace::OtherSpans TracedConnection::spans() const { return lanes_->spans(); }

Result<std::shared_ptr<object::Store>> TracedConnection::OpenStore(const object::Url& url) {
  auto store = MR_TRY(inner_.OpenStore(url));
  return std::make_shared<TracedStore>(std::move(store), lanes_);
}

}  // namespace millrace::train
