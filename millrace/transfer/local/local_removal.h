// Removal of local files by handle. A symbolic link is removed, never followed; a file that was moved is removed only
// if it still is the one that was sent.
#pragma once

#include <optional>
#include <string>

#include "millrace/base/files/files.h"
#include "millrace/base/result.h"
#include "millrace/transfer/local/local_file.h"

namespace millrace::transfer {

/// Removes files below one folder, which it holds open. Thread-safe.
class LocalRemover {
 public:
  /// Links on the way to `folder`, an absolute path, are followed; those below it are not.
  static Result<LocalRemover> Open(const std::string& folder);

  enum class Outcome {
    kRemoved,
    kAbsent,
    kBehindLink,  ///< a folder on the way is a symbolic link: nothing was removed
  };
  /// Removes a file or a symbolic link. `name` is a key below the folder; a slash at its end says that it is a symbolic
  /// link, and anything else is refused. Fails with kIsDirectory on a folder.
  Result<Outcome> Remove(const std::string& name) const;
  /// Removes the name only if it still leads to the file that was sent, unchanged: same device, inode, size and times.
  /// kStale otherwise, and the file stays. A name that is replaced at the same moment is put back: on local file
  /// systems no version is lost.
  Result<Outcome> RemoveSent(const std::string& name, const LocalFile& sent) const;
  /// The first folder on the way to `name` that is a symbolic link, as the beginning of `name`; nothing if there is
  /// none.
  std::optional<std::string> LinkOn(const std::string& name) const;

 private:
  struct Spot;
  LocalRemover(UniqueFd root, std::string path) : root_(std::move(root)), path_(std::move(path)) {}
  Result<Spot> Find(const std::string& name) const;
  std::string PathOf(const std::string& name) const { return path_ + "/" + name; }

  UniqueFd root_;
  std::string path_;
};

}  // namespace millrace::transfer
