#include "millrace/vfs/tree.h"

#include "millrace/base/text.h"
#include "millrace/object/blocking.h"
#include "millrace/vfs/copy.h"
#include "millrace/vfs/core.h"
#include "millrace/vfs/names.h"

namespace millrace::vfs {
namespace {

class StoreTree final : public Tree {
 public:
  explicit StoreTree(std::shared_ptr<Core> core) : core_(std::move(core)) {}

  Result<std::optional<Entry>> Lookup(InodeId parent, std::string_view name, object::Call call) override {
    if (name.size() > kMaxNameBytes) return Fail(Code::kNameTooLong, "names have at most {} bytes", kMaxNameBytes);
    Place place = MR_TRY(PlaceOf(parent, name));
    Metadata state = MR_TRY(StateAt(place, call));
    if (state.absent()) return std::nullopt;
    return Acquire(place, state);
  }

  void Forget(InodeId inode, std::uint64_t lookups) override { core_->table.Forget(inode, lookups); }
  Duration negative_ttl() const override { return core_->options.negative_ttl; }

  Result<Entry> GetAttributes(InodeId id, object::Call call) override {
    InodePtr inode = MR_TRY(core_->table.Find(id));
    if (inode->kind == Kind::kDirectory) return core_->Tell(*inode, DirectoryNow());
    return core_->Tell(*inode, MR_TRY(core_->FileState(*inode, false, call)));
  }

  Result<Entry> SetAttributes(InodeId id, const AttributeChange& change, File* through, object::Call call) override {
    if (change.size) {
      MR_TRY(core_->CheckWritable());
      InodePtr inode = MR_TRY(core_->table.Find(id));
      if (inode->kind == Kind::kDirectory) return Fail(Code::kIsDirectory, "a directory has no size to set");
      MR_TRY(Resize(inode, *change.size, through, call));
    }
    return GetAttributes(id, call);
  }

  Result<std::unique_ptr<File>> OpenFile(InodeId id, OpenFlags flags, object::Call call) override {
    InodePtr inode = MR_TRY(core_->table.Find(id));
    if (inode->kind == Kind::kDirectory) return Fail(Code::kIsDirectory, "a directory cannot be opened as a file");
    if (flags.write || flags.truncate) MR_TRY(core_->CheckWritable());
    if (!flags.truncate) return OpenStored(core_, std::move(inode), flags, call);
    return OpenTruncated(std::move(inode));
  }

  Result<Created> Create(InodeId parent, std::string_view name, bool exclusive, object::Call call) override {
    Place place = MR_TRY(NewPlace(parent, name));
    Metadata state = MR_TRY(StateAt(place, call));
    if (state.is_directory()) return Fail(Code::kIsDirectory, "{} is a directory", place.path);
    if (!state.absent() && exclusive) return Fail(Code::kAlreadyExists, "{} exists", place.path);
    const bool fresh = state.absent();
    if (fresh) state = {.state = Metadata::State::kFile, .modified = core_->clock.Wall(), .as_of = core_->clock.Now()};
    Entry entry = Acquire(place, state);
    InodePtr inode = MR_TRY(core_->table.Find(entry.attributes.inode));
    auto writer = core_->StartWriter(*inode, {.key = place.path, .unpublished = true, .exclusive = exclusive});
    if (!writer) {
      core_->table.Forget(inode->id, 1);
      return Fail(writer.error());
    }
    if (fresh) core_->table.SetLocal(*inode, true);
    return Created{core_->Tell(*inode, state), OpenWriting(core_, inode, *std::move(writer))};
  }

  Result<std::unique_ptr<Directory>> OpenDirectory(InodeId id) override {
    return MakeDirectoryReader(core_, MR_TRY(core_->table.FindDirectory(id)));
  }

  Result<Entry> MakeDirectory(InodeId parent, std::string_view name, object::Call call) override {
    Place place = MR_TRY(NewPlace(parent, name));
    if (Metadata state = MR_TRY(StateAt(place, call)); !state.absent()) {
      return Fail(Code::kAlreadyExists, "{} exists", place.path);
    }
    MR_TRY(object::Put(core_->store, place.path + "/", {}, {}, call));
    Metadata made = DirectoryNow();
    core_->metadata.Put(place.path, made);
    return Acquire(place, made);
  }

