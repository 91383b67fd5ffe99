// Keeps fetched content on a local disk, for later epochs and for other processes.
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
#include "millrace/data/records/data_object.h"

namespace millrace::data {

/// A range of the content of an object.
struct ContentRange {
  const DataObject* object = nullptr;
  std::uint64_t offset = 0, bytes = 0;
};

/// A folder that outlives processes, and that any number of them share (docs/formats/cache.md). Its blocks are named by
/// the store, the object's key and ETag, and the format that made the content. Every read is checked, so bytes of
/// another version and damaged bytes are never returned. Thread-safe.
class ChunkDisk {
 public:
  /// The most bytes that wait to be written, not counting a single larger chunk. Part of a loader's memory. A
  /// guess: four frames.
  static constexpr std::uint64_t kWaitingBytes = 16 * kMiB;

  /// Errors: kBusy if the folder is in use with another size; others if it cannot be used.
  static Result<std::unique_ptr<ChunkDisk>> Open(std::filesystem::path folder, std::uint64_t max_bytes, Logger log);
  /// Blocks until the waiting bytes are written.
  ~ChunkDisk();

  /// Returns the content if all of it is there and undamaged. Blocks for the disk.
  std::optional<Buffer> Load(const ContentRange& range) const;
  /// Writes `content` in the background. Drops it if the disk cannot keep up, and if it is plain lines of a local file,
  /// which are on a disk already. `owner` keeps `content` alive.
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
