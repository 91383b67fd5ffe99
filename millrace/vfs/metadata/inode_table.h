// Identity: which inode is which path, and who still holds it.
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
#include "millrace/vfs/types/node.h"

namespace millrace::vfs {

class Writer;

/// A file or directory that somebody uses. The place in the tree belongs to the InodeTable; what is here to `mutex`.
struct Inode {
  explicit Inode(InodeId i, NodeKind k, Metadata state = {}, bool may_keep_pages = false,
                 std::optional<WallTime> when_changed = {})
      : id(i), kind(k), reported(std::move(state)), changed(when_changed) {
    if (may_keep_pages) pages_etag = reported.etag;
  }
  const InodeId id;
  const NodeKind kind;

  /// Callers are told of this state, which may be another version.
  void SetReported(Metadata state) MR_REQUIRES(mutex);
  /// The same bytes are under another key or ETag now.
  void SetReportedAfterMove(Metadata state) MR_REQUIRES(mutex);
  /// True when nothing is lost if only what callers were told is kept.
  bool idle() const MR_REQUIRES(mutex) { return !writer && open_files == 0; }

  Mutex changing;  ///< held, before `mutex`, while the store gets a version or attributes of this file: one at a time
  Mutex mutex;
  Metadata reported MR_GUARDED_BY(mutex);  ///< what callers were told last; what remains known of a file without a name
  std::uint64_t content MR_GUARDED_BY(mutex) = 0;        ///< counts versions with other bytes, while files are open
  std::uint64_t moves MR_GUARDED_BY(mutex) = 0;          ///< counts the others: renames, changes of attributes
  std::optional<WallTime> changed MR_GUARDED_BY(mutex);  ///< of a directory: when this tree changed its entries
  std::string pages_etag MR_GUARDED_BY(mutex);           ///< the version whose pages the caller may keep
  std::shared_ptr<Writer> writer MR_GUARDED_BY(mutex);   ///< while open for writing
  /// With a writer: the user metadata that it publishes, once somebody asked for it to change…
  std::optional<UserMetadata> metadata MR_GUARDED_BY(mutex);
  /// …and the writer's time of change when told.attributes got times that are newer than its bytes.
  std::optional<WallTime> times_set MR_GUARDED_BY(mutex);
  int open_files MR_GUARDED_BY(mutex) = 0;
  int writing_files MR_GUARDED_BY(mutex) = 0;  ///< those that hold the writer
};

using InodePtr = std::shared_ptr<Inode>;

/// Inodes by number and by (parent, name). Thread-safe; never blocks. An inode is in the table while its count of
/// lookups is above zero, or that of one below it, or somebody has an InodePtr.
///
/// Most inodes are merely known: the table has a small record of each, about 120 bytes with its name and its place in
/// the index. An Inode is made from the record when somebody asks for it, and folded into it again when the last
/// InodePtr goes, unless it has a writer.
class InodeTable {
 public:
  /// `prefix`: of the root's directory; empty, or ends with '/'. Outlives every InodePtr.
  explicit InodeTable(std::string prefix);

  /// Fails with kStale for a number that is not in use.
  Result<InodePtr> Find(InodeId id) MR_EXCLUDES(mutex_);
  Result<InodePtr> FindDirectory(InodeId id) MR_EXCLUDES(mutex_);
  /// The inode of that name, if somebody holds it.
  InodePtr FindChild(InodeId parent, std::string_view name) MR_EXCLUDES(mutex_);
  /// Its number; 0 when there is none.
  InodeId FindChildId(InodeId parent, std::string_view name) const MR_EXCLUDES(mutex_);
  /// The inode of that name and kind, made if needed, with one lookup more. One of another kind loses its name.
  InodePtr Acquire(InodeId parent, std::string_view name, NodeKind kind) MR_EXCLUDES(mutex_);
  /// One lookup more of an inode that lives.
  void Hold(const Inode& inode) MR_EXCLUDES(mutex_);
  void Forget(InodeId id, std::uint64_t lookups) MR_EXCLUDES(mutex_);

