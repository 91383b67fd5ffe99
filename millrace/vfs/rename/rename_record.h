// The record of a directory's rename, as the bucket keeps it while the rename is under way:
// docs/formats/rename-journal.md.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/result.h"

namespace millrace::vfs {

/// A rename copies everything below `from` to `to`, commits, and deletes what it copied. A rename that is cut off
/// before the commit is undone by deleting the copies. After the commit it is finished by deleting the sources listed.
struct RenameRecord {
  std::string id;               ///< copies carry it as kRenameKey
  std::string owner;            ///< the process at work, as Options::owner names it
  std::string lease;            ///< fencing token: another one after each takeover
  std::uint64_t beat = 0;       ///< counts the rewrites of one lease, so that each rewrite is another version
  std::string from, to;         ///< directories, as keys of the store that end with '/'
  bool replaced_empty = false;  ///< `to` was an empty directory before
  bool committed = false;
  struct Source {
    std::string name;  ///< below `from`; empty: its marker
    std::string etag;
    WallTime modified;
    std::string copy_etag;  ///< of the copy; empty: not known
    bool operator==(const Source&) const = default;
  };
  std::vector<Source> sources;  ///< once committed: the versions that were copied
  bool operator==(const RenameRecord&) const = default;
};

/// The folder whose `.millrace/renames/` holds a record. Names in the record are relative to it, so that they cannot
/// reach outside.
struct RenameRoot {
  std::string key;             ///< empty, or ends with '/'
  bool other_buckets = false;  ///< `key` is one bucket of a tree of all buckets: `to` may be in another one
};

/// The key of the record with that id.
std::string RenameRecordKey(const RenameRoot& root, std::string_view id);
/// The prefix of all records.
std::string RenameRecordPrefix(const RenameRoot& root);

/// REQUIRES: record.from is below root.key, and record.to too unless root.other_buckets.
std::string EncodeRename(const RenameRecord& record, const RenameRoot& root);
/// `what` names the record in errors. Returned names are keys of the store, below `root` (CheckConfined), and such as a
/// mount shows. Errors: kUnsupported for another format, or another bucket that this tree does not show; kCorrupt for
/// names that a rename through a mount cannot have; kInvalidArgument or kCorrupt for other damage.
Result<RenameRecord> DecodeRename(std::string_view text, std::string_view what, const RenameRoot& root);

}  // namespace millrace::vfs
