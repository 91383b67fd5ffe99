// A cache of the metadata of paths.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/threads/sync.h"
#include "millrace/vfs/metadata/metadata.h"
#include "millrace/vfs/metadata/slot_index.h"

namespace millrace::vfs {

/// A bounded cache of paths (keys without a trailing slash) with a time-to-live. The later answer wins: an answer whose
/// request began before a change of this tree does not undo the change. A directory that is known in full answers for
/// names that do not exist, too. A path takes about 100 bytes (vfs/README.md, "The memory of a name"). The CLOCK
/// algorithm evicts paths that were not used for long. Thread-safe. Never blocks.
class MetadataCache {
 public:
  MetadataCache(const Clock& clock, Duration ttl, Duration negative_ttl, std::size_t capacity)
      : clock_(clock), ttl_(ttl), negative_ttl_(negative_ttl), capacity_(capacity) {}

  std::optional<Metadata> Find(std::string_view path) MR_EXCLUDES(mutex_);
  /// Returns what was Put last, even if the time-to-live has passed.
  std::optional<Metadata> FindLast(std::string_view path) const MR_EXCLUDES(mutex_);
  void Put(std::string_view path, Metadata metadata) MR_EXCLUDES(mutex_);
  /// Adds stored attributes to `state`, which a listing showed, if they are known for the same version.
  void Recall(std::string_view path, Metadata& state) MR_EXCLUDES(mutex_);
  /// Call when every name in `directory` ("" or ending with '/') that existed at `as_of` has been Put.
  void PutComplete(std::string_view directory, TimePoint as_of) MR_EXCLUDES(mutex_);

  /// The known form of a directory's marker object. kMarked: entries of the directory have stored attributes.
  enum class Marker : std::uint8_t { kNone, kPlain, kMarked };
  /// Returns whether markers may be marked by their metadata, which listings do not show.
  bool marks_by_notes() const { return marks_by_notes_.load(std::memory_order_relaxed); }
  void MarkByNotes() { marks_by_notes_.store(true, std::memory_order_relaxed); }
  std::optional<Marker> FindMarker(std::string_view directory) MR_EXCLUDES(mutex_);
  void PutMarker(std::string_view directory, Marker marker, TimePoint as_of) MR_EXCLUDES(mutex_);

  /// Forgets all paths below a directory.
  void ForgetBelow(std::string_view directory) MR_EXCLUDES(mutex_);

  bool remembers() const { return ttl_ > Duration::zero(); }
  /// Returns how long from now an answer may be used.
  Duration ValidFor(const Metadata& metadata) const;

 private:
  using Slot = std::uint32_t;
  using DirectoryId = std::uint32_t;
  static constexpr std::uint32_t kNone = SlotIndex::kNone;
  struct CachedName {
    SmallBytes name;
    [[no_unique_address]] PackedMetadata metadata;
    bool used = false;              ///< since the clock's hand passed last
    DirectoryId directory = kNone;  ///< kNone: the slot is free
  };
  struct Directory {
    std::string_view path;  ///< as in directory_ids_
    std::size_t names = 0;
  };
  struct StringHash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  template <class T>
  using ByPath = std::unordered_map<std::string, T, StringHash, std::equal_to<>>;
  struct KnownMarker {
    Marker marker = Marker::kNone;
    TimePoint as_of;
  };

  static void TakeAttributes(const PackedMetadata& known, Metadata& state);
  Slot FindSlot(std::string_view path) const MR_REQUIRES(mutex_);
  Slot TakeSlot() MR_REQUIRES(mutex_);
  void Erase(Slot slot) MR_REQUIRES(mutex_);
  DirectoryId TakeDirectory(std::string_view path) MR_REQUIRES(mutex_);
  /// Returns the function that names_ needs.
  auto HashOf() const MR_REQUIRES(mutex_);

  const Clock& clock_;
  const Duration ttl_, negative_ttl_;
  const std::size_t capacity_;
  mutable Mutex mutex_;
  std::deque<CachedName> slots_ MR_GUARDED_BY(mutex_);
  std::vector<Slot> free_ MR_GUARDED_BY(mutex_);
  Slot hand_ MR_GUARDED_BY(mutex_) = 0;  ///< the clock's hand: the slot that eviction looks at next
  SlotIndex names_ MR_GUARDED_BY(mutex_);
  std::vector<Directory> directories_ MR_GUARDED_BY(mutex_);  ///< unused elements are listed in free_directories_
  std::vector<DirectoryId> free_directories_ MR_GUARDED_BY(mutex_);
  ByPath<DirectoryId> directory_ids_ MR_GUARDED_BY(mutex_);
  ByPath<TimePoint> complete_ MR_GUARDED_BY(mutex_);
  ByPath<KnownMarker> markers_ MR_GUARDED_BY(mutex_);
  std::atomic<bool> marks_by_notes_ = false;
};

}  // namespace millrace::vfs