  Status RemoveDirectory(InodeId parent, std::string_view name, object::Call call) override {
    Place place = MR_TRY(NewPlace(parent, name));
    Metadata state = MR_TRY(StateAt(place, call));
    if (state.absent()) return Fail(Code::kNotFound, "no directory {}", place.path);
    if (state.is_file()) return Fail(Code::kNotDirectory, "{} is a file", place.path);
    const std::string marker = place.path + "/";
    auto page = MR_TRY(object::List(core_->store, {.prefix = marker, .max_keys = 2}, call));
    InodePtr inode = core_->table.FindChild(parent, name);
    const bool local_names = inode && !core_->table.LocalChildren(inode->id).empty();
    const bool has_marker = !page.objects.empty() && page.objects.front().key == marker;
    if (local_names || page.objects.size() > (has_marker ? 1u : 0u)) {
      return Fail(Code::kNotEmpty, "{} is not empty", place.path);
    }
    if (has_marker) MR_TRY(object::Delete(core_->store, marker, call));
    Removed(place, inode.get());
    return {};
  }

  Status Unlink(InodeId parent, std::string_view name, object::Call call) override {
    Place place = MR_TRY(NewPlace(parent, name));
    Metadata state = MR_TRY(StateAt(place, call));
    if (state.absent()) return Fail(Code::kNotFound, "no file {}", place.path);
    if (state.is_directory()) return Fail(Code::kIsDirectory, "{} is a directory", place.path);
    InodePtr inode = core_->table.FindChild(parent, name);
    bool stored = true;
    if (auto writer = inode ? core_->WriterOf(*inode) : nullptr) {
      writer->Abandon();
      stored = !core_->table.IsLocal(*inode) || writer->stored();
    }
    if (stored) MR_TRY(object::Delete(core_->store, place.path, call));
    Removed(place, inode.get());
    return {};
  }

  Status Rename(InodeId parent, std::string_view name, InodeId new_parent, std::string_view new_name, RenameFlags flags,
                object::Call call) override {
    Place from = MR_TRY(NewPlace(parent, name)), to = MR_TRY(NewPlace(new_parent, new_name));
    Metadata source = MR_TRY(StateAt(from, call));
    if (source.absent()) return Fail(Code::kNotFound, "no file {}", from.path);
    if (source.is_directory()) {
      return Fail(Code::kUnsupported, "directories cannot be renamed yet; copy {} and remove it", from.path);
    }
    Metadata target = MR_TRY(StateAt(to, call));
    if (flags.no_replace && !target.absent()) return Fail(Code::kAlreadyExists, "{} exists", to.path);
    if (from.path == to.path) return {};
    if (target.is_directory()) return Fail(Code::kIsDirectory, "{} is a directory", to.path);

    InodePtr inode = core_->table.FindChild(parent, name);
    auto writer = inode ? core_->WriterOf(*inode) : nullptr;
    if (writer) MR_TRY(core_->Publish(*inode, *writer, call));  // the name must get all that was written
    std::string path = from.path;
    source = MR_TRY(core_->resolver.RefreshFile(path, call));
    if (!source.is_file()) return Fail(Code::kNotFound, "no file {}", path);
    return Move(from, to, source, inode.get(), writer.get(), flags, call);
  }

  Status FlushAll(object::Call call) override {
    Status first;
    for (const InodePtr& inode : core_->table.All()) {
      auto writer = core_->WriterOf(*inode);
      if (!writer) continue;
      if (Status done = core_->Publish(*inode, *writer, call); !done && first) first = done;
    }
    return first;
  }

  Pending pending() const override {
    Pending pending;
    for (const InodePtr& inode : core_->table.All()) {
      auto writer = core_->WriterOf(*inode);
      if (!writer || !writer->unpublished()) continue;
      ++pending.files;
      pending.bytes += writer->size();
    }
    return pending;
  }

 private:
  /// A name in a directory, whether or not something is there.
  struct Place {
    InodeId parent;
    std::string name;
    std::string path;
  };

  Metadata DirectoryNow() const { return {.state = Metadata::State::kDirectory, .as_of = core_->clock.Now()}; }

  Result<Place> PlaceOf(InodeId parent, std::string_view name) {
    InodePtr directory = MR_TRY(core_->table.FindDirectory(parent));
    std::string path = MR_TRY(core_->table.DirectoryKeyOf(*directory));
    path += name;
    return Place{parent, std::string(name), std::move(path)};
  }

  /// For what changes the tree.
  Result<Place> NewPlace(InodeId parent, std::string_view name) {
    MR_TRY(core_->CheckWritable());
    Place place = MR_TRY(PlaceOf(parent, name));
    MR_TRY(CheckNewName(DirectoryOf(place.path), name));
    return place;
  }

