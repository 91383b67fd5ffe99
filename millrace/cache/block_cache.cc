#include "millrace/cache/block_cache.h"

#include <algorithm>
#include <atomic>
#include <functional>

#include "millrace/base/hash/digest.h"
#include "millrace/base/threads/channel.h"
#include "millrace/base/threads/task_scope.h"
#include "millrace/cache/disk_tier.h"
#include "millrace/cache/memory_tier.h"
#include "millrace/object/blocking.h"

namespace millrace::cache {
namespace {

/// Threads that load and save runs. 2, a guess: one writes while the other one computes checksums.
constexpr int kDiskThreads = 2;
/// Runs that wait for these threads. Further runs are not saved, or are loaded from the store. 64: a guess.
constexpr std::size_t kDiskQueue = 64;

/// Checks the result of a read of one version. Errors: kStale if that version is gone.
Status CheckVersion(const ObjectVersion& version, std::uint64_t wanted,
                    const Result<std::optional<object::GetResult>>& got) {
  if (!got && got.error().code() == Code::kPreconditionFailed) {
    return Fail(Code::kStale, "{} was replaced while it was being read; open it again", version.key);
  }
  if (!got) return Fail(got.error().Context(fmt::format("reading {}", version.key)));
  if (!*got) return Fail(Code::kStale, "{} was deleted while it was being read", version.key);
  if ((*got)->bytes != wanted) {
    return Fail(Code::kStale, "{} ends {} bytes early: it was replaced while it was being read", version.key,
                wanted - std::min(wanted, (*got)->bytes));
  }
  return {};
}

MutableByteSpan ClipToVersion(const ObjectVersion& version, std::uint64_t offset, MutableByteSpan into) {
  return into.first(std::min<std::uint64_t>(into.size(), version.size - std::min(version.size, offset)));
}

object::GetOptions RangeOf(const ObjectVersion& version, std::uint64_t offset, std::uint64_t length) {
  if (length == version.size) return {.if_match = version.etag};  // only a whole object comes with its checksum
  return {.range = object::ByteRange{offset, length}, .if_match = version.etag};
}

/// The identity of block `block` of the run's version on disk.
BlockId IdOf(const object::ReadStore& store, const BlockRun& run, std::uint64_t block, std::uint64_t block_bytes) {
  const ObjectVersion& v = run.version;
  const std::string identity = store.Identity();
  return Sha256(AsBytes(fmt::format("{}:{}\n{}:{}\n{}:{}\n{} {} {}", identity.size(), identity, v.key.size(), v.key,
                                    v.etag.size(), v.etag, v.size, block_bytes, block)));
}

/// Returns the bytes of the i-th block of a run.
template <class Bytes>
Bytes BlockOf(Bytes run, std::uint64_t i, std::uint64_t block_bytes) {
  return run.subspan(i * block_bytes, std::min<std::uint64_t>(block_bytes, run.size() - i * block_bytes));
}

}  // namespace

BlockCache::BlockCache(object::ReadStore& store, Reservation memory, std::unique_ptr<DiskTier> disk,
                       const Options& options)
    : store_(store),
      clock_(*options.clock),
      block_bytes_(options.block_bytes),
      reservation_(std::move(memory)),
      disk_(std::move(disk)),
      memory_(reservation_.bytes(), options.block_bytes,
              std::max<std::uint64_t>(1, options.max_fetch_bytes / options.block_bytes), options.keep_read_bytes),
      disk_work_(kDiskQueue) {
  for (int i = 0; disk_ && i < kDiskThreads; ++i) {
    disk_threads_.Spawn("cache-disk", [this](std::stop_token) {
      while (auto work = disk_work_.Pop()) (*work)();
    });
  }
}

BlockCache::~BlockCache() {
  disk_work_.Close();  // the queued work still runs: it fills claimed runs and saves blocks
  disk_threads_.Join();
  stop_.request_stop();
  MutexLock lock(mutex_);
  idle_.Wait(mutex_, {}, [this]() MR_NO_THREAD_SAFETY_ANALYSIS { return fetches_ == 0; });
}

Result<View> BlockCache::ReadView(const ObjectVersion& version, std::uint64_t offset, MutableByteSpan room, Mode mode,
                                  object::Call call) {
  room = ClipToVersion(version, offset, room);
  const VersionKey key(version);
  return mode == Mode::kBlocks ? ViewBlocks(key, offset, room, call) : ViewExactly(key, offset, room, call);
}

Result<BlockCache::Proof> BlockCache::Fetch(const ObjectVersion& version, std::uint64_t offset, std::uint64_t length,
                                            object::Call call) {
  const std::uint64_t end = std::min(version.size, offset + length);
  const VersionKey key(version);
  std::vector<std::shared_ptr<BlockRun>> runs;
  Proof proof;
  std::uint64_t at = offset;
  while (at < end) {
    auto claim = memory_.Find(key, at / block_bytes_, (end - 1) / block_bytes_, MemoryTier::Priority::kDemand);
    if (!claim.run) break;
    if (claim.mine) proof.now |= Fill(claim.run, /*may_block=*/true) == FillSource::kStore;
    at = claim.run->end();
    runs.push_back(std::move(claim.run));
  }
  for (const auto& run : runs) MR_TRY(run->Wait(call));
  if (runs.empty() || at < end) return proof;
  TimePoint oldest = TimePoint::max();
  for (const auto& run : runs) oldest = std::min(oldest, run->asked());
  if (oldest != TimePoint::min()) proof.asked = oldest;
  return proof;
}

BlockCache::PrefetchResult BlockCache::Prefetch(const ObjectVersion& version, std::uint64_t offset,
                                                std::uint64_t length) {
  const std::uint64_t end = std::min(version.size, offset + length);
  const VersionKey key(version);
  TimePoint oldest = TimePoint::max();
  std::uint64_t at = offset;
  while (at < end) {
    auto claim = memory_.Find(key, at / block_bytes_, (end - 1) / block_bytes_, MemoryTier::Priority::kSpeculative);
    if (!claim.run) break;
    if (claim.mine) Fill(claim.run, /*may_block=*/false);
    oldest = std::min(oldest, claim.run->asked());
    at = claim.run->end();
  }
  PrefetchResult result{.bytes = std::min(at, end) - std::min(offset, end), .asked = {}};
  const bool complete = at > offset && at >= end;
  if (complete && oldest != TimePoint::min()) result.asked = oldest;
  return result;
}

BlockCache::Stats BlockCache::stats() const {
  Stats stats;
  stats.memory_hits = memory_hits_;
  stats.disk_hits = disk_hits_;
  stats.misses = misses_;
  stats.bytes_fetched = bytes_fetched_;
  stats.evictions = memory_.evictions();
  stats.corrupt_blocks = corrupt_blocks_;
  stats.memory_bytes = memory_.held();
  return stats;
}

Result<View> BlockCache::ViewBlocks(const VersionKey& key, std::uint64_t offset, MutableByteSpan room,
                                    const object::Call& call) {
  const std::uint64_t end = offset + room.size(), last_block = room.empty() ? 0 : (end - 1) / block_bytes_;
  View view;
  for (std::uint64_t at = offset; at < end;) {
    auto claim = memory_.Find(key, at / block_bytes_, last_block, MemoryTier::Priority::kDemand);
    const std::uint64_t segment_end =
        claim.run ? std::min(end, claim.run->end()) : std::min(end, (at / block_bytes_ + 1) * block_bytes_);
    if (!claim.run) {
      MR_TRY(GetExactly(key.version, at, room.subspan(at - offset, segment_end - at), view, call));
    } else {
      if (claim.mine) {
        if (segment_end < end) Prefetch(key.version, segment_end, end - segment_end);  // before this thread waits
        Fill(claim.run, /*may_block=*/true);
      } else {
        ++memory_hits_;
      }
      MR_TRY(Lend(claim.run, at, segment_end, view, call));
    }
    at = segment_end;
  }
  return view;
}

Result<View> BlockCache::ViewExactly(const VersionKey& key, std::uint64_t offset, MutableByteSpan room,
                                     const object::Call& call) {
  const std::uint64_t end = offset + room.size();
  View view;
  for (std::uint64_t at = offset; at < end;) {
    std::uint64_t block = at / block_bytes_, segment_end = 0;
    if (auto run = memory_.Peek(key, block)) {
      ++memory_hits_;
      segment_end = std::min(end, run->end());
      MR_TRY(Lend(run, at, segment_end, view, call));
    } else {
      do {
        ++block;
      } while (block * block_bytes_ < end && !memory_.Peek(key, block));
      segment_end = std::min(end, block * block_bytes_);
      MR_TRY(GetExactly(key.version, at, room.subspan(at - offset, segment_end - at), view, call));
    }
    at = segment_end;
  }
  return view;
}

Status BlockCache::Lend(const std::shared_ptr<BlockRun>& run, std::uint64_t at, std::uint64_t end, View& view,
                        const object::Call& call) {
  MR_TRY(run->Wait(call));
  view.segments.push_back({run->bytes().subspan(at - run->offset, end - at), run});
  memory_.Touch(run, end);
  return {};
}

Status BlockCache::GetExactly(const ObjectVersion& version, std::uint64_t at, MutableByteSpan into, View& view,
                              const object::Call& call) {
  ++misses_;
  bytes_fetched_ += into.size();
  view.segments.push_back({into, nullptr});
  return CheckVersion(version, into.size(),
                      object::Get(store_, version.key, RangeOf(version, at, into.size()), into, call));
}

BlockCache::FillSource BlockCache::Fill(const std::shared_ptr<BlockRun>& run, bool may_block) {
  if (disk_ && IsOnDisk(*run)) {
    auto load = [this, run] {
      if (!LoadFromDisk(run)) FillFromStore(run);
    };
    if (may_block) {
      if (LoadFromDisk(run)) return FillSource::kDisk;
    } else {
      std::move_only_function<void()> work = std::move(load);
      if (disk_work_.TryPush(work)) return FillSource::kDisk;
    }
  }
  FillFromStore(run);
  return FillSource::kStore;
}

void BlockCache::FillFromStore(const std::shared_ptr<BlockRun>& run) {
  run->SetAsked(clock_.Now());
  ++misses_;
  bytes_fetched_ += run->bytes().size();
  {
    MutexLock lock(mutex_);
    ++fetches_;
  }
  auto done = [this, run = run](Result<std::optional<object::GetResult>> got) mutable {
    Status checked = CheckVersion(run->version, run->bytes().size(), got);
    if (checked && disk_) {  // before Publish(): a reader that has its bytes may destroy the cache
      std::move_only_function<void()> work = [this, run] { SaveToDisk(*run); };
      disk_work_.TryPush(work);  // if the queue is full, the run is not saved
    }
    memory_.Publish(run, checked ? std::nullopt : std::optional(checked.error()));
    run.reset();  // before --fetches_: after it, the cache may be destroyed
    MutexLock lock(mutex_);
    if (--fetches_ == 0) idle_.NotifyAll();
  };
  store_.Get(run->version.key, RangeOf(run->version, run->offset, run->bytes().size()), run->filling(),
             {.stop = stop_.get_token()}, std::move(done));
}

bool BlockCache::IsOnDisk(const BlockRun& run) const {
  for (std::uint64_t i = 0; i < run.blocks; ++i) {
    if (!disk_->Has(IdOf(store_, run, run.first_block + i, block_bytes_))) return false;
  }
  return true;
}

bool BlockCache::LoadFromDisk(const std::shared_ptr<BlockRun>& run) {
  for (std::uint64_t i = 0; i < run->blocks; ++i) {
    auto outcome =
        disk_->Load(IdOf(store_, *run, run->first_block + i, block_bytes_), BlockOf(run->filling(), i, block_bytes_));
    if (outcome == DiskTier::Outcome::kCorrupt) ++corrupt_blocks_;
    if (outcome != DiskTier::Outcome::kHit) return false;
  }
  ++disk_hits_;
  memory_.Publish(run, std::nullopt);
  return true;
}

void BlockCache::SaveToDisk(const BlockRun& run) {
  for (std::uint64_t i = 0; i < run.blocks; ++i) {
    disk_->Store(IdOf(store_, run, run.first_block + i, block_bytes_), BlockOf(run.bytes(), i, block_bytes_));
  }
}

Result<std::size_t> BlockCache::Read(const ObjectVersion& version, std::uint64_t offset, MutableByteSpan into,
                                     Mode mode, object::Call call) {
  View view = MR_TRY(ReadView(version, offset, into, mode, std::move(call)));
  return view.CopyTo(into);
}

std::size_t View::CopyTo(MutableByteSpan room) const {
  std::size_t done = 0;
  for (const Segment& segment : segments) {
    if (segment.owner) std::ranges::copy(segment.bytes, room.begin() + static_cast<std::ptrdiff_t>(done));
    done += segment.bytes.size();
  }
  return done;
}

Result<std::unique_ptr<BlockCache>> BlockCache::Open(object::ReadStore& store, MemoryBudget& budget, Options options) {
  if (options.block_bytes < 4 * kKiB || options.block_bytes > kGiB) {
    return Fail(Code::kInvalidArgument, "cache blocks of {} bytes: choose between 4 KiB and 1 GiB",
                options.block_bytes);
  }
  const std::uint64_t least = options.block_bytes;
  std::uint64_t wanted = std::max(options.memory_bytes, least);
  std::optional<Reservation> memory;
  while (!(memory = budget.TryAcquire(wanted, MemoryBudget::Priority::kForeground)) && wanted > least) {
    wanted = std::max(wanted / 2, least);
  }
  if (!memory) {
    return Fail(Code::kResourceExhausted,
                "the memory budget has no room for one cache block ({} bytes); raise --memory-budget", least);
  }
  std::unique_ptr<DiskTier> disk;
  if (!options.directory.empty() && options.disk_bytes > 0) {
    disk = MR_TRY(DiskTier::Open({.directory = options.directory,
                                  .max_bytes = options.disk_bytes,
                                  .block_bytes = options.block_bytes,
                                  .clock = options.clock,
                                  .log = options.log}));
  }
  return std::unique_ptr<BlockCache>(new BlockCache(store, std::move(*memory), std::move(disk), options));
}

}  // namespace millrace::cache
