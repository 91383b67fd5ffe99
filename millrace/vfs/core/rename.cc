#include "millrace/vfs/core/rename.h"

#include "millrace/object/blocking.h"
#include "millrace/vfs/attributes/copy.h"
#include "millrace/vfs/types/names.h"

namespace millrace::vfs {
namespace {

/// A copy gets a new time of change. The old time is stored with the copy, unless it is less than this ago. Programs
/// write a file and then rename it: such a file needs no stored attributes. 2 s: a guess.
constexpr Duration kSameTime = std::chrono::seconds(2);

/// Renames a file that is staged and not in the store: gives its writer another key. Returns false, and changes
/// nothing, if the store may have the file. `over_file`: the new name has a file.
Result<bool> RenameStaged(TreeCore& core, const NamedPath& from, const NamedPath& to, bool over_file, bool exclusive,
                          const object::Call& call) {
  InodePtr inode = core.table.FindChild(from.parent, from.name);
  auto writer = inode ? core.WriterOf(*inode) : nullptr;
  if (!writer || !core.table.IsLocal(*inode) || !(core.options.close_async || writer->kept())) return false;
  Metadata moved;
  {
    MutexLock lock(inode->mutex);
    moved = inode->reported;
  }
  if (moved.attributes && core.attributes.stores()) {
    MR_TRY(core.attributes.Mark(std::string(DirectoryOf(to.path)), call));
  }
  InodePtr replaced = core.table.FindChild(to.parent, to.name);
  auto unlinked = replaced ? core.write_back.BeginUnlink(replaced, call)
                           : nullptr;  // else it could be published after, and over, this file
  const bool over_stored =
      over_file && (!replaced || !core.table.IsLocal(*replaced) || (unlinked && unlinked->may_be_stored()));
  auto renamed = [&] {
    MutexLock changing(inode->changing);
    return writer->MoveUnstored(to.path, exclusive, over_stored, call);
  }();
  const bool done = renamed && *renamed;
  if (done) core.table.Move(*inode, to.parent, to.name);
  core.write_back.EndUnlink(replaced, unlinked, done);
  if (!done) return renamed;
  moved.as_of = core.clock.Now();
  core.metadata.Put(to.path, moved);
  core.metadata.Put(from.path, {.as_of = moved.as_of});
  return true;
}

/// Ends a rename that another process has done in the store, of a file that is open for writing. The content is
/// published: that process had the turn.
Status FollowRename(TreeCore& core, const InodePtr& inode, Writer::PublicationLock& turn, const NamedPath& from,
                    const NamedPath& to, const object::Call& call) {
  const TimePoint as_of = core.clock.Now();
  const auto copied = MR_TRY(object::Head(core.store, to.path, call));
  {
    MutexLock lock(inode->mutex);
    if (!copied || copied->size != inode->reported.size) return Fail(Code::kNotFound, "no file {}", from.path);
  }
  InodePtr replaced = core.table.FindChild(to.parent, to.name);
  auto unlinked = replaced ? core.write_back.BeginUnlink(replaced, call) : nullptr;
  Metadata moved = core.attributes.FromHead(*copied, as_of);
  core.metadata.Put(to.path, moved);
  core.metadata.Put(from.path, {.as_of = as_of});
  core.table.Move(*inode, to.parent, to.name);
  turn.SetStoredVersion(to.path, copied->etag);
  {
    MutexLock lock(inode->mutex);
    core.ReportMoved(*inode, std::move(moved));
  }
  core.write_back.EndUnlink(replaced, unlinked, true);
  return {};
}

Status RenameFile(TreeCore& core, const NamedPath& from, const NamedPath& to, RenameFlags flags,
                  const object::Call& call) {
  InodePtr inode = core.table.FindChild(from.parent, from.name);
  auto writer = inode ? core.WriterOf(*inode) : nullptr;
  std::optional<Writer::PublicationLock> turn;
  if (writer)
    turn.emplace(
        MR_TRY(core.write_back.PublishAndHold(inode, writer, call)));  // the new name must have all that was written
  const TimePoint as_of = core.clock.Now();
  auto source = MR_TRY(object::Head(core.store, from.path, call));
  if (!source && flags.repeated && turn) return FollowRename(core, inode, *turn, from, to, call);
  if (!source) return Fail(Code::kNotFound, "no file {}", from.path);
  Metadata moved = core.attributes.FromHead(*source, as_of);
  if (inode) {
    MutexLock lock(inode->mutex);
    inode->SetReported(moved);
    moved = inode->reported;
  }
  InodePtr replaced = core.table.FindChild(to.parent, to.name);
  auto metadata = MR_TRY(MetadataOfCopy(core, *source, moved.modified));
  if (core.attributes.stores() && !FromMetadata(metadata.value_or(source->metadata)).empty()) {
    MR_TRY(core.attributes.Mark(std::string(DirectoryOf(to.path)), call));
  }
  if (metadata) moved.attributes = std::make_shared<const StoredAttributes>(FromMetadata(*metadata));
  MR_TRY(core.attributes.Keep(std::string(DirectoryOf(from.path)), call));
  auto unlinked = replaced ? core.write_back.BeginUnlink(replaced, call) : nullptr;
  auto result = CopyVersion(core.store, core.uploads_begun(), *source, to.path,
                            {.if_none_match = flags.no_replace, .metadata = std::move(metadata)}, call);
  if (!result) core.write_back.EndUnlink(replaced, unlinked, false);
  auto copied = MR_TRY(std::move(result));
  if (unlinked)
    unlinked->Discard();  // before the source is deleted: else the next mount would publish it over the copy
  MR_TRY(object::Delete(core.store, from.path, call));

  moved.etag = copied.etag;
  if (moved.attributes) moved.modified = core.clock.Wall();
  moved.as_of = core.clock.Now();
  core.metadata.Put(to.path, moved);
  core.metadata.Put(from.path, {.as_of = moved.as_of});
  if (inode) {
    core.table.Move(*inode, to.parent, to.name);
    if (turn) turn->SetStoredVersion(to.path, moved.etag);
    MutexLock lock(inode->mutex);
    core.ReportMoved(*inode, std::move(moved));
  } else if (replaced) {
    core.table.Unlink(*replaced);
  }
  core.write_back.EndUnlink(replaced, unlinked, true);
  return {};
}

/// Ends a rename that another process has done in the store: gives the inode its new name.
Status FinishRename(TreeCore& core, const NamedPath& from, const NamedPath& to) {
  if (core.quota) core.quota->NoteRemoval();  // it may have replaced a file
  if (InodePtr inode = core.table.FindChild(from.parent, from.name)) core.table.Move(*inode, to.parent, to.name);
  core.TouchDirectory(from.parent);
  core.TouchDirectory(to.parent);
  return {};
}

/// The two names of a rename, what they name, and the lock that excludes other changes.
struct LockedNames {
  NamedPath from, to;
  Metadata source, target;
  PathLock::ExclusiveLock names_lock;
};

Result<LockedNames> LockNames(TreeCore& core, const RenameRequest& request, const object::Call& call) {
  auto places = [&](LockedNames& names) -> Status {
    names.from = MR_TRY(core.NamedPathOf(request.parent, request.name));
    names.to = MR_TRY(core.NamedPathOf(request.new_parent, request.new_name));
    MR_TRY(CheckNewName(DirectoryOf(names.from.path), request.name));
    return CheckNewName(DirectoryOf(names.to.path), request.new_name);
  };
  while (true) {
    LockedNames names;
    MR_TRY(places(names));
    const bool directory = MR_TRY(core.StateAt(names.from, call)).is_directory();
    const std::string from = names.from.path, to = names.to.path;
    if (directory && (to + "/").starts_with(from + "/") && from != to) {
      return Fail(Code::kInvalidArgument, "{} cannot move into itself; choose a name outside of it", from);
    }
    const std::string_view below = directory ? "/" : "";
    names.names_lock = MR_TRY(
        core.path_lock.LockExclusive({fmt::format("{}{}", from, below), fmt::format("{}{}", to, below)}, call.stop));
    MR_TRY(places(names));
    names.source = MR_TRY(core.StateAt(names.from, call));
    names.target = MR_TRY(core.StateAt(names.to, call));
    const bool as_before = names.from.path == from && names.to.path == to;
    if (as_before && names.source.is_directory() == directory) return names;
  }
}

}  // namespace

Result<std::optional<UserMetadata>> MetadataOfCopy(const TreeCore& core, const object::ObjectInfo& source,
                                                   WallTime modified) {
  if (!core.attributes.stores() || source.key.ends_with('/')) return std::nullopt;
  StoredAttributes attributes = FromMetadata(source.metadata);
  if (attributes.modified || core.clock.Wall() - modified <= kSameTime) return std::nullopt;
  attributes.modified = modified;
  UserMetadata metadata = source.metadata;
  MR_TRY(ToMetadata(attributes, metadata));
  return metadata;
}

Status Rename(TreeCore& core, const RenameRequest& request, RenameFlags flags, const object::Call& call) {
  LockedNames names = MR_TRY(LockNames(core, request, call));
  const NamedPath &from = names.from, &to = names.to;
  const Metadata &source = names.source, &target = names.target;
  if (source.absent() && flags.repeated && !target.absent()) return FinishRename(core, from, to);
  if (source.absent()) return Fail(Code::kNotFound, "no file {}", from.path);
  if (flags.no_replace && !target.absent()) return Fail(Code::kAlreadyExists, "{} exists", to.path);
  if (from.path == to.path) return {};
  if (!core.options.allow_overwrite && !target.absent()) {
    return Fail(Code::kAlreadyExists, "{} exists, and overwriting is not allowed on this mount", to.path);
  }
  if (source.is_directory()) {
    if (target.is_file()) return Fail(Code::kNotDirectory, "{} is a file", to.path);
    MR_TRY(RenameDirectory(core, from, to, target.is_directory(), names.names_lock, call));
  } else {
    if (target.is_directory()) return Fail(Code::kIsDirectory, "{} is a directory", to.path);
    if (!MR_TRY(RenameStaged(core, from, to, target.is_file(), flags.no_replace, call))) {
      MR_TRY(RenameFile(core, from, to, flags, call));
    }
    if (core.quota && target.is_file()) core.quota->NoteRemoval();
  }
  core.TouchDirectory(from.parent);
  core.TouchDirectory(to.parent);
  return {};
}

}  // namespace millrace::vfs
