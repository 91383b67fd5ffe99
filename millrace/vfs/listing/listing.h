// The names of one directory, page by page.
#pragma once

#include <string>
#include <vector>

#include "millrace/object/store.h"
#include "millrace/vfs/metadata/metadata_cache.h"

namespace millrace::vfs {

struct ListedName {
  std::string name;
  Metadata metadata;
};

/// Reads a directory's listing once, from the start or from a remembered position, and remembers what it sees in the
/// MetadataCache, the directory itself included. Where a file and a directory share a name, only the directory is
/// shown: files whose name might still turn up as a directory ("a" before "a-b" and "a/") are held back until that is
/// decided. One owner.
class Listing {
 public:
  /// Where a page begins; pages can be read again from it.
  struct Position {
    std::string start_after;       ///< the last key or prefix before it
    std::vector<ListedName> held;  ///< each a prefix of the next
  };

  /// `directory`: empty, or ends with '/'. The store and the cache must outlive the listing.
  Listing(object::Store& store, MetadataCache& cache, const Clock& clock, std::string directory, Position from = {});

  /// The next names, possibly none; call until done().
  Result<std::vector<ListedName>> Next(object::Call call = {});
  /// The same in two steps, for those who do not wait: what to ask the store, and what its answer tells. `as_of`: when
  /// it was asked.
  object::ListRequest NextRequest() const;
  std::vector<ListedName> Accept(object::ListPage page, TimePoint as_of);
  bool done() const { return done_; }
  const std::string& directory() const { return directory_; }
  /// Where the page after the last one begins.
  const Position& position() const { return position_; }

 private:
  void LearnMarker(const object::ListPage& page, TimePoint as_of);
  void Add(ListedName next, std::vector<ListedName>& names);
  void ReleaseHeld(std::string_view next, std::vector<ListedName>& names);

  object::Store& store_;
  MetadataCache& cache_;
  const Clock& clock_;
  const std::string directory_;
  const std::string start_after_;
  Position position_;
  std::string continuation_;
  TimePoint began_;  ///< no page is older
  bool done_ = false;
};

}  // namespace millrace::vfs
