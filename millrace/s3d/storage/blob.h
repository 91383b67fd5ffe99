// Where the bytes of objects are: immutable files, each either one large body or many small ones.
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

/// The root folder of an endpoint, made if it is missing; fails as ManagedFolder::Open does.
Result<ManagedFolder> OpenRootFolder(const std::filesystem::path& root);

/// One file. Written once, never changed. When the last owner lets go of it, the file is removed: nobody can name it
/// any more. Any thread may use it; its BlobStore must outlive it.
class Blob {
 public:
  Blob(BlobStore& store, std::uint64_t id) : store_(store), id_(id) {}
  ~Blob();
  Blob(const Blob&) = delete;
  Blob& operator=(const Blob&) = delete;

  std::uint64_t id() const { return id_; }
  /// Whether it holds many small bodies.
  bool is_pack() const { return (id_ & 1) != 0; }
  /// A descriptor for reading, shared with others who read at the same time.
  Result<std::shared_ptr<const UniqueFd>> Open() MR_EXCLUDES(mutex_);

 private:
  friend class BlobStore;
  BlobStore& store_;
  const std::uint64_t id_;
  Mutex mutex_;
  std::weak_ptr<const UniqueFd> shared_ MR_GUARDED_BY(mutex_);
  std::shared_ptr<const UniqueFd> kept_ MR_GUARDED_BY(mutex_);  ///< of packs: open for as long as they exist
};

/// A run of bytes in a blob.
struct Extent {
  std::shared_ptr<Blob> blob;
  std::uint64_t offset = 0, length = 0;
};
using Extents = std::vector<Extent>;

/// The part of `extents` that starts at `offset` and has `length` bytes.
Extents Slice(const Extents& extents, std::uint64_t offset, std::uint64_t length);

/// The folder of blobs. Any thread may call any method.
class BlobStore {
 public:
  /// In the folder "blobs" of a root. Until SyncFromNowOn, writers do not wait for the disk.
  static Result<std::unique_ptr<BlobStore>> Open(const ManagedFolder& root);

  /// The blob of that number, which a record names. Only while loading.
  std::shared_ptr<Blob> Adopt(std::uint64_t id) MR_EXCLUDES(mutex_);
  /// Ends the loading: removes the files that nobody owns (left by writers that a crash cut short), and from now on
  /// files go with their last owner. Fails with kCorrupt when an owned file is missing.
  Status Settle() MR_EXCLUDES(mutex_);
  /// Makes everything written so far durable, at the price of flushing the whole file system.
  Status SyncEverything();
  /// From now on each body is durable when its writer has finished.
  void SyncFromNowOn() { sync_ = true; }
  Result<std::uint64_t> FileSize(const Blob& blob) const;
  /// From now on files stay although their owners go: the process ends.
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
  /// Stores a small body, durable on return.
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

/// Receives one body of unknown length. One thread. What is not finished leaves nothing behind.
class BlobWriter {
 public:
  explicit BlobWriter(BlobStore& store) : store_(store) {}

  Status Append(ByteSpan bytes);
  std::uint64_t size() const { return size_; }
  /// The body's place, durable; empty for an empty body.
  Result<Extents> Finish();

 private:
  Status Spill();

  BlobStore& store_;
  std::uint64_t size_ = 0;
  std::uint64_t behind_ = 0;  ///< up to here the bytes are on their way to the disk
  std::string small_;         ///< the body as long as it is small enough for a pack
  BlobStore::NewFile file_;
};

}  // namespace millrace::s3d
