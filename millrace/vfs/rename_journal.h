// What the bucket keeps of a directory's rename while it is under way: docs/formats/rename-journal.md.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/object/store.h"
#include "millrace/vfs/attributes.h"
#include "millrace/vfs/tree.h"

namespace millrace::vfs {

/// A rename copies everything below `from` to `to`, commits, and deletes what it copied. Cut off before the commit, it
/// is undone by deleting the copies, each of which names the rename; after it, finished by deleting the sources listed.
struct RenameRecord {
  std::string id;               ///< copies carry it as kRenameKey
  std::string owner;            ///< who is at it
  std::string from, to;         ///< directories, as keys that end with '/'
  bool replaced_empty = false;  ///< `to` was an empty directory before
  bool committed = false;
  struct Source {
    std::string name;  ///< below `from`; empty: its marker
    std::string etag;
    WallTime modified;
    bool operator==(const Source&) const = default;
  };
  std::vector<Source> sources;  ///< once committed: the versions that were copied
  bool operator==(const RenameRecord&) const = default;
};

std::string EncodeRename(const RenameRecord& record);
Result<RenameRecord> DecodeRename(std::string_view text, std::string_view what);

/// A record in the bucket, changed only by whoever changed it last. One owner; calls block.
class RenameJournal {
 public:
  static Result<RenameJournal> Begin(object::Store& store, const std::string& root, const RenameRecord& record,
                                     const object::Call& call);
  /// kPreconditionFailed when somebody else has taken the rename over.
  Status Write(const RenameRecord& record, const object::Call& call);
  Status Remove(const object::Call& call);

 private:
  friend class RenameRecovery;
  RenameJournal(object::Store& store, std::string key, std::string etag)
      : store_(store), key_(std::move(key)), etag_(std::move(etag)) {}
  object::Store& store_;
  std::string key_, etag_;
};

struct RecoveredRenames {
  int finished = 0;     ///< had been committed
  int rolled_back = 0;  ///< had not
  int left = 0;         ///< are somebody else's who may be at work, or cannot be read
};

/// Finishes or undoes what renames below `root` left behind that were cut off: those of owners known to be gone, and of
/// unknown ones any whose record nobody has touched for a minute. `owner` takes them over. Bytes that are not known to
/// be elsewhere are never deleted. Blocks; may be repeated after a failure.
Result<RecoveredRenames> RecoverRenames(object::Store& store, const std::string& root, const std::string& owner,
                                        const OwnerAlive& alive, const Clock& clock, const object::Call& call = {});

/// The same for a whole tree.
Result<RecoveredRenames> RecoverAllRenames(object::Store& store, const Options& options, const object::Call& call = {});
/// Where a tree keeps the record of a rename of `path`.
std::string JournalRoot(const Options& options, std::string_view path);

/// Deletes the sources of a committed rename, as far as they still are what was copied.
Status DeleteSources(object::Store& store, const RenameRecord& record, const object::Call& call);
/// Deletes the copies of a rename that was not committed.
Status DeleteCopies(object::Store& store, const RenameRecord& record, const object::Call& call);

}  // namespace millrace::vfs
