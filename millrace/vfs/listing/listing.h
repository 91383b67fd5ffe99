// The names of one directory, page by page.
#pragma once

#include <string>
#include <vector>

#include "millrace/object/read_store.h"
#include "millrace/vfs/metadata/metadata_cache.h"

namespace millrace::vfs {

struct ListedName {
  std::string name;
  Metadata metadata;
};

/// Reads a directory's listing once, from the start or from a position. Puts the names into the MetadataCache, and
/// the directory itself. If a file and a directory share a name, only the directory is shown. A file whose name
/// may still appear as a directory ("a" comes before "a-b" and "a/") is held back until that is decided. Not
/// thread-safe.
class Listing {
 public:
  /// The beginning of a page. The listing can be read again from it.
  struct Position {
    std::string start_after;       ///< the last key or prefix before the page
    std::vector<ListedName> held;  ///< files that are held back; each name is a prefix of the next
  };

  /// `directory`: empty, or ends with '/'. The store and the cache must outlive the listing.
  Listing(object::ReadStore& store, MetadataCache& cache, const Clock& clock, std::string directory,
          Position from = {});

  /// Returns the next names, possibly none. Call until done(). Blocks.
  Result<std::vector<ListedName>> Next(object::Call call = {});
  /// Next in two steps, for callers that do not block: the request, and the names in its answer. `as_of`: when the
  /// request was sent.
  object::ListRequest NextRequest() const;
  /// Errors: kUnsupported if the page does not come after the page before in the order of names.
  Result<std::vector<ListedName>> Accept(object::ListPage page, TimePoint as_of);
  bool done() const { return done_; }
  const std::string& directory() const { return directory_; }
  /// The beginning of the page after the last page read.
  const Position& position() const { return position_; }

 private:
  Status CheckOrder(const object::ListPage& page) const;
  void LearnMarker(const object::ListPage& page, TimePoint as_of);
  void Add(ListedName next, std::vector<ListedName>& names);
  void ReleaseHeld(std::string_view next, std::vector<ListedName>& names);

  object::ReadStore& store_;
  MetadataCache& cache_;
  const Clock& clock_;
  const std::string directory_;
  const std::string start_after_;
  Position position_;
  std::string continuation_;
  TimePoint began_;  ///< when the oldest page was requested, or the listing was made
  bool done_ = false;
};

}  // namespace millrace::vfs
