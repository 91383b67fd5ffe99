// The files of a repository at one commit, as far as the hub has listed them. A commit never changes, so what was
// learnt once holds for the life of a store.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/base/threads/sync.h"

namespace millrace::object::hf {

/// A file, or a folder in the listing of one level.
struct HubFile {
  std::string path;  ///< of a folder: with a slash at its end
  std::uint64_t size = 0;
  /// Lower-case hex. Of large files, which the hub keeps outside git (LFS, Xet): the SHA-256. Of others: git's name of
  /// the content.
  std::string hash;
  bool is_large = false;
};

/// Reads the JSON of a page of the hub's tree, or of its answer about paths.
/// Errors: kUnavailable if it is something else: then a server in between answered.
Result<std::vector<HubFile>> ParseHubFiles(std::string_view json);

/// The scope of a listing.
struct ListingScope {
  std::string folder;  ///< without slashes at its ends; empty: the root
  bool recursive = false;
  auto operator<=>(const ListingScope&) const = default;
};

/// The files in the byte order of their paths.
using Listing = std::vector<HubFile>;

/// Keeps listings and single files. Bounded: keeps about half a million files, 100 MB of them; forgets others, which
/// are asked for again. A single larger listing is kept alone. Thread-safe.
class KnownFiles {
 public:
  /// Returns a listing with all files of `scope`, perhaps with others; null if none is known.
  std::shared_ptr<const Listing> Find(const ListingScope& scope) const MR_EXCLUDES(mutex_);
  /// Sorts and keeps the listing.
  std::shared_ptr<const Listing> Keep(const ListingScope& scope, std::vector<HubFile> files) MR_EXCLUDES(mutex_);

  /// The answer about one path: no value inside if there is no such file.
  using Answer = std::optional<HubFile>;
  /// No value if nothing is known about the path.
  std::optional<Answer> FindFile(const std::string& path) const MR_EXCLUDES(mutex_);
  void KeepFile(const std::string& path, Answer answer) MR_EXCLUDES(mutex_);

 private:
  std::shared_ptr<const Listing> FindLocked(const ListingScope& scope) const MR_REQUIRES(mutex_);

  mutable Mutex mutex_;
  std::map<ListingScope, std::shared_ptr<const Listing>> listings_ MR_GUARDED_BY(mutex_);
  std::size_t listed_ MR_GUARDED_BY(mutex_) = 0;  ///< files in all listings
  std::unordered_map<std::string, Answer> files_ MR_GUARDED_BY(mutex_);
};

}  // namespace millrace::object::hf
