// Contents of chunks on a local disk: fetched and decoded once, read from there by later epochs and other processes.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "millrace/base/bytes.h"
#include "millrace/base/log.h"
#include "millrace/base/result.h"
#include "millrace/base/threads/channel.h"
#include "millrace/base/threads/task_scope.h"
#include "millrace/cache/disk_tier.h"
#include "millrace/data/content/content.h"

namespace millrace::data {

/// A part of the content of an object.
struct ContentRange {
  const DataObject* object = nullptr;
  std::uint64_t offset = 0, bytes = 0;
};

/// A folder that any number of processes share and that outlives them (docs/formats/cache.md). What it holds is named
/// by the store, the object's ETag and the reader that made content of it, and checked on every read: bytes of another
/// version, or damaged ones, are never returned. Thread-safe.
class ChunkDisk {
 public:
  /// What waits to be written at most, but for one chunk.
  static constexpr std::uint64_t kWaitingBytes = 16 * kMiB;

  /// Fails when the folder cannot be used, or is in use with another size (kBusy).
  static Result<std::unique_ptr<ChunkDisk>> Open(std::filesystem::path folder, std::uint64_t max_bytes, Logger log);
  /// Writes what waits.
  ~ChunkDisk();

  /// Nothing when it is not there, wholly and sound. Waits for the disk.
  std::optional<Buffer> Load(const ContentRange& range) const;
  /// Writes in the background; what a disk that cannot keep up has no time for is not kept. Local objects that are
  /// their own content are on a disk already. `owner` keeps `content` alive.
  void Save(const ContentRange& range, ByteSpan content, std::shared_ptr<const void> owner);

 private:
  struct Waiting {
    std::string name;
    ByteSpan content;
    std::shared_ptr<const void> owner;
  };
  explicit ChunkDisk(std::unique_ptr<cache::DiskTier> tier);
  void Write(const Waiting& waiting) const;

  const std::unique_ptr<cache::DiskTier> tier_;
  std::atomic<std::uint64_t> waiting_bytes_ = 0;
  Channel<Waiting> waiting_;
  TaskScope writer_;
};

}  // namespace millrace::data
