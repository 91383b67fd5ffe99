// The record of a directory's rename, which is in the bucket while the rename is under way.
// docs/formats/rename-journal.md describes its format.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/result.h"

namespace millrace::vfs {

/// A rename copies everything below `from` to `to`, commits, and deletes the sources. If its process dies before the
/// commit, the rename is undone: the copies are deleted. After the commit it is finished: the sources are deleted.
struct RenameRecord {
  std::string id;               ///< each copy has it in its metadata, as kRenameKey
  std::string owner;            ///< TreeOptions::owner of the process that holds the lease
  std::string lease;            ///< fencing token: each takeover writes a new one
  std::uint64_t beat = 0;       ///< counts the rewrites of one lease, so that each rewrite is another version
  std::string from, to;         ///< keys of directories; they end with '/'
  bool replaced_empty = false;  ///< `to` was an empty directory before
  bool committed = false;
  struct Source {
    std::string name;  ///< the rest of the key below `from`; empty: the marker of `from`
    std::string etag;
    WallTime modified;
    std::string copy_etag;  ///< empty: not known
    bool operator==(const Source&) const = default;
  };
  std::vector<Source> sources;  ///< the versions that were copied; empty before the commit
  bool operator==(const RenameRecord&) const = default;
};

/// The folder whose `.millrace/renames/` holds a record. Names in the record are relative to this folder, so that a
/// record cannot name anything outside of it.
struct RenameRoot {
  std::string key;             ///< empty, or ends with '/'
  bool other_buckets = false;  ///< `key` is one bucket of a tree of all buckets; `to` may be in another bucket
};

/// Returns the key of the record with that id.
std::string RenameRecordKey(const RenameRoot& root, std::string_view id);
/// Returns the prefix of the keys of all records.
std::string RenameRecordPrefix(const RenameRoot& root);

/// Returns the record as text. REQUIRES: record.from is below root.key; so is record.to, unless root.other_buckets.
std::string EncodeRename(const RenameRecord& record, const RenameRoot& root);
/// Parses and checks a record. `what` names the record in errors. `from` and `to` of the result are keys of directories
/// that a mount shows. `from` is below `root`; `to` is below `root` or in another bucket.
/// Errors: kUnsupported if the record has another format, or names another bucket and not root.other_buckets; kCorrupt
/// if a rename through a mount cannot have its names; kInvalidArgument or kCorrupt if the text is damaged.
Result<RenameRecord> DecodeRename(std::string_view text, std::string_view what, const RenameRoot& root);

}  // namespace millrace::vfs
