// A bucket, or a prefix of one, as a file tree. It knows no FUSE: the mount, tests and other front ends drive it.
//
// docs/semantics.md says what each operation promises. README.md says how the parts fit together.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/base/threads/memory_budget.h"
#include "millrace/cache/block_cache.h"
#include "millrace/object/store.h"
#include "millrace/vfs/directory.h"
#include "millrace/vfs/file.h"
#include "millrace/vfs/types/changes.h"
#include "millrace/vfs/types/node.h"
#include "millrace/vfs/types/options.h"
#include "millrace/vfs/types/pending_writes.h"
#include "millrace/vfs/types/usage.h"

namespace millrace::vfs {

struct Inode;
struct SavedDirectory;
struct SavedFile;
struct SessionState;
struct TreeCore;

/// A file tree over an object store. Thread-safe. Every call but Forget may wait for the store; its Call says until
/// when. Errors carry the code whose errno (ToErrno) a system call should return.
class Tree {
 public:
  /// Checks that the bucket can be listed. Finishes or undoes renames that were cut off. Takes over the files that
  /// earlier mounts staged and did not publish; they are published in the background, or by FlushAll. REQUIRES: store,
  /// cache, budget and options.clock outlive the tree, its files and its directories.
  static Result<std::unique_ptr<Tree>> Open(object::Store& store, cache::BlockCache& cache, MemoryBudget& budget,
                                            TreeOptions options, object::Call call = {});
  Tree(const Tree&) = delete;
  Tree& operator=(const Tree&) = delete;
  ~Tree();

  /// Finds a name. Returns nothing if there is no such name; this answer is valid for negative_ttl(). Each success
  /// counts as one lookup of the inode, and so does each success of a call that makes an inode (Create, MakeDirectory,
  /// MakeSymlink, MakeSpecial). The inode lives until Forget has taken back all its lookups.
  Result<std::optional<CacheableAttributes>> Lookup(InodeId parent, std::string_view name, object::Call call = {});
  /// Takes back lookups. Never blocks on the store.
  void Forget(InodeId inode, std::uint64_t lookups);
  Duration negative_ttl() const;

  Result<CacheableAttributes> GetAttributes(InodeId inode, object::Call call = {});
  /// Sets the size of a file to any value, through `through` if it is not null. Other attributes are stored with the
  /// object (see metadata/attributes.h); with StoredAttributesPolicy::kNever they are ignored.
  Result<CacheableAttributes> SetAttributes(InodeId inode, const AttributeChange& change, File* through,
                                            object::Call call = {});

  /// Returns an extended attribute, or nothing if the inode does not have it.
  Result<std::optional<std::string>> GetXattr(InodeId inode, const std::string& name, object::Call call = {});
  Result<std::vector<std::string>> ListXattrs(InodeId inode, object::Call call = {});
  /// Sets an extended attribute. With XattrMode::kReplace, returns false and changes nothing if the inode does not have
  /// it. Errors: kUnsupported if the name does not begin with "user."; kAlreadyExists with XattrMode::kCreate if the
  /// inode has it.
  Result<bool> SetXattr(InodeId inode, const std::string& name, std::string_view value, XattrMode mode,
                        object::Call call = {});
  /// Removes an extended attribute. Returns false if the inode did not have it. Errors: kUnsupported, as SetXattr.
  Result<bool> RemoveXattr(InodeId inode, const std::string& name, object::Call call = {});

  Result<std::string> ReadLink(InodeId inode, object::Call call = {});
  /// Makes a symbolic link: an object whose content is the target, as s3fs makes them.
  Result<CacheableAttributes> MakeSymlink(InodeId parent, std::string_view name, std::string_view target,
                                          const Ownership& ownership = {}, object::Call call = {});
  /// Makes a pipe, socket or device: an empty object. `type` is as NodeAttributes::special_type.
  Result<CacheableAttributes> MakeSpecial(InodeId parent, std::string_view name, std::uint32_t type,
                                          std::uint64_t device, const Ownership& ownership = {},
                                          object::Call call = {});

  Result<std::unique_ptr<File>> OpenFile(InodeId inode, OpenFlags flags, object::Call call = {});
  struct CreatedFile {
    CacheableAttributes entry;
    std::unique_ptr<File> file;
  };
  /// Makes a file and opens it for writing. A file that exists is opened as it is, unless `exclusive`.
  /// Errors: kAlreadyExists with `exclusive` if the file exists. Publishing the file fails in the same way if
  /// another client has made it meanwhile.
  Result<CreatedFile> Create(InodeId parent, std::string_view name, bool exclusive, const Ownership& ownership = {},
                             object::Call call = {});
  Result<std::unique_ptr<Directory>> OpenDirectory(InodeId inode);

  Result<CacheableAttributes> MakeDirectory(InodeId parent, std::string_view name, const Ownership& ownership = {},
                                            object::Call call = {});
  Status RemoveDirectory(InodeId parent, std::string_view name, object::Call call = {});
  Status Unlink(InodeId parent, std::string_view name, object::Call call = {});
  /// Renames a file or directory: a copy in the store, then a delete. In between both names exist. The new name of a
  /// file is always whole. A directory may replace an empty directory. Changes below either name wait.
  ///
  /// If a directory's rename fails and the store does not confirm that it is undone, the rename is undone in the
  /// background. Until then changes of either name, and below, fail with kBusy. If the process dies, the next Open
  /// finishes or undoes the rename.
  Status Rename(InodeId parent, std::string_view name, InodeId new_parent, std::string_view new_name, RenameFlags flags,
                object::Call call = {});

  /// Announces that these files will be opened in this order, after the files announced before. Names are relative to
  /// `directory`. The files are read ahead as memory allows; names that are no files are skipped. Returns how many
  /// names were accepted: fewer if too many wait.
  Result<std::size_t> WillOpen(InodeId directory, std::vector<std::string> names);

  /// Returns the prefix of the keys below a directory: empty, or ends with '/'.
  Result<std::string> PrefixOf(InodeId directory);

  /// Make the open files and directories of another process, whose state was TreeOptions::restored, again. Return null
  /// for one whose inode is gone. `state` is the same state.
  std::unique_ptr<File> RestoreFile(const SavedFile& saved, const SessionState& state);
  std::unique_ptr<Directory> RestoreDirectory(std::uint64_t number, const SavedDirectory& saved);
  /// Call when all are made: removes what no open file needs.
  void EndRestore(const SessionState& state);
  /// Call when the store turns out to have lost a name: the other process had removed it.
  void DropName(InodeId parent, std::string_view name);

  /// Publishes everything that open files have written. Returns the first failure.
  Status FlushAll(object::Call call = {});
  PendingWrites pending() const;
  /// Returns the limit of TreeOptions::quota and what is used of it; nothing without a limit. May block on a listing.
  Result<std::optional<Usage>> usage(object::Call call = {});
  /// Returns the first error of taking over staged files in Open. Files that were not taken over stay staged.
  Status recovery() const { return recovery_; }
  /// Returns the number of files that Open took over. Some may be published already.
  int recovered_files() const { return recovered_files_; }

 private:
  Tree(std::shared_ptr<TreeCore> core, Status recovery, int recovered_files);
  Result<std::unique_ptr<File>> OpenTruncated(std::shared_ptr<Inode> inode, const object::Call& call);
  Status Resize(const std::shared_ptr<Inode>& inode, std::uint64_t size, File* through, const object::Call& call);

  // Constant after construction.
  const std::shared_ptr<TreeCore> core_;
  const Status recovery_;
  const int recovered_files_;
};

}  // namespace millrace::vfs
