// The memory tier of the block cache: which blocks are here, which are under way, and what goes when room is needed.
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
#include "millrace/base/threads/sync.h"
#include "millrace/cache/block_cache.h"

namespace millrace::cache {

/// One object version with the hash that finds its blocks.
struct VersionKey {
  explicit VersionKey(const ObjectVersion& v);
  const ObjectVersion& version;
  std::uint64_t hash;
};

/// Memory of a run. Where the size allows it, it is asked for in huge pages: they are filled and read with far fewer
/// faults and table walks, which a virtual machine pays for twice.
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

/// Keeps buffers for their next use: memory that was used a moment ago is several times faster to fill than memory
/// fresh from the system. Sizes are rounded up by a quarter at most, so that runs of similar sizes share buffers.
/// Thread-safe.
class BufferPool {
 public:
  /// `most`: bytes kept in buffers that nobody uses; the oldest make room for the newest.
  explicit BufferPool(std::uint64_t most) : most_(most) {}
  /// What Take really takes for so many bytes.
  static std::uint64_t RoundUp(std::uint64_t bytes);
  RunBuffer Take(std::uint64_t bytes) MR_EXCLUDES(mutex_);
  void Give(RunBuffer buffer) MR_EXCLUDES(mutex_);

 private:
  const std::uint64_t most_;
  Mutex mutex_;
  std::vector<RunBuffer> spare_ MR_GUARDED_BY(mutex_);  ///< oldest first
  std::uint64_t spare_bytes_ MR_GUARDED_BY(mutex_) = 0;
};

/// Adjacent blocks of one version: the unit of fetching, of eviction and of accounting. It begins under way and is
/// finished once, with bytes or with an error. Shared by the tier, the fetch and the readers; thread-safe.
class Run {
 public:
  Run(const VersionKey& key, std::uint64_t first_block, std::uint64_t blocks, std::uint64_t offset, std::uint64_t size,
      std::atomic<std::uint64_t>& held, BufferPool& pool);
  ~Run();

  const ObjectVersion version;
  const std::uint64_t version_hash;
  const std::uint64_t first_block, blocks;
  const std::uint64_t offset;  ///< of the first byte, in the object

  std::uint64_t end() const { return offset + size_; }
  ByteSpan bytes() const { return buffer_.span().first(size_); }
  std::uint64_t memory() const { return buffer_.size(); }  ///< what it takes
  /// When the store was asked for the bytes; TimePoint::min(): they are from disk, or nobody has asked yet.
  TimePoint asked() const { return TimePoint(Duration(asked_.load(std::memory_order_acquire))); }
  void SetAsked(TimePoint when) { asked_.store(when.time_since_epoch().count(), std::memory_order_release); }
  /// For the one who fills it, before Finish.
  MutableByteSpan filling() { return buffer_.span().first(size_); }
  void Finish(std::optional<Error> error) MR_EXCLUDES(mutex_);
  /// Blocks until the run is finished; fails with its error, or when the call is stopped or late.
  Status Wait(const object::Call& call) MR_EXCLUDES(mutex_);

 private:
  friend class MemoryTier;
  enum class Place { kUnderWay, kFresh, kConsumed, kOut };

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
  Place place_ = Place::kUnderWay;
  std::list<std::shared_ptr<Run>>::iterator position_;
};

/// An index of runs in shards, each a least-recently-used cache of its own with two queues: `fresh` holds what was
/// fetched and not read to its end, `consumed` the rest. Consumed runs go first; fresh ones are pushed out by demand
/// only, so that readahead never eats readahead (what was abandoned leaves when a reader finds no room). Memory of a
/// run counts until its last user lets go. Thread-safe; nothing blocks.
class MemoryTier {
 public:
  enum class Priority { kDemand, kSpeculative };

  /// `keep_read`: bytes of consumed runs kept at most.
  MemoryTier(std::uint64_t capacity, std::uint64_t block_bytes, std::uint64_t blocks_per_fetch,
             std::uint64_t keep_read);

  struct Claim {
    std::shared_ptr<Run> run;  ///< nothing: there is no room
    bool mine = false;         ///< the caller must fill it and call Publish
  };
  /// The run that holds `block`, or a new one that begins there and spans the missing blocks up to `last_block` that
  /// one request may bring.
  Claim Find(const VersionKey& key, std::uint64_t block, std::uint64_t last_block, Priority priority);
  /// The run that holds `block`, if any; claims nothing.
  std::shared_ptr<Run> Peek(const VersionKey& key, std::uint64_t block);
  /// Ends a claim: readers wake; a failed run is forgotten.
  void Publish(const std::shared_ptr<Run>& run, std::optional<Error> error);
  /// Tells the order of eviction that bytes up to `end` (in the object) were read.
  void Touch(const std::shared_ptr<Run>& run, std::uint64_t end);

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
    std::unordered_map<BlockKey, std::shared_ptr<Run>, BlockKeyHash> index MR_GUARDED_BY(mutex);
    std::list<std::shared_ptr<Run>> fresh MR_GUARDED_BY(mutex), consumed MR_GUARDED_BY(mutex);  ///< oldest first
    std::uint64_t consumed_bytes MR_GUARDED_BY(mutex) = 0;
    std::atomic<std::uint64_t> held = 0;
  };

  Shard& ShardOf(std::uint64_t version_hash, std::uint64_t block);
  bool MakeRoom(Shard& shard, std::uint64_t bytes, Priority priority) MR_REQUIRES(shard.mutex);
  void EvictOldest(Shard& shard, std::list<std::shared_ptr<Run>>& queue) MR_REQUIRES(shard.mutex);
  void Drop(Shard& shard, const std::shared_ptr<Run>& run) MR_REQUIRES(shard.mutex);
  void Unlink(Shard& shard, Run& run) MR_REQUIRES(shard.mutex);

  const std::uint64_t block_bytes_, blocks_per_fetch_;
  BufferPool pool_;  ///< an eighth of the capacity at most; outlives the runs
  std::uint64_t shard_capacity_, shard_keep_read_;
  std::vector<std::unique_ptr<Shard>> shards_;
  std::atomic<std::uint64_t> evictions_ = 0;
};

}  // namespace millrace::cache