  /// The key of a file or directory, without a trailing slash. Fails with kStale when it has no name any more.
  Result<std::string> PathOf(const Inode& inode) const MR_EXCLUDES(mutex_);
  /// The prefix of a directory's keys: empty, or ends with '/'.
  Result<std::string> DirectoryKeyOf(const Inode& inode) const MR_EXCLUDES(mutex_);
  bool IsLinked(const Inode& inode) const MR_EXCLUDES(mutex_);

  void Unlink(const Inode& inode) MR_EXCLUDES(mutex_);
  /// Gives it a new name; an inode that has that name loses it.
  void Move(const Inode& inode, InodeId new_parent, std::string_view new_name) MR_EXCLUDES(mutex_);

  /// Local inodes (files not published yet, directories emptied through this tree) exist although listings lack them.
  void SetLocal(const Inode& inode, bool local) MR_EXCLUDES(mutex_);
  bool IsLocal(const Inode& inode) const MR_EXCLUDES(mutex_);
  struct LocalChild {
    std::string name;
    NodeKind kind;
  };
  /// By name.
  std::vector<LocalChild> LocalChildren(InodeId parent) const MR_EXCLUDES(mutex_);
  /// Those that are more than known: all writers are among them.
  std::vector<InodePtr> InUse() MR_EXCLUDES(mutex_);
  /// All files below a directory's key ("a/b/"), each with its key's rest.
  struct FileBelow {
    InodeId id;
    std::string name;
  };
  std::vector<FileBelow> FilesBelow(std::string_view directory) const MR_EXCLUDES(mutex_);

 private:
  /// Where a record is; an InodeId is this, and how often the slot was used before in the upper half.
  using Slot = std::uint32_t;
  static constexpr Slot kNone = SlotIndex::kNone;
  static constexpr Slot kRoot = kRootInode;
  struct Record {
    std::uint32_t generation = 0;
    Slot parent = kNone;         ///< of one that is not used: the next such
    std::uint32_t lookups = 0;   ///< at its maximum: too many to count, so that it stays for good
    std::uint32_t children = 0;  ///< inodes with names in this one
    SmallBytes name;             ///< the last one it had
    [[no_unique_address]] PackedMetadata reported;
    NodeKind kind{};
    bool used : 1 = false;
    bool linked : 1 = false;  ///< has a name
    bool local : 1 = false;   ///< exists although the store does not show it
    bool pages : 1 = false;   ///< the caller may keep pages of the version told
  };
  static_assert(sizeof(Record) == 80);
  struct InodeInUse {
    std::unique_ptr<Inode> inode;
    std::weak_ptr<Inode> handle;  ///< expired: it has a writer, or is about to be folded
    int handles = 0;              ///< made and not released yet: an expired one's last user may still be on its way out
  };
  using RemovedInodes =
      std::vector<std::unique_ptr<Inode>>;  ///< to be destroyed without the lock: the end of a writer waits

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
  void SetLocal(Slot slot, bool local) MR_REQUIRES(mutex_);
  Result<std::string> Path(Slot slot) const MR_REQUIRES(mutex_);
  /// For the index.
  auto HashOf() const MR_REQUIRES(mutex_);

  const std::string prefix_;
  mutable Mutex mutex_;
  std::deque<Record> records_ MR_GUARDED_BY(mutex_);
  Slot free_ MR_GUARDED_BY(mutex_) = kNone;  ///< the first record that is not used
  SlotIndex names_ MR_GUARDED_BY(mutex_);    ///< of linked ones
  std::unordered_map<Slot, InodeInUse> in_use_ MR_GUARDED_BY(mutex_);
  // What few have.
  std::set<std::pair<Slot, Slot>> local_ MR_GUARDED_BY(mutex_);  ///< parent and child
  std::unordered_map<Slot, WallTime> changed_ MR_GUARDED_BY(mutex_);
};

}  // namespace millrace::vfs
