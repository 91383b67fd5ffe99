// The index of the disk tier: which block is in which slot. docs/formats/cache.md gives the bytes.
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

/// What a block is: the hash of everything that its bytes depend on.
using BlockId = Sha256Digest;

/// What a slot holds.
struct DiskEntry {
  BlockId id{};
  std::uint32_t length = 0;  ///< of the block; 0: the slot is empty
  std::uint32_t crc = 0;     ///< crc32c of the block
  std::int64_t used = 0;     ///< when it was read or written last, in ns since 1970
  bool operator==(const DiskEntry&) const = default;
};

/// The file that holds the slots of a shard.
std::string SlotFileName(std::size_t shard);
/// The form of a name in a cache folder: "lock", "index", "index.new", or a name that SlotFileName gives.
NameForm CacheNameForm(std::string_view name);

/// How a cache folder is laid out; files of one folder share one.
struct DiskLayout {
  static constexpr std::uint64_t kWays = 16;  ///< entries of a bucket

  /// For blocks of at most `block_bytes` that may be sixteen times shorter on average.
  static DiskLayout For(std::uint64_t max_bytes, std::uint64_t block_bytes);

  std::uint64_t slot_bytes = 0;
  std::uint64_t shards = 0;
  std::uint64_t buckets = 0;  ///< of a shard

  std::uint64_t slots() const { return buckets * kWays; }  ///< of a shard
  std::uint64_t index_bytes() const;
  bool operator==(const DiskLayout&) const = default;
};

/// A hash table in one file, which any number of processes read and change at a time: shards of buckets of kWays
/// entries, where entry n of a shard tells of slot n. It is read with pread, never as a whole and never mapped (a disk
/// that fails must not be a SIGBUS). Readers take no lock: an entry that is torn or damaged fails its checksum and
/// counts as empty. Changes of one shard exclude each other by a lock that the kernel gives back when a process dies.
/// Thread-safe. A disk that fails makes empty entries.
class DiskIndex {
 public:
  static constexpr std::uint64_t kBucketsAtOnce = 16;  ///< that are worth one read
  using Bucket = std::array<DiskEntry, DiskLayout::kWays>;
  struct Place {
    std::size_t shard = 0;
    std::uint64_t bucket = 0;
  };
  /// What is counted of a shard.
  struct Head {
    std::uint64_t bytes = 0;  ///< that its slots take on the disk
    std::uint64_t hand = 0;   ///< the bucket where eviction goes on
    bool recounted = false;   ///< whoever changed it last did not finish: slots without an entry may take room
  };

  /// Opens the index in `folder`, or lays out a new one, removing what another layout left there. `folder` is used
  /// within the call alone. Fails with kBusy while the folder is in use for another layout: it stays in use, for this
  /// one, until the index goes.
  static Result<std::unique_ptr<DiskIndex>> Open(const ManagedFolder& folder, const DiskLayout& layout);

  Place PlaceOf(const BlockId& id) const;
  Bucket Read(Place place) const;
  /// `count` buckets in a row, round the end of the shard.
  std::vector<Bucket> Read(Place first, std::uint64_t count) const;
  void Touch(Place place, std::size_t way, std::int64_t used);

  /// Runs `change` while nobody else changes the shard. False, and nothing is run, when another process does: it may be
  /// stopped, so nobody waits for it.
  bool Change(std::size_t shard, const std::function<void(Head&)>& change);
  /// Only within Change of the place's shard.
  Status Write(Place place, std::size_t way, const DiskEntry& entry);

  /// The bytes that all shards' slots take; of shards under change, what was counted before.
  std::uint64_t bytes() const;

 private:
  DiskIndex(const DiskLayout& layout, std::uint64_t epoch) : layout_(layout), epoch_(epoch), mutexes_(layout.shards) {}
  std::uint64_t OffsetOf(Place place, std::size_t way = 0) const;
  void WriteHead(std::size_t shard, const Head& head, std::uint64_t epoch);
  std::uint64_t Recount(std::size_t shard) const;

  const DiskLayout layout_;
  const std::uint64_t epoch_;  ///< of this start of the machine
  UniqueFd folder_lock_, file_;
  std::vector<Mutex> mutexes_;  ///< a shard's lock among this process's threads
};

/// What a block of so many bytes takes on the disk.
constexpr std::uint64_t BytesOnDisk(std::uint64_t length) { return (length + 4095) / 4096 * 4096; }

}  // namespace millrace::cache
