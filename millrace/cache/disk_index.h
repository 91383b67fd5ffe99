// The index of the disk tier: which block is in which slot. docs/formats/cache.md describes the bytes.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/base/files/files.h"
#include "millrace/base/files/managed_folder.h"
#include "millrace/base/hash/digest.h"
#include "millrace/base/result.h"
#include "millrace/base/threads/sync.h"

namespace millrace::cache {

/// The identity of a block: the hash of everything that its bytes depend on.
using BlockId = Sha256Digest;

/// The block in a slot.
struct DiskEntry {
  BlockId id{};
  std::uint32_t length = 0;  ///< of the block; 0: the slot is empty
  std::uint32_t crc = 0;     ///< crc32c of the block
  std::int64_t used = 0;     ///< the time of the last read or write, in ns since 1970
  bool operator==(const DiskEntry&) const = default;
};

/// Returns the name of the file with the slots of a shard.
std::string SlotFileName(std::size_t shard);
/// ManagedFolder::Format::name_form of a cache folder: "lock", "index", "index.new" and the names of SlotFileName().
NameForm CacheNameForm(std::string_view name);

/// The layout of a cache folder. All files of a folder have the same.
struct DiskLayout {
  static constexpr std::uint64_t kWays = 16;  ///< entries of a bucket: 1 KiB, which is one read

  /// Returns the layout for blocks of at most `block_bytes` that are at most sixteen times shorter on average.
  static DiskLayout For(std::uint64_t max_bytes, std::uint64_t block_bytes);

  std::uint64_t slot_bytes = 0;
  std::uint64_t shards = 0;
  std::uint64_t buckets = 0;  ///< in a shard

  std::uint64_t slots() const { return buckets * kWays; }  ///< in a shard
  std::uint64_t index_bytes() const;
  bool operator==(const DiskLayout&) const = default;
};

/// A set-associative hash table in one file. Any number of processes may read and change it at the same time. It
/// consists of shards, a shard of buckets, and a bucket of kWays entries. Entry n of a shard describes slot n. The file
/// is read with pread(2), and not mapped: an I/O error must not become a SIGBUS. Readers take no lock; a torn or
/// damaged entry fails its checksum and counts as empty. A lock per shard excludes concurrent changes; the kernel
/// releases it when a process dies. Thread-safe. Entries that cannot be read count as empty.
class DiskIndex {
 public:
  static constexpr std::uint64_t kBucketsAtOnce = 16;  ///< buckets that one read gets when many are needed: 16 KiB
  using Bucket = std::array<DiskEntry, DiskLayout::kWays>;
  struct BucketAddress {
    std::size_t shard = 0;
    std::uint64_t bucket = 0;
  };
  /// The head of a shard.
  struct ShardHead {
    std::uint64_t bytes = 0;  ///< disk space of the shard's slots
    std::uint64_t hand = 0;   ///< the bucket where eviction continues (a clock hand)
    bool recounted = false;   ///< the last change was not finished: slots without an entry may take disk space
  };

  /// Opens the index in `folder`. Makes a new one, and removes the files of another layout, if there is none for this
  /// layout. Uses `folder` only during the call. Locks the folder for this layout until the index is destroyed.
  /// Errors: kBusy while the folder is in use with another layout.
  static Result<std::unique_ptr<DiskIndex>> Open(const ManagedFolder& folder, const DiskLayout& layout);

  BucketAddress BucketOf(const BlockId& id) const;
  Bucket Read(BucketAddress address) const;
  /// Returns `count` consecutive buckets. After the shard's last bucket follows its first.
  std::vector<Bucket> Read(BucketAddress first, std::uint64_t count) const;
  void Touch(BucketAddress address, std::size_t way, std::int64_t used);

  /// Runs `change` under the shard's lock. Returns false at once if another process holds the lock. That process may be
  /// stopped (SIGSTOP), so this call does not wait for it.
  bool Change(std::size_t shard, const std::function<void(ShardHead&)>& change);
  /// Writes an entry. REQUIRES: called within Change() of the same shard.
  Status Write(BucketAddress address, std::size_t way, const DiskEntry& entry);

  /// Returns the disk space of all shards' slots. A shard that is being changed counts with its former size.
  std::uint64_t bytes() const;

 private:
  DiskIndex(const DiskLayout& layout, std::uint64_t epoch) : layout_(layout), epoch_(epoch), mutexes_(layout.shards) {}
  std::uint64_t OffsetOf(BucketAddress address, std::size_t way = 0) const;
  void WriteHead(std::size_t shard, const ShardHead& head, std::uint64_t epoch);
  std::uint64_t Recount(std::size_t shard) const;

  const DiskLayout layout_;
  const std::uint64_t epoch_;  ///< identifies this start of the machine
  UniqueFd folder_lock_, file_;
  std::vector<Mutex> mutexes_;  ///< per shard: the lock between threads of this process
};

/// Returns the disk space of a block of `length` bytes: whole pages of 4 KiB.
constexpr std::uint64_t BytesOnDisk(std::uint64_t length) { return (length + 4095) / 4096 * 4096; }

}  // namespace millrace::cache
