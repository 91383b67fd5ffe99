// Blocks of immutable object versions, kept in memory and optionally on disk.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/base/clock.h"
#include "millrace/base/log.h"
#include "millrace/base/result.h"
#include "millrace/base/threads/channel.h"
#include "millrace/base/threads/memory_budget.h"
#include "millrace/base/threads/sync.h"
#include "millrace/base/threads/task_scope.h"
#include "millrace/cache/memory_tier.h"
#include "millrace/cache/object_version.h"
#include "millrace/object/read_store.h"

namespace millrace::cache {

class DiskTier;

/// Bytes of an object, in order, mostly without a copy. A segment is valid while its owner is held.
struct View {
  struct Segment {
    ByteSpan bytes;
    std::shared_ptr<const void> owner;  ///< holds the cache's memory; null: the bytes are in the caller's memory
  };
  std::vector<Segment> segments;

  std::size_t size() const {
    std::size_t sum = 0;
    for (const Segment& segment : segments) sum += segment.bytes.size();
    return sum;
  }
  /// Copies the segments in the cache's memory into `room`, after which `room` has all bytes. Returns size().
  /// REQUIRES: `room` is the argument of the ReadView() that made this view.
  std::size_t CopyTo(MutableByteSpan room) const;
};

/// Reads ranges of objects through fixed-size blocks. Thread-safe. One fetch serves all readers that wait for a block
/// (single flight). One request fetches adjacent missing blocks of an aligned part of `max_fetch_bytes`. Open()
/// reserves the memory from the budget. Bytes from disk are checked by their CRC-32C and dropped if it is wrong. Errors
/// of reads: kStale if the object no longer has the version asked for; those of the store.
class BlockCache {
 public:
  struct Options {
    std::uint64_t block_bytes = 1 * kMiB;
    std::uint64_t max_fetch_bytes = 8 * kMiB;  ///< the most that one request fetches; rounded to whole blocks
    std::uint64_t memory_bytes = 64 * kMiB;    ///< less if the budget has less
    /// The most bytes in memory of blocks that were read to their end. Small if a page cache keeps them, too.
    std::uint64_t keep_read_bytes = ~0ULL;
    std::filesystem::path directory;  ///< empty: no disk tier
    std::uint64_t disk_bytes = 0;
    const Clock* clock = &SystemClock();
    Logger log;
  };
  struct Stats {
    std::uint64_t memory_hits = 0, disk_hits = 0, misses = 0;  ///< in runs: the blocks of one request
    std::uint64_t bytes_fetched = 0, evictions = 0, corrupt_blocks = 0;
    std::uint64_t memory_bytes = 0;  ///< held now
  };

  /// Caches of several processes may share a folder.
  /// REQUIRES: `store` and `budget` outlive the cache.
  /// Errors: kResourceExhausted if the budget has no memory left; kBusy if the folder is in use with another size;
  /// those of ManagedFolder::Open().
  static Result<std::unique_ptr<BlockCache>> Open(object::ReadStore& store, MemoryBudget& budget, Options options);
  /// Cancels the fetches under way and saves the blocks that wait for the disk. Waits for both.
  /// REQUIRES: no View of this cache is left.
  ~BlockCache();
  BlockCache(const BlockCache&) = delete;
  BlockCache& operator=(const BlockCache&) = delete;

  enum class Mode {
    kBlocks,  ///< fetches whole blocks and keeps them
    kExact,   ///< requests exactly the missing bytes and does not keep them: for random reads
  };
  /// Returns `room.size()` bytes from `offset` on, or fewer at the object's end. Writes bytes that the cache does not
  /// keep into `room`, each at its offset. Blocks.
  Result<View> ReadView(const ObjectVersion& version, std::uint64_t offset, MutableByteSpan room, Mode mode,
                        object::Call call = {});
  /// Like ReadView(), but copies all bytes into `into`. Returns their number.
  Result<std::size_t> Read(const ObjectVersion& version, std::uint64_t offset, MutableByteSpan into,
                           Mode mode = Mode::kBlocks, object::Call call = {});
  /// The time at which a version was current, as far as a fetch proves it.
  struct Proof {
    bool now = false;  ///< the store sent some of the bytes during this call: the version is current
    /// When the oldest of the bytes was requested: the version was current then. Nothing if some bytes are from the
    /// disk, or memory is short.
    std::optional<TimePoint> asked;
  };
  /// Fetches a range into the cache. Blocks until it is there.
  Result<Proof> Fetch(const ObjectVersion& version, std::uint64_t offset, std::uint64_t length, object::Call call = {});
  /// The part of a range that Prefetch() has accepted.
  struct PrefetchResult {
    std::uint64_t bytes = 0;         ///< from the start of the range on; these are cached or in flight
    std::optional<TimePoint> asked;  ///< Proof::asked as Fetch() would return it once all bytes have arrived
  };
  /// Starts fetching the blocks of a range as far as memory allows. Readahead does not evict bytes that were fetched
  /// ahead and not read yet. Never blocks, never fails.
  PrefetchResult Prefetch(const ObjectVersion& version, std::uint64_t offset, std::uint64_t length);
  /// Returns the size of the memory tier that the budget granted, in bytes.
  std::uint64_t capacity() const { return reservation_.bytes(); }
  Stats stats() const;

 private:
  enum class FillSource { kDisk, kStore };

  BlockCache(object::ReadStore& store, Reservation memory, std::unique_ptr<DiskTier> disk, const Options& options);

  Result<View> ViewBlocks(const VersionKey& key, std::uint64_t offset, MutableByteSpan room, const object::Call& call);
  Result<View> ViewExactly(const VersionKey& key, std::uint64_t offset, MutableByteSpan room, const object::Call& call);
  /// Adds the bytes from `at` to `end` of a run to `view`, once they are there.
  Status Lend(const std::shared_ptr<BlockRun>& run, std::uint64_t at, std::uint64_t end, View& view,
              const object::Call& call);
  /// Reads bytes into the caller's memory and does not keep them: for random reads, and while memory is short.
  Status GetExactly(const ObjectVersion& version, std::uint64_t at, MutableByteSpan into, View& view,
                    const object::Call& call);
  /// Fills a claimed run: from the disk if every block is there, else from the store. If `may_block`, reads the disk on
  /// this thread. Never waits for the store.
  FillSource Fill(const std::shared_ptr<BlockRun>& run, bool may_block);
  void FillFromStore(const std::shared_ptr<BlockRun>& run) MR_EXCLUDES(mutex_);
  bool IsOnDisk(const BlockRun& run) const;
  bool LoadFromDisk(const std::shared_ptr<BlockRun>& run);
  void SaveToDisk(const BlockRun& run);

  // Constant after construction.
  object::ReadStore& store_;
  const Clock& clock_;
  const std::uint64_t block_bytes_;
  const Reservation reservation_;
  const std::unique_ptr<DiskTier> disk_;  ///< null: no disk tier

  // Thread-safe.
  MemoryTier memory_;
  std::atomic<std::uint64_t> memory_hits_ = 0, disk_hits_ = 0, misses_ = 0, bytes_fetched_ = 0, corrupt_blocks_ = 0;
  std::stop_source stop_;  ///< cancels the fetches when the cache is destroyed

  // Guarded by mutex_.
  Mutex mutex_;
  CondVar idle_;  ///< fetches_ has become zero
  int fetches_ MR_GUARDED_BY(mutex_) = 0;

  Channel<std::move_only_function<void()>> disk_work_;
  TaskScope disk_threads_;  ///< last: its threads use all the rest
};

}  // namespace millrace::cache
