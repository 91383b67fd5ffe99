// A bucket as a folder: keys are paths. For file:// URLs, local development, and tests that want real disks.
#pragma once

#include <filesystem>
#include <memory>

#include "millrace/base/clock.h"
#include "millrace/object/store.h"

namespace millrace::object {

struct FileStoreOptions {
  std::filesystem::path root;
  bool create_root = false;
  /// Remove folders that a delete leaves empty, as a bucket has none. Off for folders that belong to someone else.
  bool prune_folders = true;
  /// fsync files and folders before a write completes.
  bool durable = true;
  int threads = 8;                ///< calls that run at once
  Clock* clock = &SystemClock();  ///< must outlive the store
};

/// Keeps the Store contract beneath `root`, with these properties of a file system:
/// - An object cannot stand beside a folder of its name: putting "a" where "a/b" is fails with kIsDirectory, and the
///   other way round with kNotDirectory. A segment of a key has at most 255 bytes (kNameTooLong), without NUL.
/// - Content types and metadata are extended attributes; metadata fails with kUnsupported where the disk has none.
/// - ETags come from inode, modification time and size, so a change by another program is a new version.
/// - Conditional writes exclude each other across processes (flock on the folder), but not writers of other programs.
/// - A part of a multipart upload may have any size; unfinished uploads wait in hidden folders beside their key.
/// No path leads out of the root, whatever the key or the symbolic links in it. docs/formats/file-store.md has the
/// bytes.
Result<std::shared_ptr<Store>> OpenFileStore(FileStoreOptions options);

}  // namespace millrace::object
