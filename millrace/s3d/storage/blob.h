// The bytes of objects: immutable files ("blobs"), each with one large body or many small ones.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/base/files/files.h"
#include "millrace/base/files/managed_folder.h"
#include "millrace/base/result.h"
#include "millrace/base/threads/sync.h"
#include "millrace/s3d/storage/group_sync.h"

namespace millrace::s3d {

class BlobStore;

/// Opens the root folder of an endpoint and makes it if it is missing. Errors: those of ManagedFolder::Open().
Result<ManagedFolder> OpenRootFolder(const std::filesystem::path& root);

/// One file. It is written once and never changed. The destructor removes the file, since nobody can name it any more.
/// Thread-safe. The BlobStore must outlive it.
class Blob {
 public:
  Blob(BlobStore& store, std::uint64_t id) : store_(store), id_(id) {}
  ~Blob();
  Blob(const Blob&) = delete;
  Blob& operator=(const Blob&) = delete;

  std::uint64_t id() const { return id_; }
  /// Returns whether the file has many small bodies.
  bool is_pack() const { return (id_ & 1) != 0; }
  /// Returns a descriptor for reading. Concurrent readers share it.
  Result<std::shared_ptr<const UniqueFd>> Open() MR_EXCLUDES(mutex_);

 private:
  friend class BlobStore;
  BlobStore& store_;
  const std::uint64_t id_;
  Mutex mutex_;
  std::weak_ptr<const UniqueFd> shared_ MR_GUARDED_BY(mutex_);
  std::shared_ptr<const UniqueFd> kept_ MR_GUARDED_BY(mutex_);  ///< a pack stays open as long as it exists
};

/// A run of bytes in a blob.
struct Extent {
  std::shared_ptr<Blob> blob;
  std::uint64_t offset = 0, length = 0;
};
using Extents = std::vector<Extent>;

/// Returns the part of `extents` that starts at `offset` and has `length` bytes.
Extents Slice(const Extents& extents, std::uint64_t offset, std::uint64_t length);

/// The folder of blobs. Thread-safe. Call order at start: Open, Adopt for each blob that the journal names, Settle.
class BlobStore {
 public:
  /// Opens the folder "blobs" of a root. Until SyncFromNowOn(), writers do not wait for the disk.
  static Result<std::unique_ptr<BlobStore>> Open(const ManagedFolder& root);

  /// Returns the blob of that number, which a record names. REQUIRES: before Settle().
  std::shared_ptr<Blob> Adopt(std::uint64_t id) MR_EXCLUDES(mutex_);
  /// Ends the loading. Removes files without an owner, which crashed writers have left. From now on a file is removed
  /// with its last owner.
  /// Errors: kCorrupt if an owned file is missing.
  Status Settle() MR_EXCLUDES(mutex_);
  /// Makes everything written so far durable. Flushes the whole file system.
  Status SyncEverything();
  /// From now on each body is durable when its writer has finished.
  void SyncFromNowOn() { sync_ = true; }
  Result<std::uint64_t> FileSize(const Blob& blob) const;
  /// From now on files are not removed with their owners. Call it when the process ends.
  void KeepAll() { removes_ = false; }

 private:
  friend class Blob;
  friend class BlobWriter;
  struct Pack {
    std::shared_ptr<Blob> blob;
    UniqueFd fd;
    std::unique_ptr<GroupSync> group;
    std::uint64_t size = 0;
  };

  explicit BlobStore(ManagedFolder folder);
  std::string PathOf(std::uint64_t id) const;  ///< for messages
  struct NewFile {
    std::shared_ptr<Blob> blob;
    UniqueFd fd;
  };
  Result<NewFile> Create(bool pack);
  Status SyncNames() { return sync_ ? names_group_.Sync() : Status(); }
  /// Stores a small body. It is durable on return.
  Result<Extent> AppendToPack(ByteSpan bytes) MR_EXCLUDES(mutex_);

  const ManagedFolder folder_;
  std::atomic<bool> sync_ = false;
  std::atomic<bool> removes_ = false;
  std::atomic<std::uint64_t> next_number_ = 1;
  GroupSync names_group_;
  Mutex mutex_;
  std::shared_ptr<Pack> pack_ MR_GUARDED_BY(mutex_);
  std::unordered_map<std::uint64_t, std::weak_ptr<Blob>> adopted_ MR_GUARDED_BY(mutex_);  ///< empty once settled
};

/// Receives one body of unknown length. One thread. A body that is not finished leaves nothing on disk.
class BlobWriter {
 public:
  explicit BlobWriter(BlobStore& store) : store_(store) {}

  Status Append(ByteSpan bytes);
  std::uint64_t size() const { return size_; }
  /// Makes the body durable and returns its extents (none for an empty body).
  Result<Extents> Finish();

 private:
  Status Spill();

  BlobStore& store_;
  std::uint64_t size_ = 0;
  std::uint64_t behind_ = 0;  ///< writing to the disk has begun for the bytes before this offset
  std::string small_;         ///< the body, as long as it is small enough for a pack
  BlobStore::NewFile file_;
};

}  // namespace millrace::s3d
