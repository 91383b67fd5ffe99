#include "millrace/transfer/plan/items.h"

#include "millrace/base/threads/sync.h"
#include "millrace/object/local/walk.h"
#include "millrace/object/rules.h"

namespace millrace::transfer {
namespace {

class StoreStream final : public ItemStream {
 public:
  StoreStream(object::ReadStore& store, std::string prefix, std::size_t name_from, object::Call call)
      : store_(store), name_from_(name_from), call_(std::move(call)) {
    request_.prefix = std::move(prefix);
    Start();
  }
  ~StoreStream() override {
    stop_.request_stop();
    MutexLock lock(mutex_);
    while (in_flight_) arrived_.Wait(mutex_);
  }

  Result<std::optional<Item>> Next() override {
    while (at_ == page_.objects.size()) {
      if (last_) return std::nullopt;
      MR_TRY(Turn());
    }
    object::ObjectInfo& info = page_.objects[at_++];
    std::string name = info.key.substr(name_from_);
    return Item{std::move(name), std::move(info)};
  }

 private:
  void Start() MR_EXCLUDES(mutex_) {
    {
      MutexLock lock(mutex_);
      in_flight_ = true;
    }
    store_.List(request_, {.stop = stop_.get_token(), .deadline = call_.deadline}, [this](auto page) {
      MutexLock lock(mutex_);
      next_.emplace(std::move(page));
      in_flight_ = false;
      arrived_.NotifyOne();  // under the lock: once it is released, the stream may be destroyed
    });
  }

  /// Waits for the requested page and requests the one after it.
  Status Turn() MR_EXCLUDES(mutex_) {
    {
      MutexLock lock(mutex_);
      while (in_flight_) arrived_.Wait(mutex_);
      if (!next_->has_value()) return Fail(next_->error());
      page_ = std::move(next_->value());
    }
    at_ = 0;
    request_.continuation = page_.continuation;
    last_ = page_.continuation.empty();
    if (!last_) Start();
    return {};
  }

  object::ReadStore& store_;
  const std::size_t name_from_;
  const object::Call call_;
  std::stop_source stop_;
  std::stop_callback<std::function<void()>> on_caller_{call_.stop, [this] { stop_.request_stop(); }};
  object::ListRequest request_;
  object::ListPage page_;
  std::size_t at_ = 0;
  bool last_ = false;
  Mutex mutex_;
  CondVar arrived_;
  bool in_flight_ MR_GUARDED_BY(mutex_) = false;
  std::optional<Result<object::ListPage>> next_ MR_GUARDED_BY(mutex_);
};

class LocalStream final : public ItemStream {
 public:
  LocalStream(object::RootFolder root, std::string prefix, std::size_t name_from,
              std::function<void(const std::string&, const Error&)> on_problem, object::Call call, Links links)
      : root_(std::move(root)),
        name_from_(name_from),
        call_(std::move(call)),
        walker_(root_, {.prefix = std::move(prefix), .links = links, .on_problem = std::move(on_problem)}) {}

  Result<std::optional<Item>> Next() override {
    MR_TRY(object::CheckCall(call_, SystemClock()));
    const object::ObjectInfo* file = MR_TRY(walker_.Peek());
    if (!file) return std::nullopt;
    Item item{file->key.substr(name_from_), *file};
    walker_.Advance();
    return item;
  }

 private:
  const object::RootFolder root_;
  const std::size_t name_from_;
  const object::Call call_;
  object::TreeWalker walker_;
};

}  // namespace

std::unique_ptr<ItemStream> ListStore(object::ReadStore& store, std::string prefix, std::size_t name_from,
                                      object::Call call) {
  return std::make_unique<StoreStream>(store, std::move(prefix), name_from, std::move(call));
}

Result<std::unique_ptr<ItemStream>> ListLocal(std::string prefix, std::size_t name_from,
                                              std::function<void(const std::string&, const Error&)> on_problem,
                                              object::Call call, Links links) {
  auto root = MR_TRY(object::RootFolder::Open("/", false));
  return std::make_unique<LocalStream>(std::move(root), std::move(prefix), name_from, std::move(on_problem),
                                       std::move(call), links);
}

}  // namespace millrace::transfer
