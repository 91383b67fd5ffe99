// Identity: which inode is which path, and who still holds it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "millrace/base/sync.h"
#include "millrace/vfs/metadata_cache.h"
#include "millrace/vfs/tree.h"

namespace millrace::vfs {

class Writer;

/// A file or directory that somebody holds. The place in the tree belongs to the InodeTable; the rest to `mutex`.
struct Inode {
  Inode(InodeId i, Kind k) : id(i), kind(k) {}
  const InodeId id;
  const Kind kind;

  /// Callers are told of this state, which may be another version.
  void Learn(Metadata state) MR_REQUIRES(mutex);
  /// The same bytes are under another key or ETag now.
  void LearnMove(Metadata state) MR_REQUIRES(mutex);

  Mutex changing;  ///< held, before `mutex`, while the store gets a version or attributes of this file: one at a time
  Mutex mutex;
  Metadata told MR_GUARDED_BY(mutex);  ///< what callers were told last; what remains known of a file without a name
  std::uint64_t content MR_GUARDED_BY(mutex) = 0;        ///< counts versions with other bytes
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

 private:
  friend class InodeTable;
  // Guarded by the table's mutex.
  InodeId parent_ = 0;
  std::string name_;
  std::uint64_t lookups_ = 0;
  std::uint64_t children_ = 0;  ///< inodes with names in this one
  bool linked_ = false;         ///< has a name
  bool local_ = false;          ///< exists although the store does not show it
};

using InodePtr = std::shared_ptr<Inode>;

/// Inodes by number and by (parent, name). Thread-safe; never blocks. An inode lives while its count of lookups is
/// above zero, or that of one below it; whoever has an InodePtr may go on using it.
class InodeTable {
 public:
  /// `prefix`: of the root's directory; empty, or ends with '/'.
  explicit InodeTable(std::string prefix);

  /// Fails with kStale for a number that is not in use.
  Result<InodePtr> Find(InodeId id) const MR_EXCLUDES(mutex_);
  Result<InodePtr> FindDirectory(InodeId id) const MR_EXCLUDES(mutex_);
  /// The inode of that name, if somebody holds it.
  InodePtr FindChild(InodeId parent, std::string_view name) const MR_EXCLUDES(mutex_);
  /// The inode of that name and kind, made if needed, with one lookup more. One of another kind loses its name.
  InodePtr Acquire(InodeId parent, std::string_view name, Kind kind) MR_EXCLUDES(mutex_);
  /// One lookup more of an inode that lives.
  void Hold(Inode& inode) MR_EXCLUDES(mutex_);
  void Forget(InodeId id, std::uint64_t lookups) MR_EXCLUDES(mutex_);

  /// The key of a file or directory, without a trailing slash. Fails with kStale when it has no name any more.
  Result<std::string> PathOf(const Inode& inode) const MR_EXCLUDES(mutex_);
  /// The prefix of a directory's keys: empty, or ends with '/'.
  Result<std::string> DirectoryKeyOf(const Inode& inode) const MR_EXCLUDES(mutex_);
  bool IsLinked(const Inode& inode) const MR_EXCLUDES(mutex_);

  void Unlink(Inode& inode) MR_EXCLUDES(mutex_);
  /// Gives it a new name; an inode that has that name loses it.
  void Move(Inode& inode, InodeId new_parent, std::string_view new_name) MR_EXCLUDES(mutex_);

  /// Local inodes (files not published yet, directories emptied through this tree) exist although listings lack them.
  void SetLocal(Inode& inode, bool local) MR_EXCLUDES(mutex_);
  bool IsLocal(const Inode& inode) const MR_EXCLUDES(mutex_);
  struct LocalChild {
    std::string name;
    Kind kind;
  };
  std::vector<LocalChild> LocalChildren(InodeId parent) const MR_EXCLUDES(mutex_);
  std::vector<InodePtr> All() const MR_EXCLUDES(mutex_);

 private:
  using Name = std::pair<InodeId, std::string>;
  struct NameLess {
    using is_transparent = void;
    using View = std::pair<InodeId, std::string_view>;
    static View ToView(const Name& name) { return {name.first, name.second}; }
    static View ToView(const View& name) { return name; }
    template <class A, class B>
    bool operator()(const A& a, const B& b) const {
      return ToView(a) < ToView(b);
    }
  };
  InodePtr Child(InodeId parent, std::string_view name) const MR_REQUIRES(mutex_);
  void Attach(Inode& inode, InodeId parent, std::string_view name) MR_REQUIRES(mutex_);
  void Detach(Inode& inode) MR_REQUIRES(mutex_);
  void EraseUnused(InodeId id) MR_REQUIRES(mutex_);
  Result<std::string> Path(const Inode& inode) const MR_REQUIRES(mutex_);

  const std::string prefix_;
  mutable Mutex mutex_;
  InodeId next_ MR_GUARDED_BY(mutex_) = kRootInode + 1;
  std::unordered_map<InodeId, InodePtr> inodes_ MR_GUARDED_BY(mutex_);
  std::map<Name, InodePtr, NameLess> names_ MR_GUARDED_BY(mutex_);
};

}  // namespace millrace::vfs
