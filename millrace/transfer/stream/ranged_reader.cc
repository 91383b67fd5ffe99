#include "millrace/transfer/stream/ranged_reader.h"

#include <algorithm>
#include <deque>
#include <stop_token>
#include <utility>

#include "millrace/base/result.h"
#include "millrace/base/threads/sync.h"
#include "millrace/object/rules.h"
#include "millrace/transfer/stream/window.h"

namespace millrace::transfer {
namespace {

/// Checks the result of a Get of `expected` bytes of one version. Errors: kStale if the object has changed.
Status CheckRangeResult(const Result<std::optional<object::GetResult>>& got, const object::ObjectInfo& info,
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
  Rep(object::ReadStore& s, MemoryBudget& b, object::ObjectInfo i, Options o)
      : store(s), budget(b), info(std::move(i)), options(std::move(o)) {
    if (options.ranges.empty()) options.ranges = {object::ClipRange(options.range, info.size)};
    rest.assign(options.ranges.begin(), options.ranges.end());
    end = rest.back().offset + rest.back().length;
    std::erase_if(rest, [](const object::ByteRange& range) { return range.length == 0; });
    options.parallel_parts = std::max(1, options.parallel_parts);
    part_bytes = std::max<std::uint64_t>(1, std::min(options.part_bytes, budget.total() / 2));
  }
  ~Rep() MR_NO_THREAD_SAFETY_ANALYSIS {
    stop.request_stop();
    MutexLock lock(mutex);
    while (in_flight > 0) changed.Wait(mutex);
  }

  /// The memory of a part. Parts reuse it: page faults of fresh memory cost more than receiving the bytes.
  struct Block {
    Reservation reservation;
    Buffer buffer;
  };
  /// A part that was requested. `ahead` owns it while it is in flight, and its completion does not: otherwise the
  /// completion could return memory to a budget that no longer exists.
  struct FetchedPart {
    Block block;
    std::uint64_t offset = 0, length = 0;
    bool arrived = false;
    Status status;
  };

  Result<ByteSpan> Next(const object::Call& call);
  Result<std::optional<OwnedPart>> NextOwned(const object::Call& call);
  Status Advance(const object::Call& call) MR_EXCLUDES(mutex);
  Status FetchAhead(const object::Call& call) MR_EXCLUDES(mutex);
  void Start(Block block) MR_EXCLUDES(mutex);
  std::deque<std::unique_ptr<FetchedPart>>::iterator FirstArrived() MR_REQUIRES(mutex);

  object::ReadStore& store;
  MemoryBudget& budget;
  const object::ObjectInfo info;
  Options options;
  std::uint64_t part_bytes;

  // The reader's thread only.
  std::deque<object::ByteRange> rest;              ///< what has not been requested yet
  std::uint64_t end = 0;                           ///< of the last range
  std::deque<std::unique_ptr<FetchedPart>> ahead;  ///< in order of their offsets
  std::unique_ptr<FetchedPart> current;            ///< the part that Next() returned last
  std::optional<Block> spare;                      ///< memory of the part before it

  std::stop_source stop;
  Mutex mutex;
  CondVar changed;
  int in_flight MR_GUARDED_BY(mutex) = 0;
};

Result<ByteSpan> RangedReader::Rep::Next(const object::Call& call) {
  if (current && !rest.empty()) spare = std::move(current->block);
  MR_TRY(Advance(call));
  return current ? ByteSpan(current->block.buffer.span().first(current->length)) : ByteSpan();
}

Result<std::optional<RangedReader::OwnedPart>> RangedReader::Rep::NextOwned(const object::Call& call) {
  MR_TRY(Advance(call));
  if (!current) return std::nullopt;
  const std::unique_ptr<FetchedPart> part = std::move(current);
  return OwnedPart{std::move(part->block.reservation), std::move(part->block.buffer), part->offset, part->length};
}

/// Makes the next part the current one; at the end, there is none.
Status RangedReader::Rep::Advance(const object::Call& call) {
  current.reset();
  MR_TRY(FetchAhead(call));
  if (ahead.empty()) return {};
  MutexLock lock(mutex);
  auto arrived = [this]() MR_NO_THREAD_SAFETY_ANALYSIS { return FirstArrived() != ahead.end(); };
  bool in_time = call.deadline.infinite() ? changed.Wait(mutex, call.stop, arrived)
                                          : changed.WaitUntil(mutex, call.deadline.at(), call.stop, arrived);
  if (!in_time && call.stop.stop_requested()) return Fail(Code::kCancelled, "reading {} was cancelled", info.key);
  if (!in_time) return Fail(Code::kDeadlineExceeded, "reading {} took too long", info.key);
  auto found = FirstArrived();
  MR_TRY(Status((*found)->status));
  current = std::move(*found);
  ahead.erase(found);
  return {};
}

/// Returns the part that Next() can return, or the end.
std::deque<std::unique_ptr<RangedReader::Rep::FetchedPart>>::iterator RangedReader::Rep::FirstArrived() {
  if (options.in_order) return ahead.front()->arrived ? ahead.begin() : ahead.end();
  return std::ranges::find_if(ahead, [](const auto& part) { return part->arrived; });
}

/// Requests parts until enough are ahead or memory is short. Waits for memory only if no part is ahead.
Status RangedReader::Rep::FetchAhead(const object::Call& call) {
  while (!rest.empty() && ahead.size() < static_cast<std::size_t>(options.parallel_parts)) {
    if (spare) {
      Start(*std::exchange(spare, std::nullopt));
      continue;
    }
    std::uint64_t bytes = std::min(part_bytes, rest.front().length);
    std::optional<Reservation> reservation;
    if (ahead.empty()) {
      reservation = MR_TRY(budget.Acquire(bytes, call.stop));
    } else {
      reservation = budget.TryAcquire(bytes, MemoryBudget::Priority::kSpeculative);
    }
    if (!reservation) return {};
    Start({*std::move(reservation), Buffer(bytes)});
  }
  return {};
}

void RangedReader::Rep::Start(Block block) {
  const object::ByteRange range{rest.front().offset, std::min<std::uint64_t>(block.buffer.size(), rest.front().length)};
  const std::uint64_t length = range.length;
  rest.front() = {range.offset + length, rest.front().length - length};
  if (rest.front().length == 0) rest.pop_front();
  ahead.push_back(std::make_unique<FetchedPart>(FetchedPart{std::move(block), range.offset, length, false, {}}));
  FetchedPart* part = ahead.back().get();
  {
    MutexLock lock(mutex);
    ++in_flight;
  }
  object::GetOptions get{.range = range, .if_match = info.etag};
  MutableByteSpan into = part->block.buffer.span().first(length);
  store.Get(info.key, std::move(get), into, {.stop = stop.get_token()},
            [this, part, length](Result<std::optional<object::GetResult>> got) {
              Status status = CheckRangeResult(got, info, length);
              MutexLock lock(mutex);
              part->status = std::move(status);
              part->arrived = true;
              --in_flight;
              changed.NotifyAll();  // under the lock: once it is released, the reader may be destroyed
            });
}

RangedReader::RangedReader(object::ReadStore& store, MemoryBudget& budget, object::ObjectInfo info, Options options)
    : rep_(std::make_unique<Rep>(store, budget, std::move(info), std::move(options))) {}

RangedReader::~RangedReader() = default;

Result<ByteSpan> RangedReader::Next(object::Call call) { return rep_->Next(call); }

Result<std::optional<RangedReader::OwnedPart>> RangedReader::NextOwned(object::Call call) {
  return rep_->NextOwned(call);
}

std::uint64_t RangedReader::offset() const { return rep_->current ? rep_->current->offset : rep_->end; }

Status ReadInto(object::ReadStore& store, const object::ObjectInfo& info, std::uint64_t offset, MutableByteSpan into,
                int parallel_parts, std::uint64_t part_bytes, object::Call call) {
  if (offset > info.size || into.size() > info.size - offset) {
    return Fail(Code::kInvalidArgument, "bytes {}+{} reach beyond the {} of {}; read at most the object's size", offset,
                into.size(), info.size, info.key);
  }
  Window window(parallel_parts, call);
  for (std::uint64_t done = 0; done < into.size() && window.Enter();) {
    std::uint64_t length = std::min<std::uint64_t>(std::max<std::uint64_t>(1, part_bytes), into.size() - done);
    store.Get(info.key, {.range = object::ByteRange{offset + done, length}, .if_match = info.etag},
              into.subspan(done, length), window.call(),
              [&window, &info, length](auto got) { window.Leave(CheckRangeResult(got, info, length)); });
    done += length;
  }
  return window.Finish();
}

}  // namespace millrace::transfer
