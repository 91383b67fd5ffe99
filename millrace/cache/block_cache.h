// Blocks of immutable object versions, kept in memory and optionally on disk.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "millrace/base/bytes.h"
#include "millrace/base/log.h"
#include "millrace/base/memory_budget.h"
#include "millrace/base/result.h"
#include "millrace/object/store.h"

namespace millrace::cache {

/// One version of one object. The ETag is part of every cache key, so a changed object never meets its old bytes.
struct ObjectVersion {
  std::string key;
  std::string etag;
  std::uint64_t size = 0;
};

/// Reads ranges of objects through fixed-size blocks. Thread-safe. A block is fetched once however many readers want it
/// (single flight); memory is bounded by `memory_bytes` and accounted to the budget; bytes from disk are checked against
/// their crc32c and dropped when wrong. Fails with kStale when the object no longer has the version asked for.
class BlockCache {
 public:
  struct Options {
    std::uint64_t block_bytes = 1 * kMiB;
    std::uint64_t memory_bytes = 64 * kMiB;
    std::filesystem::path directory;  ///< empty: no disk tier
    std::uint64_t disk_bytes = 0;
    Logger log;
  };
  struct Stats {
    std::uint64_t memory_hits = 0, disk_hits = 0, misses = 0, bytes_fetched = 0, evictions = 0, corrupt_blocks = 0;
  };

  /// `store` and `budget` must outlive the cache.
  static Result<std::unique_ptr<BlockCache>> Open(object::Store& store, MemoryBudget& budget, Options options);
  virtual ~BlockCache() = default;

  /// Fills `into` from `offset`; returns the number of bytes, less than asked only at the object's end. Blocks.
  virtual Result<std::size_t> Read(const ObjectVersion& version, std::uint64_t offset, MutableByteSpan into,
                                   object::Call call = {}) = 0;
  /// Starts fetching the blocks of a range if memory allows; never blocks, never fails. For readahead.
  virtual void Prefetch(const ObjectVersion& version, std::uint64_t offset, std::uint64_t length) = 0;
  virtual Stats stats() const = 0;
};

}  // namespace millrace::cache