  Result<Metadata> StateAt(const Place& place, const object::Call& call) {
    InodePtr inode = core_->table.FindChild(place.parent, place.name);
    if (inode && core_->table.IsLocal(*inode)) {
      if (inode->kind == Kind::kDirectory) return DirectoryNow();
      MutexLock lock(inode->mutex);
      Metadata state = inode->told;
      state.as_of = core_->clock.Now();
      return state;
    }
    if (!IsShowable(place.name) || !IsValidUtf8(place.name) || place.path.size() >= kMaxKeyBytes) {
      return Metadata{.as_of = core_->clock.Now()};  // no key can be there
    }
    return core_->resolver.Find(place.path, call);
  }

  Entry Acquire(const Place& place, const Metadata& state) {
    const Kind kind = state.is_directory() ? Kind::kDirectory : Kind::kFile;
    return core_->Tell(*core_->table.Acquire(place.parent, place.name, kind), state);
  }

  /// After something went away: its name is free, and the directory that held it stays although it may be empty now.
  void Removed(const Place& place, Inode* inode) {
    core_->metadata.Put(place.path, {.as_of = core_->clock.Now()});
    if (inode) core_->table.Unlink(*inode);
    if (auto directory = core_->table.Find(place.parent)) core_->table.SetLocal(**directory, true);
  }

  Result<std::unique_ptr<File>> OpenTruncated(InodePtr inode) {
    std::string path = MR_TRY(core_->table.PathOf(*inode));
    auto writer = MR_TRY(core_->StartWriter(*inode, {.key = std::move(path), .unpublished = true}));
    return OpenWriting(core_, std::move(inode), std::move(writer));
  }

  Status Resize(const InodePtr& inode, std::uint64_t size, File* through, const object::Call& call) {
    if (through) return TruncateThrough(*through, size);
    if (auto writer = core_->WriterOf(*inode)) return writer->Truncate(size);
    std::unique_ptr<File> file;
    if (size == 0) {
      file = MR_TRY(OpenTruncated(inode));
    } else {
      file = MR_TRY(OpenStored(core_, inode, {.read = false, .write = true}, call));
      MR_TRY(TruncateThrough(*file, size));
    }
    return file->Close(call);
  }

  Status Move(const Place& from, const Place& to, const Metadata& source, Inode* inode, Writer* writer,
              RenameFlags flags, const object::Call& call) {
    const object::ObjectInfo info{
        .key = from.path, .size = source.size, .etag = source.etag, .modified = source.modified};
    if (InodePtr replaced = core_->table.FindChild(to.parent, to.name)) {
      if (auto other = core_->WriterOf(*replaced)) other->Abandon();
    }
    auto copied = MR_TRY(CopyVersion(core_->store, info, to.path, flags.no_replace, call));
    MR_TRY(object::Delete(core_->store, from.path, call));

    Metadata moved = source;
    moved.etag = copied.etag;
    moved.modified = core_->clock.Wall();
    moved.as_of = core_->clock.Now();
    core_->metadata.Put(to.path, moved);
    if (inode) {
      core_->table.Move(*inode, to.parent, to.name);
      if (writer) writer->SetKey(to.path, moved.etag);
      MutexLock lock(inode->mutex);
      inode->moved_from = source.etag;
      if (inode->pages_etag == source.etag) inode->pages_etag = moved.etag;
      inode->told = moved;
    } else if (InodePtr replaced = core_->table.FindChild(to.parent, to.name)) {
      core_->table.Unlink(*replaced);
    }
    core_->metadata.Put(from.path, {.as_of = core_->clock.Now()});
    if (auto directory = core_->table.Find(from.parent)) core_->table.SetLocal(**directory, true);
    return {};
  }

  const std::shared_ptr<Core> core_;
};

}  // namespace

Result<std::unique_ptr<Tree>> Tree::Open(object::Store& store, cache::BlockCache& cache, MemoryBudget& budget,
                                         Options options, object::Call call) {
  if (!options.prefix.empty() && !options.prefix.ends_with('/')) {
    return Fail(Code::kInvalidArgument, "the prefix \"{}\" must end with '/'", options.prefix);
  }
  if (auto page = object::List(store, {.prefix = options.prefix, .max_keys = 1}, call); !page) {
    return Fail(page.error().Context(fmt::format("cannot list {}", store.Describe())));
  }
  return std::make_unique<StoreTree>(std::make_shared<Core>(store, cache, budget, std::move(options)));
}

}  // namespace millrace::vfs
