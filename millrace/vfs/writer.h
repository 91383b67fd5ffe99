// One file being written: the pending bytes and the version they build on.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "millrace/base/bytes.h"
#include "millrace/base/memory_budget.h"
#include "millrace/base/sync.h"
#include "millrace/cache/block_cache.h"
#include "millrace/object/store.h"
#include "millrace/transfer/multipart_writer.h"
#include "millrace/vfs/metadata_cache.h"

namespace millrace::vfs {

/// A file's future version, written front to back. It begins empty or as (the front of) a stored version, takes bytes
/// at its end, and is published as a whole, as often as wanted: each time the stored version becomes the base of the
/// next. Bytes leave in parts while they are written; nothing shows under the key before Publish. Thread-safe; calls
/// that touch the store block, one at a time. After a failure of the store every call fails with it, until Truncate(0).
class Writer {
 public:
  struct Environment {
    object::Store& store;
    MemoryBudget& budget;
    const Clock& clock;
    std::uint64_t part_bytes;
    int parallel_parts;
  };
  struct Start {
    std::string key;
    std::optional<cache::ObjectVersion> base;  ///< nothing: empty
    bool unpublished = false;                  ///< there is something to publish before the first write
    bool exclusive = false;                    ///< the key must not exist when it is first published
    std::optional<UserMetadata> metadata;      ///< to publish with
  };
  Writer(Environment environment, Start start);
  ~Writer();

  // These never wait.
  std::uint64_t size() const { return size_; }
  WallTime modified() const { return WallTime(WallTime::duration(modified_)); }
  /// True when bytes were written since the last Publish.
  bool has_written() const { return has_written_; }
  /// True when the store does not have the present content.
  bool unpublished() const { return unpublished_; }

  /// What the store has under the key because of this writer, or had at the start.
  std::optional<cache::ObjectVersion> stored() const MR_EXCLUDES(mutex_);

  /// Fails with kUnsupported, changing nothing, unless `offset` is the end.
  Status Write(std::uint64_t offset, ByteSpan bytes, const object::Call& call) MR_EXCLUDES(mutex_);
  /// To nothing, to the present size, or, before the first write, to the front of the base.
  Status Truncate(std::uint64_t size) MR_EXCLUDES(mutex_);
  /// Makes the content durable and visible; nothing when it already is. kAlreadyExists when `exclusive` did not hold,
  /// kStale when somebody replaced the base.
  Result<std::optional<Metadata>> Publish(const object::Call& call) MR_EXCLUDES(mutex_);
  /// The file lost its name: pending and later bytes go nowhere. Waits for a Publish under way.
  void Abandon() MR_EXCLUDES(mutex_);
  /// The stored version has moved. Only when nothing is unpublished.
  void SetKey(std::string key, std::string etag) MR_EXCLUDES(mutex_);
  /// User metadata of the next version.
  void SetMetadata(UserMetadata metadata) MR_EXCLUDES(mutex_);

 private:
  Status Begin(const object::Call& call) MR_REQUIRES(mutex_);
  Status CopyBase(const object::Call& call) MR_REQUIRES(mutex_);
  void Changed(std::uint64_t size, bool written) MR_REQUIRES(mutex_);

  const Environment environment_;
  std::atomic<std::uint64_t> size_;
  std::atomic<WallTime::rep> modified_;
  std::atomic<bool> has_written_ = false, unpublished_;

  mutable Mutex mutex_;  ///< held while the store is asked: writes to one file are one at a time
  std::string key_ MR_GUARDED_BY(mutex_);
  bool exclusive_ MR_GUARDED_BY(mutex_);
  UserMetadata metadata_ MR_GUARDED_BY(mutex_);
  bool abandoned_ MR_GUARDED_BY(mutex_) = false;
  std::optional<Error> failed_ MR_GUARDED_BY(mutex_);
  std::optional<cache::ObjectVersion> stored_ MR_GUARDED_BY(mutex_);
  std::uint64_t base_bytes_ MR_GUARDED_BY(mutex_) = 0;  ///< of stored_ that the content begins with
  std::unique_ptr<transfer::MultipartWriter> upload_ MR_GUARDED_BY(mutex_);
};

}  // namespace millrace::vfs
