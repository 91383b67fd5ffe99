// What the store said about names, and when.
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "millrace/base/clock.h"
#include "millrace/base/sync.h"
#include "millrace/object/store.h"

namespace millrace::vfs {

/// What is at a path, as of a moment.
struct Metadata {
  enum class State : std::uint8_t { kAbsent, kFile, kDirectory };
  State state = State::kAbsent;
  std::uint64_t size = 0;
  WallTime modified;
  std::string etag;
  TimePoint as_of;  ///< true at this moment or later: when the request began, or when our own change was done

  bool absent() const { return state == State::kAbsent; }
  bool is_file() const { return state == State::kFile; }
  bool is_directory() const { return state == State::kDirectory; }
};

Metadata FileMetadata(const object::ObjectInfo& info, TimePoint as_of);

/// A bounded memory of paths (keys without a trailing slash) for as long as the time-to-live allows. Later knowledge
/// always wins: an answer whose request began before our own change does not undo it. Directories known in full answer
/// for names that do not exist, too. Thread-safe; never blocks.
class MetadataCache {
 public:
  MetadataCache(const Clock& clock, Duration ttl, Duration negative_ttl, std::size_t capacity)
      : clock_(clock), ttl_(ttl), negative_ttl_(negative_ttl), capacity_(capacity) {}

  std::optional<Metadata> Find(std::string_view path) MR_EXCLUDES(mutex_);
  void Put(std::string_view path, Metadata metadata) MR_EXCLUDES(mutex_);
  /// Every name below `directory` ("" or ending with '/') as of then has been Put.
  void PutComplete(std::string_view directory, TimePoint as_of) MR_EXCLUDES(mutex_);
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
  void EvictOldest() MR_REQUIRES(mutex_);

  const Clock& clock_;
  const Duration ttl_, negative_ttl_;
  const std::size_t capacity_;
  Mutex mutex_;
  std::unordered_map<std::string, Slot, StringHash, std::equal_to<>> slots_ MR_GUARDED_BY(mutex_);
  std::list<const std::string*> order_ MR_GUARDED_BY(mutex_);  ///< keys of slots_, oldest first
  std::unordered_map<std::string, TimePoint, StringHash, std::equal_to<>> complete_ MR_GUARDED_BY(mutex_);
};

}  // namespace millrace::vfs
