// Removal of local files by handle. A symbolic link is removed, never followed. `mv` removes a file only if it is still
// the one that was sent.
#pragma once

#include <optional>
#include <string>

#include "millrace/base/files/files.h"
#include "millrace/base/result.h"
#include "millrace/transfer/local/local_file.h"

namespace millrace::transfer {

/// Removes files below one folder. Holds a handle of the folder. Thread-safe.
class LocalRemover {
 public:
  /// `folder` is an absolute path. Follows symbolic links in it, but later none below it.
  static Result<LocalRemover> Open(const std::string& folder);

  enum class Outcome {
    kRemoved,
    kAbsent,
    kBehindLink,  ///< a folder in `name` is a symbolic link: nothing was removed
  };
  /// Removes a file or a symbolic link. `name` is a key below the folder. A slash at its end means a symbolic link.
  /// Errors: kIsDirectory on a folder; kStale if `name` ends with a slash and is no symbolic link, or if it is a
  /// device, a FIFO or a socket.
  Result<Outcome> Remove(const std::string& name) const;
  /// Removes `name` only if it still leads to the file that was sent, unchanged: same device, inode, size and times. On
  /// local file systems no other version is lost: a name that is replaced at the same moment is put back.
  /// Errors: kStale if the name leads to another file or the file has changed; it then stays.
  Result<Outcome> RemoveSent(const std::string& name, const LocalFile& sent) const;
  /// Returns the first folder in `name` that is a symbolic link, as the beginning of `name`. Returns nothing if there
  /// is none.
  std::optional<std::string> LinkOn(const std::string& name) const;

 private:
  struct OpenedName;
  LocalRemover(UniqueFd root, std::string path) : root_(std::move(root)), path_(std::move(path)) {}
  Result<OpenedName> Find(const std::string& name) const;
  std::string PathOf(const std::string& name) const { return path_ + "/" + name; }

  UniqueFd root_;
  std::string path_;
};

}  // namespace millrace::transfer
