// A folder as a bucket: keys are paths. For file:// URLs, local development and tests on real disks.
#pragma once

#include <filesystem>
#include <memory>

#include "millrace/base/clock.h"
#include "millrace/object/store.h"

namespace millrace::object {

struct FileStoreOptions {
  std::filesystem::path root;
  bool create_root = false;
  /// Removes folders that a delete leaves empty, because a bucket has no folders. Off for folders of the user's.
  bool prune_folders = true;
  /// Syncs files and folders before a write completes.
  bool durable = true;
  int threads = 8;                ///< the calls that run at the same time
  Clock* clock = &SystemClock();  ///< must outlive the store
};

/// Fulfils the contract of Store below `root`, with these properties of a file system:
/// - An object cannot stand beside a folder of its name: putting "a" where "a/b" is fails with kIsDirectory, and the
///   other way round with kNotDirectory. A segment of a key has at most 255 bytes (kNameTooLong), without NUL.
/// - A device, a FIFO or a socket is no object: it is neither listed nor read, deleted or replaced. Put fails with
///   kInvalidArgument there. A file that is replaced passes on its permissions.
/// - Content types and metadata are extended attributes. Writes with metadata fail with kUnsupported on a disk without
///   extended attributes.
/// - ETags come from inode, modification time and size, so a change by another program is a new version.
/// - Conditional writes exclude each other across processes (flock on the folder), but not writers of other programs.
/// - A part of a multipart upload may have any size; unfinished uploads wait in hidden folders beside their key.
/// No key and no symbolic link leads out of the root. docs/formats/file-store.md describes the bytes on disk.
Result<std::shared_ptr<Store>> OpenFileStore(FileStoreOptions options);

}  // namespace millrace::object
