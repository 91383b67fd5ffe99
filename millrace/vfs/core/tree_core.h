// What the tree and its open files share.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "millrace/object/support/work_queue.h"
#include "millrace/vfs/attributes/attribute_store.h"
#include "millrace/vfs/core/resolver.h"
#include "millrace/vfs/listing/walk_ahead.h"
#include "millrace/vfs/metadata/inode_table.h"
#include "millrace/vfs/metadata/metadata_cache.h"
#include "millrace/vfs/names/path_lock.h"
#include "millrace/vfs/read/file_readahead.h"
#include "millrace/vfs/rename/rename_settler.h"
#include "millrace/vfs/types/changes.h"
#include "millrace/vfs/types/node.h"
#include "millrace/vfs/types/options.h"
#include "millrace/vfs/types/pending_writes.h"
#include "millrace/vfs/write/publisher.h"
#include "millrace/vfs/write/staging_area.h"
#include "millrace/vfs/write/upload_ledger.h"
#include "millrace/vfs/write/writer.h"

namespace millrace::vfs {

/// A name in a directory, whether or not something is there.
struct NamedPath {
  InodeId parent;
  std::string name;
  std::string path;              ///< the key of a file there
  PathLock::ExclusiveLock lock;  ///< held where the name is to be changed
};

/// The state of one Tree. Lock order: Inode::mutex, then those inside table, metadata and Writer.
struct TreeCore {
  /// `staging`: none for a read-only tree.
  TreeCore(object::Store& s, cache::BlockCache& c, MemoryBudget& b, std::unique_ptr<StagingArea> staging,
           TreeOptions o);

  object::Store& store;
  cache::BlockCache& cache;
  MemoryBudget& budget;
  const TreeOptions options;
  const Clock& clock;
  const WallTime began;  ///< the time that directories show
  const std::unique_ptr<StagingArea> staging;
  std::optional<UploadLedger> ledger;      ///< as long as there is a staging area
  object::WorkQueue uploads{"upload", 4};  ///< of all writers; they wait for their parts before they go
  InodeTable table;
  MetadataCache metadata;
  AttributeStore attributes;
  FileReadahead ahead;
  WalkAhead walk;
  Resolver resolver;
  PathLock path_lock;
  RenameSettler settler;  ///< after what it uses
  std::atomic<int> sequential_readers = 0;
  std::atomic<std::uint64_t> renames = 0;  ///< begun

  /// Attributes to tell the caller, who from then on knows this version. An open writer wins over the store.
  CacheableAttributes Tell(Inode& inode, const Metadata& metadata) MR_EXCLUDES(inode.mutex);
  /// What the store, or a writer, has for a file that has a name; kStale when it is no file any more.
  Result<Metadata> FileState(Inode& inode, bool now, const object::Call& call) MR_EXCLUDES(inode.mutex);

  /// What the store has for a directory, with its attributes. A directory that somebody holds exists, whatever others
  /// do.
  Result<Metadata> DirectoryState(Inode& inode, const object::Call& call) MR_EXCLUDES(inode.mutex);

  std::shared_ptr<Writer> WriterOf(Inode& inode) MR_EXCLUDES(inode.mutex);
  /// What the store says now; what is written here wins.
  void Learn(Inode& inode, const Metadata& state) MR_REQUIRES(inode.mutex);
  /// The inode's writer for one file more; made as `start` says if there is none.
  Result<std::shared_ptr<Writer>> JoinWriter(const InodePtr& inode, Writer::Start start) MR_EXCLUDES(inode->mutex);
  /// One that a file which reads `content` may join: its base is what the store has.
  Result<std::shared_ptr<Writer>> JoinWriter(const InodePtr& inode, std::uint64_t content) MR_EXCLUDES(inode->mutex);
  /// A file that holds the writer closes; `publish`: as Close. The writer goes with the last one, once its content is
  /// published.
  Status LeaveWriter(const InodePtr& inode, const std::shared_ptr<Writer>& writer, bool publish,
                     const object::Call& call) MR_EXCLUDES(inode->mutex);
  /// Publishes; once no rename is under way that covers the file. What fails is kept, and tried again later.
  Status Publish(const InodePtr& inode, const std::shared_ptr<Writer>& writer, const object::Call& call)
      MR_EXCLUDES(inode->mutex);
  /// The same, for a caller that holds a SharedLock of the file, or an ExclusiveLock of a directory above it. Nothing
  /// changes in the file until the turn is given back.
  Result<Writer::Turn> HoldHere(const InodePtr& inode, const std::shared_ptr<Writer>& writer, const object::Call& call)
      MR_EXCLUDES(inode->mutex);
  /// What close(2) waits for: Publish, or with TreeOptions::close_async only that the content outlives the process.
  Status Close(const InodePtr& inode, const std::shared_ptr<Writer>& writer, const object::Call& call)
      MR_EXCLUDES(inode->mutex);
  Status FlushAll(const object::Call& call);
  PendingWrites PendingNow();
  /// Takes over what earlier mounts staged and did not publish: it is seen as the files it belongs to, and published in
  /// the background. kCorrupt when there are records that cannot be read; they are left alone.
  Status AdoptStaged(const object::Call& call);
  int adopted = 0;  ///< files that AdoptStaged took over; constant afterwards
  /// Before a file loses its name for good: nothing of it will be published, and files that have it open will find its
  /// content as far as the staging area can hold it. Gives the writer, for EndUnlink.
  std::shared_ptr<Writer> BeginUnlink(const InodePtr& inode, const object::Call& call) MR_EXCLUDES(inode->mutex);
  /// `unlinked`: the name has gone.
  void EndUnlink(const InodePtr& inode, const std::shared_ptr<Writer>& writer, bool unlinked) MR_EXCLUDES(inode->mutex);

