// Inodes: their numbers, their names, and the counts of their lookups.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "millrace/base/threads/sync.h"
#include "millrace/vfs/metadata/metadata.h"
#include "millrace/vfs/metadata/slot_index.h"
#include "millrace/vfs/staging/session_log.h"
#include "millrace/vfs/types/node.h"

namespace millrace::vfs {

class Writer;

/// A file or directory that is in use. Its mutex guards its state; the InodeTable guards its name.
struct Inode {
  explicit Inode(InodeId i, NodeKind k, Metadata state = {}, bool may_keep_pages = false,
                 std::optional<WallTime> when_changed = {})
      : id(i), kind(k), reported(std::move(state)), changed(when_changed) {
    if (may_keep_pages) pages_etag = reported.etag;
  }
  const InodeId id;
  const NodeKind kind;

  /// Sets the state to report to callers. It may be of another version.
  void SetReported(Metadata state) MR_REQUIRES(mutex);
  /// As SetReported, for the same bytes under another key or ETag.
  void SetReportedAfterMove(Metadata state) MR_REQUIRES(mutex);
  /// True if the inode can be folded into its record, which keeps little more than `reported`.
  bool idle() const MR_REQUIRES(mutex) { return !writer && open_files == 0; }

  Mutex changing;  ///< held while a version or attributes are sent to the store; locked before `mutex`
  Mutex mutex;
  Metadata reported MR_GUARDED_BY(mutex);  ///< the state reported last; for a file without a name, the only source
  std::uint64_t content MR_GUARDED_BY(mutex) = 0;  ///< counts versions with other bytes; only open files compare it
  std::uint64_t moves MR_GUARDED_BY(mutex) =
      0;  ///< counts versions with the same bytes: renames, changes of attributes
  std::optional<WallTime> changed MR_GUARDED_BY(mutex);  ///< of a directory: when this tree changed its entries
  std::string pages_etag MR_GUARDED_BY(mutex);           ///< the version whose pages the caller may keep
  std::shared_ptr<Writer> writer MR_GUARDED_BY(mutex);   ///< while open for writing
  /// The user metadata that the writer publishes, if set for a new file or changed since.
  std::optional<UserMetadata> metadata MR_GUARDED_BY(mutex);
  /// Writer::modified() at the time when reported.attributes got their times. They hold until the content changes
  /// again.
  std::optional<WallTime> times_set MR_GUARDED_BY(mutex);
  int open_files MR_GUARDED_BY(mutex) = 0;
  int writing_files MR_GUARDED_BY(mutex) = 0;  ///< open files that have joined the writer
};

using InodePtr = std::shared_ptr<Inode>;

/// Inodes by number and by (parent, name). An inode is in the table while it has lookups, children in the table, or an
/// InodePtr. Thread-safe. Never blocks.
///
/// Most inodes are not in use. The table has a small record of each: about 120 bytes with the name and the entry in the
/// index. Find and similar calls make an Inode from the record. When the last InodePtr is destroyed, the Inode is
/// folded into the record again, unless it has a writer.
class InodeTable {
 public:
  /// `prefix`: the key of the root; empty, or ends with '/'. `log`, if any, gets every change of names and counts, and
  /// must outlive the table. The table must outlive every InodePtr.
  explicit InodeTable(std::string prefix, SessionLog* log = nullptr);

  /// Restores the inodes of another process, with their numbers. REQUIRES: the table is new.
  /// Errors: kCorrupt if these inodes do not make a tree.
  Status Restore(const SessionState& state) MR_EXCLUDES(mutex_);
  /// Removes restored inodes that nothing needs.
  void RemoveUnused() MR_EXCLUDES(mutex_);

  /// Errors: kStale for a number that is not in the table; FindDirectory: kNotDirectory for a file.
  Result<InodePtr> Find(InodeId id) MR_EXCLUDES(mutex_);
  Result<InodePtr> FindDirectory(InodeId id) MR_EXCLUDES(mutex_);
  /// Returns the inode of that name, or null if it is not in the table.
  InodePtr FindChild(InodeId parent, std::string_view name) MR_EXCLUDES(mutex_);
  /// Returns the number of the inode of that name, or 0 if it is not in the table.
  InodeId FindChildId(InodeId parent, std::string_view name) const MR_EXCLUDES(mutex_);
  /// Returns the inode of that name and kind, and adds a lookup. Makes the inode if needed. Unlinks an inode of that
  /// name and another kind.
  InodePtr Acquire(InodeId parent, std::string_view name, NodeKind kind) MR_EXCLUDES(mutex_);
  /// Adds a lookup.
  void Hold(const Inode& inode) MR_EXCLUDES(mutex_);
  void Forget(InodeId id, std::uint64_t lookups) MR_EXCLUDES(mutex_);

