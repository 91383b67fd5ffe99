#include "millrace/object/testing/fault_store.h"

#include <algorithm>
#include <array>

#include "millrace/base/hash/random.h"
#include "millrace/base/result.h"
#include "millrace/base/threads/sync.h"
#include "millrace/object/support/work_queue.h"

namespace millrace::object {
namespace {

constexpr std::array<std::string_view, 14> kNames = {"head",
                                                     "get",
                                                     "list",
                                                     "put",
                                                     "delete",
                                                     "delete_many",
                                                     "copy",
                                                     "create_multipart",
                                                     "upload_part",
                                                     "copy_part",
                                                     "complete_multipart",
                                                     "abort_multipart",
                                                     "list_parts",
                                                     "list_uploads"};

class FaultStoreImpl final : public FaultStore {
 public:
  FaultStoreImpl(std::shared_ptr<Store> inner, std::uint64_t seed, Clock& clock)
      : inner_(std::move(inner)), clock_(clock), random_(seed), delayed_("fault-store", 4) {}
  ~FaultStoreImpl() override { closing_.request_stop(); }

  std::string Describe() const override { return inner_->Describe(); }
  std::string Identity() const override {
    MutexLock lock(mutex_);
    return identity_.empty() ? inner_->Identity() : identity_;
  }
  void SetIdentity(std::string identity) override {
    MutexLock lock(mutex_);
    identity_ = std::move(identity);
  }
  Limits limits() const override { return inner_->limits(); }
  void WillRead(std::span<const std::string> keys) override {
    {
      MutexLock lock(mutex_);
      announced_.insert(announced_.end(), keys.begin(), keys.end());
    }
    inner_->WillRead(keys);
  }
  Result<std::string> Presign(std::string_view method, std::string_view key, Duration valid_for) override {
    return inner_->Presign(method, key, valid_for);
  }

  void Add(FaultRule rule) override {
    MutexLock lock(mutex_);
    rules_.push_back(std::move(rule));
  }
  void Clear() override {
    MutexLock lock(mutex_);
    rules_.clear();
  }
  std::uint64_t calls(Operation operation) const override {
    MutexLock lock(mutex_);
    return calls_[static_cast<std::size_t>(operation)];
  }
  std::vector<std::string> announced() const override {
    MutexLock lock(mutex_);
    return announced_;
  }

