#include "millrace/vfs/core/tree_core.h"

#include <sys/stat.h>

#include <algorithm>

#include "millrace/base/text.h"
#include "millrace/object/blocking.h"
#include "millrace/vfs/types/names.h"

namespace millrace::vfs {
namespace {

/// A program that asks the daemon for its status opens the root first. If the store is down, that program waits at most
/// this long. 300 ms, a guess: a store that works answers a Head in less.
constexpr Duration kRootPatience = std::chrono::milliseconds(300);
/// A store that did not answer is not asked about the root again for this time; a guess.
constexpr Duration kRootPause = std::chrono::seconds(5);
/// The most paths in the metadata cache. Inodes take memory of their own: vfs/README.md, "The memory of a name".
constexpr std::size_t kMetadataEntries = 65'536;

}  // namespace

TreeCore::TreeCore(object::Store& s, cache::BlockCache& c, MemoryBudget& b, std::unique_ptr<StagingArea> area,
                   TreeOptions o)
    : store(s),
      cache(c),
      budget(b),
      options(std::move(o)),
      clock(*options.clock),
      began(options.began == WallTime() ? options.clock->Wall() : options.began),
      staging(std::move(area)),
      ledger(staging ? std::optional<UploadLedger>(std::in_place, store, *staging, clock) : std::nullopt),
      quota(options.quota ? std::make_unique<Quota>(
                                Quota::Dependencies{.store = store,
                                                    .prefix = options.prefix,
                                                    .limit = options.quota,
                                                    .unpublished = [this] { return write_back.unpublished_growth(); },
                                                    .clock = clock,
                                                    .log = options.log})
                          : nullptr),
      table(options.prefix, options.session),
      metadata(*options.clock, options.metadata_ttl, options.negative_ttl, kMetadataEntries),
      attributes(store, metadata, *options.clock, options.prefix, options.stored_attributes, options.buckets_at_top,
                 uploads_begun(), options.log),
      ahead(
          store, cache, metadata, attributes, clock,
          {.most_bytes = std::min(FileReadahead::Options().most_bytes, cache.capacity() / 4),
           .trust = options.metadata_ttl,
           .guess = {},
           .has_bytes = [this](const std::string& path, const std::string& etag) { return MayHavePages(path, etag); }}),
      walk(store, clock, {.trust = options.metadata_ttl, .parallel = options.parallel_listing}),
      resolver(store, metadata, attributes, ahead, walk, clock),
      settler(store, options,
              [this](const RenameRecord& record) {
                metadata.ForgetBelow(record.from);
                metadata.ForgetBelow(record.to);
                walk.Forget();
              }),
      write_back(*this) {}

NodeKind KindOf(const Metadata& state) {
  if (state.is_directory()) return NodeKind::kDirectory;
  if (state.is_file() && state.attributes && state.attributes->is_special()) return NodeKind::kSpecial;
  return state.is_symlink() ? NodeKind::kSymlink : NodeKind::kFile;
}

void TreeCore::UpdateReported(Inode& inode, const Metadata& state) {
  if (!inode.writer && state.as_of >= inode.reported.as_of) inode.SetReported(state);
}

CacheableAttributes TreeCore::Report(Inode& inode, const Metadata& state) {
  static const StoredAttributes kNothing;
  CacheableAttributes entry;
  NodeAttributes& a = entry.attributes;
  a.inode = inode.id;
  a.kind = inode.kind;
  a.linked = table.IsLinked(inode);
  entry.valid_for = metadata.ValidFor(state);
  MutexLock lock(inode.mutex);
  UpdateReported(inode, state);
  const StoredAttributes& stored = inode.reported.attributes ? *inode.reported.attributes : kNothing;
  const bool directory = inode.kind == NodeKind::kDirectory;
  a.permissions = stored.mode.value_or(directory ? options.directory_permissions : options.file_permissions) & 07777;
  a.uid = stored.uid.value_or(options.uid);
  a.gid = stored.gid.value_or(options.gid);
  if (directory) {
    a.changed = inode.changed.value_or(began);
    a.modified = std::max(stored.modified.value_or(began), inode.changed.value_or(stored.modified.value_or(began)));
    if (stored.changed) a.changed = std::max(a.changed, *stored.changed);
  } else {
    if (inode.kind == NodeKind::kSpecial) {
      a.special_type = stored.mode.value_or(0) & S_IFMT;
      a.device = stored.device.value_or(0);
    }
    a.size = inode.writer ? inode.writer->size() : inode.reported.size;
    a.modified = stored.modified.value_or(inode.reported.modified);
    a.changed = stored.changed.value_or(inode.reported.modified);
  }
  if (inode.writer && inode.writer->unpublished()) {
    if (inode.times_set != inode.writer->modified()) a.modified = a.changed = inode.writer->modified();
  }
  a.accessed = stored.accessed.value_or(a.modified);
  if (inode.writer) entry.valid_for = Duration::zero();  // the file may change at any time
  return entry;
}

void TreeCore::ReportMoved(Inode& inode, Metadata state) {
  if (options.session != nullptr && inode.open_files > 0) {
    options.session->MoveVersion(inode.id, inode.reported.etag, state.etag, state.size);
  }
  inode.SetReportedAfterMove(std::move(state));
}

Result<Metadata> TreeCore::FileState(Inode& inode, bool now, const object::Call& call) {
  {
    MutexLock lock(inode.mutex);
    if (inode.writer || !table.IsLinked(inode)) return inode.reported;
  }
  std::string path = MR_TRY(table.PathOf(inode));
  Metadata state = MR_TRY(now ? resolver.RefreshFile(path, call) : resolver.Find(path, call));
  if (!state.is_file()) return Fail(Code::kStale, "{} was removed from the bucket", path);
  return state;
}

Result<Metadata> TreeCore::DirectoryState(Inode& inode, const object::Call& call) {
  Metadata state{.state = Metadata::State::kDirectory, .as_of = clock.Now()};
  if (!attributes.stores() || !table.IsLinked(inode)) return state;
  std::string path = MR_TRY(table.PathOf(inode));
  if (inode.id != kRootInode) {
    Metadata found = MR_TRY(resolver.Find(path, call));
    return found.is_directory() ? found : state;
  }
  if (auto known = metadata.Find(path); known && known->is_directory()) state = *known;
  MR_TRY(CompleteRoot(path, inode, state, call));
  metadata.Put(path, state);
  return state;
}

/// Completes the root's attributes. If the store does not answer within kRootPatience, uses the attributes reported
/// last, and does not ask the store again for kRootPause.
Status TreeCore::CompleteRoot(const std::string& path, Inode& inode, Metadata& state, const object::Call& call) {
  Metadata reported;
  {
    MutexLock lock(inode.mutex);
    reported = inode.reported;
  }
  if (!reported.is_directory()) return attributes.Complete(path, state, call);
  if (clock.Now() < root_retry_after.load()) {
    state = std::move(reported);
    return {};
  }
  object::Call soon = call;
  soon.deadline = std::min(call.deadline, Deadline::After(clock, kRootPatience));
  if (Status completed = attributes.Complete(path, state, soon); !completed) {
    root_retry_after = clock.Now() + kRootPause;
    state = std::move(reported);
  }
  return {};
}

std::shared_ptr<Writer> TreeCore::WriterOf(Inode& inode) {
  MutexLock lock(inode.mutex);
  return inode.writer;
}

Result<PathLock::SharedLock> TreeCore::LockShared(const Inode& inode, const object::Call& call) {
  while (true) {
    auto path = table.PathOf(inode);
    if (!path) return PathLock::SharedLock();
    PathLock::SharedLock shared = MR_TRY(path_lock.LockShared(*path, call.stop));
    if (auto now = table.PathOf(inode); now && *now == *path) return shared;  // else it was renamed meanwhile
  }
}

Result<NamedPath> TreeCore::NamedPathOf(InodeId parent, std::string_view name) {
  InodePtr directory = MR_TRY(table.FindDirectory(parent));
  std::string path = MR_TRY(table.DirectoryKeyOf(*directory));
  path += name;
  return NamedPath{parent, std::string(name), std::move(path), {}};
}

Result<Metadata> TreeCore::StateAt(const NamedPath& place, const object::Call& call) {
  InodePtr inode = table.FindChild(place.parent, place.name);
  if (inode && (table.IsLocal(*inode) || WriterOf(*inode))) {
    MutexLock lock(inode->mutex);
    Metadata state = inode->reported;
    state.as_of = clock.Now();
    return state;
  }
  if (!IsShowable(place.name) || !IsValidUtf8(place.name) || place.path.size() >= kMaxKeyBytes) {
    return Metadata{.as_of = clock.Now()};  // no key can have this name
  }
  return resolver.Find(place.path, call);
}

void TreeCore::TouchDirectory(InodeId directory) {
  walk.Forget();
  auto inode = table.Find(directory);
  if (!inode) return;
  MutexLock lock((*inode)->mutex);
  (*inode)->changed = clock.Wall();
}

bool TreeCore::MayHavePages(std::string_view path, std::string_view etag) {
  if (!path.starts_with(options.prefix)) return false;
  path.remove_prefix(options.prefix.size());
  InodeId at = kRootInode;
  while (!path.empty() && at != 0) {
    const std::string_view name = path.substr(0, path.find('/'));
    at = table.FindChildId(at, name);
    path.remove_prefix(std::min(path.size(), name.size() + 1));
  }
  auto inode = table.Find(at);
  if (!inode) return false;
  MutexLock lock((*inode)->mutex);
  return (*inode)->pages_etag == etag;
}

Status TreeCore::CheckWritable() const {
  if (options.read_only) return Fail(Code::kReadOnly, "the tree is read-only");
  return {};
}

}  // namespace millrace::vfs
