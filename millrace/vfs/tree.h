// A bucket, or a prefix of one, as a file tree. Knows no FUSE: the mount, tests and other front ends drive it.
//
// docs/semantics.md says what each operation promises; README.md how the parts fit together.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/base/clock.h"
#include "millrace/base/log.h"
#include "millrace/base/result.h"
#include "millrace/base/threads/memory_budget.h"
#include "millrace/cache/block_cache.h"
#include "millrace/object/store.h"

namespace millrace::vfs {

/// Names a file or directory while somebody holds it (see Tree::Lookup). Never used twice in the life of a Tree; says
/// nothing across mounts.
using InodeId = std::uint64_t;
inline constexpr InodeId kRootInode = 1;

enum class Kind : std::uint8_t { kFile, kDirectory, kSymlink, kSpecial };

struct Attributes {
  InodeId inode = 0;
  Kind kind = Kind::kFile;
  std::uint64_t size = 0;
  WallTime modified, accessed, changed;
  std::uint32_t permissions = 0;  ///< the low twelve bits of a mode
  std::uint32_t uid = 0, gid = 0;
  std::uint32_t special_type = 0;  ///< of a kSpecial: S_IFIFO, S_IFSOCK, S_IFBLK or S_IFCHR
  std::uint64_t device = 0;
  bool linked = true;  ///< false once it has no name any more
};

/// An answer and for how long it may be used without asking again.
struct Entry {
  Attributes attributes;
  Duration valid_for{};
};

/// Whether modes, owners, times, extended attributes and symbolic links are kept in object metadata.
enum class StoredAttributesPolicy : std::uint8_t {
  kAuto,    ///< entries are asked for them in directories that are marked as having some
  kAlways,  ///< every entry is asked: for buckets written by s3fs or rclone
  kNever,   ///< not stored, not read
};

/// Says whether the process that an owner's name stands for is still there; nothing when it cannot be known here.
using OwnerAlive = std::function<std::optional<bool>(std::string_view owner)>;

struct Options {
  std::string prefix;  ///< the root of the tree; empty, or ends with '/'
  bool read_only = false;
  /// Directories at the top are buckets (object/open/all_buckets.h): they cannot be renamed, and what the tree writes
  /// down for itself goes into each.
  bool buckets_at_top = false;
  bool allow_delete = true, allow_overwrite = true;  ///< else kPermissionDenied
  StoredAttributesPolicy stored_attributes = StoredAttributesPolicy::kAuto;
  /// What files have that store no attributes.
  std::uint32_t uid = 0, gid = 0, file_permissions = 0644, directory_permissions = 0755;
  /// For how long names, attributes and listings may be used after the store told them; absence likewise.
  Duration metadata_ttl = std::chrono::seconds(1);
  Duration negative_ttl = std::chrono::seconds(1);
  /// True: every open asks the store for the current version (close-to-open consistency). False: opens too trust
  /// metadata_ttl.
  bool revalidate_open = true;
  std::size_t metadata_entries = 65'536;  ///< remembered at most, besides those of inodes in use
  /// Pieces of a long directory that are listed at a time, at most, where pages are slow and that is faster: see
  /// PageStream.
  int parallel_listing = 1;
  std::uint64_t read_part_bytes = 8 * kMiB;
  std::uint64_t max_readahead = 128 * kMiB;  ///< of one file; all files together use at most half of the cache's memory
  std::uint64_t write_part_bytes = 8 * kMiB;
  int write_parallel_parts = 4;  ///< of one file
  /// Where what is written waits for its upload; a tree that is not read-only needs it.
  std::filesystem::path staging_directory;
  std::uint64_t staging_limit = 16 * kGiB;
  std::string staging_target;  ///< names the store among all that use the folder
  /// True: Flush and Close stage what was written, so that it outlives the process, and it is published in the
  /// background, `publish_delay` later: what is gone by then, or has another name, costs no request. False: they
  /// publish.
  bool close_async = false;
  Duration publish_delay = std::chrono::seconds(1);
  int publish_parallel = 8;         ///< files that are published at once in the background
  std::size_t publish_most = 4096;  ///< files that wait; beyond it closing publishes
  Clock* clock = &SystemClock();    ///< must outlive the tree
  /// Names this process in the records of renames under way, and tells whether such a name's process is still there.
  std::string owner = "unknown";
  OwnerAlive owner_alive;
  Logger log;
};

/// How a file is opened. Reading and writing may be combined; truncation needs writing.
struct OpenFlags {
  bool read = true;
  bool write = false;
  bool truncate = false;
};

/// An open file. Thread-safe. Reads are of the version that was current at the open, with what has been written through
/// this tree since, or fail with kStale. Writes go to local staging, are seen by every open file of this tree at once,
/// and appear under the name as a whole, when Flush or Sync publishes them. Destroying the last file that wrote without
/// Close gives up what was not published.
class File {
 public:
  virtual ~File() = default;
  virtual InodeId inode() const = 0;
  /// The bytes from `offset`, less than room.size() only at the end; what is not lent by the cache lies in `room`.
  /// Blocks on the network.
  virtual Result<cache::View> ReadView(std::uint64_t offset, MutableByteSpan room, object::Call call = {}) = 0;
  /// The same, copied into `into`; the number of bytes.
  Result<std::size_t> Read(std::uint64_t offset, MutableByteSpan into, object::Call call = {});
  /// Copies. Anywhere: bytes between the end and `offset` are zeros. kNoSpace when the staging area is full.
  virtual Status Write(std::uint64_t offset, ByteSpan bytes, object::Call call = {}) = 0;
  virtual Status Truncate(std::uint64_t size, object::Call call = {}) = 0;
  /// Makes what the file has of a range zeros.
  virtual Status Zero(std::uint64_t offset, std::uint64_t length, object::Call call = {}) = 0;
  /// Publishes what was written to the file; then it is durable and visible to everybody. Later writes go on and
  /// publish again, and so do failed ones.
  virtual Status Sync(object::Call call = {}) = 0;
  /// What close(2) waits for: like Sync, but leaves a file into which nothing was written through here to Close.
  virtual Status Flush(object::Call call = {}) = 0;
  /// Publishes what is left when this is the last file that writes. Call once, last.
  virtual Status Close(object::Call call = {}) = 0;
  /// True when pages that the caller keeps of this inode are still those of the version opened.
  virtual bool may_keep_pages() const = 0;
  /// True when the open found another version than the caller was told before: its attributes are out of date.
  virtual bool found_change() const = 0;
};

/// One name of a directory. The name is valid during the visit only.
struct DirectoryEntry {
  std::string_view name;
  Kind kind = Kind::kFile;
  std::uint64_t next_cookie = 0;  ///< where to go on after this entry
  Entry entry;                    ///< with ReadPlus only
};

/// An open directory: a stream of pages. Cookies stay valid, in any order, until it is destroyed; names that exist
/// throughout come exactly once in one pass. Cookie 0 is the start and reads afresh. "." and ".." are not shown.
/// Thread-safe; blocks on the network at page ends.
class Directory {
 public:
  /// False ends the reading; that entry then counts as not seen.
  using Visit = std::function<bool(const DirectoryEntry&)>;
  virtual ~Directory() = default;
  /// Visits one entry at least, unless the directory ends at `cookie`; stops rather than waits where the store has not
  /// told more yet, so that a caller works on what there is meanwhile.
  virtual Status Read(std::uint64_t cookie, const Visit& visit, object::Call call = {}) = 0;
  /// Likewise; each entry seen is looked up, as by Tree::Lookup.
  virtual Status ReadPlus(std::uint64_t cookie, const Visit& visit, object::Call call = {}) = 0;
};

struct AttributeChange {
  std::optional<std::uint64_t> size;
  std::optional<std::uint32_t> permissions, uid, gid;
  std::optional<WallTime> modified, accessed;
  bool touches_stored() const { return permissions || uid || gid || modified || accessed; }
};

/// Of something new; what is left out is as the Options say.
struct Ownership {
  std::optional<std::uint32_t> permissions, uid, gid;
};

enum class XattrMode : std::uint8_t { kAny, kCreate, kReplace };

struct RenameFlags {
  bool no_replace = false;
};

/// What is not yet published, for status reports.
struct Pending {
  int files = 0;  ///< being written, or closed
  std::uint64_t bytes = 0;
  int waiting = 0;             ///< closed, and to be published in the background
  int failing = 0;             ///< of these: tried at least once
  std::uint64_t failures = 0;  ///< attempts in the background that failed, since the start
  std::string reason;          ///< of the last failure of the file that failed most often; empty: none fails
};

/// The tree. Thread-safe; every call but Forget may wait for the store, until its Call ends. Errors carry the code
/// whose errno (ToErrno) is what a system call should return.
class Tree {
 public:
  /// Checks that the bucket can be listed, and finishes or undoes renames that were cut off. Store, cache and budget
  /// must outlive the tree.
  static Result<std::unique_ptr<Tree>> Open(object::Store& store, cache::BlockCache& cache, MemoryBudget& budget,
                                            Options options, object::Call call = {});
  virtual ~Tree() = default;