  void Head(std::string key, Call call, Done<std::optional<ObjectInfo>> done) override {
    Apply(Operation::kHead, key, call, std::move(done),
          [this, key, call](auto then) mutable { inner_->Head(std::move(key), std::move(call), std::move(then)); });
  }
  void HeadPart(std::string key, std::string etag, int number, Call call,
                Done<std::optional<std::uint64_t>> done) override {
    Apply(Operation::kHead, key, call, std::move(done),
          [this, key, etag = std::move(etag), number, call](auto then) mutable {
            inner_->HeadPart(std::move(key), std::move(etag), number, std::move(call), std::move(then));
          });
  }
  void Get(std::string key, GetOptions options, MutableByteSpan into, Call call,
           Done<std::optional<GetResult>> done) override {
    Fault fault = Choose(Operation::kGet, key);
    if (fault.cut_after) {
      std::uint64_t cut = *fault.cut_after;
      fault.code = Code::kUnavailable;
      fault.after_effect = true;
      ByteRange wanted = options.range.value_or(ByteRange{0, into.size()});
      options.range = ByteRange{wanted.offset, std::min({wanted.length, cut, std::uint64_t{into.size()}})};
    }
    Apply(fault, Operation::kGet, key, call, std::move(done),
          [this, key, options = std::move(options), into, call](auto then) mutable {
            inner_->Get(std::move(key), std::move(options), into, std::move(call), std::move(then));
          });
  }
  void List(ListRequest request, Call call, Done<ListPage> done) override {
    Apply(Operation::kList, request.prefix, call, std::move(done), [this, request, call](auto then) mutable {
      inner_->List(std::move(request), std::move(call), std::move(then));
    });
  }
  void ListVersions(VersionsRequest request, Call call, Done<VersionsPage> done) override {
    Apply(Operation::kList, request.prefix, call, std::move(done), [this, request, call](auto then) mutable {
      inner_->ListVersions(std::move(request), std::move(call), std::move(then));
    });
  }
  void Put(std::string key, Payload body, PutOptions options, Call call, Done<PutResult> done) override {
    const Fault fault = Choose(Operation::kPut, key);
    Spoil(fault, options);
    Apply(fault, Operation::kPut, key, call, std::move(done),
          [this, key, body, options = std::move(options), call](auto then) mutable {
            inner_->Put(std::move(key), body, std::move(options), std::move(call), std::move(then));
          });
  }
  void Delete(std::string key, Call call, Done<void> done) override {
    Apply(Operation::kDelete, key, call, std::move(done),
          [this, key, call](auto then) mutable { inner_->Delete(std::move(key), std::move(call), std::move(then)); });
  }
  void DeleteMany(std::vector<std::string> keys, Call call, Done<std::vector<DeleteFailure>> done) override {
    Apply(Operation::kDeleteMany, keys.empty() ? "" : keys.front(), call, std::move(done),
          [this, keys, call](auto then) mutable {
            inner_->DeleteMany(std::move(keys), std::move(call), std::move(then));
          });
  }
  void Copy(std::string source, std::string destination, CopyOptions options, Call call,
            Done<PutResult> done) override {
    const Fault fault = Choose(Operation::kCopy, destination);
    if (fault.drop_metadata) options.metadata.emplace();
    Apply(fault, Operation::kCopy, destination, call, std::move(done),
          [this, source = std::move(source), destination, options = std::move(options), call](auto then) mutable {
            inner_->Copy(std::move(source), std::move(destination), std::move(options), std::move(call),
                         std::move(then));
          });
  }
  void CreateMultipart(std::string key, PutOptions options, Call call, Done<std::string> done) override {
    Apply(Operation::kCreateMultipart, key, call, std::move(done),
          [this, key, options = std::move(options), call](auto then) mutable {
            inner_->CreateMultipart(std::move(key), std::move(options), std::move(call), std::move(then));
          });
  }
  void UploadPart(std::string key, std::string upload_id, int number, Payload body, Call call,
                  Done<PartInfo> done) override {
    Apply(Operation::kUploadPart, key, call, std::move(done),
          [this, key, id = std::move(upload_id), number, body, call](auto then) mutable {
            inner_->UploadPart(std::move(key), std::move(id), number, body, std::move(call), std::move(then));
          });
  }
  void CopyPart(std::string key, std::string upload_id, int number, std::string source, ByteRange range,
                CopyOptions options, Call call, Done<PartInfo> done) override {
    Apply(Operation::kCopyPart, key, call, std::move(done),
          [this, key, id = std::move(upload_id), number, source = std::move(source), range,
           options = std::move(options), call](auto then) mutable {
            inner_->CopyPart(std::move(key), std::move(id), number, std::move(source), range, std::move(options),
                             std::move(call), std::move(then));
          });
  }
  void CompleteMultipart(std::string key, std::string upload_id, std::vector<PartInfo> parts, PutOptions options,
                         Call call, Done<PutResult> done) override {
    const Fault fault = Choose(Operation::kCompleteMultipart, key);
    Spoil(fault, options);
    Apply(fault, Operation::kCompleteMultipart, key, call, std::move(done),
          [this, key, id = std::move(upload_id), parts = std::move(parts), options = std::move(options),
           call](auto then) mutable {
            inner_->CompleteMultipart(std::move(key), std::move(id), std::move(parts), std::move(options),
                                      std::move(call), std::move(then));
          });
  }
  void AbortMultipart(std::string key, std::string upload_id, Call call, Done<void> done) override {
    Apply(Operation::kAbortMultipart, key, call, std::move(done),
          [this, key, id = std::move(upload_id), call](auto then) mutable {
            inner_->AbortMultipart(std::move(key), std::move(id), std::move(call), std::move(then));
          });
  }
  void ListParts(std::string key, std::string upload_id, Call call, Done<std::vector<PartInfo>> done) override {
    Apply(Operation::kListParts, key, call, std::move(done),
          [this, key, id = std::move(upload_id), call](auto then) mutable {
            inner_->ListParts(std::move(key), std::move(id), std::move(call), std::move(then));
          });
  }
  void ListUploads(std::string prefix, Call call, Done<std::vector<UploadInfo>> done) override {
    Apply(Operation::kListUploads, prefix, call, std::move(done), [this, prefix, call](auto then) mutable {
      inner_->ListUploads(std::move(prefix), std::move(call), std::move(then));
    });
  }

