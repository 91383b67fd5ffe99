#include "millrace/vfs/metadata_cache.h"

#include <algorithm>

#include "millrace/vfs/names.h"

namespace millrace::vfs {
namespace {

constexpr std::size_t kMaxCompleteDirectories = 4096;

}  // namespace

Metadata FileMetadata(const object::ObjectInfo& info, TimePoint as_of) {
  Metadata state{.state = Metadata::State::kFile, .size = info.size, .modified = info.modified, .etag = info.etag};
  state.as_of = as_of;
  return state;
}

bool Metadata::SameVersion(const Metadata& other) const {
  auto second = [](WallTime time) { return std::chrono::floor<std::chrono::seconds>(time); };  // all that a Head tells
  return state == other.state && etag == other.etag && size == other.size && second(modified) == second(other.modified);
}

std::optional<Metadata> MetadataCache::Find(std::string_view path) {
  const TimePoint now = clock_.Now();
  MutexLock lock(mutex_);
  if (auto found = slots_.find(path); found != slots_.end()) {
    const Metadata& metadata = found->second.metadata;
    if (now - metadata.as_of < (metadata.absent() ? negative_ttl_ : ttl_)) {
      order_.splice(order_.end(), order_, found->second.position);
      return metadata;
    }
    if (!metadata.absent()) return std::nullopt;  // it was there after the directory was listed
  }
  auto complete = complete_.find(DirectoryOf(path));
  if (complete != complete_.end() && now - complete->second < negative_ttl_) return Metadata{.as_of = complete->second};
  return std::nullopt;
}

std::optional<Metadata> MetadataCache::FindLast(std::string_view path) const {
  MutexLock lock(mutex_);
  auto found = slots_.find(path);
  if (found == slots_.end()) return std::nullopt;
  return found->second.metadata;
}

void MetadataCache::Put(std::string_view path, Metadata metadata) {
  MutexLock lock(mutex_);
  auto found = slots_.find(path);
  if (found != slots_.end()) {
    const Metadata& known = found->second.metadata;
    if (known.as_of > metadata.as_of) return;
    TakeAttributes(known, metadata);
    found->second.metadata = std::move(metadata);
    order_.splice(order_.end(), order_, found->second.position);
    return;
  }
  while (slots_.size() >= capacity_ && !slots_.empty()) EvictOldest();
  auto slot = slots_.emplace(std::string(path), Slot{std::move(metadata), {}}).first;
  slot->second.position = order_.insert(order_.end(), &slot->first);
}

void MetadataCache::TakeAttributes(const Metadata& known, Metadata& state) {
  if (state.complete || !known.complete || !known.settled || !state.is_file() || !known.SameVersion(state)) return;
  state.attributes = known.attributes;
  state.complete = state.settled = true;
}

void MetadataCache::Recall(std::string_view path, Metadata& state) {
  MutexLock lock(mutex_);
  if (auto found = slots_.find(path); found != slots_.end()) TakeAttributes(found->second.metadata, state);
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
  for (auto at = slots_.begin(); at != slots_.end();) {
    if (!below(*at)) {
      ++at;
      continue;
    }
    order_.erase(at->second.position);
    at = slots_.erase(at);
  }
  std::erase_if(complete_, below);
  std::erase_if(markers_, below);
}

Duration MetadataCache::ValidFor(const Metadata& metadata) const {
  const Duration ttl = metadata.absent() ? negative_ttl_ : ttl_;
  return std::max(Duration::zero(), ttl - (clock_.Now() - metadata.as_of));
}

void MetadataCache::EvictOldest() {
  auto slot = slots_.find(*order_.front());
  // Without this slot the directory is no longer known in full.
  if (auto complete = complete_.find(DirectoryOf(slot->first)); complete != complete_.end()) complete_.erase(complete);
  order_.pop_front();
  slots_.erase(slot);
}

}  // namespace millrace::vfs
