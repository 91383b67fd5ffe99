// The memory tier of the block cache: which blocks are in memory, which are in flight, and which are evicted first.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <list>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/base/clock.h"
#include "millrace/base/hash/random.h"
#include "millrace/base/result.h"
#include "millrace/base/threads/sync.h"
#include "millrace/cache/object_version.h"
#include "millrace/object/read_store.h"

namespace millrace::cache {

/// An object version and the hash under which its blocks are indexed. Borrows the version.
struct VersionKey {
  explicit VersionKey(const ObjectVersion& v);
  const ObjectVersion& version;
  std::uint64_t hash;
};

/// The memory of a run. Large buffers ask for huge pages, which need far fewer page faults and page-table walks. A
/// virtual machine pays for those twice.
class RunBuffer {
 public:
  explicit RunBuffer(std::uint64_t size);

  std::uint64_t size() const { return size_; }
  MutableByteSpan span() { return {bytes_.get(), size_}; }
  ByteSpan span() const { return {bytes_.get(), size_}; }

 private:
  struct Free {
    void operator()(std::byte* bytes) const { std::free(bytes); }
  };
  std::unique_ptr<std::byte[], Free> bytes_;
  std::uint64_t size_;
};

/// Keeps buffers for reuse: recently used memory is several times faster to fill than memory fresh from the system.
/// Sizes are rounded up by a quarter at most, so that runs of similar sizes share buffers. Thread-safe.
class BufferPool {
 public:
  /// `most`: the limit of bytes in unused buffers. Beyond it the oldest buffers are freed.
  explicit BufferPool(std::uint64_t most) : most_(most) {}
  /// Returns the size of the buffer that Take() returns for `bytes`.
  static std::uint64_t RoundUp(std::uint64_t bytes);
  RunBuffer Take(std::uint64_t bytes) MR_EXCLUDES(mutex_);
  void Give(RunBuffer buffer) MR_EXCLUDES(mutex_);

 private:
  const std::uint64_t most_;
  Mutex mutex_;
  std::vector<RunBuffer> spare_ MR_GUARDED_BY(mutex_);  ///< oldest first
  std::uint64_t spare_bytes_ MR_GUARDED_BY(mutex_) = 0;
};

/// Adjacent blocks of one version: the unit of fetching, eviction and accounting. A run begins in flight and is
/// finished once, with bytes or with an error. The tier, the fetch and the readers share it. Thread-safe.
class BlockRun {
 public:
  BlockRun(const VersionKey& key, std::uint64_t first_block, std::uint64_t blocks, std::uint64_t offset,
           std::uint64_t size, std::atomic<std::uint64_t>& held, BufferPool& pool);
  ~BlockRun();

  const ObjectVersion version;
  const std::uint64_t version_hash;
  const std::uint64_t first_block, blocks;
  const std::uint64_t offset;  ///< the first byte's offset in the object

  std::uint64_t end() const { return offset + size_; }
  ByteSpan bytes() const { return buffer_.span().first(size_); }
  std::uint64_t memory() const { return buffer_.size(); }  ///< in bytes
  /// Returns when the bytes were requested from the store. TimePoint::min(): they are from disk, or not requested yet.
  TimePoint asked() const { return TimePoint(Duration(asked_.load(std::memory_order_acquire))); }
  void SetAsked(TimePoint when) { asked_.store(when.time_since_epoch().count(), std::memory_order_release); }
  /// The memory to fill. Only the owner of the claim uses it, before Finish().
  MutableByteSpan filling() { return buffer_.span().first(size_); }
  /// Ends the fetch and wakes the readers.
  void Finish(std::optional<Error> error) MR_EXCLUDES(mutex_);
  /// Blocks until the run is finished. Returns its error; kCancelled or kDeadlineExceeded if the call ends first.
  Status Wait(const object::Call& call) MR_EXCLUDES(mutex_);

 private:
  friend class MemoryTier;
  enum class State { kInFlight, kFresh, kConsumed, kDropped };

