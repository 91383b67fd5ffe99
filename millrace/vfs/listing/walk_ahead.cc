#include "millrace/vfs/listing/walk_ahead.h"

#include <algorithm>

#include "millrace/vfs/types/names.h"

namespace millrace::vfs {
namespace {

/// Directories that are read in order before listings are started. A guess: one could be chance.
constexpr int kInOrder = 2;
/// Parents that are remembered, and children of each. They bound the memory to a few tens of MiB; a guess.
constexpr std::size_t kMaxParents = 16, kMaxChildren = 16'384;
/// Listings started ahead where pages take PageStream::kSlowPage or longer; fewer if half of Options::trust is too
/// short to read them.
constexpr std::size_t kAheadIfSlow = 12;
/// Started listings that are not read yet. Twice as many, so that two walks do not drop each other's.
constexpr std::size_t kMaxStarted = 2 * kAheadIfSlow;
/// Pages that such a listing holds. A guess: most directories have no more, and a walker that gave up wastes few.
constexpr int kPagesAhead = 2;

}  // namespace

WalkAhead::ChildLists::iterator WalkAhead::FindChildren(std::string_view parent) {
  return std::ranges::find(children_, parent, &ChildDirectories::parent);
}

WalkAhead::StartedListings::iterator WalkAhead::FindStarted(std::string_view directory) {
  return std::ranges::find(started_, directory, &StartedListing::directory);
}

void WalkAhead::OnPage(const std::string& directory, std::span<const ListedName> names, bool first) {
  if (options_.trust <= Duration::zero()) return;
  MutexLock lock(mutex_);
  auto known = FindChildren(directory);
  if (known != children_.end() && first) children_.erase(std::exchange(known, children_.end()));
  for (const ListedName& listed : names) {
    if (!listed.metadata.is_directory()) continue;
    if (known == children_.end()) {
      if (!first) return;  // the names of the pages before are not remembered any more
      if (children_.size() == kMaxParents) children_.pop_back();
      children_.push_front({.parent = directory, .keys = {}});
      known = children_.begin();
    }
    std::string key = directory + listed.name + "/";
    auto& keys = known->keys;
    if (keys.size() < kMaxChildren && (keys.empty() || keys.back() < key)) keys.push_back(std::move(key));
  }
}

std::shared_ptr<PageStream> WalkAhead::Take(const std::string& directory) {
  if (options_.trust <= Duration::zero() || directory.empty()) return nullptr;
  StartedListings dropped;  // destroyed without the lock, since that waits for requests
  MutexLock lock(mutex_);
  std::shared_ptr<PageStream> stream;
  if (auto found = FindStarted(directory); found != started_.end()) {
    if (clock_.Now() - found->when < options_.trust) stream = found->stream;
    if (auto took = found->stream->quickest_page()) slow_ = *took >= PageStream::kSlowPage;
    dropped.splice(dropped.end(), started_, found);
  }
  auto children = FindChildren(DirectoryOf(std::string_view(directory).substr(0, directory.size() - 1)));
  if (children != children_.end()) {
    children_.splice(children_.begin(), children_, children);
    const auto& keys = children->keys;
    const auto index = static_cast<std::size_t>(std::ranges::lower_bound(keys, directory) - keys.begin());
    if (index < keys.size() && keys[index] == directory) {
      children->in_order = index == children->next ? children->in_order + 1 : 0;
      children->next = index + 1;
      const TimePoint now = clock_.Now();
      children->pace = now - std::exchange(children->last_read, now);
      if (children->in_order >= kInOrder) StartNext(*children, dropped);
    }
  }
  lock.Unlock();
  return stream;
}

void WalkAhead::StartNext(const ChildDirectories& children, StartedListings& dropped) {
  std::size_t ahead = options_.ahead;
  if (slow_) {
    const auto in_time = static_cast<std::size_t>(options_.trust / 2 / std::max<Duration>(children.pace, Duration(1)));
    ahead = std::max(ahead, std::min(kAheadIfSlow, in_time));
  }
  const std::size_t end = std::min(children.keys.size(), children.next + ahead);
  for (std::size_t i = children.next; i < end; ++i) {
    const std::string& key = children.keys[i];
    if (FindStarted(key) != started_.end()) continue;
    while (started_.size() >= kMaxStarted) dropped.splice(dropped.end(), started_, started_.begin());
    auto stream = std::make_shared<PageStream>(
        store_, clock_, key, "", "", PageStream::Options{.parallel = options_.parallel, .most_ahead = kPagesAhead});
    stream->Start();
    started_.push_back({key, clock_.Now(), std::move(stream)});
  }
}

std::optional<TimePoint> WalkAhead::Confirm(const std::string& directory, const object::Call& call) {
  std::shared_ptr<PageStream> stream;
  {
    MutexLock lock(mutex_);
    auto found = FindStarted(directory);
    if (found == started_.end() || clock_.Now() - found->when >= options_.trust) return std::nullopt;
    stream = found->stream;
  }
  return stream->ConfirmedAt(call);
}

void WalkAhead::Forget() {
  StartedListings dropped;
  MutexLock lock(mutex_);
  dropped.swap(started_);
  lock.Unlock();
}

}  // namespace millrace::vfs
