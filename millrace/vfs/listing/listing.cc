#include "millrace/vfs/listing/listing.h"

#include <algorithm>

#include "millrace/object/blocking.h"
#include "millrace/vfs/types/names.h"

namespace millrace::vfs {

Listing::Listing(object::ReadStore& store, MetadataCache& cache, const Clock& clock, std::string directory,
                 Position from)
    : store_(store),
      cache_(cache),
      clock_(clock),
      directory_(std::move(directory)),
      start_after_(from.start_after),
      position_(std::move(from)),
      began_(clock.Now()) {}

Result<std::vector<ListedName>> Listing::Next(object::Call call) {
  const TimePoint as_of = clock_.Now();
  return Accept(MR_TRY(object::List(store_, NextRequest(), std::move(call))), as_of);
}

object::ListRequest Listing::NextRequest() const {
  return {.prefix = directory_, .delimiter = "/", .start_after = start_after_, .continuation = continuation_};
}

Result<std::vector<ListedName>> Listing::Accept(object::ListPage page, TimePoint as_of) {
  if (position_.start_after.empty() && !directory_.empty()) LearnMarker(page, as_of);
  MR_TRY(CheckOrder(page));
  began_ = std::min(began_, as_of);
  const bool below = !page.objects.empty() || !page.common_prefixes.empty();
  std::vector<ListedName> names;
  auto object = page.objects.begin();
  auto prefix = page.common_prefixes.begin();
  while (object != page.objects.end() || prefix != page.common_prefixes.end()) {
    const bool take_object =
        prefix == page.common_prefixes.end() || (object != page.objects.end() && object->key < *prefix);
    std::string_view key = take_object ? std::string_view(object->key) : std::string_view(*prefix);
    if (key > position_.start_after && key.size() > directory_.size()) {
      std::string_view name = key.substr(directory_.size());
      if (!take_object) name.remove_suffix(1);
      Metadata metadata =
          take_object ? FileMetadata(*object, as_of) : Metadata{.state = Metadata::State::kDirectory, .as_of = as_of};
      if (IsShowable(name)) Add({std::string(name), std::move(metadata)}, names);
    }
    position_.start_after = std::max(position_.start_after, std::string(key));
    take_object ? void(++object) : void(++prefix);
  }
  continuation_ = std::move(page.continuation);
  done_ = continuation_.empty();
  if (done_) ReleaseHeld("", names);
  for (const ListedName& listed : names) cache_.Put(directory_ + listed.name, listed.metadata);
  if (below && !directory_.empty()) {
    cache_.Put(std::string_view(directory_).substr(0, directory_.size() - 1),
               {.state = Metadata::State::kDirectory, .as_of = as_of});
  }
  if (done_ && start_after_.empty()) cache_.PutComplete(directory_, began_);
  return names;
}

/// A page that does not follow the page before would hide names, and names held back would never be decided.
Status Listing::CheckOrder(const object::ListPage& page) const {
  for (const std::string* first : {page.objects.empty() ? nullptr : &page.objects.front().key,
                                   page.common_prefixes.empty() ? nullptr : &page.common_prefixes.front()}) {
    if (first == nullptr || *first >= position_.start_after) continue;
    return Fail(Code::kUnsupported,
                "{} lists out of order: {:?} after {:?}. A mount needs names in their order; `millrace cp -r` does not",
                store_.Describe(), *first, position_.start_after);
  }
  return {};
}

void Listing::LearnMarker(const object::ListPage& page, TimePoint as_of) {
  using Marker = MetadataCache::Marker;
  Marker marker = Marker::kNone;
  if (!page.objects.empty() && page.objects.front().key == directory_) {  // the marker sorts before all other keys
    marker = page.objects.front().size > 0 ? Marker::kMarked : Marker::kPlain;
    // A note in the marker's metadata marks, too; see AttributeStore. Only a Head shows it.
    if (marker == Marker::kPlain && cache_.marks_by_notes()) return;
  }
  cache_.PutMarker(directory_, marker, as_of);
}

void Listing::Add(ListedName next, std::vector<ListedName>& names) {
  ReleaseHeld(next.name, names);
  if (next.metadata.is_file()) {
    position_.held.push_back(std::move(next));
    return;
  }
  auto& held = position_.held;
  if (!held.empty() && held.back().name == next.name) held.pop_back();  // the directory shadows the file
  names.push_back(std::move(next));
}

void Listing::ReleaseHeld(std::string_view next, std::vector<ListedName>& names) {
  auto& held = position_.held;
  while (!held.empty() && (next.empty() || !next.starts_with(held.back().name))) {
    names.push_back(std::move(held.back()));
    held.pop_back();
  }
}

}  // namespace millrace::vfs
