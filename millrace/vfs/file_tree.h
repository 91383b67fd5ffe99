// A bucket, or a prefix of one, as files and folders that are named by paths. For programs that want the semantics of
// `millrace mount` without a mount: Tree, which the mount uses, with a cache and without inodes.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "millrace/base/bytes.h"
#include "millrace/base/clock.h"
#include "millrace/base/error.h"
#include "millrace/base/log.h"
#include "millrace/base/threads/memory_budget.h"
#include "millrace/object/connection.h"
#include "millrace/object/requests.h"
#include "millrace/vfs/types/node.h"

namespace millrace::vfs {

/// The options of a FileTree. A value type.
struct FileTreeOptions {
  bool read_only = true;  ///< false: needs a staging folder
  /// The folder on a local disk for bytes that were written and are not published yet. It outlives the process: the
  /// next tree with the same folder publishes what a crash left there.
  std::filesystem::path staging_directory;
  std::uint64_t staging_limit = 16 * kGiB;     ///< the most bytes in the staging folder
  std::uint64_t cache_bytes = 64 * kMiB;       ///< memory for what was read, reserved in the budget
  std::filesystem::path cache_directory;       ///< a folder on a local disk for what was read; empty: memory only
  std::uint64_t cache_disk_bytes = 16 * kGiB;  ///< the most bytes in `cache_directory`
  /// The time for which names, attributes and listings may be used after the store sent them.
  Duration metadata_ttl = std::chrono::seconds(1);
  Logger log;  ///< what happens in the background
};

/// The way OpenFile opens a file.
enum class OpenMode : std::uint8_t {
  kRead,      ///< reads a file that exists
  kUpdate,    ///< reads and writes a file; makes it if it does not exist
  kTruncate,  ///< writes a file anew; makes it if it does not exist
  kCreate,    ///< makes a file; fails with kAlreadyExists if it exists
};

/// A file that FileTree::OpenFile opened. Reads return the version that was current at the open, with the bytes that
/// were written through this tree since. Writes are published as a whole by Sync and Close; until then other clients
/// see the old content. Destroying it without Close drops what was written and not published. Thread-safe. The tree
/// must outlive it.
class TreeFile {
 public:
  ~TreeFile();
  TreeFile(const TreeFile&) = delete;
  TreeFile& operator=(const TreeFile&) = delete;

  /// Fills `into` with the bytes from `offset` on. Returns their number, which is less at the end of the file. Blocks.
  /// Errors: kStale if the store has lost the version that was opened.
  Result<std::size_t> Read(std::uint64_t offset, MutableByteSpan into, object::Call call = {});
  /// Copies `bytes` into the file. Bytes between the end of the file and `offset` become zeros.
  /// Errors: kNoSpace if the staging folder is full; then nothing has changed.
  Status Write(std::uint64_t offset, ByteSpan bytes, object::Call call = {});
  /// Sets the size. New bytes are zeros.
  Status Truncate(std::uint64_t size, object::Call call = {});
  /// Returns the size, with what was written.
  Result<std::uint64_t> Size(object::Call call = {});
  /// Publishes the content. After success it is durable, and everybody sees it. Blocks on the upload.
  Status Sync(object::Call call = {});
  /// Publishes what is not published. The last call.
  Status Close(object::Call call = {});

 private:
  friend class FileTree;
  struct Rep;
  explicit TreeFile(std::unique_ptr<Rep> rep);
  const std::unique_ptr<Rep> rep_;
};

/// Files and folders in a bucket. docs/semantics.md says what each operation promises. Thread-safe. All calls block.
///
/// A path is relative to the root of the tree: "a/b". Slashes at its ends do not count; an empty path is the root.
/// Symbolic links are not followed.
class FileTree {
 public:
  /// Opens the tree at `url`: "s3://bucket/prefix", a folder or an hf:// repository, which is read-only. Finishes or
  /// undoes renames that were cut off, and takes over the files that an earlier tree staged. REQUIRES: connection and
  /// budget outlive the tree. Errors: kInvalidArgument if the tree is to be written to and has no staging folder;
  /// kResourceExhausted if the budget has no memory left; those of the store.
  static Result<std::unique_ptr<FileTree>> Open(object::Connection& connection, std::string_view url,
                                                MemoryBudget& budget, FileTreeOptions options = {},
                                                object::Call call = {});
  /// REQUIRES: its files are destroyed.
  ~FileTree();
  FileTree(const FileTree&) = delete;
  FileTree& operator=(const FileTree&) = delete;

  /// Returns what the path names; nothing if there is no such name.
  Result<std::optional<NodeAttributes>> Find(std::string_view path, object::Call call = {});

  /// Gets a name of a folder and what it names. Returns false to stop.
  using Visit = std::function<bool(std::string_view name, const NodeAttributes& attributes)>;
  /// Visits the names in a folder, in no certain order. A name that exists throughout is visited exactly once.
  /// Errors: kNotFound; kNotDirectory.
  Status List(std::string_view path, const Visit& visit, object::Call call = {});

  /// Opens a file. Errors: kNotFound; kIsDirectory; kAlreadyExists for OpenMode::kCreate; kReadOnly.
  Result<std::unique_ptr<TreeFile>> OpenFile(std::string_view path, OpenMode mode = OpenMode::kRead,
                                             object::Call call = {});
  /// Returns the target of a symbolic link. Errors: kNotFound; kInvalidArgument if it is no symbolic link.
  Result<std::string> ReadLink(std::string_view path, object::Call call = {});

  /// Makes a folder. Errors: kAlreadyExists; kNotFound if the folder above does not exist.
  Status MakeDirectory(std::string_view path, object::Call call = {});
  /// Removes a file, a link or an empty folder. Errors: kNotFound; kNotEmpty.
  Status Remove(std::string_view path, object::Call call = {});
  /// Renames a file or folder: a copy in the store, then a delete. In between both names exist. The new name of a file
  /// is always whole. Replaces a file, or an empty folder. Errors: kNotFound; kBusy while a change of either is undone.
  Status Rename(std::string_view from, std::string_view to, object::Call call = {});

  /// Publishes everything that open files have written. Returns the first failure.
  Status FlushAll(object::Call call = {});

 private:
  struct Rep;
  explicit FileTree(std::unique_ptr<Rep> rep);
  const std::unique_ptr<Rep> rep_;
};

}  // namespace millrace::vfs