  /// Finds a name; nothing when there is none (an answer like any other: valid for the negative_ttl). Each success, and
  /// each Create and MakeDirectory, counts as one lookup: the inode lives until as many are taken back by Forget.
  virtual Result<std::optional<Entry>> Lookup(InodeId parent, std::string_view name, object::Call call = {}) = 0;
  virtual void Forget(InodeId inode, std::uint64_t lookups) = 0;
  virtual Duration negative_ttl() const = 0;

  virtual Result<Entry> GetAttributes(InodeId inode, object::Call call = {}) = 0;
  /// Any size. The rest is stored with the object (see attributes.h), unless the policy is never: then it is ignored.
  virtual Result<Entry> SetAttributes(InodeId inode, const AttributeChange& change, File* through,
                                      object::Call call = {}) = 0;

  /// Extended attributes; names begin with "user." (else kUnsupported). Absence is an answer.
  virtual Result<std::optional<std::string>> GetXattr(InodeId inode, const std::string& name,
                                                      object::Call call = {}) = 0;
  virtual Result<std::vector<std::string>> ListXattrs(InodeId inode, object::Call call = {}) = 0;
  /// With kReplace: false, changing nothing, when there is none; with kCreate: kAlreadyExists when there is one.
  virtual Result<bool> SetXattr(InodeId inode, const std::string& name, std::string_view value, XattrMode mode,
                                object::Call call = {}) = 0;
  /// False when there was none.
  virtual Result<bool> RemoveXattr(InodeId inode, const std::string& name, object::Call call = {}) = 0;

