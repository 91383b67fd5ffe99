// The disk tier of the block cache: blocks in slots of a few sparse files. docs/formats/cache.md gives the bytes.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/base/clock.h"
#include "millrace/base/files/files.h"
#include "millrace/base/log.h"
#include "millrace/base/result.h"
#include "millrace/cache/disk_index.h"

namespace millrace::cache {

/// Blocks of at most `block_bytes` each in one folder, at most `max_bytes` of disk in all; what was used longest ago
/// makes room (of a sample of each shard, so nearly the longest). Any number of processes may share the folder: what
/// one stores, all find. It outlives them, and is not looked through when it opens. A block either passes its checksum
/// or is thrown away, whoever wrote it and whenever they were killed. Thread-safe; calls wait for the disk. A failing
/// disk makes misses, not errors.
class DiskTier {
 public:
  struct Options {
    std::filesystem::path directory;  ///< made when missing; see ManagedFolder
    std::uint64_t max_bytes = 0;
    std::uint64_t block_bytes = 1 * kMiB;
    const Clock* clock = &SystemClock();
    Logger log;
  };
  /// Fails with kBusy when the folder is in use with a layout for another size, with kInvalidArgument when `max_bytes`
  /// hold no block, and as ManagedFolder::Open does when the folder is not this user's own, or not a cache's.
  static Result<std::unique_ptr<DiskTier>> Open(Options options);

  bool Has(const BlockId& id) const;
  enum class Outcome { kHit, kMiss, kCorrupt };
  /// Fills `into`, whose size is the block's. A wrong block is removed.
  Outcome Load(const BlockId& id, MutableByteSpan into);
  void Store(const BlockId& id, ByteSpan bytes);

  std::uint64_t bytes() const { return index_->bytes(); }

 private:
  struct Found {
    DiskIndex::Place place;
    std::size_t way = 0;
    DiskEntry entry;
  };

  DiskTier(Options options, const DiskLayout& layout, std::unique_ptr<DiskIndex> index);
  std::optional<Found> Find(const BlockId& id) const;
  Status Read(const Found& found, MutableByteSpan into) const;
  std::uint64_t OffsetOf(DiskIndex::Place place, std::size_t way) const;
  std::int64_t Now() const;

  void Change(std::size_t shard, const std::function<void(DiskIndex::Head&)>& change);
  // Only within Change of the place's shard.
  Status Put(DiskIndex::Head& head, const BlockId& id, ByteSpan bytes);
  Status Forget(DiskIndex::Head& head, const Found& found);
  Status MakeRoom(DiskIndex::Head& head, std::size_t shard, std::uint64_t bytes);
  void GiveBack(std::size_t shard, std::uint64_t offset, std::uint64_t length);
  void GiveBackEmptySlots(std::size_t shard);

  const Options options_;
  const DiskLayout layout_;
  const std::uint64_t shard_bytes_;  ///< at most, on the disk
  const std::unique_ptr<DiskIndex> index_;
  struct Slots {
    UniqueFd file;
    UniqueFd direct;  ///< the same without the kernel's cache, where the file system can
  };
  std::vector<Slots> shards_;
  std::atomic<bool> failing_ = false;
};

}  // namespace millrace::cache
