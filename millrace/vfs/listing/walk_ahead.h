// Prefetch of listings for programs that walk a tree.
#pragma once

#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/threads/sync.h"
#include "millrace/object/read_store.h"
#include "millrace/vfs/listing/listing.h"
#include "millrace/vfs/listing/page_stream.h"

namespace millrace::vfs {

/// A walk (`find`, `du`, `rsync`) reads the directories of a directory in the order in which its listing showed them.
/// After a few reads in this order, the listings of the next directories are started, so that the store works while the
/// walker does. A started listing is dropped when it is older than `trust`, and when this tree changes a name. The
/// directories remembered and the listings started are bounded. Directories are named by their keys ("" or ending with
/// '/'). Thread-safe. Only Confirm blocks.
class WalkAhead {
 public:
  struct Options {
    Duration trust{};       ///< how old a listing may be when it is read; zero: no listing is started
    int parallel = 1;       ///< see PageStream
    std::size_t ahead = 3;  ///< listings started ahead of the walker in one directory
  };
  /// Store and clock must outlive this.
  WalkAhead(object::ReadStore& store, const Clock& clock, Options options)
      : store_(store), clock_(clock), options_(options) {}

  /// Call when a listing of `directory` has shown these names. `first`: they are its first page.
  void OnPage(const std::string& directory, std::span<const ListedName> names, bool first) MR_EXCLUDES(mutex_);
  /// Call when this directory is read from its start. Returns its listing if that was started, else null. Starts the
  /// listings of the next directories.
  std::shared_ptr<PageStream> Take(const std::string& directory) MR_EXCLUDES(mutex_);
  /// Returns the time at which a started listing shows that the directory existed. Waits for its first page. Returns
  /// nothing if no listing was started.
  std::optional<TimePoint> Confirm(const std::string& directory, const object::Call& call) MR_EXCLUDES(mutex_);
  /// Call when this tree has changed a name. Drops the started listings, which may not show the change.
  void Forget() MR_EXCLUDES(mutex_);

 private:
  /// The directories that one directory's listing showed.
  struct ChildDirectories {
    std::string parent;
    std::vector<std::string> keys;  ///< ascending
    std::size_t next = 0;           ///< the index after the last directory read
    int in_order = 0;               ///< directories that were read one after another
    TimePoint last_read;
    Duration pace{};  ///< the time between the last two reads
  };
  struct StartedListing {
    std::string directory;
    TimePoint when;
    std::shared_ptr<PageStream> stream;
  };
  using ChildLists = std::list<ChildDirectories>;
  using StartedListings = std::list<StartedListing>;

  ChildLists::iterator FindChildren(std::string_view parent) MR_REQUIRES(mutex_);
  StartedListings::iterator FindStarted(std::string_view directory) MR_REQUIRES(mutex_);
  void StartNext(const ChildDirectories& children, StartedListings& dropped) MR_REQUIRES(mutex_);

  object::ReadStore& store_;
  const Clock& clock_;
  const Options options_;
  Mutex mutex_;
  bool slow_ MR_GUARDED_BY(mutex_) = false;        ///< the pages of the last started listing that was read were slow
  ChildLists children_ MR_GUARDED_BY(mutex_);      ///< latest first
  StartedListings started_ MR_GUARDED_BY(mutex_);  ///< oldest first
};

}  // namespace millrace::vfs
