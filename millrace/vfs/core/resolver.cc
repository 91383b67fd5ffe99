#include "millrace/vfs/core/resolver.h"

#include <future>

#include "millrace/object/blocking.h"
#include "millrace/vfs/listing/listing.h"
#include "millrace/vfs/types/names.h"

namespace millrace::vfs {
namespace {

/// Lookups in one directory before its listing is read. A lookup takes two requests, a listing kWholePages; a guess.
constexpr int kLookupsBeforeListing = 3;
/// Directories of up to 4,000 names are read in full. For larger ones a lookup is cheaper; a guess.
constexpr int kWholePages = 4;
constexpr Duration kMemory = std::chrono::seconds(2);  ///< older lookups do not count: another program's; a guess
constexpr std::size_t kMaxDirectories = 4096;          ///< bounds the memory, to about 1 MiB

/// Returns a string that sorts just before `path` and keeps its first `keep` bytes. A listing after it begins at `path`
/// or close to it.
std::string JustBefore(std::string path, std::size_t keep) {
  auto continues_character = [&] { return (static_cast<unsigned char>(path.back()) & 0xC0) == 0x80; };
  while (path.size() > keep && continues_character()) path.pop_back();
  if (path.size() > keep) path.pop_back();
  return path;
}

}  // namespace

Result<Metadata> Resolver::Find(const std::string& path, object::Call call) {
  Metadata state = MR_TRY(FindState(path, call));
  MR_TRY(attributes_.Complete(path, state, call));
  return state;
}

Result<Metadata> Resolver::FindState(const std::string& path, const object::Call& call) {
  if (auto known = cache_.Find(path)) return *known;
  if (auto confirmed = ahead_.Confirm(path, call)) return *confirmed;
  if (auto proved = walk_.Confirm(path + "/", call)) {
    Metadata found{.state = Metadata::State::kDirectory, .as_of = *proved};
    cache_.Put(path, found);
    return found;
  }
  const std::string directory(DirectoryOf(path));
  const Strategy strategy = ChooseStrategy(directory, path);
  if (strategy != Strategy::kHead) {
    Status listed = ListDirectory(directory, path, strategy, call);
    {
      MutexLock lock(mutex_);
      lookups_[directory].listing = false;
    }
    if (listed) {
      if (auto known = cache_.Find(path)) return *known;
    }
  }
  return AskStore(path, call);
}

Resolver::Strategy Resolver::ChooseStrategy(std::string_view directory, const std::string& path) {
  MutexLock lock(mutex_);
  if (lookups_.size() >= kMaxDirectories) lookups_.clear();
  RecentLookups& recent = lookups_[std::string(directory)];
  if (const TimePoint now = clock_.Now(); now - recent.since > kMemory) {
    recent.times = 0;
    recent.since = now;
  }
  recent.ascending = path > recent.last ? recent.ascending + 1 : 0;
  recent.last = path;
  if (++recent.times <= kLookupsBeforeListing || recent.listing || !cache_.remembers()) return Strategy::kHead;
  if (recent.large && recent.ascending <= kLookupsBeforeListing) return Strategy::kHead;
  recent.listing = true;
  return recent.large ? Strategy::kListFromName : Strategy::kListFromStart;
}

Status Resolver::ListDirectory(const std::string& directory, const std::string& path, Strategy strategy,
                               const object::Call& call) {
  Listing::Position from;
  if (strategy == Strategy::kListFromName) from.start_after = JustBefore(path, directory.size());
  Listing listing(store_, cache_, clock_, directory, std::move(from));
  for (int page = 0; page < (strategy == Strategy::kListFromStart ? kWholePages : 1) && !listing.done(); ++page) {
    MR_TRY(listing.Next(call));
  }
  if (strategy == Strategy::kListFromStart && !listing.done()) {
    MutexLock lock(mutex_);
    lookups_[directory].large = true;
  }
  return {};
}

Result<Metadata> Resolver::RefreshFile(const std::string& path, object::Call call) {
  const TimePoint as_of = clock_.Now();
  auto info = MR_TRY(object::Head(store_, path, call));
  if (!info) return AskStore(path, call);
  Metadata metadata = attributes_.FromHead(*info, as_of);
  cache_.Put(path, metadata);
  return metadata;
}

Result<Metadata> Resolver::AskStore(const std::string& path, const object::Call& call) {
  const TimePoint as_of = clock_.Now();
  std::promise<Result<std::optional<object::ObjectInfo>>> head_done;
  std::promise<Result<object::ListPage>> list_done;
  store_.Head(path, call, [&](auto result) { head_done.set_value(std::move(result)); });
  store_.List({.prefix = path + "/", .max_keys = 1}, call,
              [&](auto result) { list_done.set_value(std::move(result)); });
  auto info = head_done.get_future().get();
  auto below = list_done.get_future().get();

  Metadata metadata{.as_of = as_of};
  if (below && !(below->objects.empty() && below->common_prefixes.empty())) {
    metadata.state = Metadata::State::kDirectory;
    metadata.complete = below->objects.empty() || below->objects.front().key != path + "/";  // without marker: none
  } else if (!info) {
    return Fail(info.error());
  } else if (*info) {
    metadata = attributes_.FromHead(**info, as_of);
  } else if (!below) {
    return Fail(below.error());
  }
  cache_.Put(path, metadata);
  return metadata;
}

}  // namespace millrace::vfs