  /// Attributes to store for something new in a directory, where they are not those that the options give anyway.
  StoredAttributes NewAttributes(std::uint32_t type, const Ownership& ownership, Inode& parent)
      MR_EXCLUDES(parent.mutex);
  /// Changes stored attributes of whatever it is, through its writer while it has one.
  Status ChangeAttributes(const InodePtr& inode, const AttributeStore::Change& change, const object::Call& call)
      MR_EXCLUDES(inode->mutex);

  /// Locks the path of the inode, once nobody changes its name. The lock of an inode without a name is empty.
  Result<PathLock::SharedLock> LockShared(const Inode& inode, const object::Call& call);
  Result<NamedPath> NamedPathOf(InodeId parent, std::string_view name);
  /// What is there now, as far as the time-to-live asks for.
  Result<Metadata> StateAt(const NamedPath& place, const object::Call& call);
  /// The tree has changed what is in this directory.
  void TouchDirectory(InodeId directory);

  /// True when the caller has been shown that version and may still have its pages.
  bool MayHavePages(std::string_view path, std::string_view etag);

  UploadLedger* uploads_begun() { return ledger ? &*ledger : nullptr; }
  /// kReadOnly on a read-only tree.
  Status CheckWritable() const;

 private:
  Status CompleteRoot(const std::string& path, Inode& inode, Metadata& state, const object::Call& call)
      MR_EXCLUDES(inode.mutex);
  Status ChangeWithWriter(Inode& inode, Writer& writer, const std::string& path, const AttributeStore::Change& change,
                          const object::Call& call) MR_EXCLUDES(inode.mutex);
  Status MakeWriter(const InodePtr& inode, Writer::Start start) MR_REQUIRES(inode->mutex);
  Writer::Environment WriterEnvironment();
  std::function<void(const Metadata&)> OnPublishedOf(const InodePtr& inode);
  void OnPublished(Inode& inode, Metadata now) MR_EXCLUDES(inode.mutex);
  void OnFailed(const InodePtr& inode, Writer& writer, const Error& reason, const object::Call& call)
      MR_EXCLUDES(inode->mutex);
  Status PublishLater(const InodePtr& inode, Duration delay);
  Status PublishKept(const InodePtr& inode, const object::Call& call) MR_EXCLUDES(inode->mutex);
  Status Divert(Inode& inode, Writer& writer, Status failed, const object::Call& call) MR_EXCLUDES(inode.mutex);
  void RemoveLeftUploads(const object::Call& call);
  void Settle(const InodePtr& inode) MR_EXCLUDES(inode->mutex);
  std::optional<std::string> StoredEtag(const Inode& inode, const Writer& writer, const object::Call& call);
  bool WasPublished(const StagedRecord& record, const object::Call& call);
  bool WasRemoved(const StagedRecord& record, const object::Call& call);
  void Adopt(StagingArea::Adopted left, const object::Call& call);
  Result<InodePtr> InodeAt(std::string_view key);

  std::atomic<TimePoint> root_asked_after_ = TimePoint::min();  ///< the store did not answer for the root before then

  Publisher publisher_;  ///< last: what it runs uses all the rest
};

NodeKind KindOf(const Metadata& state);

}  // namespace millrace::vfs
