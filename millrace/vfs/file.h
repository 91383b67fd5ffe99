// An open file of a Tree.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "millrace/base/bytes.h"
#include "millrace/base/result.h"
#include "millrace/base/threads/sync.h"
#include "millrace/cache/block_cache.h"
#include "millrace/object/store.h"
#include "millrace/vfs/types/node.h"

namespace millrace::vfs {

struct Inode;
struct SavedFile;
struct TreeCore;
class Writer;

/// The flags with which a file is opened. Reading and writing may be combined. Truncation needs writing.
struct OpenFlags {
  bool read = true;
  bool write = false;
  bool truncate = false;
};

/// An open file. Reads return the version that was current at the open, with the bytes that were written through this
/// tree since. They fail with kStale if the store has lost that version. Writes go to local staging. Every open
/// file of this tree sees them at once. Flush and Sync publish the file as a whole; then it appears under its name.
///
/// Tree::OpenFile and Tree::Create make it. If the last open file that writes is destroyed without Close, unpublished
/// content is dropped. Thread-safe. Shares the ownership of the tree's state.
class File {
 public:
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  InodeId inode() const;
  /// Returns the bytes from `offset`: room.size() bytes, or fewer at the end of the file. The cache lends the bytes, or
  /// they lie in `room`. Blocks on the network.
  Result<cache::View> ReadView(std::uint64_t offset, MutableByteSpan room, object::Call call = {});
  /// As ReadView, but copies the bytes into `into`. Returns their number.
  Result<std::size_t> Read(std::uint64_t offset, MutableByteSpan into, object::Call call = {});
  /// Copies `bytes` into the file. Bytes between the end of the file and `offset` become zeros.
  /// Errors: kNoSpace if the staging area is full; then nothing has changed.
  Status Write(std::uint64_t offset, ByteSpan bytes, object::Call call = {});
  Status Truncate(std::uint64_t size, object::Call call = {});
  /// Overwrites a range with zeros, up to the end of the file.
  Status Zero(std::uint64_t offset, std::uint64_t length, object::Call call = {});
  /// Publishes the content of the file. After success the content is durable, and everybody sees it. Later writes, and
  /// content whose publication failed, are published by the next call.
  Status Sync(object::Call call = {});
  /// Does what close(2) waits for: publishes the content; with TreeOptions::close_async, only stages it. Does nothing
  /// if nothing was written through this File since the last Flush.
  Status Flush(object::Call call = {});
  /// If this is the last open file that writes, publishes the content that is not published, or, with
  /// TreeOptions::close_async, stages it. Call once, as the last call.
  Status Close(object::Call call = {});
  /// True if the caller's pages of this inode are of the version that was opened.
  bool may_keep_pages() const { return may_keep_pages_; }
  /// True if the open found another version than the one reported before. The caller's attributes are then out of date.
  bool found_change() const { return found_change_; }
  /// Fills what a session's log has of an open file: the inode, the access and the version.
  void Describe(SavedFile& saved) const MR_EXCLUDES(mutex_);

 private:
  friend class Tree;
  class Reader;
  /// Opens the stored version of a file. Blocks on the store.
  static Result<std::unique_ptr<File>> OpenStored(std::shared_ptr<TreeCore> core, std::shared_ptr<Inode> inode,
                                                  OpenFlags flags, const object::Call& call);
  /// Opens a file for writing. REQUIRES: the caller has joined `writer`, the inode's.
  static std::unique_ptr<File> OpenWriting(std::shared_ptr<TreeCore> core, std::shared_ptr<Inode> inode,
                                           std::shared_ptr<Writer> writer);
  /// Makes the open file of another process. `stale`: the bytes that it reads are gone.
  static std::unique_ptr<File> Restore(std::shared_ptr<TreeCore> core, std::shared_ptr<Inode> inode,
                                       const SavedFile& saved, bool stale);
  File(std::shared_ptr<TreeCore> core, std::shared_ptr<Inode> inode);

  Status CheckContent() const;
  Result<cache::ObjectVersion> ReadableVersion() MR_EXCLUDES(mutex_);
  Result<std::shared_ptr<Writer>> EnsureWriter(const object::Call& call) MR_EXCLUDES(mutex_);
  Status Leave(bool publish, const object::Call& call) MR_EXCLUDES(mutex_);

  // Constant once open.
  const std::shared_ptr<TreeCore> core_;
  const std::shared_ptr<Inode> inode_;
  const std::unique_ptr<Reader> reader_;
  bool writable_ = false, may_keep_pages_ = false, found_change_ = false;
  std::uint64_t content_ = 0;  ///< Inode::content at the open

  std::atomic<bool> has_written_ = false;  ///< since the last Flush

  // Guarded by mutex_.
  mutable Mutex mutex_;
  cache::ObjectVersion version_ MR_GUARDED_BY(mutex_);  ///< the version that is read
  std::uint64_t moves_ MR_GUARDED_BY(mutex_) = 0;       ///< Inode::moves of `version_`
  std::shared_ptr<Writer> writer_ MR_GUARDED_BY(mutex_);
};

}  // namespace millrace::vfs
