#include "millrace/vfs/write/quota.h"

#include <algorithm>
#include <utility>

#include "millrace/base/text.h"
#include "millrace/object/blocking.h"

namespace millrace::vfs {
namespace {

/// A program that goes on writing to a full volume must not make a listing for each write.
constexpr Duration kFresh = std::chrono::seconds(5);
constexpr int kFreshTimes = 10;
/// For reports, which kubelet asks for each minute. A listing of millions of keys takes long and costs money.
constexpr Duration kRecent = std::chrono::minutes(1);
constexpr int kRecentTimes = 100;

}  // namespace

bool Quota::HasRoom(std::uint64_t bytes) const {
  return usage_.limit == 0 || (usage_.used <= usage_.limit && bytes <= usage_.limit - usage_.used);
}

bool Quota::OlderThan(Duration least, int times) const {
  return !measured_at_ || with_.clock.Now() - *measured_at_ > std::max(least, took_ * times);
}

Status Quota::Add(std::uint64_t bytes, const object::Call& call) {
  if (bytes == 0) return {};
  bool ask;
  {
    MutexLock lock(mutex_);
    ask = !measured_at_ || (!HasRoom(bytes) && (removed_ || OlderThan(kFresh, kFreshTimes)));
  }
  if (ask) {
    if (Status measured = Measure(call); !measured) {
      with_.log.Warning("how full the volume is cannot be told; writes are accepted", {{"reason", measured.error()}});
      return {};
    }
  }
  MutexLock lock(mutex_);
  if (!HasRoom(bytes)) {
    return Fail(Code::kNoSpace, "the quota of {} is reached: {} are used", FormatBytes(usage_.limit),
                FormatBytes(usage_.used));
  }
  usage_.used += bytes;
  return {};
}

void Quota::NoteRemoval() {
  MutexLock lock(mutex_);
  removed_ = true;
}

Result<Usage> Quota::Current(const object::Call& call) {
  bool ask;
  {
    MutexLock lock(mutex_);
    ask = OlderThan(kRecent, kRecentTimes) || (removed_ && OlderThan(kFresh, kFreshTimes));
  }
  const Status measured = ask ? Measure(call) : Status();
  MutexLock lock(mutex_);
  if (!measured && !measured_at_) return Fail(measured.error());
  if (!measured) with_.log.Warning("how full the volume is now cannot be told", {{"reason", measured.error()}});
  return usage_;
}

/// One thread lists, and the others wait for it.
Status Quota::Measure(const object::Call& call) {
  bool removed = false;
  std::uint64_t before = 0;
  std::optional<std::uint64_t> last_limit;
  {
    MutexLock lock(mutex_);
    if (measuring_) {
      const bool done =
          measured_again_.Wait(mutex_, call.stop, [this]() MR_NO_THREAD_SAFETY_ANALYSIS { return !measuring_; });
      return done ? last_outcome_ : Fail(Code::kCancelled, "waiting for the size of the volume was cancelled");
    }
    measuring_ = true;
    removed = std::exchange(removed_, false);
    before = usage_.used;
    if (measured_at_) last_limit = usage_.limit;
  }
  const TimePoint began = with_.clock.Now();
  // Before the listing: what is published meanwhile may count twice until the next one, and not too little.
  const std::uint64_t unpublished = with_.unpublished();
  auto limit = with_.limit(call);
  if (!limit) {
    with_.log.Warning("the limit of the volume cannot be read", {{"reason", limit.error()}});
    if (last_limit) limit = *last_limit;
  }
  auto sum = limit ? SumOfListing(call) : Result<std::uint64_t>(Fail(limit.error()));
  MutexLock lock(mutex_);
  measuring_ = false;
  measured_again_.NotifyAll();
  last_outcome_ = sum ? Status() : Fail(sum.error());
  if (!sum) {
    removed_ = removed_ || removed;
    return last_outcome_;
  }
  const std::uint64_t added_meanwhile = usage_.used - before;
  usage_ = {.limit = *limit, .used = *sum + unpublished + added_meanwhile};
  measured_at_ = with_.clock.Now();
  took_ = *measured_at_ - began;
  return {};
}

Result<std::uint64_t> Quota::SumOfListing(const object::Call& call) const {
  std::uint64_t sum = 0;
  object::ListRequest request{.prefix = with_.prefix};
  do {
    object::ListPage page = MR_TRY(object::List(with_.store, request, call));
    for (const object::ObjectInfo& info : page.objects) sum += info.size;
    request.continuation = std::move(page.continuation);
  } while (!request.continuation.empty());
  return sum;
}

}  // namespace millrace::vfs