 private:
  static void Spoil(const Fault& fault, PutOptions& options) {
    if (fault.drop_metadata) options.metadata.clear();
    if (!fault.ignore_conditions) return;
    options.if_match.clear();
    options.if_none_match = false;
  }

  Fault Choose(Operation operation, std::string_view key) MR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    ++calls_[static_cast<std::size_t>(operation)];
    for (FaultRule& rule : rules_) {
      if ((rule.operation && *rule.operation != operation) || !key.starts_with(rule.key_prefix)) continue;
      if (rule.skip > 0) {
        --rule.skip;
        continue;
      }
      if (rule.times == 0 || (rule.probability < 1.0 && random_.Uniform() >= rule.probability)) continue;
      if (rule.times > 0) --rule.times;
      return rule.fault;
    }
    return {};
  }

  template <class T, class Start>
  void Apply(Operation operation, std::string_view key, const Call& call, Done<T> done, Start start) {
    Apply(Choose(operation, key), operation, std::string(key), call, std::move(done), std::move(start));
  }

  template <class T, class Start>
  void Apply(const Fault& fault, Operation operation, std::string key, const Call& call, Done<T> done, Start start) {
    auto act = [fault, operation, key = std::move(key), done = std::move(done), start = std::move(start)]() mutable {
      if (fault.action && !fault.after_effect) fault.action();
      if (!fault.code && !fault.after_effect) return start(std::move(done));
      std::optional<Error> error;
      if (fault.code)
        error.emplace(*fault.code, fmt::format("injected fault: {} of {}", OperationName(operation), key));
      if (!fault.after_effect) return done(std::unexpected(*std::move(error)));
      start([action = fault.action, error = std::move(error), done = std::move(done)](Result<T> result) mutable {
        if (action) action();
        if (error) return done(std::unexpected(*std::move(error)));
        done(std::move(result));
      });
    };
    if (fault.latency <= Duration::zero()) return act();
    delayed_.Submit([this, latency = fault.latency, stop = call.stop, act = std::move(act)]() mutable {
      Pause(latency, stop);
      act();
    });
  }

  /// Waits until the latency is over, the call is cancelled or the store closes. After the last two, the inner store
  /// gets a cancelled call.
  void Pause(Duration latency, const std::stop_token& stop) {
    std::stop_source either;
    std::stop_callback on_call(stop, [&] { either.request_stop(); });
    std::stop_callback on_close(closing_.get_token(), [&] { either.request_stop(); });
    clock_.SleepFor(latency, either.get_token());
  }

  const std::shared_ptr<Store> inner_;
  Clock& clock_;
  std::stop_source closing_;
  mutable Mutex mutex_;
  std::vector<FaultRule> rules_ MR_GUARDED_BY(mutex_);
  std::array<std::uint64_t, kNames.size()> calls_ MR_GUARDED_BY(mutex_){};
  std::vector<std::string> announced_ MR_GUARDED_BY(mutex_);
  std::string identity_ MR_GUARDED_BY(mutex_);
  Random random_ MR_GUARDED_BY(mutex_);
  WorkQueue delayed_;  // last: its destruction runs calls that use the rest
};

}  // namespace

std::string_view OperationName(Operation operation) { return kNames[static_cast<std::size_t>(operation)]; }

std::shared_ptr<FaultStore> FaultStore::Create(std::shared_ptr<Store> inner, std::uint64_t seed, Clock& clock) {
  return std::make_shared<FaultStoreImpl>(std::move(inner), seed, clock);
}

}  // namespace millrace::object