  virtual Result<std::string> ReadLink(InodeId inode, object::Call call = {}) = 0;
  /// An object whose content is the target, as s3fs makes them.
  virtual Result<Entry> MakeSymlink(InodeId parent, std::string_view name, std::string_view target,
                                    const Ownership& ownership = {}, object::Call call = {}) = 0;
  /// A pipe, socket or device: an empty object. `type` as in Attributes::special_type.
  virtual Result<Entry> MakeSpecial(InodeId parent, std::string_view name, std::uint32_t type, std::uint64_t device,
                                    const Ownership& ownership = {}, object::Call call = {}) = 0;

  virtual Result<std::unique_ptr<File>> OpenFile(InodeId inode, OpenFlags flags, object::Call call = {}) = 0;
  struct Created {
    Entry entry;
    std::unique_ptr<File> file;
  };
  /// A new file, open for writing; one that exists is opened as it is, unless `exclusive`: then it is kAlreadyExists,
  /// also when publishing finds that somebody else made it meanwhile.
  virtual Result<Created> Create(InodeId parent, std::string_view name, bool exclusive, const Ownership& ownership = {},
                                 object::Call call = {}) = 0;
  virtual Result<std::unique_ptr<Directory>> OpenDirectory(InodeId inode) = 0;

  virtual Result<Entry> MakeDirectory(InodeId parent, std::string_view name, const Ownership& ownership = {},
                                      object::Call call = {}) = 0;
  virtual Status RemoveDirectory(InodeId parent, std::string_view name, object::Call call = {}) = 0;
  virtual Status Unlink(InodeId parent, std::string_view name, object::Call call = {}) = 0;
  /// A copy in the store, then a delete. In between both names exist; the new one of a file is always whole. A
  /// directory may replace an empty one; what changes below either name waits. A directory's rename that fails without
  /// the store confirming that it is undone is undone in the background, and until then changes of either name, and
  /// below, fail with kBusy. One that the process's death cuts off is finished or undone by the next Open.
  virtual Status Rename(InodeId parent, std::string_view name, InodeId new_parent, std::string_view new_name,
                        RenameFlags flags, object::Call call = {}) = 0;

  /// Says that these files, named relative to a directory, will be opened in this order, after those said before; they
  /// are read ahead as memory allows. What is no file is passed over. The number taken: fewer when too many wait.
  virtual Result<std::size_t> WillOpen(InodeId directory, std::vector<std::string> names) = 0;

  /// What the keys below a directory begin with: empty, or ending with '/'.
  virtual Result<std::string> PrefixOf(InodeId directory) = 0;

  /// Publishes everything that open files have written, and reports the first failure.
  virtual Status FlushAll(object::Call call = {}) = 0;
  virtual Pending pending() const = 0;
  /// What earlier mounts left staged is taken over by opening the tree, and published in the background, or by
  /// FlushAll. What of it could not even be taken over: the first reason. It stays staged.
  virtual Status recovery() const = 0;
  /// How many files were taken over; some may be published already.
  virtual int recovered_files() const = 0;
};

}  // namespace millrace::vfs
