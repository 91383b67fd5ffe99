#include "millrace/vfs/tree.h"

#include <sys/stat.h>

#include <set>

#include "millrace/base/text.h"
#include "millrace/object/blocking.h"
#include "millrace/vfs/core/attribute_changes.h"
#include "millrace/vfs/core/rename.h"
#include "millrace/vfs/core/session_restore.h"
#include "millrace/vfs/core/staged_adoption.h"
#include "millrace/vfs/core/tree_core.h"
#include "millrace/vfs/rename/rename_recovery.h"
#include "millrace/vfs/types/names.h"

namespace millrace::vfs {
namespace {

constexpr std::size_t kMaxTarget = 4095;  ///< bytes of a symbolic link: PATH_MAX of Linux without the NUL

Result<std::map<std::string, std::string>> Xattrs(TreeCore& core, Tree& tree, InodeId id, const object::Call& call) {
  MR_TRY(tree.GetAttributes(id, call));
  InodePtr inode = MR_TRY(core.table.Find(id));
  MutexLock lock(inode->mutex);
  return inode->reported.attributes ? inode->reported.attributes->xattrs : std::map<std::string, std::string>();
}

Status CheckXattr(const TreeCore& core, const std::string& name) {
  if (!core.attributes.stores() || !name.starts_with("user.") || name.size() == 5) {
    return Fail(Code::kUnsupported, "extended attributes are kept in the namespace \"user.\" only, not {}", name);
  }
  return {};
}

Status Apply(const Inode& inode, const AttributeChange& change, StoredAttributes& a) {
  if (change.permissions) {
    std::uint32_t type = S_IFREG;
    if (inode.kind == NodeKind::kDirectory) type = S_IFDIR;
    if (inode.kind == NodeKind::kSymlink || inode.kind == NodeKind::kSpecial) type = a.mode.value_or(type) & S_IFMT;
    a.mode = type | (*change.permissions & 07777);
  }
  if (change.uid) a.uid = change.uid;
  if (change.gid) a.gid = change.gid;
  if (change.modified) a.modified = change.modified;
  if (change.accessed) a.accessed = change.accessed;
  return {};
}

std::unexpected<Error> Refuse(std::string_view what, const std::string& path) {
  return Fail(Code::kPermissionDenied, "{}: {} is not allowed on this mount", path, what);
}

/// If overwriting is not allowed, only files that are not in the store may be written.
Status CheckOverwrite(TreeCore& core, Inode& inode) {
  if (core.options.allow_overwrite || core.table.IsLocal(inode)) return {};
  return Refuse("overwriting", core.table.PathOf(inode).value_or("the file"));
}

/// Locks a name that is to be created or removed. Errors: those of a name or a tree that cannot be changed.
Result<NamedPath> LockName(TreeCore& core, InodeId parent, std::string_view name, const object::Call& call) {
  MR_TRY(core.CheckWritable());
  while (true) {
    NamedPath place = MR_TRY(core.NamedPathOf(parent, name));
    if (core.options.buckets_at_top && DirectoryOf(place.path).empty()) {
      return Fail(Code::kPermissionDenied, "{}: at the top there are buckets only", place.path);
    }
    MR_TRY(CheckNewName(DirectoryOf(place.path), name));
    place.lock = MR_TRY(core.path_lock.LockExclusive({place.path}, call.stop));
    if (MR_TRY(core.NamedPathOf(parent, name)).path == place.path) return place;
  }
}

CacheableAttributes Acquire(TreeCore& core, const NamedPath& place, const Metadata& state) {
  return core.Report(*core.table.Acquire(place.parent, place.name, KindOf(state)), state);
}

/// Makes a symbolic link or a special file: an object whose stored mode says what it is.
Result<CacheableAttributes> MakeObject(TreeCore& core, const NamedPath& place, std::uint32_t type,
                                       std::optional<std::uint64_t> device, const Ownership& ownership,
                                       std::string_view content, const object::Call& call) {
  if (Metadata state = MR_TRY(core.StateAt(place, call)); !state.absent()) {
    return Fail(Code::kAlreadyExists, "{} exists", place.path);
  }
  InodePtr directory = MR_TRY(core.table.Find(place.parent));
  StoredAttributes attributes = NewAttributes(core, type, ownership, *directory);
  attributes.device = device;
  object::PutOptions options{
      .if_match = {}, .if_none_match = true, .content_type = "application/octet-stream", .metadata = {}};
  MR_TRY(ToMetadata(attributes, options.metadata));
  MR_TRY(core.attributes.Mark(std::string(DirectoryOf(place.path)), call));
  const UserMetadata sent = options.metadata;
  auto put = object::Put(core.store, place.path, AsBytes(content), std::move(options), call);
  if (!put) {
    const bool exists = put.error().code() == Code::kPreconditionFailed;
    return Fail(exists ? put.error().WithCode(Code::kAlreadyExists) : put.error());
  }
  if (!core.attributes.Keeps(place.path, put->etag, sent, call)) {  // a later mount would show a file
    MR_TRY(object::Delete(core.store, place.path, call));
    return Fail(AttributeStore::NotKept(place.path));
  }
  Metadata made{
      .state = Metadata::State::kFile, .size = content.size(), .modified = core.clock.Wall(), .etag = put->etag};
  made.as_of = core.clock.Now();
  made.complete = true;
  made.attributes = std::make_shared<const StoredAttributes>(std::move(attributes));
  core.metadata.Put(place.path, made);
  core.TouchDirectory(place.parent);
  return Acquire(core, place, made);
}

/// Records that a name was removed.
void NameRemoved(TreeCore& core, const NamedPath& place, Inode* inode) {
  core.metadata.Put(place.path, {.as_of = core.clock.Now()});
  if (inode) core.table.Unlink(*inode);
  if (core.quota) core.quota->NoteRemoval();
  core.TouchDirectory(place.parent);
}

void RecoverLeftRenames(object::Store& store, const TreeOptions& options, const object::Call& call) {
  auto done = RecoverAllRenames(store, options, call);
  if (!done) {
    options.log.Warning("renames that were cut off could not be looked for", {{"reason", done.error()}});
  } else if (done->finished + done->rolled_back + done->left > 0) {
    options.log.Info("renames of directories that were cut off",
                     {{"finished", done->finished}, {"undone", done->rolled_back}, {"left", done->left}});
  }
}

}  // namespace

Result<std::unique_ptr<Tree>> Tree::Open(object::Store& store, cache::BlockCache& cache, MemoryBudget& budget,
                                         TreeOptions options, object::Call call) {
  if (!options.prefix.empty() && !options.prefix.ends_with('/')) {
    return Fail(Code::kInvalidArgument, "the prefix \"{}\" must end with '/'", options.prefix);
  }
  if (auto page = object::List(store, {.prefix = options.prefix, .delimiter = "/", .max_keys = 1}, call); !page) {
    return Fail(page.error().Context(fmt::format("cannot list {}", store.Describe())));
  }
  if (!options.read_only) RecoverLeftRenames(store, options, call);
  std::unique_ptr<StagingArea> staging;
  if (!options.read_only) {
    staging = MR_TRY(StagingArea::Open({.directory = options.staging_directory,
                                        .limit_bytes = options.staging_limit,
                                        .target = options.staging_target,
                                        .clock = options.clock}));
  }
  auto core = std::make_shared<TreeCore>(store, cache, budget, std::move(staging), std::move(options));
  std::set<std::string> published;
  if (const SessionState* restored = core->options.restored) {
    MR_TRY(core->table.Restore(*restored));
    if (core->staging) published = RestoreContents(*core, *restored, call);
  }
  AdoptedFiles adopted;  // errors do not fail Open(): see recovery()
  if (core->staging) adopted = AdoptStaged(*core, published, call);
  if (core->options.restored != nullptr) RestoreVersions(*core, *core->options.restored);
  return std::unique_ptr<Tree>(new Tree(std::move(core), std::move(adopted.status), adopted.files));
}

Tree::Tree(std::shared_ptr<TreeCore> core, Status recovery, int recovered_files)
    : core_(std::move(core)), recovery_(std::move(recovery)), recovered_files_(recovered_files) {}

Tree::~Tree() = default;

Result<std::optional<CacheableAttributes>> Tree::Lookup(InodeId parent, std::string_view name, object::Call call) {
  if (name.size() > kMaxNameBytes) return Fail(Code::kNameTooLong, "names have at most {} bytes", kMaxNameBytes);
  NamedPath place = MR_TRY(core_->NamedPathOf(parent, name));
  Metadata state = MR_TRY(core_->StateAt(place, call));
  if (state.absent()) return std::nullopt;
  return Acquire(*core_, place, state);
}

void Tree::Forget(InodeId inode, std::uint64_t lookups) { core_->table.Forget(inode, lookups); }
Duration Tree::negative_ttl() const { return core_->options.negative_ttl; }

Result<CacheableAttributes> Tree::GetAttributes(InodeId id, object::Call call) {
  InodePtr inode = MR_TRY(core_->table.Find(id));
  if (inode->kind == NodeKind::kDirectory) return core_->Report(*inode, MR_TRY(core_->DirectoryState(*inode, call)));
  return core_->Report(*inode, MR_TRY(core_->FileState(*inode, false, call)));
}

Result<CacheableAttributes> Tree::SetAttributes(InodeId id, const AttributeChange& change, File* through,
                                                object::Call call) {
  InodePtr inode = MR_TRY(core_->table.Find(id));
  if (change.size) {
    MR_TRY(core_->CheckWritable());
    if (inode->kind == NodeKind::kDirectory) return Fail(Code::kIsDirectory, "a directory has no size to set");
    MR_TRY(CheckOverwrite(*core_, *inode));
    MR_TRY(Resize(inode, *change.size, through, call));
  }
  if (change.touches_stored() && core_->attributes.stores()) {
    MR_TRY(ChangeAttributes(*core_, inode, [&](StoredAttributes& a) { return Apply(*inode, change, a); }, call));
    MutexLock lock(inode->mutex);
    if (change.modified) inode->changed.reset();  // the time that was set replaces the time of the last change
  }
  return GetAttributes(id, call);
}

Result<std::optional<std::string>> Tree::GetXattr(InodeId id, const std::string& name, object::Call call) {
  auto xattrs = MR_TRY(Xattrs(*core_, *this, id, call));
  auto found = xattrs.find(name);
  if (found == xattrs.end()) return std::nullopt;
  return found->second;
}

Result<std::vector<std::string>> Tree::ListXattrs(InodeId id, object::Call call) {
  std::vector<std::string> names;
  for (const auto& [name, value] : MR_TRY(Xattrs(*core_, *this, id, call))) names.push_back(name);
  return names;
}

Result<bool> Tree::SetXattr(InodeId id, const std::string& name, std::string_view value, XattrMode mode,
                            object::Call call) {
  MR_TRY(CheckXattr(*core_, name));
  InodePtr inode = MR_TRY(core_->table.Find(id));
  bool missing = false;
  MR_TRY(ChangeAttributes(
      *core_, inode,
      [&](StoredAttributes& a) -> Status {
        const bool exists = a.xattrs.contains(name);
        if (mode == XattrMode::kCreate && exists) return Fail(Code::kAlreadyExists, "there is a {}", name);
        missing = mode == XattrMode::kReplace && !exists;
        if (!missing) a.xattrs[name] = value;
        return {};
      },
      call));
  return !missing;
}

Result<bool> Tree::RemoveXattr(InodeId id, const std::string& name, object::Call call) {
  MR_TRY(CheckXattr(*core_, name));
  InodePtr inode = MR_TRY(core_->table.Find(id));
  bool removed = false;
  MR_TRY(ChangeAttributes(
      *core_, inode,
      [&](StoredAttributes& a) {
        removed = a.xattrs.erase(name) > 0;
        return Status();
      },
      call));
  return removed;
}

Result<std::string> Tree::ReadLink(InodeId id, object::Call call) {
  InodePtr inode = MR_TRY(core_->table.Find(id));
  if (inode->kind != NodeKind::kSymlink) return Fail(Code::kInvalidArgument, "inode {} is no symbolic link", id);
  std::string path = MR_TRY(core_->table.PathOf(*inode));
  auto content = MR_TRY(object::GetAll(core_->store, path, kMaxTarget, call));
  if (!content) return Fail(Code::kNotFound, "no link {}", path);
  return std::move(content->bytes);
}

Result<CacheableAttributes> Tree::MakeSymlink(InodeId parent, std::string_view name, std::string_view target,
                                              const Ownership& ownership, object::Call call) {
  if (!core_->attributes.stores()) return Fail(Code::kUnsupported, "links need --stored-attributes");
  if (target.empty()) return Fail(Code::kNotFound, "a link needs a target");
  if (target.size() > kMaxTarget) return Fail(Code::kNameTooLong, "targets have at most {} bytes", kMaxTarget);
  NamedPath place = MR_TRY(LockName(*core_, parent, name, call));
  if (Metadata state = MR_TRY(core_->StateAt(place, call)); !state.absent()) {
    return Fail(Code::kAlreadyExists, "{} exists", place.path);
  }
  Ownership owner = ownership;
  owner.permissions = 0777;
  return MakeObject(*core_, place, S_IFLNK, {}, owner, target, call);
}

Result<CacheableAttributes> Tree::MakeSpecial(InodeId parent, std::string_view name, std::uint32_t type,
                                              std::uint64_t device, const Ownership& ownership, object::Call call) {
  if (!core_->attributes.stores()) return Fail(Code::kUnsupported, "special files need --stored-attributes");
  NamedPath place = MR_TRY(LockName(*core_, parent, name, call));
  const bool is_device = S_ISBLK(type) || S_ISCHR(type);
  return MakeObject(*core_, place, type, is_device ? std::optional(device) : std::nullopt, ownership, "", call);
}

Result<std::unique_ptr<File>> Tree::OpenFile(InodeId id, OpenFlags flags, object::Call call) {
  InodePtr inode = MR_TRY(core_->table.Find(id));
  if (inode->kind == NodeKind::kDirectory) return Fail(Code::kIsDirectory, "a directory cannot be opened as a file");
  if (flags.write || flags.truncate) {
    MR_TRY(core_->CheckWritable());
    MR_TRY(CheckOverwrite(*core_, *inode));
  }
  if (!flags.truncate) return File::OpenStored(core_, std::move(inode), flags, call);
  return OpenTruncated(std::move(inode), call);
}

Result<Tree::CreatedFile> Tree::Create(InodeId parent, std::string_view name, bool exclusive,
                                       const Ownership& ownership, object::Call call) {
  NamedPath place = MR_TRY(LockName(*core_, parent, name, call));
  Metadata state = MR_TRY(core_->StateAt(place, call));
  if (state.is_directory()) return Fail(Code::kIsDirectory, "{} is a directory", place.path);
  if (!state.absent() && exclusive) return Fail(Code::kAlreadyExists, "{} exists", place.path);
  const bool fresh = state.absent();
  if (!fresh && !core_->options.allow_overwrite) return Refuse("overwriting", place.path);
  Writer::Start start{.key = place.path, .base = {}, .unpublished = true, .exclusive = exclusive, .metadata = {}};
  if (fresh) {
    InodePtr directory = MR_TRY(core_->table.Find(parent));
    StoredAttributes attributes = NewAttributes(*core_, S_IFREG, ownership, *directory);
    MR_TRY(ToMetadata(attributes, start.metadata.emplace()));
    if (!attributes.empty()) MR_TRY(core_->attributes.Mark(std::string(DirectoryOf(place.path)), call));
    state = {.state = Metadata::State::kFile, .modified = core_->clock.Wall(), .as_of = core_->clock.Now()};
    state.complete = true;
    if (!attributes.empty()) state.attributes = std::make_shared<const StoredAttributes>(std::move(attributes));
  }
  CacheableAttributes entry = Acquire(*core_, place, state);
  InodePtr inode = MR_TRY(core_->table.Find(entry.attributes.inode));
  if (!fresh) {
    auto file = File::OpenStored(core_, inode, {.read = false, .write = true}, call);
    if (!file) core_->table.Forget(inode->id, 1);
    if (!file) return Fail(file.error());
    return CreatedFile{core_->Report(*inode, state), *std::move(file)};
  }
  auto writer = MR_TRY(core_->write_back.JoinWriter(inode, std::move(start)));
  core_->table.SetLocal(*inode, true);
  core_->TouchDirectory(parent);
  return CreatedFile{core_->Report(*inode, state), File::OpenWriting(core_, inode, std::move(writer))};
}

Result<std::unique_ptr<Directory>> Tree::OpenDirectory(InodeId id) {
  InodePtr directory = MR_TRY(core_->table.FindDirectory(id));
  return std::unique_ptr<Directory>(new Directory(core_, std::move(directory)));
}

Result<CacheableAttributes> Tree::MakeDirectory(InodeId parent, std::string_view name, const Ownership& ownership,
                                                object::Call call) {
  NamedPath place = MR_TRY(LockName(*core_, parent, name, call));
  if (Metadata state = MR_TRY(core_->StateAt(place, call)); !state.absent()) {
    return Fail(Code::kAlreadyExists, "{} exists", place.path);
  }
  InodePtr directory = MR_TRY(core_->table.Find(parent));
  StoredAttributes attributes = NewAttributes(*core_, S_IFDIR, ownership, *directory);
  Metadata made = MR_TRY(core_->attributes.MakeDirectory(place.path + "/", attributes, call));
  core_->TouchDirectory(parent);
  return Acquire(*core_, place, made);
}

Status Tree::RemoveDirectory(InodeId parent, std::string_view name, object::Call call) {
  NamedPath place = MR_TRY(LockName(*core_, parent, name, call));
  Metadata state = MR_TRY(core_->StateAt(place, call));
  if (state.absent()) return Fail(Code::kNotFound, "no directory {}", place.path);
  if (state.is_file()) return Fail(Code::kNotDirectory, "{} is a file", place.path);
  const std::string marker = place.path + "/";
  // Local names first, then the store's: a file that is published meanwhile is found in one of them.
  InodePtr inode = core_->table.FindChild(parent, name);
  const bool local_names = inode && !core_->table.LocalChildren(inode->id).empty();
  auto page = MR_TRY(object::List(core_->store, {.prefix = marker, .max_keys = 2}, call));
  const bool has_marker = !page.objects.empty() && page.objects.front().key == marker;
  if (local_names || page.objects.size() > (has_marker ? 1u : 0u)) {
    return Fail(Code::kNotEmpty, "{} is not empty; remove what is in it first", place.path);
  }
  if (!core_->options.allow_delete) return Refuse("deleting", marker);
  MR_TRY(core_->attributes.Keep(std::string(DirectoryOf(place.path)), call));
  if (has_marker) MR_TRY(object::Delete(core_->store, marker, call));
  core_->metadata.PutMarker(marker, MetadataCache::Marker::kNone, core_->clock.Now());
  NameRemoved(*core_, place, inode.get());
  return {};
}

Status Tree::Unlink(InodeId parent, std::string_view name, object::Call call) {
  NamedPath place = MR_TRY(LockName(*core_, parent, name, call));
  Metadata state = MR_TRY(core_->StateAt(place, call));
  if (state.absent()) return Fail(Code::kNotFound, "no file {}", place.path);
  if (state.is_directory()) return Fail(Code::kIsDirectory, "{} is a directory", place.path);
  if (!core_->options.allow_delete) return Refuse("deleting", place.path);
  InodePtr inode = core_->table.FindChild(parent, name);
  MR_TRY(core_->attributes.Keep(std::string(DirectoryOf(place.path)), call));
  auto writer = inode ? core_->write_back.BeginUnlink(inode, call) : nullptr;
  const bool stored = !writer || !core_->table.IsLocal(*inode) || writer->may_be_stored();
  Status deleted = stored ? object::Delete(core_->store, place.path, call) : Status();
  if (deleted) NameRemoved(*core_, place, inode.get());
  if (writer) core_->write_back.EndUnlink(inode, writer, deleted.has_value());
  return deleted;
}

Status Tree::Rename(InodeId parent, std::string_view name, InodeId new_parent, std::string_view new_name,
                    RenameFlags flags, object::Call call) {
  MR_TRY(core_->CheckWritable());
  return vfs::Rename(*core_, {parent, name, new_parent, new_name}, flags, call);
}

Result<std::size_t> Tree::WillOpen(InodeId id, std::vector<std::string> names) {
  InodePtr directory = MR_TRY(core_->table.FindDirectory(id));
  const std::string key = MR_TRY(core_->table.DirectoryKeyOf(*directory));
  for (std::string& name : names) name.insert(0, key);
  return core_->ahead.WillOpen(std::move(names));
}

Result<std::string> Tree::PrefixOf(InodeId id) {
  InodePtr directory = MR_TRY(core_->table.FindDirectory(id));
  return core_->table.DirectoryKeyOf(*directory);
}

std::unique_ptr<File> Tree::RestoreFile(const SavedFile& saved, const SessionState& state) {
  auto inode = core_->table.Find(saved.inode);
  if (!inode) return nullptr;
  return File::Restore(core_, *inode, saved, IsStale(*inode, saved, state));
}

std::unique_ptr<Directory> Tree::RestoreDirectory(std::uint64_t number, const SavedDirectory& saved) {
  auto inode = core_->table.FindDirectory(saved.inode);
  if (!inode) return nullptr;
  auto directory = std::unique_ptr<Directory>(new Directory(core_, *std::move(inode)));
  directory->Restore(number, saved);
  return directory;
}

void Tree::EndRestore(const SessionState& state) {
  for (const auto& [number, saved] : state.contents) core_->options.session->RemoveContent(number);
  core_->table.RemoveUnused();
}

void Tree::DropName(InodeId parent, std::string_view name) {
  auto place = core_->NamedPathOf(parent, name);
  if (!place) return;
  if (InodePtr inode = core_->table.FindChild(parent, name)) NameRemoved(*core_, *place, inode.get());
}

Status Tree::FlushAll(object::Call call) { return core_->write_back.FlushAll(call); }
Result<std::optional<Usage>> Tree::usage(object::Call call) {
  if (!core_->quota) return std::nullopt;
  const Usage usage = MR_TRY(core_->quota->Current(call));
  return usage.limit == 0 ? std::nullopt : std::optional(usage);
}

PendingWrites Tree::pending() const { return core_->write_back.pending(); }

Result<std::unique_ptr<File>> Tree::OpenTruncated(InodePtr inode, const object::Call& call) {
  std::unique_ptr<File> file;
  {
    PathLock::SharedLock shared = MR_TRY(core_->LockShared(*inode, call));
    std::string path = MR_TRY(core_->table.PathOf(*inode));
    auto writer = MR_TRY(core_->write_back.JoinWriter(inode, {.key = std::move(path), .unpublished = true}));
    file = File::OpenWriting(core_, std::move(inode), std::move(writer));
  }
  MR_TRY(file->Truncate(0, call));
  return file;
}

Status Tree::Resize(const InodePtr& inode, std::uint64_t size, File* through, const object::Call& call) {
  if (through) return through->Truncate(size, call);
  std::unique_ptr<File> file;
  if (size == 0) {
    file = MR_TRY(OpenTruncated(inode, call));
  } else {
    file = MR_TRY(File::OpenStored(core_, inode, {.read = false, .write = true}, call));
    MR_TRY(file->Truncate(size, call));
  }
  return file->Close(call);
}

}  // namespace millrace::vfs
