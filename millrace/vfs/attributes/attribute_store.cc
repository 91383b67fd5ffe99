#include "millrace/vfs/attributes/attribute_store.h"

#include <algorithm>

#include "millrace/object/blocking.h"
#include "millrace/transfer/stream/window.h"
#include "millrace/vfs/attributes/copy.h"
#include "millrace/vfs/types/names.h"

namespace millrace::vfs {
namespace {

constexpr const char* kNoteKey = "millrace-entries";
constexpr const char* kNote = "have attributes";
constexpr int kParallelHeads = 32;  ///< a guess: hides the latency of a Head
/// Attempts at a change. Each fails only if another client changes the same object at that moment. 5: a guess.
constexpr int kAttempts = 5;

std::shared_ptr<const StoredAttributes> Share(StoredAttributes attributes) {
  return attributes.empty() ? nullptr : std::make_shared<const StoredAttributes>(std::move(attributes));
}

bool LostRace(const Error& error) {
  return error.code() == Code::kPreconditionFailed || error.code() == Code::kStale ||
         error.code() == Code::kAlreadyExists;
}

/// Returns true if another attempt may succeed: after a lost race, and once after kUnavailable, since the change may
/// have reached the store.
bool MayTryAgain(const Error& error, int attempt) {
  return LostRace(error) ? attempt < kAttempts : error.code() == Code::kUnavailable && attempt == 1;
}

}  // namespace

bool AttributeStore::IsWholeBucket(const std::string& directory) const {
  return directory.empty() || (buckets_at_top_ && directory.find('/') + 1 == directory.size());
}

std::string AttributeStore::MarkerKey(const std::string& directory) const {
  return IsWholeBucket(directory) ? fmt::format("{}{}/root", directory, kHiddenName) : directory;
}

ByteSpan AttributeStore::MarkOf(UserMetadata& metadata) const {
  if (!cache_.marks_by_notes()) return AsBytes(kMarkBody);
  metadata[kNoteKey] = kNote;
  return {};
}

bool AttributeStore::ForgoBodies(const Error& error) {
  // versitygw: DirectoryObjectContainsData, with HTTP 400.
  const bool refused = error.code() == Code::kInvalidArgument || error.code() == Code::kUnsupported;
  if (refused) cache_.MarkByNotes();
  return refused;
}

bool AttributeStore::Marks(const object::ObjectInfo& marker) {
  return marker.size > 0 || marker.metadata.contains(kNoteKey);
}

Metadata AttributeStore::FromHead(const object::ObjectInfo& info, TimePoint as_of) const {
  Metadata state = FileMetadata(info, as_of);
  state.complete = true;
  // A later version can look the same in a listing only if both are from the same second. 5 s allow for clocks.
  state.settled = clock_.Wall() - info.modified > std::chrono::seconds(5);
  if (stores()) state.attributes = Share(FromMetadata(info.metadata));
  return state;
}

Status AttributeStore::Complete(const std::string& path, Metadata& state, const object::Call& call) {
  if (state.complete || state.absent()) return {};
  if (path.size() < root_.size() || path.empty()) {  // the root: it has no parent in this tree
    if (stores()) {
      if (auto info = MR_TRY(HeadMarker(root_, call))) state.attributes = Share(FromMetadata(info->metadata));
    }
    state.complete = true;
    return {};
  }
  const std::string directory(DirectoryOf(path));
  ListedName entry{path.substr(directory.size()), std::move(state)};
  Status done = Complete(directory, {&entry, 1}, call);
  state = std::move(entry.metadata);
  return done;
}

Status AttributeStore::Complete(const std::string& directory, std::span<ListedName> entries, const object::Call& call) {
  std::vector<ListedName*> unknown;
  for (ListedName& entry : entries) {
    if (!entry.metadata.complete) cache_.Recall(directory + entry.name, entry.metadata);
    if (!entry.metadata.complete) unknown.push_back(&entry);
  }
  if (unknown.empty()) return {};
  if (!MR_TRY(IsMarked(directory, call))) {
    for (ListedName* entry : unknown) entry->metadata.complete = true;
    return {};
  }
  transfer::Window window(kParallelHeads, call);
  for (ListedName* entry : unknown) {
    if (!window.Enter()) break;
    const bool is_file = entry->metadata.is_file();
    std::string key = directory + entry->name + (is_file ? "" : "/");
    const TimePoint as_of = clock_.Now();
    store_.Head(std::move(key), window.call(), [&, entry, is_file, as_of](auto info) {
      if (!info) return window.Leave(Fail(info.error()));
      entry->metadata.complete = true;
      if (*info && is_file) entry->metadata = FromHead(**info, as_of);
      if (*info && !is_file) entry->metadata.attributes = Share(FromMetadata((*info)->metadata));
      window.Leave({});
    });
  }
  MR_TRY(window.Finish());
  for (ListedName* entry : unknown) cache_.Put(directory + entry->name, entry->metadata);
  return {};
}

Result<std::optional<object::ObjectInfo>> AttributeStore::HeadMarker(const std::string& directory,
                                                                     const object::Call& call) {
  const TimePoint as_of = clock_.Now();
  auto info = MR_TRY(object::Head(store_, MarkerKey(directory), call));
  using Marker = MetadataCache::Marker;
  cache_.PutMarker(directory, !info ? Marker::kNone : Marks(*info) ? Marker::kMarked : Marker::kPlain, as_of);
  return info;
}

Result<bool> AttributeStore::IsMarked(const std::string& directory, const object::Call& call) {
  if (policy_ != StoredAttributesPolicy::kAuto) return policy_ == StoredAttributesPolicy::kAlways;
  if (auto known = cache_.FindMarker(directory)) return *known == MetadataCache::Marker::kMarked;
  auto info = MR_TRY(HeadMarker(directory, call));
  return info && Marks(*info);
}

Status AttributeStore::Mark(const std::string& directory, const object::Call& call) {
  if (!stores()) return {};
  if (auto known = cache_.FindMarker(directory); known && *known == MetadataCache::Marker::kMarked) return {};
  for (int attempt = 1;; ++attempt) {
    auto info = MR_TRY(HeadMarker(directory, call));
    if (info && Marks(*info)) return {};
    object::PutOptions options{.if_match = info ? info->etag : "",
                               .if_none_match = !info,
                               .content_type = {},
                               .metadata = info ? info->metadata : UserMetadata()};
    const ByteSpan body = MarkOf(options.metadata);
    auto put = object::Put(store_, MarkerKey(directory), body, std::move(options), call);
    if (put) break;
    if (!(body.size() > 0 && ForgoBodies(put.error())) && !MayTryAgain(put.error(), attempt)) return Fail(put.error());
  }
  cache_.PutMarker(directory, MetadataCache::Marker::kMarked, clock_.Now());
  return {};
}

Status AttributeStore::Keep(const std::string& directory, const object::Call& call) {
  if (directory == root_ || IsWholeBucket(directory)) return {};
  if (auto known = cache_.FindMarker(directory); known && *known != MetadataCache::Marker::kNone) return {};
  if (MR_TRY(HeadMarker(directory, call))) return {};
  auto put = object::Put(store_, MarkerKey(directory), {}, {.if_none_match = true}, call);
  if (!put && !LostRace(put.error()) && !MR_TRY(HeadMarker(directory, call))) return Fail(put.error());
  if (put) cache_.PutMarker(directory, MetadataCache::Marker::kPlain, clock_.Now());
  return {};
}

Result<Metadata> AttributeStore::MakeDirectory(const std::string& directory, const StoredAttributes& attributes,
                                               const object::Call& call) {
  const std::string path = directory.substr(0, directory.size() - 1);
  object::PutOptions options{.if_none_match = true};
  if (stores()) {
    MR_TRY(ToMetadata(attributes, options.metadata));
    MR_TRY(MarkFor(path, attributes, call));
  }
  const UserMetadata sent = options.metadata;
  auto put = object::Put(store_, MarkerKey(directory), {}, std::move(options), call);
  if (!put) {
    const bool exists = put.error().code() == Code::kPreconditionFailed;
    return Fail(exists ? put.error().WithCode(Code::kAlreadyExists) : put.error());
  }
  Metadata made{.state = Metadata::State::kDirectory, .as_of = clock_.Now()};
  made.complete = true;
  if (stores() && Keeps(MarkerKey(directory), put->etag, sent, call)) made.attributes = Share(attributes);
  cache_.PutMarker(directory, MetadataCache::Marker::kPlain, made.as_of);
  cache_.Put(path, made);
  return made;
}

bool AttributeStore::Keeps(const std::string& key, const std::string& etag, const UserMetadata& sent,
                           const object::Call& call) {
  std::atomic<bool>& keep = key.ends_with('/') ? markers_keep_ : files_keep_;
  if (sent.empty() || keep.load(std::memory_order_relaxed)) return true;
  const auto info = object::Head(store_, key, call);
  if (!info || !*info || (!etag.empty() && (*info)->etag != etag)) return true;
  const bool kept =
      std::ranges::all_of(sent, [&](const auto& field) { return (*info)->metadata.contains(field.first); });
  if (kept) {
    keep.store(true, std::memory_order_relaxed);
  } else if (!warned_.exchange(true, std::memory_order_relaxed)) {
    log_.Warning("the store does not keep metadata: modes, owners and times that are set here are lost",
                 {{"object", key}, {"of", key.ends_with('/') ? "directories" : "files"}});
  }
  return kept;
}

Error AttributeStore::NotKept(const std::string& key) {
  return Error(Code::kUnsupported,
               fmt::format("the store keeps no metadata of {}; --stored-attributes=never accepts changes of attributes "
                           "without effect",
                           key));
}

Status AttributeStore::MarkFor(const std::string& path, const StoredAttributes& attributes, const object::Call& call) {
  if (attributes.empty() || path.size() < root_.size()) return {};  // the root has no parent in this tree
  return Mark(std::string(DirectoryOf(path)), call);
}

Result<Metadata> AttributeStore::ChangeFile(const std::string& path, const Metadata& reported, const Change& change,
                                            const object::Call& call) {
  for (int attempt = 1;; ++attempt) {
    const TimePoint as_of = clock_.Now();
    auto info = MR_TRY(object::Head(store_, path, call));
    if (!info) return Fail(Code::kNotFound, "no file {}", path);
    StoredAttributes attributes = FromMetadata(info->metadata);
    const StoredAttributes before = attributes;
    MR_TRY(change(attributes));
    if (attributes == before) return FromHead(*info, as_of);
    // The copy gets a new time of its own, so the present time is stored.
    if (!attributes.modified) attributes.modified = reported.etag == info->etag ? reported.modified : info->modified;
    attributes.changed = clock_.Wall();
    MR_TRY(ToMetadata(attributes, info->metadata));
    MR_TRY(MarkFor(path, attributes, call));
    auto copied = CopyVersion(store_, ledger_, *info, path, {.metadata = info->metadata}, call);
    if (!copied) {
      if (MayTryAgain(copied.error(), attempt)) continue;
      return Fail(copied.error());
    }
    if (!Keeps(path, copied->etag, info->metadata, call)) return Fail(NotKept(path));
    Metadata state = FileMetadata(*info, clock_.Now());
    state.etag = copied->etag;
    state.modified = *attributes.changed;
    state.complete = true;
    state.attributes = Share(std::move(attributes));
    cache_.Put(path, state);
    return state;
  }
}

Result<Metadata> AttributeStore::ChangeDirectory(const std::string& directory, const Change& change,
                                                 const object::Call& call) {
  const std::string path = directory.substr(0, directory.empty() ? 0 : directory.size() - 1);
  const std::string key = MarkerKey(directory);
  for (int attempt = 1;; ++attempt) {
    auto info = MR_TRY(HeadMarker(directory, call));
    UserMetadata metadata = info ? info->metadata : UserMetadata();
    StoredAttributes attributes = FromMetadata(metadata);
    const StoredAttributes before = attributes;
    MR_TRY(change(attributes));
    Metadata state{.state = Metadata::State::kDirectory, .as_of = clock_.Now()};
    state.complete = true;
    if (attributes != before) {
      attributes.changed = clock_.Wall();
      MR_TRY(ToMetadata(attributes, metadata));
      MR_TRY(MarkFor(path, attributes, call));
      Result<object::PutResult> stored;
      if (info && info->size > 0) {  // keeps the body, which may be another program's
        stored = CopyVersion(store_, ledger_, *info, key, {.metadata = metadata}, call);
      } else {
        stored = object::Put(store_, key, {},
                             {.if_match = info ? info->etag : "",
                              .if_none_match = !info,
                              .content_type = info ? info->content_type : "",
                              .metadata = metadata},
                             call);
      }
      if (!stored) {
        if (MayTryAgain(stored.error(), attempt)) continue;
        return Fail(stored.error());
      }
      if (!Keeps(key, stored->etag, metadata, call)) return Fail(NotKept(key));
      if (!info) cache_.PutMarker(directory, MetadataCache::Marker::kPlain, clock_.Now());
      state.as_of = clock_.Now();
    }
    state.attributes = Share(std::move(attributes));
    cache_.Put(path, state);
    return state;
  }
}

}  // namespace millrace::vfs
