// The disk tier of the block cache: one file a block, checked on every read. docs/formats/cache.md gives the bytes.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <list>
#include <memory>
#include <unordered_map>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/base/digest.h"
#include "millrace/base/files.h"
#include "millrace/base/log.h"
#include "millrace/base/result.h"
#include "millrace/base/sync.h"

namespace millrace::cache {

/// What a block is: the hash of everything that its bytes depend on.
using BlockId = Sha256Digest;

/// A least-recently-used set of block files below one folder, at most `max_bytes` of them. It belongs to one process at
/// a time and survives it: a file either passes its checks or is thrown away. Thread-safe; calls wait for the disk. A
/// failing disk makes misses, not errors.
class DiskTier {
 public:
  /// Takes stock of the folder (created when absent). Fails with kBusy when another process uses it.
  static Result<std::unique_ptr<DiskTier>> Open(std::filesystem::path directory, std::uint64_t max_bytes, Logger log);

  bool Has(const BlockId& id) const MR_EXCLUDES(mutex_);
  enum class Outcome { kHit, kMiss, kCorrupt };
  /// Fills `into`, whose size is the block's. A wrong file is removed.
  Outcome Load(const BlockId& id, MutableByteSpan into) MR_EXCLUDES(mutex_);
  void Store(const BlockId& id, ByteSpan bytes) MR_EXCLUDES(mutex_);

  std::uint64_t bytes() const MR_EXCLUDES(mutex_);

 private:
  struct Entry {
    std::uint64_t bytes;  ///< of the file
    std::list<BlockId>::iterator position;
  };
  struct IdHash {
    std::size_t operator()(const BlockId& id) const { return LoadLittle<std::size_t>(id.data()); }
  };

  DiskTier(std::filesystem::path directory, std::uint64_t max_bytes, Logger log)
      : directory_(std::move(directory)), max_bytes_(max_bytes), log_(std::move(log)) {}
  Status TakeStock() MR_EXCLUDES(mutex_);
  std::filesystem::path PathOf(const BlockId& id) const;
  void Insert(const BlockId& id, std::uint64_t bytes) MR_REQUIRES(mutex_);
  void Remove(const BlockId& id) MR_EXCLUDES(mutex_);
  void EvictBeyondLimit() MR_EXCLUDES(mutex_);
  Status Write(const BlockId& id, ByteSpan bytes);

  const std::filesystem::path directory_;
  const std::uint64_t max_bytes_;
  const Logger log_;
  UniqueFd lock_file_;
  std::atomic<std::uint64_t> next_temporary_ = 0;
  std::atomic<bool> failing_ = false;

  mutable Mutex mutex_;
  std::unordered_map<BlockId, Entry, IdHash> index_ MR_GUARDED_BY(mutex_);
  std::list<BlockId> order_ MR_GUARDED_BY(mutex_);  ///< oldest first
  std::uint64_t bytes_ MR_GUARDED_BY(mutex_) = 0;
};

}  // namespace millrace::cache