  /// Returns the key of a file or directory, without a trailing slash. Errors: kStale if it has no name any more.
  Result<std::string> PathOf(const Inode& inode) const MR_EXCLUDES(mutex_);
  /// Returns the prefix of a directory's keys: empty, or ends with '/'. Errors: as PathOf.
  Result<std::string> DirectoryKeyOf(const Inode& inode) const MR_EXCLUDES(mutex_);
  bool IsLinked(const Inode& inode) const MR_EXCLUDES(mutex_);

  void Unlink(const Inode& inode) MR_EXCLUDES(mutex_);
  /// Gives the inode a new name. Unlinks an inode that has this name.
  void Move(const Inode& inode, InodeId new_parent, std::string_view new_name) MR_EXCLUDES(mutex_);

  /// Local inodes (files not published yet, directories emptied through this tree) exist although listings lack them.
  void SetLocal(const Inode& inode, bool local) MR_EXCLUDES(mutex_);
  bool IsLocal(const Inode& inode) const MR_EXCLUDES(mutex_);
  struct LocalChild {
    std::string name;
    NodeKind kind;
  };
  /// Returns the local inodes of a directory, in the order of their names.
  std::vector<LocalChild> LocalChildren(InodeId parent) const MR_EXCLUDES(mutex_);
  /// Returns the inodes in use. Every inode with a writer is among them.
  std::vector<InodePtr> InUse() MR_EXCLUDES(mutex_);
  /// Returns all files below a directory's key ("a/b/"). `name`: the rest of the file's key.
  struct FileBelow {
    InodeId id;
    std::string name;
  };
  std::vector<FileBelow> FilesBelow(std::string_view directory) const MR_EXCLUDES(mutex_);

 private:
  /// The index of a record. An InodeId has it in the lower half, and how often the slot was used before in the upper
  /// half.
  using Slot = std::uint32_t;
  static constexpr Slot kNone = SlotIndex::kNone;
  static constexpr Slot kRoot = kRootInode;
  struct Record {
    std::uint32_t generation = 0;
    Slot parent = kNone;         ///< of a free record: the next free record
    std::uint32_t lookups = 0;   ///< at the maximum, counting stops and the inode stays forever
    std::uint32_t children = 0;  ///< inodes with names in this one
    SmallBytes name;             ///< the latest one
    [[no_unique_address]] PackedMetadata reported;
    NodeKind kind{};
    bool used : 1 = false;
    bool linked : 1 = false;  ///< has a name
    bool local : 1 = false;   ///< exists although the store does not show it
    bool pages : 1 = false;   ///< the caller may keep pages of the version reported
  };
  static_assert(sizeof(Record) == 80);
  struct InodeInUse {
    std::unique_ptr<Inode> inode;
    std::weak_ptr<Inode> handle;  ///< expired if the inode has a writer but no user, or is about to be folded
    int handles = 0;              ///< made and not released; includes expired handles whose Release has not run
  };
  using RemovedInodes = std::vector<std::unique_ptr<Inode>>;  ///< destroyed without the lock, since ~Writer blocks

  InodeId IdOf(Slot slot) const MR_REQUIRES(mutex_);
  Slot SlotOf(InodeId id) const MR_REQUIRES(mutex_);
  Slot Child(Slot parent, std::string_view name) const MR_REQUIRES(mutex_);
  InodePtr Use(Slot slot) MR_REQUIRES(mutex_);
  void Release(Slot slot) MR_EXCLUDES(mutex_);
  bool Fold(Slot slot, Inode& inode) MR_REQUIRES(mutex_);
  Slot Add(NodeKind kind) MR_REQUIRES(mutex_);
  void Attach(Slot slot, Slot parent, std::string_view name) MR_REQUIRES(mutex_);
  void Detach(Slot slot, RemovedInodes& removed) MR_REQUIRES(mutex_);
  void RemoveUnused(Slot slot, RemovedInodes& removed) MR_REQUIRES(mutex_);
  void LogInode(Slot slot) MR_REQUIRES(mutex_);
  void LogLookups(Slot slot) MR_REQUIRES(mutex_);
  void SetLocal(Slot slot, bool local) MR_REQUIRES(mutex_);
  Result<std::string> Path(Slot slot) const MR_REQUIRES(mutex_);
  /// Returns the function that names_ needs.
  auto HashOf() const MR_REQUIRES(mutex_);

  const std::string prefix_;
  SessionLog* const log_;
  mutable Mutex mutex_;
  std::deque<Record> records_ MR_GUARDED_BY(mutex_);
  Slot free_ MR_GUARDED_BY(mutex_) = kNone;  ///< the first record that is not used
  SlotIndex names_ MR_GUARDED_BY(mutex_);    ///< of linked ones
  std::unordered_map<Slot, InodeInUse> in_use_ MR_GUARDED_BY(mutex_);
  // Few inodes are in these.
  std::set<std::pair<Slot, Slot>> local_ MR_GUARDED_BY(mutex_);  ///< parent and child
  std::unordered_map<Slot, WallTime> changed_ MR_GUARDED_BY(mutex_);
};

}  // namespace millrace::vfs
