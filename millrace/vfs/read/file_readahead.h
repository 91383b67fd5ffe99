// Prefetch of files that are likely to be opened next.
#pragma once

#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "millrace/base/threads/sync.h"
#include "millrace/cache/block_cache.h"
#include "millrace/vfs/attributes/attribute_store.h"
#include "millrace/vfs/listing/listing.h"
#include "millrace/vfs/metadata/metadata_cache.h"
#include "millrace/vfs/read/order_guess.h"

namespace millrace::vfs {

/// Guesses which files will be opened next, and fetches them into the cache. Two kinds of files are candidates. The
/// first kind is files that a program has announced (WillOpen). The second kind is the next files of a directory, if
/// its files are opened in the order of its listing, or every n-th of that order. A small file is fetched whole, of a
/// larger one only the beginning. The bytes of guesses that are not opened yet are bounded. OrderGuess bounds the
/// number of wrong guesses.
///
/// A guess also proves the version: soon after it, Confirm answers a lookup or an open without another request. If the
/// bytes are in the cache already, a Head proves the version. Thread-safe. The destructor cancels the requests under
/// way and waits for their end.
class FileReadahead {
 public:
  struct Options {
    std::uint64_t most_bytes = 64 * kMiB;  ///< of guesses that are not opened yet
    std::size_t most_hints = 65'536;
    Duration trust{};  ///< how long a version counts as current after its request
    OrderGuess::Options guess;
    /// Returns true if the kernel has the bytes of that version, so that the cache need not fetch them.
    std::function<bool(const std::string& path, const std::string& etag)> has_bytes;
  };
  struct Stats {
    std::uint64_t guesses = 0, opened = 0;  ///< guesses that were opened
  };
  FileReadahead(object::ReadStore& store, cache::BlockCache& cache, MetadataCache& metadata,
                const AttributeStore& attributes, const Clock& clock, Options options);
  ~FileReadahead();
  FileReadahead(const FileReadahead&) = delete;
  FileReadahead& operator=(const FileReadahead&) = delete;

  /// Call when a file is opened for reading. Does not block.
  void OnOpen(const std::string& path) MR_EXCLUDES(mutex_);
  /// Returns the version that a guess has shown to be current within `trust`, without stored attributes. Waits for a
  /// guess under way. Returns nothing if there is no such guess.
  std::optional<Metadata> Confirm(const std::string& path, const object::Call& call) MR_EXCLUDES(mutex_);
  /// Announces that these files will be opened in this order, after the files announced before. Skips names that are no
  /// files. Returns the number of names accepted: fewer if too many wait. Does not block.
  std::size_t WillOpen(std::vector<std::string> paths) MR_EXCLUDES(mutex_);
  Stats stats() const MR_EXCLUDES(mutex_);

 private:
  /// An ordered set of files that may be opened next.
  struct FileOrder {
    explicit FileOrder(OrderGuess::Options options) : guess(options) {}
    std::optional<Listing> listing;  ///< the source of the names; nothing: WillOpen
    bool asking = false;             ///< a page was requested
    std::uint64_t begin = 0;         ///< the position of paths.front()
    std::deque<std::string> paths;
    std::unordered_map<std::string, std::uint64_t> positions;
    OrderGuess guess;
    OrderGuess::Plan plan;  ///< the latest plan; it continues when more names are known

    void Add(std::string path);
    std::uint64_t end() const { return begin + paths.size(); }
  };
  using FileOrderPtr = std::shared_ptr<FileOrder>;
  /// A directory in which files are being opened.
  struct DirectoryWatch {
    std::string last;
    int ascending = 0;  ///< the latest opens that came in the order of names
    int needed = 0;     ///< ascending opens before its listing is read
    FileOrderPtr order;
    std::uint64_t used = 0;
  };
  struct Guess {
    enum class State { kNew, kFetching, kAsking, kKnown };
    State state = State::kNew;
    std::optional<Metadata> metadata;  ///< of the version fetched; it was current at as_of
    std::uint64_t bytes = 0;
    TimePoint made;
    std::list<std::string>::iterator position;
  };
  /// Requests to send once the mutex is free.
  struct DeferredWork {
    std::vector<std::pair<std::string, std::optional<Metadata>>> guesses;  ///< with the version, if known
    FileOrderPtr list;
  };

  void FollowDirectory(const std::string& path, bool guessed, DeferredWork& work) MR_REQUIRES(mutex_);
  void StartOrder(DirectoryWatch& watch, const std::string& directory, const std::string& after, DeferredWork& work)
      MR_REQUIRES(mutex_);
  void ExtendGuesses(const FileOrderPtr& order, DeferredWork& work) MR_REQUIRES(mutex_);
  bool AddGuess(const std::string& path, DeferredWork& work) MR_REQUIRES(mutex_);
  void DropGuess(const std::string& path) MR_REQUIRES(mutex_);
  bool HasRoom() MR_REQUIRES(mutex_);
  std::uint64_t BytesAhead(const Metadata& metadata) const;

  void Perform(DeferredWork work) MR_EXCLUDES(mutex_);
  void Fetch(const std::string& path, Metadata metadata) MR_EXCLUDES(mutex_);
  void RequestHead(const std::string& path, bool fetch_then) MR_EXCLUDES(mutex_);
  void NextPage(FileOrderPtr order) MR_EXCLUDES(mutex_);
  void BeginRequest() MR_EXCLUDES(mutex_);
  void EndRequest() MR_EXCLUDES(mutex_);

  object::ReadStore& store_;
  cache::BlockCache& cache_;
  MetadataCache& metadata_;
  const AttributeStore& attributes_;
  const Clock& clock_;
  const Options options_;
  std::stop_source stop_;

  mutable Mutex mutex_;
  CondVar changed_;
  int requests_ MR_GUARDED_BY(mutex_) = 0;
  std::uint64_t uses_ MR_GUARDED_BY(mutex_) = 0;
  Stats stats_ MR_GUARDED_BY(mutex_);
  std::unordered_map<std::string, DirectoryWatch> watches_ MR_GUARDED_BY(mutex_);  ///< by directory
  FileOrderPtr hints_ MR_GUARDED_BY(mutex_);
  std::unordered_map<std::string, Guess> guesses_ MR_GUARDED_BY(mutex_);  ///< by path; not opened yet
  std::list<std::string> oldest_ MR_GUARDED_BY(mutex_);                   ///< their paths, oldest first
  std::uint64_t guessed_bytes_ MR_GUARDED_BY(mutex_) = 0;
};

}  // namespace millrace::vfs
