// sync --watch: syncs again whenever the source has changed, until a signal.
#pragma once

#include <functional>
#include <string>

#include "apps/millrace/objects/object_copier.h"

namespace millrace::cli {

/// Files of a local source that a round of a watch leaves out: a program may be writing them. Not thread-safe.
class UnsettledFiles {
 public:
  /// Returns whether the file was changed in the last two seconds, or is open for writing by any process (which only
  /// the file's owner and root find out), and remembers that there is such a file.
  bool Has(const std::string& path);
  bool any() const { return any_; }

 private:
  bool any_ = false;
};

/// Calls `sync` until a signal: at once, then whenever a local source has changed and is quiet again, or every
/// --interval. A signal between two rounds ends it with kExitOk. Rounds that fail are tried again.
/// Errors: those of the first round; kInvalidArgument with --dry-run.
Result<int> WatchSync(const Context& context, const CopyFlags& flags,
                      const std::function<Result<int>(UnsettledFiles&)>& sync);

}  // namespace millrace::cli
