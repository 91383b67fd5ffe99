#include "millrace/transfer/ranged_reader.h"

#include <algorithm>
#include <deque>
#include <stop_token>

#include "millrace/base/sync.h"
#include "millrace/object/rules.h"
#include "millrace/transfer/window.h"

namespace millrace::transfer {
namespace {

/// What a Get of `expected` bytes of one version came to.
Status CheckGot(const Result<std::optional<object::GetResult>>& got, const object::ObjectInfo& info,
                std::uint64_t expected) {
  if (!got && got.error().code() == Code::kPreconditionFailed) {
    return Fail(Code::kStale, "{} was replaced while it was read", info.key);
  }
  if (!got) return Fail(got.error());
  if (!*got) return Fail(Code::kStale, "{} was deleted while it was read", info.key);
  if ((*got)->bytes != expected) {
    return Fail(Code::kStale, "{} became shorter while it was read: {} of {} bytes", info.key, (*got)->bytes, expected);
  }
  return {};
}

}  // namespace

struct RangedReader::Rep {
  Rep(object::Store& s, MemoryBudget& b, object::ObjectInfo i, Options o)
      : store(s), budget(b), info(std::move(i)), options(std::move(o)) {
    object::ByteRange range = object::ClipRange(options.range, info.size);
    next = range.offset;
    end = range.offset + range.length;
    options.parallel_parts = std::max(1, options.parallel_parts);
    part_bytes = std::max<std::uint64_t>(1, std::min(options.part_bytes, budget.total() / 2));
  }
  ~Rep() MR_NO_THREAD_SAFETY_ANALYSIS {
    stop.request_stop();
    MutexLock lock(mutex);
    while (in_flight > 0) changed.Wait(mutex);
  }

  /// A part on its way or arrived. Owned by the deque and, while on its way, by its completion.
  struct Part {
    Reservation reservation;
    Buffer buffer;
    bool arrived = false;
    Status status;
  };

  Result<ByteSpan> Next(const object::Call& call) MR_EXCLUDES(mutex);
  Status FetchAhead(const object::Call& call) MR_EXCLUDES(mutex);
  void Start(Reservation reservation, std::uint64_t length) MR_EXCLUDES(mutex);

  object::Store& store;
  MemoryBudget& budget;
  const object::ObjectInfo info;
  Options options;
  std::uint64_t part_bytes;

  // The reader's thread only.
  std::uint64_t next = 0, end = 0;          ///< what has not been asked for yet
  std::deque<std::shared_ptr<Part>> ahead;  ///< in order of their offsets
  std::shared_ptr<Part> current;            ///< what the caller looks at

  std::stop_source stop;
  Mutex mutex;
  CondVar changed;
  int in_flight MR_GUARDED_BY(mutex) = 0;
};

Result<ByteSpan> RangedReader::Rep::Next(const object::Call& call) {
  current.reset();
  MR_TRY(FetchAhead(call));
  if (ahead.empty()) return ByteSpan();
  std::shared_ptr<Part> front = ahead.front();
  {
    MutexLock lock(mutex);
    auto arrived = [&] { return front->arrived; };
    bool in_time = call.deadline.infinite() ? changed.Wait(mutex, call.stop, arrived)
                                            : changed.WaitUntil(mutex, call.deadline.at(), call.stop, arrived);
    if (!in_time && call.stop.stop_requested()) return Fail(Code::kCancelled, "reading {} was cancelled", info.key);
    if (!in_time) return Fail(Code::kDeadlineExceeded, "reading {} took too long", info.key);
  }
  MR_TRY(Status(front->status));
  ahead.pop_front();
  current = std::move(front);
  return current->buffer.span();
}

/// Asks for parts until enough are ahead or memory is short; waits for memory only when none is ahead.
Status RangedReader::Rep::FetchAhead(const object::Call& call) {
  while (next < end && ahead.size() < static_cast<std::size_t>(options.parallel_parts)) {
    std::uint64_t length = std::min(part_bytes, end - next);
    if (ahead.empty()) {
      Start(MR_TRY(budget.Acquire(length, call.stop)), length);
    } else {
      auto reservation = budget.TryAcquire(length, MemoryBudget::Priority::kSpeculative);
      if (!reservation) return {};
      Start(*std::move(reservation), length);
    }
  }
  return {};
}

void RangedReader::Rep::Start(Reservation reservation, std::uint64_t length) {
  auto part = std::make_shared<Part>(Part{std::move(reservation), Buffer(length), false, {}});
  ahead.push_back(part);
  {
    MutexLock lock(mutex);
    ++in_flight;
  }
  object::GetOptions get{.range = object::ByteRange{next, length}, .if_match = info.etag};
  next += length;
  MutableByteSpan into = part->buffer.span();
  store.Get(info.key, std::move(get), into, {.stop = stop.get_token()},
            [this, part, length](Result<std::optional<object::GetResult>> got) {
              Status status = CheckGot(got, info, length);
              MutexLock lock(mutex);
              part->status = std::move(status);
              part->arrived = true;
              --in_flight;
              changed.NotifyAll();  // under the lock: the reader may go once it is released
            });
}

RangedReader::RangedReader(object::Store& store, MemoryBudget& budget, object::ObjectInfo info, Options options)
    : rep_(std::make_unique<Rep>(store, budget, std::move(info), std::move(options))) {}

RangedReader::~RangedReader() = default;

Result<ByteSpan> RangedReader::Next(object::Call call) { return rep_->Next(call); }

Status ReadInto(object::Store& store, const object::ObjectInfo& info, std::uint64_t offset, MutableByteSpan into,
                int parallel_parts, std::uint64_t part_bytes, object::Call call) {
  if (offset > info.size || into.size() > info.size - offset) {
    return Fail(Code::kInvalidArgument, "bytes {}+{} reach beyond the {} of {}", offset, into.size(), info.size,
                info.key);
  }
  Window window(parallel_parts, call);
  for (std::uint64_t done = 0; done < into.size() && window.Enter();) {
    std::uint64_t length = std::min<std::uint64_t>(std::max<std::uint64_t>(1, part_bytes), into.size() - done);
    store.Get(info.key, {.range = object::ByteRange{offset + done, length}, .if_match = info.etag},
              into.subspan(done, length), window.call(),
              [&window, &info, length](auto got) { window.Leave(CheckGot(got, info, length)); });
    done += length;
  }
  return window.Finish();
}

}  // namespace millrace::transfer
