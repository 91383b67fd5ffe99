// Listings before they are read: for programs that walk a tree.
#pragma once

#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/threads/sync.h"
#include "millrace/object/store.h"
#include "millrace/vfs/listing/listing.h"
#include "millrace/vfs/listing/page_stream.h"

namespace millrace::vfs {

/// A walk (`find`, `du`, `rsync`) reads the directories of a directory in the order in which its listing showed them.
/// Once a few were, the listings of those that come next are begun, so that the store works while the walker does.
/// What was begun longer ago than the metadata may be old, or before a change made here, is dropped. Bounded in
/// directories remembered and listings begun. Directories are named by their keys ("" or ending with '/').
/// Thread-safe; only Confirm blocks.
class WalkAhead {
 public:
  struct Options {
    Duration trust{};       ///< how old a listing may be when it is read; zero: nothing is begun
    int parallel = 1;       ///< see PageStream
    std::size_t ahead = 3;  ///< listings begun at a time in one directory,
    /// Where pages take PageStream::kSlowPage and more, as far as all will be read in time.
    std::size_t ahead_slow = 12;
  };
  /// Store and clock must outlive this.
  WalkAhead(object::Store& store, const Clock& clock, Options options)
      : store_(store), clock_(clock), options_(options) {}

  /// A listing of `directory` shows these names next; `first`: it begins with them.
  void OnPage(const std::string& directory, std::span<const ListedName> names, bool first) MR_EXCLUDES(mutex_);
  /// Somebody reads this directory from its start: gives its listing where that was begun, and begins others.
  std::shared_ptr<PageStream> Take(const std::string& directory) MR_EXCLUDES(mutex_);
  /// Since when a directory is known to exist from a listing begun ahead, for whose first page this waits.
  std::optional<TimePoint> Confirm(const std::string& directory, const object::Call& call) MR_EXCLUDES(mutex_);
  /// This tree has changed names somewhere: what was begun before may not show them.
  void Forget() MR_EXCLUDES(mutex_);

 private:
  /// The directories that one directory's listing showed.
  struct Children {
    std::string parent;
    std::vector<std::string> keys;  ///< ascending
    std::size_t next = 0;           ///< behind the last one read
    int in_order = 0;               ///< so many were read one after another
    TimePoint last_read;
    Duration pace{};  ///< between the last two
  };
  struct StartedListing {
    std::string directory;
    TimePoint when;
    std::shared_ptr<PageStream> stream;
  };
  using ChildLists = std::list<Children>;
  using StartedListings = std::list<StartedListing>;

  ChildLists::iterator FindChildren(std::string_view parent) MR_REQUIRES(mutex_);
  StartedListings::iterator FindStarted(std::string_view directory) MR_REQUIRES(mutex_);
  void StartNext(const Children& children, StartedListings& dropped) MR_REQUIRES(mutex_);

  object::Store& store_;
  const Clock& clock_;
  const Options options_;
  Mutex mutex_;
  bool slow_ MR_GUARDED_BY(mutex_) = false;        ///< the last listing that was begun ahead and read
  ChildLists children_ MR_GUARDED_BY(mutex_);      ///< latest first
  StartedListings started_ MR_GUARDED_BY(mutex_);  ///< oldest first
};

}  // namespace millrace::vfs
