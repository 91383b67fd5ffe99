// The state that a tree shares with its open files and directories.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "millrace/object/support/work_queue.h"
#include "millrace/vfs/attributes/attribute_store.h"
#include "millrace/vfs/core/resolver.h"
#include "millrace/vfs/core/write_back.h"
#include "millrace/vfs/listing/walk_ahead.h"
#include "millrace/vfs/metadata/inode_table.h"
#include "millrace/vfs/metadata/metadata_cache.h"
#include "millrace/vfs/read/file_readahead.h"
#include "millrace/vfs/rename/rename_settler.h"
#include "millrace/vfs/staging/session_log.h"
#include "millrace/vfs/staging/staging_area.h"
#include "millrace/vfs/staging/upload_ledger.h"
#include "millrace/vfs/types/node.h"
#include "millrace/vfs/types/options.h"
#include "millrace/vfs/types/path_lock.h"
#include "millrace/vfs/write/quota.h"
#include "millrace/vfs/write/writer.h"

namespace millrace::vfs {

/// A name in a directory, whether or not something is there.
struct NamedPath {
  InodeId parent;
  std::string name;
  std::string path;              ///< the key of a file there
  PathLock::ExclusiveLock lock;  ///< held where the name is to be changed
};

/// The state of one Tree. Each part is thread-safe. Lock order: Inode::mutex, then the mutexes inside table, metadata
/// and Writer. No mutex is held while the store is asked.
struct TreeCore {
  /// `staging`: null for a read-only tree. Store, cache and budget must outlive the core.
  TreeCore(object::Store& s, cache::BlockCache& c, MemoryBudget& b, std::unique_ptr<StagingArea> staging,
           TreeOptions o);

  // Constant after construction.
  object::Store& store;
  cache::BlockCache& cache;
  MemoryBudget& budget;
  const TreeOptions options;
  const Clock& clock;
  const WallTime began;  ///< the time that directories show
  const std::unique_ptr<StagingArea> staging;

  // In the order of construction: each part uses some of those above it.
  std::optional<UploadLedger> ledger;      ///< exists if there is a staging area
  std::unique_ptr<Quota> quota;            ///< null without TreeOptions::quota
  object::WorkQueue uploads{"upload", 4};  ///< shared by all writers; outlives them, since they wait for their parts
  InodeTable table;
  MetadataCache metadata;
  AttributeStore attributes;
  FileReadahead ahead;
  WalkAhead walk;
  Resolver resolver;
  PathLock path_lock;
  RenameSettler settler;
  std::atomic<int> sequential_readers = 0;                     ///< open files that read in sequence
  std::atomic<std::uint64_t> renames = 0;                      ///< directory renames begun
  std::atomic<TimePoint> root_retry_after = TimePoint::min();  ///< see CompleteRoot
  WriteBack write_back;                                        ///< last: its threads use all other members

  /// Returns the attributes to report to the caller, and remembers this version as reported. If the inode has a writer,
  /// its size replaces that of `metadata`, and so do its times while the content is unpublished.
  CacheableAttributes Report(Inode& inode, const Metadata& metadata) MR_EXCLUDES(inode.mutex);
  /// The stored version of an inode has another key or ETag, and the same bytes as the version reported last, or those
  /// that this tree's writer published.
  void ReportMoved(Inode& inode, Metadata state) MR_REQUIRES(inode.mutex);
  /// Sets inode.reported to `state`, unless the inode has a writer or a later state was reported.
  void UpdateReported(Inode& inode, const Metadata& state) MR_REQUIRES(inode.mutex);
  /// Returns the state of a file: the reported state if it has a writer or no name, else the resolver's. `now`: asks
  /// the store even if the cache has an answer. Errors: kStale if the store has no such file any more.
  Result<Metadata> FileState(Inode& inode, bool now, const object::Call& call) MR_EXCLUDES(inode.mutex);
  /// Returns the state of a directory, with its attributes. A directory with an inode counts as existing, even if other
  /// clients have removed it.
  Result<Metadata> DirectoryState(Inode& inode, const object::Call& call) MR_EXCLUDES(inode.mutex);
  /// Returns the inode's writer, or null.
  std::shared_ptr<Writer> WriterOf(Inode& inode) MR_EXCLUDES(inode.mutex);

  /// Locks the path of the inode. Blocks while its name is being changed. The lock of an inode without a name is empty.
  Result<PathLock::SharedLock> LockShared(const Inode& inode, const object::Call& call);
  Result<NamedPath> NamedPathOf(InodeId parent, std::string_view name);
  /// Returns what is at a name: the state of an inode that is local or has a writer, else the resolver's.
  Result<Metadata> StateAt(const NamedPath& place, const object::Call& call);
  /// Records that this tree has changed the entries of the directory.
  void TouchDirectory(InodeId directory);
  /// Returns true if the kernel may have pages of that version.
  bool MayHavePages(std::string_view path, std::string_view etag);

  /// The ledger, or null.
  UploadLedger* uploads_begun() { return ledger ? &*ledger : nullptr; }
  /// Errors: kReadOnly on a read-only tree.
  Status CheckWritable() const;

 private:
  Status CompleteRoot(const std::string& path, Inode& inode, Metadata& state, const object::Call& call)
      MR_EXCLUDES(inode.mutex);
};

NodeKind KindOf(const Metadata& state);

}  // namespace millrace::vfs
