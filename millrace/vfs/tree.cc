#include "millrace/vfs/tree.h"

#include <sys/stat.h>

#include "millrace/base/text.h"
#include "millrace/object/blocking.h"
#include "millrace/vfs/core.h"
#include "millrace/vfs/names/names.h"
#include "millrace/vfs/rename.h"
#include "millrace/vfs/rename/rename_recovery.h"

namespace millrace::vfs {
namespace {

class StoreTree final : public Tree {
 public:
  StoreTree(std::shared_ptr<Core> core, Status recovery) : core_(std::move(core)), recovery_(std::move(recovery)) {}

  Result<std::optional<Entry>> Lookup(InodeId parent, std::string_view name, object::Call call) override {
    if (name.size() > kMaxNameBytes) return Fail(Code::kNameTooLong, "names have at most {} bytes", kMaxNameBytes);
    Place place = MR_TRY(core_->PlaceOf(parent, name));
    Metadata state = MR_TRY(core_->StateAt(place, call));
    if (state.absent()) return std::nullopt;
    return Acquire(place, state);
  }

  void Forget(InodeId inode, std::uint64_t lookups) override { core_->table.Forget(inode, lookups); }
  Duration negative_ttl() const override { return core_->options.negative_ttl; }

  Result<Entry> GetAttributes(InodeId id, object::Call call) override {
    InodePtr inode = MR_TRY(core_->table.Find(id));
    if (inode->kind == Kind::kDirectory) return core_->Tell(*inode, MR_TRY(DirectoryState(*inode, call)));
    return core_->Tell(*inode, MR_TRY(core_->FileState(*inode, false, call)));
  }

  Result<Entry> SetAttributes(InodeId id, const AttributeChange& change, File* through, object::Call call) override {
    InodePtr inode = MR_TRY(core_->table.Find(id));
    if (change.size) {
      MR_TRY(core_->CheckWritable());
      if (inode->kind == Kind::kDirectory) return Fail(Code::kIsDirectory, "a directory has no size to set");
      MR_TRY(CheckOverwrite(*inode));
      MR_TRY(Resize(inode, *change.size, through, call));
    }
    if (change.touches_stored() && core_->attributes.stores()) {
      MR_TRY(core_->ChangeAttributes(inode, [&](StoredAttributes& a) { return Apply(*inode, change, a); }, call));
      MutexLock lock(inode->mutex);
      if (change.modified) inode->changed.reset();  // a time that was set counts, also one before the last change
    }
    return GetAttributes(id, call);
  }

  Result<std::optional<std::string>> GetXattr(InodeId id, const std::string& name, object::Call call) override {
    auto xattrs = MR_TRY(Xattrs(id, call));
    auto found = xattrs.find(name);
    if (found == xattrs.end()) return std::nullopt;
    return found->second;
  }

  Result<std::vector<std::string>> ListXattrs(InodeId id, object::Call call) override {
    std::vector<std::string> names;
    for (const auto& [name, value] : MR_TRY(Xattrs(id, call))) names.push_back(name);
    return names;
  }

