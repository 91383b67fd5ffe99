#include "millrace/vfs/metadata/metadata_cache.h"

#include <algorithm>
#include <functional>

#include "millrace/vfs/types/names.h"

namespace millrace::vfs {
namespace {

/// Directories that are known in full, and markers. The bound holds their memory to about 1 MiB; a guess.
constexpr std::size_t kMaxCompleteDirectories = 4096;

std::uint64_t HashName(std::uint32_t directory, std::string_view name) {
  return std::hash<std::string_view>()(name) ^ (directory * 0x9E3779B97F4A7C15ULL);
}

}  // namespace

auto MetadataCache::HashOf() const {
  return [this](Slot slot)
             MR_NO_THREAD_SAFETY_ANALYSIS { return HashName(slots_[slot].directory, slots_[slot].name.view()); };
}

std::optional<Metadata> MetadataCache::Find(std::string_view path) {
  const TimePoint now = clock_.Now();
  MutexLock lock(mutex_);
  if (const Slot slot = FindSlot(path); slot != kNone) {
    CachedName& known = slots_[slot];
    const bool absent = known.metadata.state() == Metadata::State::kAbsent;
    if (now - known.metadata.as_of() < (absent ? negative_ttl_ : ttl_)) {
      known.used = true;
      return known.metadata.Unpack();
    }
    if (!absent) return std::nullopt;  // complete_ says nothing of a name that existed
  }
  auto complete = complete_.find(DirectoryOf(path));
  if (complete != complete_.end() && now - complete->second < negative_ttl_) return Metadata{.as_of = complete->second};
  return std::nullopt;
}

std::optional<Metadata> MetadataCache::FindLast(std::string_view path) const {
  MutexLock lock(mutex_);
  const Slot slot = FindSlot(path);
  if (slot == kNone) return std::nullopt;
  return slots_[slot].metadata.Unpack();
}

void MetadataCache::Put(std::string_view path, Metadata metadata) {
  MutexLock lock(mutex_);
  Slot slot = FindSlot(path);
  if (slot != kNone) {
    CachedName& known = slots_[slot];
    if (known.metadata.as_of() > metadata.as_of) return;
    TakeAttributes(known.metadata, metadata);
    known.metadata = PackedMetadata(metadata);
    known.used = true;
    return;
  }
  if (capacity_ == 0) return;
  slot = TakeSlot();
  const std::string_view directory = DirectoryOf(path);
  CachedName& known = slots_[slot];
  known.name = SmallBytes(path.substr(directory.size()));
  known.metadata = PackedMetadata(metadata);
  known.used = false;
  known.directory = TakeDirectory(directory);
  names_.Insert(slot, HashOf());
}

void MetadataCache::TakeAttributes(const PackedMetadata& packed, Metadata& state) {
  if (state.complete || !state.is_file() || !packed.settled()) return;
  const Metadata known = packed.Unpack();
  if (!known.complete || !known.SameVersion(state)) return;
  state.attributes = known.attributes;
  state.complete = state.settled = true;
}

void MetadataCache::Recall(std::string_view path, Metadata& state) {
  MutexLock lock(mutex_);
  if (const Slot slot = FindSlot(path); slot != kNone) TakeAttributes(slots_[slot].metadata, state);
}

void MetadataCache::PutComplete(std::string_view directory, TimePoint as_of) {
  MutexLock lock(mutex_);
  if (complete_.size() >= kMaxCompleteDirectories) complete_.clear();
  TimePoint& known = complete_[std::string(directory)];
  known = std::max(known, as_of);
}

std::optional<MetadataCache::Marker> MetadataCache::FindMarker(std::string_view directory) {
  MutexLock lock(mutex_);
  auto found = markers_.find(directory);
  if (found == markers_.end() || clock_.Now() - found->second.as_of >= ttl_) return std::nullopt;
  return found->second.marker;
}

void MetadataCache::PutMarker(std::string_view directory, Marker marker, TimePoint as_of) {
  MutexLock lock(mutex_);
  if (markers_.size() >= kMaxCompleteDirectories) markers_.clear();
  KnownMarker& known = markers_[std::string(directory)];
  if (known.as_of <= as_of) known = {marker, as_of};
}

void MetadataCache::ForgetBelow(std::string_view directory) {
  auto below = [&](const auto& item) { return item.first.starts_with(directory); };
  MutexLock lock(mutex_);
  for (Slot slot = 0; slot < slots_.size(); ++slot) {
    const DirectoryId holder = slots_[slot].directory;
    if (holder == kNone || !directories_[holder].path.starts_with(directory)) continue;
    Erase(slot);
    free_.push_back(slot);
  }
  std::erase_if(complete_, below);
  std::erase_if(markers_, below);
}

Duration MetadataCache::ValidFor(const Metadata& metadata) const {
  const Duration ttl = metadata.absent() ? negative_ttl_ : ttl_;
  return std::max(Duration::zero(), ttl - (clock_.Now() - metadata.as_of));
}

// --- Slots ---

MetadataCache::Slot MetadataCache::FindSlot(std::string_view path) const {
  const std::string_view directory = DirectoryOf(path), name = path.substr(directory.size());
  auto id = directory_ids_.find(directory);
  if (id == directory_ids_.end()) return kNone;
  return names_.Find(HashName(id->second, name), [&](Slot slot) MR_NO_THREAD_SAFETY_ANALYSIS {
    return slots_[slot].directory == id->second && slots_[slot].name.view() == name;
  });
}

/// Returns a free slot. If there is none, evicts the next name that was not used since the hand passed last.
MetadataCache::Slot MetadataCache::TakeSlot() {
  if (!free_.empty()) {
    const Slot slot = free_.back();
    free_.pop_back();
    return slot;
  }
  if (slots_.size() < capacity_) {
    slots_.emplace_back();
    return static_cast<Slot>(slots_.size() - 1);
  }
  auto advance = [this]() MR_NO_THREAD_SAFETY_ANALYSIS {
    return std::exchange(hand_, hand_ + 1 == slots_.size() ? 0 : hand_ + 1);
  };
  Slot slot = advance();
  for (; slots_[slot].used; slot = advance()) slots_[slot].used = false;
  // Without this name, the cache does not know the directory in full.
  if (auto complete = complete_.find(directories_[slots_[slot].directory].path); complete != complete_.end()) {
    complete_.erase(complete);
  }
  Erase(slot);
  return slot;
}

void MetadataCache::Erase(Slot slot) {
  names_.Erase(slot, HashOf());
  CachedName& known = slots_[slot];
  const DirectoryId id = known.directory;
  known = CachedName();
  if (--directories_[id].names > 0) return;
  directory_ids_.erase(directory_ids_.find(directories_[id].path));
  directories_[id].path = {};
  free_directories_.push_back(id);
}

MetadataCache::DirectoryId MetadataCache::TakeDirectory(std::string_view path) {
  auto found = directory_ids_.find(path);
  if (found == directory_ids_.end()) {
    DirectoryId id = static_cast<DirectoryId>(directories_.size());
    if (free_directories_.empty()) {
      directories_.emplace_back();
    } else {
      id = free_directories_.back();
      free_directories_.pop_back();
    }
    found = directory_ids_.emplace(std::string(path), id).first;
    directories_[id].path = found->first;
  }
  ++directories_[found->second].names;
  return found->second;
}

}  // namespace millrace::vfs
