// Waits for changes below a folder.
#pragma once

#include <stop_token>
#include <string>

#include "millrace/base/clock.h"
#include "millrace/base/files/files.h"
#include "millrace/base/result.h"

namespace millrace {

/// Watches a folder and all below it by inotify(7), so that a waiting process costs nothing. Sees the folders that were
/// there when it was opened, and new names in them; for what is in new folders, open another one. Follows no symbolic
/// links. Not thread-safe.
class FolderWatch {
 public:
  /// Errors: kResourceExhausted beyond the system's limit of watches (fs.inotify.max_user_watches); those of reading
  /// the folder.
  static Result<FolderWatch> Open(const std::string& folder);

  /// Blocks until something has changed since Open() and then nothing for `quiet`, until `at_most` has passed, or until
  /// `stop` fires. Changes that never pause end the wait after ten times `quiet`.
  Status Wait(Duration at_most, Duration quiet, std::stop_token stop);

 private:
  explicit FolderWatch(UniqueFd events) : events_(std::move(events)) {}
  Status Add(const std::string& folder);

  UniqueFd events_;
};

}  // namespace millrace
