// What the store said about names, and when.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "millrace/base/clock.h"
#include "millrace/base/sync.h"
#include "millrace/object/store.h"
#include "millrace/vfs/attributes.h"

namespace millrace::vfs {

/// What is at a path, as of a moment.
struct Metadata {
  enum class State : std::uint8_t { kAbsent, kFile, kDirectory };
  State state = State::kAbsent;
  std::uint64_t size = 0;
  WallTime modified;
  std::string etag;
  TimePoint as_of;  ///< true at this moment or later: when the request began, or when our own change was done

  /// What is stored of attributes, for a directory in its marker; nothing when there are none, or not known yet.
  std::shared_ptr<const StoredAttributes> attributes;
  bool complete = false;  ///< `attributes` are known; a listing does not tell them
  bool settled = false;   ///< no later version can have this one's ETag and `modified`

  bool absent() const { return state == State::kAbsent; }
  bool is_file() const { return state == State::kFile; }
  bool is_directory() const { return state == State::kDirectory; }
  bool is_symlink() const { return is_file() && attributes && attributes->is_symlink(); }
  /// True when both tell of the same version of an object. Its attributes are then the same, too.
  bool SameVersion(const Metadata& other) const;
};

/// What a listing says about a file.
Metadata FileMetadata(const object::ObjectInfo& info, TimePoint as_of);

/// A bounded memory of paths (keys without a trailing slash) for as long as the time-to-live allows. Later knowledge
/// always wins: an answer whose request began before our own change does not undo it. Directories known in full answer
/// for names that do not exist, too. Thread-safe; never blocks.
class MetadataCache {
 public:
  MetadataCache(const Clock& clock, Duration ttl, Duration negative_ttl, std::size_t capacity)
      : clock_(clock), ttl_(ttl), negative_ttl_(negative_ttl), capacity_(capacity) {}

  std::optional<Metadata> Find(std::string_view path) MR_EXCLUDES(mutex_);
  /// What was last known to be there, however long ago.
  std::optional<Metadata> FindLast(std::string_view path) const MR_EXCLUDES(mutex_);
  void Put(std::string_view path, Metadata metadata) MR_EXCLUDES(mutex_);
  /// Completes what a listing told of a file with the attributes that are known of this version.
  void Recall(std::string_view path, Metadata& state) MR_EXCLUDES(mutex_);
  /// Every name below `directory` ("" or ending with '/') as of then has been Put.
  void PutComplete(std::string_view directory, TimePoint as_of) MR_EXCLUDES(mutex_);

  /// What is known of a directory's marker object: a marked one says that entries have stored attributes.
  enum class Marker : std::uint8_t { kNone, kPlain, kMarked };
  std::optional<Marker> FindMarker(std::string_view directory) MR_EXCLUDES(mutex_);
  void PutMarker(std::string_view directory, Marker marker, TimePoint as_of) MR_EXCLUDES(mutex_);

  /// Forgets whatever is below a directory.
  void ForgetBelow(std::string_view directory) MR_EXCLUDES(mutex_);

  bool remembers() const { return ttl_ > Duration::zero(); }
  /// For how long from now an answer may be used.
  Duration ValidFor(const Metadata& metadata) const;

 private:
  struct Slot {
    Metadata metadata;
    std::list<const std::string*>::iterator position;
  };
  struct StringHash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  struct KnownMarker {
    Marker marker = Marker::kNone;
    TimePoint as_of;
  };
  static void TakeAttributes(const Metadata& known, Metadata& state);
  void EvictOldest() MR_REQUIRES(mutex_);

  const Clock& clock_;
  const Duration ttl_, negative_ttl_;
  const std::size_t capacity_;
  mutable Mutex mutex_;
  std::unordered_map<std::string, Slot, StringHash, std::equal_to<>> slots_ MR_GUARDED_BY(mutex_);
  std::list<const std::string*> order_ MR_GUARDED_BY(mutex_);  ///< keys of slots_, oldest first
  std::unordered_map<std::string, TimePoint, StringHash, std::equal_to<>> complete_ MR_GUARDED_BY(mutex_);
  std::unordered_map<std::string, KnownMarker, StringHash, std::equal_to<>> markers_ MR_GUARDED_BY(mutex_);
};

}  // namespace millrace::vfs