  Result<bool> SetXattr(InodeId id, const std::string& name, std::string_view value, XattrMode mode,
                        object::Call call) override {
    MR_TRY(CheckXattr(name));
    InodePtr inode = MR_TRY(core_->table.Find(id));
    bool missing = false;
    MR_TRY(core_->ChangeAttributes(
        inode,
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

  Result<bool> RemoveXattr(InodeId id, const std::string& name, object::Call call) override {
    MR_TRY(CheckXattr(name));
    InodePtr inode = MR_TRY(core_->table.Find(id));
    bool removed = false;
    MR_TRY(core_->ChangeAttributes(
        inode,
        [&](StoredAttributes& a) {
          removed = a.xattrs.erase(name) > 0;
          return Status();
        },
        call));
    return removed;
  }

  Result<std::string> ReadLink(InodeId id, object::Call call) override {
    InodePtr inode = MR_TRY(core_->table.Find(id));
    if (inode->kind != Kind::kSymlink) return Fail(Code::kInvalidArgument, "inode {} is no symbolic link", id);
    std::string path = MR_TRY(core_->table.PathOf(*inode));
    auto content = MR_TRY(object::GetAll(core_->store, path, kMaxTarget, call));
    if (!content) return Fail(Code::kNotFound, "no link {}", path);
    return std::move(content->bytes);
  }

  Result<Entry> MakeSymlink(InodeId parent, std::string_view name, std::string_view target, const Ownership& ownership,
                            object::Call call) override {
    if (!core_->attributes.stores()) return Fail(Code::kUnsupported, "links need --stored-attributes");
    if (target.empty()) return Fail(Code::kNotFound, "a link needs a target");
    if (target.size() > kMaxTarget) return Fail(Code::kNameTooLong, "targets have at most {} bytes", kMaxTarget);
    Place place = MR_TRY(NewPlace(parent, name, call));
    if (Metadata state = MR_TRY(core_->StateAt(place, call)); !state.absent()) {
      return Fail(Code::kAlreadyExists, "{} exists", place.path);
    }
    Ownership owner = ownership;
    owner.permissions = 0777;
    return MakeObject(place, S_IFLNK, {}, owner, target, call);
  }

  Result<Entry> MakeSpecial(InodeId parent, std::string_view name, std::uint32_t type, std::uint64_t device,
                            const Ownership& ownership, object::Call call) override {
    if (!core_->attributes.stores()) return Fail(Code::kUnsupported, "special files need --stored-attributes");
    Place place = MR_TRY(NewPlace(parent, name, call));
    const bool is_device = S_ISBLK(type) || S_ISCHR(type);
    return MakeObject(place, type, is_device ? std::optional(device) : std::nullopt, ownership, "", call);
  }

  Result<std::unique_ptr<File>> OpenFile(InodeId id, OpenFlags flags, object::Call call) override {
    InodePtr inode = MR_TRY(core_->table.Find(id));
    if (inode->kind == Kind::kDirectory) return Fail(Code::kIsDirectory, "a directory cannot be opened as a file");
    if (flags.write || flags.truncate) {
      MR_TRY(core_->CheckWritable());
      MR_TRY(CheckOverwrite(*inode));
    }
    if (!flags.truncate) return OpenStored(core_, std::move(inode), flags, call);
    return OpenTruncated(std::move(inode), call);
  }

  Result<Created> Create(InodeId parent, std::string_view name, bool exclusive, const Ownership& ownership,
                         object::Call call) override {
    Place place = MR_TRY(NewPlace(parent, name, call));
    Metadata state = MR_TRY(core_->StateAt(place, call));
    if (state.is_directory()) return Fail(Code::kIsDirectory, "{} is a directory", place.path);
    if (!state.absent() && exclusive) return Fail(Code::kAlreadyExists, "{} exists", place.path);
    const bool fresh = state.absent();
    if (!fresh && !core_->options.allow_overwrite) return Refuse("overwriting", place.path);
    Writer::Start start{.key = place.path, .base = {}, .unpublished = true, .exclusive = exclusive, .metadata = {}};
    if (fresh) {
      InodePtr directory = MR_TRY(core_->table.Find(parent));
      StoredAttributes attributes = core_->NewAttributes(S_IFREG, ownership, *directory);
      MR_TRY(ToMetadata(attributes, start.metadata.emplace()));
      if (!attributes.empty()) MR_TRY(core_->attributes.Mark(std::string(DirectoryOf(place.path)), call));
      state = {.state = Metadata::State::kFile, .modified = core_->clock.Wall(), .as_of = core_->clock.Now()};
      state.complete = true;
      if (!attributes.empty()) state.attributes = std::make_shared<const StoredAttributes>(std::move(attributes));
    }
    Entry entry = Acquire(place, state);
    InodePtr inode = MR_TRY(core_->table.Find(entry.attributes.inode));
    if (!fresh) {
      auto file = OpenStored(core_, inode, {.read = false, .write = true}, call);
      if (!file) core_->table.Forget(inode->id, 1);
      if (!file) return Fail(file.error());
      return Created{core_->Tell(*inode, state), *std::move(file)};
    }
    auto writer = MR_TRY(core_->JoinWriter(inode, std::move(start)));
    core_->table.SetLocal(*inode, true);
    core_->TouchDirectory(parent);
    return Created{core_->Tell(*inode, state), OpenWriting(core_, inode, std::move(writer))};
  }

  Result<std::unique_ptr<Directory>> OpenDirectory(InodeId id) override {
    return MakeDirectoryReader(core_, MR_TRY(core_->table.FindDirectory(id)));
  }

  Result<Entry> MakeDirectory(InodeId parent, std::string_view name, const Ownership& ownership,
                              object::Call call) override {
    Place place = MR_TRY(NewPlace(parent, name, call));
    if (Metadata state = MR_TRY(core_->StateAt(place, call)); !state.absent()) {
      return Fail(Code::kAlreadyExists, "{} exists", place.path);
    }
    InodePtr directory = MR_TRY(core_->table.Find(parent));
    StoredAttributes attributes = core_->NewAttributes(S_IFDIR, ownership, *directory);
    Metadata made = MR_TRY(core_->attributes.MakeDirectory(place.path + "/", attributes, call));
    core_->TouchDirectory(parent);
    return Acquire(place, made);
  }

  Status RemoveDirectory(InodeId parent, std::string_view name, object::Call call) override {
    Place place = MR_TRY(NewPlace(parent, name, call));
    Metadata state = MR_TRY(core_->StateAt(place, call));
    if (state.absent()) return Fail(Code::kNotFound, "no directory {}", place.path);
    if (state.is_file()) return Fail(Code::kNotDirectory, "{} is a file", place.path);
    const std::string marker = place.path + "/";
    // In this order: a file that is published meanwhile is seen here or there.
    InodePtr inode = core_->table.FindChild(parent, name);
    const bool local_names = inode && !core_->table.LocalChildren(inode->id).empty();
    auto page = MR_TRY(object::List(core_->store, {.prefix = marker, .max_keys = 2}, call));
    const bool has_marker = !page.objects.empty() && page.objects.front().key == marker;
    if (local_names || page.objects.size() > (has_marker ? 1u : 0u)) {
      return Fail(Code::kNotEmpty, "{} is not empty", place.path);
    }
    if (!core_->options.allow_delete) return Refuse("deleting", marker);
    MR_TRY(core_->attributes.Keep(std::string(DirectoryOf(place.path)), call));
    if (has_marker) MR_TRY(object::Delete(core_->store, marker, call));
    core_->metadata.PutMarker(marker, MetadataCache::Marker::kNone, core_->clock.Now());
    Removed(place, inode.get());
    return {};
  }

  Status Unlink(InodeId parent, std::string_view name, object::Call call) override {
    Place place = MR_TRY(NewPlace(parent, name, call));
    Metadata state = MR_TRY(core_->StateAt(place, call));
    if (state.absent()) return Fail(Code::kNotFound, "no file {}", place.path);
    if (state.is_directory()) return Fail(Code::kIsDirectory, "{} is a directory", place.path);
    if (!core_->options.allow_delete) return Refuse("deleting", place.path);
    InodePtr inode = core_->table.FindChild(parent, name);
    MR_TRY(core_->attributes.Keep(std::string(DirectoryOf(place.path)), call));
    auto writer = inode ? core_->BeginUnlink(inode, call) : nullptr;
    const bool stored = !writer || !core_->table.IsLocal(*inode) || writer->may_be_stored();
    Status deleted = stored ? object::Delete(core_->store, place.path, call) : Status();
    if (deleted) Removed(place, inode.get());
    if (writer) core_->EndUnlink(inode, writer, deleted.has_value());
    return deleted;
  }

  Status Rename(InodeId parent, std::string_view name, InodeId new_parent, std::string_view new_name, RenameFlags flags,
                object::Call call) override {
    MR_TRY(core_->CheckWritable());
    return vfs::Rename(*core_, {parent, name, new_parent, new_name}, flags, call);
  }

  Result<std::size_t> WillOpen(InodeId id, std::vector<std::string> names) override {
    InodePtr directory = MR_TRY(core_->table.FindDirectory(id));
    const std::string key = MR_TRY(core_->table.DirectoryKeyOf(*directory));
    for (std::string& name : names) name.insert(0, key);
    return core_->ahead.WillOpen(std::move(names));
  }

  Result<std::string> PrefixOf(InodeId id) override {
    InodePtr directory = MR_TRY(core_->table.FindDirectory(id));
    return core_->table.DirectoryKeyOf(*directory);
  }

  Status FlushAll(object::Call call) override { return core_->FlushAll(call); }
  Status recovery() const override { return recovery_; }
  int recovered_files() const override { return core_->adopted; }
  Pending pending() const override { return core_->PendingNow(); }

 private:
  static constexpr std::size_t kMaxTarget = 4095;
  static constexpr Duration kRootPatience = std::chrono::milliseconds(300), kRootPause = std::chrono::seconds(5);

  Metadata DirectoryNow() const { return {.state = Metadata::State::kDirectory, .as_of = core_->clock.Now()}; }

  /// A directory that somebody holds exists, whatever others do.
  Result<Metadata> DirectoryState(Inode& inode, const object::Call& call) {
    Metadata state = DirectoryNow();
    if (!core_->attributes.stores() || !core_->table.IsLinked(inode)) return state;
    std::string path = MR_TRY(core_->table.PathOf(inode));
    if (inode.id != kRootInode) {
      Metadata found = MR_TRY(core_->resolver.Find(path, call));
      return found.is_directory() ? found : state;
    }
    if (auto known = core_->metadata.Find(path); known && known->is_directory()) state = *known;
    MR_TRY(CompleteRoot(path, inode, state, call));
    core_->metadata.Put(path, state);
    return state;
  }

  /// Whoever asks the daemon about itself opens the root, and must not wait for a store that is down: then the root is
  /// told as it was last, and the store not asked again for a while.
  Status CompleteRoot(const std::string& path, Inode& inode, Metadata& state, const object::Call& call) {
    Metadata told;
    {
      MutexLock lock(inode.mutex);
      told = inode.told;
    }
    if (!told.is_directory()) return core_->attributes.Complete(path, state, call);
    const Clock& clock = core_->clock;
    if (clock.Now() < root_asked_after_.load()) {
      state = std::move(told);
      return {};
    }
    object::Call soon = call;
    soon.deadline = std::min(call.deadline, Deadline::After(clock, kRootPatience));
    if (Status completed = core_->attributes.Complete(path, state, soon); !completed) {
      root_asked_after_ = clock.Now() + kRootPause;
      state = std::move(told);
    }
    return {};
  }

  Result<std::map<std::string, std::string>> Xattrs(InodeId id, const object::Call& call) {
    MR_TRY(GetAttributes(id, call));
    InodePtr inode = MR_TRY(core_->table.Find(id));
    MutexLock lock(inode->mutex);
    return inode->told.attributes ? inode->told.attributes->xattrs : std::map<std::string, std::string>();
  }

  Status CheckXattr(const std::string& name) const {
    if (!core_->attributes.stores() || !name.starts_with("user.") || name.size() == 5) {
      return Fail(Code::kUnsupported, "extended attributes are kept in the namespace \"user.\" only, not {}", name);
    }
    return {};
  }

  Status Apply(const Inode& inode, const AttributeChange& change, StoredAttributes& a) const {
    if (change.permissions) {
      std::uint32_t type = S_IFREG;
      if (inode.kind == Kind::kDirectory) type = S_IFDIR;
      if (inode.kind == Kind::kSymlink || inode.kind == Kind::kSpecial) type = a.mode.value_or(type) & S_IFMT;
      a.mode = type | (*change.permissions & 07777);
    }
    if (change.uid) a.uid = change.uid;
    if (change.gid) a.gid = change.gid;
    if (change.modified) a.modified = change.modified;
    if (change.accessed) a.accessed = change.accessed;
    return {};
  }

  static std::unexpected<Error> Refuse(std::string_view what, const std::string& path) {
    return Fail(Code::kPermissionDenied, "{}: {} is not allowed on this mount", path, what);
  }

  /// Where overwriting is not allowed, what the store has may not be written.
  Status CheckOverwrite(Inode& inode) {
    if (core_->options.allow_overwrite || core_->table.IsLocal(inode)) return {};
    return Refuse("overwriting", core_->table.PathOf(inode).value_or("the file"));
  }

  /// For what changes the tree: nobody else changes that name meanwhile, nor the file that has it.
  Result<Place> NewPlace(InodeId parent, std::string_view name, const object::Call& call) {
    MR_TRY(core_->CheckWritable());
    while (true) {
      Place place = MR_TRY(core_->PlaceOf(parent, name));
      if (core_->options.buckets_at_top && DirectoryOf(place.path).empty()) {
        return Fail(Code::kPermissionDenied, "{}: at the top there are buckets only", place.path);
      }
      MR_TRY(CheckNewName(DirectoryOf(place.path), name));
      place.closure = MR_TRY(core_->gate.Close({place.path}, call.stop));
      if (MR_TRY(core_->PlaceOf(parent, name)).path == place.path) return place;
    }
  }

  /// What is a file to the store, and something else to those who know its mode.
  Result<Entry> MakeObject(const Place& place, std::uint32_t type, std::optional<std::uint64_t> device,
                           const Ownership& ownership, std::string_view content, const object::Call& call) {
    if (Metadata state = MR_TRY(core_->StateAt(place, call)); !state.absent()) {
      return Fail(Code::kAlreadyExists, "{} exists", place.path);
    }
    InodePtr directory = MR_TRY(core_->table.Find(place.parent));
    StoredAttributes attributes = core_->NewAttributes(type, ownership, *directory);
    attributes.device = device;
    object::PutOptions options{
        .if_match = {}, .if_none_match = true, .content_type = "application/octet-stream", .metadata = {}};
    MR_TRY(ToMetadata(attributes, options.metadata));
    MR_TRY(core_->attributes.Mark(std::string(DirectoryOf(place.path)), call));
    auto put = object::Put(core_->store, place.path, AsBytes(content), std::move(options), call);
    if (!put) {
      const bool exists = put.error().code() == Code::kPreconditionFailed;
      return Fail(exists ? put.error().WithCode(Code::kAlreadyExists) : put.error());
    }
    Metadata made{
        .state = Metadata::State::kFile, .size = content.size(), .modified = core_->clock.Wall(), .etag = put->etag};
    made.as_of = core_->clock.Now();
    made.complete = true;
    made.attributes = std::make_shared<const StoredAttributes>(std::move(attributes));
    core_->metadata.Put(place.path, made);
    core_->TouchDirectory(place.parent);
    return Acquire(place, made);
  }

  Entry Acquire(const Place& place, const Metadata& state) {
    return core_->Tell(*core_->table.Acquire(place.parent, place.name, KindOf(state)), state);
  }

  /// After something went away: its name is free.
  void Removed(const Place& place, Inode* inode) {
    core_->metadata.Put(place.path, {.as_of = core_->clock.Now()});
    if (inode) core_->table.Unlink(*inode);
    core_->TouchDirectory(place.parent);
  }

  Result<std::unique_ptr<File>> OpenTruncated(InodePtr inode, const object::Call& call) {
    std::unique_ptr<File> file;
    {
      PathGate::Pass pass = MR_TRY(core_->Enter(*inode, call));
      std::string path = MR_TRY(core_->table.PathOf(*inode));
      auto writer = MR_TRY(core_->JoinWriter(inode, {.key = std::move(path), .unpublished = true}));
      file = OpenWriting(core_, std::move(inode), std::move(writer));
    }
    MR_TRY(file->Truncate(0, call));
    return file;
  }

  Status Resize(const InodePtr& inode, std::uint64_t size, File* through, const object::Call& call) {
    if (through) return through->Truncate(size, call);
    std::unique_ptr<File> file;
    if (size == 0) {
      file = MR_TRY(OpenTruncated(inode, call));
    } else {
      file = MR_TRY(OpenStored(core_, inode, {.read = false, .write = true}, call));
      MR_TRY(file->Truncate(size, call));
    }
    return file->Close(call);
  }

  const std::shared_ptr<Core> core_;
  const Status recovery_;
  std::atomic<TimePoint> root_asked_after_ = TimePoint::min();  ///< the store had no answer for the root before
};

void RecoverLeftRenames(object::Store& store, const Options& options, const object::Call& call) {
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
                                         Options options, object::Call call) {
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
  auto core = std::make_shared<Core>(store, cache, budget, std::move(staging), std::move(options));
  Status recovery;  // a tree is of use although something stays staged
  if (core->staging) recovery = core->AdoptStaged(call);
  return std::make_unique<StoreTree>(std::move(core), std::move(recovery));
}

}  // namespace millrace::vfs
