// An open directory of a Tree.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/base/threads/sync.h"
#include "millrace/object/store.h"
#include "millrace/vfs/listing/listing.h"
#include "millrace/vfs/listing/page_stream.h"
#include "millrace/vfs/metadata/inode_table.h"
#include "millrace/vfs/staging/session_state.h"
#include "millrace/vfs/types/node.h"

namespace millrace::vfs {

struct TreeCore;

/// One name of a directory. The name is valid during the visit only.
struct DirectoryEntry {
  std::string_view name;
  NodeKind kind = NodeKind::kFile;
  std::uint64_t next_cookie = 0;  ///< the cookie of the entry after this one
  CacheableAttributes entry;      ///< with Directory::ReadPlus only
};

/// An open directory: a stream of pages of names. A cookie is the position of an entry. Cookies stay valid until the
/// Directory is destroyed, and may be used in any order. Cookie 0 is the start; it reads the directory again. A name
/// that exists throughout one pass appears exactly once. "." and ".." do not appear.
///
/// Tree::OpenDirectory makes it. Thread-safe. Blocks on the network at the ends of pages. Shares the ownership of the
/// tree's state.
class Directory {
 public:
  /// Returns false to stop. The entry then counts as not seen.
  using Visit = std::function<bool(const DirectoryEntry&)>;
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;
  ~Directory() = default;

  /// Visits the entries from `cookie` on: at least one, unless the directory ends there. Stops before a page that has
  /// not arrived, so that the caller can work on the first entries meanwhile. Blocks for the first page.
  Status Read(std::uint64_t cookie, const Visit& visit, object::Call call = {});
  /// As Read. Each entry seen counts as one lookup, as by Tree::Lookup.
  Status ReadPlus(std::uint64_t cookie, const Visit& visit, object::Call call = {});
  InodeId inode() const;
  /// Writes the beginning of each page that is read into the session's log, so that another process can read on.
  /// `number`: the directory's in the log. REQUIRES: the tree has a session.
  void LogPages(std::uint64_t number) MR_EXCLUDES(mutex_);

 private:
  friend class Tree;
  Directory(std::shared_ptr<TreeCore> core, std::shared_ptr<Inode> inode);
  void Restore(std::uint64_t number, const SavedDirectory& saved) MR_EXCLUDES(mutex_);
  void AddPage(Listing::Position begin) MR_REQUIRES(mutex_);

  template <class Emit>
  Status ReadFrom(std::uint64_t cookie, const object::Call& call, const Emit& emit) MR_EXCLUDES(mutex_);
  void Restart() MR_REQUIRES(mutex_);
  bool HasPage(std::uint64_t number) MR_REQUIRES(mutex_);
  Result<bool> LoadPage(std::uint64_t number, const object::Call& call) MR_REQUIRES(mutex_);
  Result<std::vector<ListedName>> NextNames(bool all, const object::Call& call) MR_REQUIRES(mutex_);
  void AddLocalNames(const std::string& key, std::vector<InodeTable::LocalChild> children) MR_REQUIRES(mutex_);

  static constexpr std::uint64_t kNoPage = ~0ULL;

  // Constant after construction.
  const std::shared_ptr<TreeCore> core_;
  const std::shared_ptr<Inode> inode_;

  // Guarded by mutex_. Holds the page read last, and the beginning of each page (one key a page), so that every page
  // can be read again.
  Mutex mutex_;
  std::vector<Listing::Position> begins_ MR_GUARDED_BY(mutex_) = {{}};
  std::optional<std::uint64_t> logged_ MR_GUARDED_BY(mutex_);  ///< the number in the session's log
  std::uint64_t current_ MR_GUARDED_BY(mutex_) = kNoPage;      ///< the number of `page_`
  std::vector<ListedName> page_ MR_GUARDED_BY(mutex_);
  std::optional<Listing> listing_ MR_GUARDED_BY(mutex_);
  std::shared_ptr<PageStream> stream_ MR_GUARDED_BY(mutex_);  ///< the pages after the current one
  std::set<std::string> local_
      MR_GUARDED_BY(mutex_);  ///< local names, which the first page showed; later pages leave them out
};

}  // namespace millrace::vfs
