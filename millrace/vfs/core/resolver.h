// Resolves a path to its metadata: from memory while that is fresh, else from the store.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>

#include "millrace/base/threads/sync.h"
#include "millrace/object/store.h"
#include "millrace/vfs/attributes/attribute_store.h"
#include "millrace/vfs/listing/walk_ahead.h"
#include "millrace/vfs/metadata/metadata_cache.h"
#include "millrace/vfs/read/file_readahead.h"

namespace millrace::vfs {

/// Looks up paths with few requests. A lookup costs a Head and a one-key List, sent together. After a few lookups in
/// one directory, its listing is read instead: one request for a thousand names. Thread-safe. Calls block. The
/// arguments of the constructor must outlive it.
class Resolver {
 public:
  Resolver(object::ReadStore& store, MetadataCache& cache, AttributeStore& attributes, FileReadahead& ahead,
           WalkAhead& walk, const Clock& clock)
      : store_(store), cache_(cache), attributes_(attributes), ahead_(ahead), walk_(walk), clock_(clock) {}

  /// Returns what is at `path`, with its stored attributes; Metadata::absent() if there is nothing. A directory shadows
  /// a file of the same name.
  Result<Metadata> Find(const std::string& path, object::Call call = {});
  /// As Find, for a path known to be a file. Asks the store in any case.
  Result<Metadata> RefreshFile(const std::string& path, object::Call call = {});

 private:
  /// The recent lookups in one directory that the cache could not answer.
  struct RecentLookups {
    TimePoint since;
    int times = 0;      ///< lookups since then
    int ascending = 0;  ///< the latest lookups that came in the order of their names
    std::string last;
    bool listing = false;  ///< a thread reads the directory's listing now
    bool large = false;    ///< the listing is too long to be read whole
  };
  enum class Strategy { kHead, kListFromStart, kListFromName };
  Strategy ChooseStrategy(std::string_view directory, const std::string& path) MR_EXCLUDES(mutex_);
  Status ListDirectory(const std::string& directory, const std::string& path, Strategy strategy,
                       const object::Call& call);
  Result<Metadata> FindState(const std::string& path, const object::Call& call);
  Result<Metadata> AskStore(const std::string& path, const object::Call& call);

  object::ReadStore& store_;
  MetadataCache& cache_;
  AttributeStore& attributes_;
  FileReadahead& ahead_;
  WalkAhead& walk_;
  const Clock& clock_;
  Mutex mutex_;
  std::unordered_map<std::string, RecentLookups> lookups_ MR_GUARDED_BY(mutex_);
};

}  // namespace millrace::vfs
