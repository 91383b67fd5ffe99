// Blocks of immutable object versions, kept in memory and optionally on disk.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/base/clock.h"
#include "millrace/base/log.h"
#include "millrace/base/result.h"
#include "millrace/base/threads/memory_budget.h"
#include "millrace/object/read_store.h"

namespace millrace::cache {

/// One version of one object. The ETag is part of every cache key, so a changed object never meets its old bytes.
struct ObjectVersion {
  std::string key;
  std::string etag;
  std::uint64_t size = 0;
};

/// Bytes of an object, in order and mostly not copied: a piece is valid while its owner is held.
struct View {
  struct Piece {
    ByteSpan bytes;
    std::shared_ptr<const void> owner;  ///< the cache's memory; null: the bytes lie in the caller's
  };
  std::vector<Piece> pieces;

  std::size_t size() const {
    std::size_t sum = 0;
    for (const Piece& piece : pieces) sum += piece.bytes.size();
    return sum;
  }
  /// Copies what is lent into `room`, which the view was made for; then all of it is there. Returns size().
  std::size_t CopyTo(MutableByteSpan room) const;
};

/// Reads ranges of objects through fixed-size blocks. Thread-safe. A block is fetched once however many readers want it
/// (single flight); adjacent missing blocks of one aligned `max_fetch_bytes` part come with one request. Memory is
/// bounded by `memory_bytes`, taken from the budget when the cache opens; bytes from disk are checked against their
/// crc32c and dropped when wrong. Fails with kStale when the object no longer has the version asked for.
class BlockCache {
 public:
  struct Options {
    std::uint64_t block_bytes = 1 * kMiB;
    std::uint64_t max_fetch_bytes = 8 * kMiB;  ///< of one request; rounded to whole blocks
    std::uint64_t memory_bytes = 64 * kMiB;    ///< less when the budget has less
    /// Of blocks that were read to their end, keep at most so many bytes in memory: little where a page cache keeps
    /// them too.
    std::uint64_t keep_read_bytes = ~0ULL;
    std::filesystem::path directory;  ///< empty: no disk tier
    std::uint64_t disk_bytes = 0;
    const Clock* clock = &SystemClock();
    Logger log;
  };
  struct Stats {
    std::uint64_t memory_hits = 0, disk_hits = 0, misses = 0;  ///< in runs: what one request brings or would bring
    std::uint64_t bytes_fetched = 0, evictions = 0, corrupt_blocks = 0;
    std::uint64_t memory_bytes = 0;  ///< held now
  };

  /// `store` and `budget` must outlive the cache. Fails when the budget is exhausted or the folder cannot be used, or
  /// is in use with another size (kBusy). Caches of several processes may share a folder.
  static Result<std::unique_ptr<BlockCache>> Open(object::ReadStore& store, MemoryBudget& budget, Options options);
  virtual ~BlockCache() = default;

  enum class Mode {
    kBlocks,  ///< brings whole blocks, and keeps them
    kExact,   ///< asks the store for exactly the bytes that are not here, and keeps none of them: for readers that jump
  };
  /// The bytes from `offset`, `room.size()` of them or less at the object's end. What the cache does not keep lands in
  /// `room`, each byte at its place. Blocks.
  virtual Result<View> ReadView(const ObjectVersion& version, std::uint64_t offset, MutableByteSpan room, Mode mode,
                                object::Call call = {}) = 0;
  /// The same, copied into `into`; returns the number of bytes.
  Result<std::size_t> Read(const ObjectVersion& version, std::uint64_t offset, MutableByteSpan into,
                           Mode mode = Mode::kBlocks, object::Call call = {});
  /// What a fetch proves about the version.
  struct Proof {
    bool now = false;                ///< the store sent some of it during this call: the version is current
    std::optional<TimePoint> asked;  ///< it was current then; nothing: some bytes are from disk, or memory is short
  };
  /// Brings a range into the cache and waits for it.
  virtual Result<Proof> Fetch(const ObjectVersion& version, std::uint64_t offset, std::uint64_t length,
                              object::Call call = {}) = 0;
  /// Starts fetching the blocks of a range as far as memory allows: bytes that were fetched ahead and not read yet are
  /// not pushed out by more of them. Never blocks, never fails. Returns how many bytes from `offset` are here or under
  /// way; of `asked`, when given, what Fetch would prove once all has arrived.
  virtual std::uint64_t Prefetch(const ObjectVersion& version, std::uint64_t offset, std::uint64_t length,
                                 std::optional<TimePoint>* asked = nullptr) = 0;
  /// The memory tier's size: what the budget granted.
  virtual std::uint64_t capacity() const = 0;
  virtual Stats stats() const = 0;
};

}  // namespace millrace::cache
