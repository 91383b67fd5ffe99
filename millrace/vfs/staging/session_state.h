// The state that a mount's kernel relies on after the death of the mount's process: inodes, open files, and content
// that is being written.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "millrace/vfs/staging/staging_area.h"
#include "millrace/vfs/types/node.h"

namespace millrace::vfs {

/// An inode that the kernel knows, or that has children.
struct SavedInode {
  InodeId parent = 0;  ///< 0 if it has no name any more
  std::string name;
  NodeKind kind = NodeKind::kFile;
  std::uint32_t lookups = 0;
};

/// An open file. Has the version that it reads; an empty ETag: none was published yet.
struct SavedFile {
  InodeId inode = 0;
  std::uint64_t request = 0;  ///< the kernel's number of the request that opened it
  bool reads = false, writes = false;
  bool emptied_at_close = false;  ///< it was opened with O_RDONLY and O_TRUNC
  std::int64_t opener = 0;        ///< a process; 0: unknown
  std::string etag;
  std::uint64_t size = 0;
};

/// The beginning of a page of a directory: a Listing::Position.
struct SavedPage {
  struct HeldFile {
    std::string name, etag;
    std::uint64_t size = 0;
    WallTime modified;
  };
  std::string start_after;
  std::vector<HeldFile> held;
};

/// An open directory, and where its pages begin: see Directory.
struct SavedDirectory {
  InodeId inode = 0;
  std::uint64_t request = 0;
  std::vector<SavedPage> begins = {{}};
};

/// The content of a Writer.
struct SavedContent {
  InodeId inode = 0;
  std::string staged;  ///< StagedFile::id of its bytes; empty: none are staged
  StagedRecord record;
  bool unpublished = false, abandoned = false, attempted = false;
  bool kept = false;         ///< the staging folder has a record of it, too
  bool recoverable = false;  ///< all bytes are in the staging file or in the base
  bool times_outdated = false, metadata_changed = false;
  bool forget_times = false;  ///< writes came after the record's metadata
};

/// The state of a mount. A value type. SessionLog writes its changes to a file, from which another process restores it.
struct SessionState {
  std::string header;  ///< of the log's owner
  std::unordered_map<InodeId, SavedInode> inodes;
  std::uint32_t last_generation = 0;         ///< the upper half of the largest number that any inode had
  std::map<std::uint64_t, SavedFile> files;  ///< by the number that the kernel knows
  std::map<std::uint64_t, SavedDirectory> directories;
  std::map<std::uint64_t, SavedContent> contents;  ///< by SessionLog::NextContent; of one inode, the last one counts
};

}  // namespace millrace::vfs