  std::atomic<std::uint64_t>& held_;
  BufferPool& pool_;
  const std::uint64_t size_;
  RunBuffer buffer_;
  std::atomic<bool> ready_ = false;
  std::atomic<Duration::rep> asked_ = TimePoint::min().time_since_epoch().count();
  Mutex mutex_;
  CondVar finished_;
  bool done_ MR_GUARDED_BY(mutex_) = false;
  std::optional<Error> error_ MR_GUARDED_BY(mutex_);

  // Guarded by the mutex of the run's shard.
  State state_ = State::kInFlight;
  std::list<std::shared_ptr<BlockRun>>::iterator position_;
};

/// An index of runs in shards. Each shard is an LRU cache with two queues: `fresh` has runs that were fetched and not
/// read to their end, `consumed` has the others. Consumed runs are evicted first. Only demand evicts fresh runs, so
/// readahead never evicts readahead. (Abandoned readahead leaves when a reader needs room.) The memory of a run counts
/// until its last user releases it. Thread-safe. Nothing blocks.
class MemoryTier {
 public:
  enum class Priority { kDemand, kSpeculative };

  /// All sizes are in bytes. `keep_read`: the limit of consumed runs.
  MemoryTier(std::uint64_t capacity, std::uint64_t block_bytes, std::uint64_t blocks_per_fetch,
             std::uint64_t keep_read);

  struct Claim {
    std::shared_ptr<BlockRun> run;  ///< null: there is no room
    bool mine = false;              ///< the caller must fill the run and call Publish()
  };
  /// Returns the run with `block`. If there is none, returns a new run that begins there and has the missing blocks up
  /// to `last_block`, as far as one request may fetch them.
  Claim Find(const VersionKey& key, std::uint64_t block, std::uint64_t last_block, Priority priority);
  /// Returns the run with `block`, if any. Claims nothing.
  std::shared_ptr<BlockRun> Peek(const VersionKey& key, std::uint64_t block);
  /// Ends a claim and wakes the readers. Drops a run that failed.
  void Publish(const std::shared_ptr<BlockRun>& run, std::optional<Error> error);
  /// Reports that the run was read up to the offset `end` in the object. Updates the order of eviction.
  void Touch(const std::shared_ptr<BlockRun>& run, std::uint64_t end);

  std::uint64_t held() const;
  std::uint64_t evictions() const { return evictions_; }

 private:
  struct BlockKey {
    std::uint64_t version_hash, block;
    bool operator==(const BlockKey&) const = default;
  };
  struct BlockKeyHash {
    std::size_t operator()(const BlockKey& key) const { return Mix64(key.version_hash ^ Mix64(key.block)); }
  };
  struct Shard {
    Mutex mutex;
    std::unordered_map<BlockKey, std::shared_ptr<BlockRun>, BlockKeyHash> index MR_GUARDED_BY(mutex);
    std::list<std::shared_ptr<BlockRun>> fresh MR_GUARDED_BY(mutex), consumed MR_GUARDED_BY(mutex);  ///< oldest first
    std::uint64_t consumed_bytes MR_GUARDED_BY(mutex) = 0;
    std::atomic<std::uint64_t> held = 0;
  };

  Shard& ShardOf(std::uint64_t version_hash, std::uint64_t block);
  bool MakeRoom(Shard& shard, std::uint64_t bytes, Priority priority) MR_REQUIRES(shard.mutex);
  void EvictOldest(Shard& shard, std::list<std::shared_ptr<BlockRun>>& queue) MR_REQUIRES(shard.mutex);
  void Drop(Shard& shard, const std::shared_ptr<BlockRun>& run) MR_REQUIRES(shard.mutex);
  void Unlink(Shard& shard, BlockRun& run) MR_REQUIRES(shard.mutex);

  const std::uint64_t block_bytes_, blocks_per_fetch_;
  BufferPool pool_;  ///< at most an eighth of the capacity; declared before the shards, so that it outlives the runs
  std::uint64_t shard_capacity_, shard_keep_read_;
  std::vector<std::unique_ptr<Shard>> shards_;
  std::atomic<std::uint64_t> evictions_ = 0;
};

}  // namespace millrace::cache
