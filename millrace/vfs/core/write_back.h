// Publication of a tree's files: when they are closed, or in the background.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "millrace/base/result.h"
#include "millrace/object/store.h"
#include "millrace/vfs/metadata/inode_table.h"
#include "millrace/vfs/staging/staging_area.h"
#include "millrace/vfs/types/pending_writes.h"
#include "millrace/vfs/write/publisher.h"
#include "millrace/vfs/write/writer.h"

namespace millrace::vfs {

struct TreeCore;

/// Makes, publishes and releases the writers of inodes. An inode has one writer while it is open for writing, and until
/// its content is published. If a publication fails, the content is kept on the local disk, and published again in the
/// background.
///
/// Thread-safe. The calls that take a Call block on the store. Belongs to the TreeCore, which must outlive it.
/// Destruction ends the publications in the background; the next mount takes over what is staged.
class WriteBack {
 public:
  explicit WriteBack(TreeCore& core);

  // --- Writers ---

  /// Returns the inode's writer for one more file that writes. Makes it as `start` says if there is none.
  Result<std::shared_ptr<Writer>> JoinWriter(const InodePtr& inode, Writer::Start start) MR_EXCLUDES(inode->mutex);
  /// As above, for a file that reads the version `content` (Inode::content). A new writer builds on what the store has.
  /// Errors: kStale if the inode has other content now.
  Result<std::shared_ptr<Writer>> JoinWriter(const InodePtr& inode, std::uint64_t content) MR_EXCLUDES(inode->mutex);
  /// Ends one JoinWriter. If `publish`, the last file that writes publishes as Close does. The writer is
  /// released after the last file, once its content is published.
  Status LeaveWriter(const InodePtr& inode, const std::shared_ptr<Writer>& writer, bool publish,
                     const object::Call& call) MR_EXCLUDES(inode->mutex);

  // --- Publishing ---

  /// Publishes the content. Waits for a rename that covers the file. If the publication fails, keeps the content and
  /// tries again later.
  Status Publish(const InodePtr& inode, const std::shared_ptr<Writer>& writer, const object::Call& call)
      MR_EXCLUDES(inode->mutex);
  /// As Publish, for a caller that holds a SharedLock of the file, or an ExclusiveLock that covers it. Returns the
  /// turn: the content does not change while the turn exists.
  Result<Writer::PublicationLock> PublishAndHold(const InodePtr& inode, const std::shared_ptr<Writer>& writer,
                                                 const object::Call& call) MR_EXCLUDES(inode->mutex);
  /// Does what close(2) waits for: publishes the content; with TreeOptions::close_async, only keeps it on the local
  /// disk.
  Status Close(const InodePtr& inode, const std::shared_ptr<Writer>& writer, const object::Call& call)
      MR_EXCLUDES(inode->mutex);
  /// Publishes everything. Returns the first failure.
  Status FlushAll(const object::Call& call);
  PendingWrites pending();
  /// By how many bytes the store's content grows when all files are published.
  std::uint64_t unpublished_growth();
  /// Gives a new inode the content that an earlier mount left, and publishes it in the background. Errors:
  /// kResourceExhausted if too many files wait; the inode has the content, but it is not
  /// published in the background.
  Status Resume(const InodePtr& inode, StagingArea::AdoptedFile left, Metadata reported) MR_EXCLUDES(inode->mutex);

  /// Gives an inode without a writer the content that another process was changing.
  void Restore(const InodePtr& inode, const SavedContent& saved, StagingArea::AdoptedFile left, Metadata reported)
      MR_EXCLUDES(inode->mutex);
  /// As JoinWriter, if the inode has a writer; else returns null.
  std::shared_ptr<Writer> JoinRestored(const InodePtr& inode) MR_EXCLUDES(inode->mutex);

  // --- Unlinking ---

  /// Call before a name is removed. From now on, the file is not published. Open files can still read the content, as
  /// far as the staging area has room for it. Returns the writer, for EndUnlink; null if there is none.
  std::shared_ptr<Writer> BeginUnlink(const InodePtr& inode, const object::Call& call) MR_EXCLUDES(inode->mutex);
  /// Ends BeginUnlink. `unlinked`: the name was removed. If not, the file can be published again.
  void EndUnlink(const InodePtr& inode, const std::shared_ptr<Writer>& writer, bool unlinked) MR_EXCLUDES(inode->mutex);

 private:
  Status MakeWriter(const InodePtr& inode, Writer::Start start) MR_REQUIRES(inode->mutex);
  Writer::Environment WriterEnvironment(const Inode& inode);
  Writer::OnPublished OnPublishedOf(const InodePtr& inode);
  bool KeptAttributes(Inode& inode, const std::string& path, const std::string& etag) MR_EXCLUDES(inode.mutex);
  void OnPublished(Inode& inode, Metadata now, WallTime written) MR_EXCLUDES(inode.mutex);
  void OnFailed(const InodePtr& inode, Writer& writer, const Error& reason, const object::Call& call)
      MR_EXCLUDES(inode->mutex);
  Status PublishLater(const InodePtr& inode, Duration delay);
  Status PublishKept(const InodePtr& inode, const object::Call& call) MR_EXCLUDES(inode->mutex);
  Status PublishElsewhere(Inode& inode, Writer& writer, Status failed, const object::Call& call)
      MR_EXCLUDES(inode.mutex);
  void RemoveLeftUploads(const object::Call& call);
  void ReleaseWriter(const InodePtr& inode) MR_EXCLUDES(inode->mutex);
  std::optional<std::string> StoredEtag(const Inode& inode, const Writer& writer, const object::Call& call);

  TreeCore& core_;
  Publisher publisher_;
};

}  // namespace millrace::vfs
