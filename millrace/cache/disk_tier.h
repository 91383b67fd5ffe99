// The disk tier of the block cache: blocks in slots of a few sparse files. docs/formats/cache.md describes the bytes.
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

/// Blocks of at most `block_bytes` each in one folder, which takes at most `max_bytes` of disk space. Evicts the least
/// recently used block of a sample (approximate LRU). Any number of processes may share the folder and find each
/// other's blocks. The folder survives them, and Open() does not scan it. A block that fails its checksum is dropped,
/// also after a crash of its writer. Thread-safe. Calls block on the disk. I/O errors become misses.
class DiskTier {
 public:
  struct Options {
    std::filesystem::path directory;  ///< made if missing; see ManagedFolder
    std::uint64_t max_bytes = 0;
    std::uint64_t block_bytes = 1 * kMiB;
    const Clock* clock = &SystemClock();
    Logger log;
  };
  /// Errors: kBusy if the folder is in use with another size; kInvalidArgument if `max_bytes` is less than a block;
  /// those of ManagedFolder::Open() if the folder is not this user's, or no cache.
  static Result<std::unique_ptr<DiskTier>> Open(Options options);

  bool Has(const BlockId& id) const;
  enum class Outcome { kHit, kMiss, kCorrupt };
  /// Reads a block into `into`. Removes a block with a wrong checksum. REQUIRES: into.size() is the block's size.
  Outcome Load(const BlockId& id, MutableByteSpan into);
  void Store(const BlockId& id, ByteSpan bytes);

  std::uint64_t bytes() const { return index_->bytes(); }

 private:
  struct LocatedEntry {
    DiskIndex::BucketAddress address;
    std::size_t way = 0;
    DiskEntry entry;
  };

  DiskTier(Options options, const DiskLayout& layout, std::unique_ptr<DiskIndex> index);
  std::optional<LocatedEntry> Find(const BlockId& id) const;
  Status Read(const LocatedEntry& found, MutableByteSpan into) const;
  std::uint64_t OffsetOf(DiskIndex::BucketAddress address, std::size_t way) const;
  std::int64_t Now() const;

  void Change(std::size_t shard, const std::function<void(DiskIndex::ShardHead&)>& change);
  // REQUIRES: called within Change() of the same shard.
  Status Put(DiskIndex::ShardHead& head, const BlockId& id, ByteSpan bytes);
  Status Forget(DiskIndex::ShardHead& head, const LocatedEntry& found);
  Status MakeRoom(DiskIndex::ShardHead& head, std::size_t shard, std::uint64_t bytes);
  void GiveBack(std::size_t shard, std::uint64_t offset, std::uint64_t length);
  void GiveBackEmptySlots(std::size_t shard);

  const Options options_;
  const DiskLayout layout_;
  const std::uint64_t shard_bytes_;  ///< limit of disk space per shard
  const std::unique_ptr<DiskIndex> index_;
  struct SlotFile {
    UniqueFd file;
    UniqueFd direct;  ///< the same file with O_DIRECT, if the file system supports it
  };
  std::vector<SlotFile> shards_;
  std::atomic<bool> failing_ = false;
};

}  // namespace millrace::cache
