#include "millrace/vfs/rename.h"

#include "millrace/object/blocking.h"
#include "millrace/vfs/copy.h"
#include "millrace/vfs/names.h"

namespace millrace::vfs {
namespace {

/// A copy is a new object with a new time of its own. The old one is stored with it, unless they are as good as equal:
/// files that were just written and now get their name need no stored attributes.
constexpr Duration kSameTime = std::chrono::seconds(2);

/// What the file's copy carries. Nothing: what the file itself does.
Result<std::optional<UserMetadata>> MetadataOfCopy(Core& core, const object::ObjectInfo& source, WallTime modified,
                                                   const std::string& to, const object::Call& call) {
  if (!core.attributes.stores()) return std::nullopt;
  StoredAttributes attributes = FromMetadata(source.metadata);
  const bool stores_time = !attributes.modified && core.clock.Wall() - modified > kSameTime;
  if (stores_time) attributes.modified = modified;
  if (!attributes.empty()) MR_TRY(core.attributes.Mark(std::string(DirectoryOf(to)), call));
  if (!stores_time) return std::nullopt;
  UserMetadata metadata = source.metadata;
  MR_TRY(ToMetadata(attributes, metadata));
  return metadata;
}

Status RenameFile(Core& core, const Place& from, const Place& to, RenameFlags flags, const object::Call& call) {
  InodePtr inode = core.table.FindChild(from.parent, from.name);
  auto writer = inode ? core.WriterOf(*inode) : nullptr;
  if (writer) MR_TRY(core.Publish(*inode, *writer, call));  // the name must get all that was written
  const TimePoint as_of = core.clock.Now();
  auto source = MR_TRY(object::Head(core.store, from.path, call));
  if (!source) return Fail(Code::kNotFound, "no file {}", from.path);
  Metadata moved = core.attributes.FromHead(*source, as_of);
  if (inode) {
    MutexLock lock(inode->mutex);
    inode->Learn(moved);
    moved = inode->told;
  }
  InodePtr replaced = core.table.FindChild(to.parent, to.name);
  if (auto other = replaced ? core.WriterOf(*replaced) : nullptr) other->Abandon();
  auto metadata = MR_TRY(MetadataOfCopy(core, *source, moved.modified, to.path, call));
  if (metadata) moved.attributes = std::make_shared<const StoredAttributes>(FromMetadata(*metadata));
  MR_TRY(core.attributes.Keep(std::string(DirectoryOf(from.path)), call));
  auto copied = MR_TRY(CopyVersion(core.store, *source, to.path,
                                   {.if_none_match = flags.no_replace, .metadata = std::move(metadata)}, call));
  MR_TRY(object::Delete(core.store, from.path, call));

  moved.etag = copied.etag;
  if (moved.attributes) moved.modified = core.clock.Wall();
  moved.as_of = core.clock.Now();
  core.metadata.Put(to.path, moved);
  core.metadata.Put(from.path, {.as_of = moved.as_of});
  if (inode) {
    core.table.Move(*inode, to.parent, to.name);
    if (writer) writer->SetKey(to.path, moved.etag);
    MutexLock lock(inode->mutex);
    inode->LearnMove(std::move(moved));
  } else if (replaced) {
    core.table.Unlink(*replaced);
  }
  return {};
}

}  // namespace

Status Rename(Core& core, const Place& from, const Place& to, RenameFlags flags, const object::Call& call) {
  Metadata source = MR_TRY(core.StateAt(from, call)), target = MR_TRY(core.StateAt(to, call));
  if (source.absent()) return Fail(Code::kNotFound, "no file {}", from.path);
  if (source.is_directory()) {
    return Fail(Code::kUnsupported, "directories cannot be renamed yet; copy {} and remove it", from.path);
  }
  if (flags.no_replace && !target.absent()) return Fail(Code::kAlreadyExists, "{} exists", to.path);
  if (!core.options.allow_overwrite && !target.absent()) {
    return Fail(Code::kAlreadyExists, "{} exists, and overwriting is not allowed on this mount", to.path);
  }
  if (from.path == to.path) return {};
  if (target.is_directory()) return Fail(Code::kIsDirectory, "{} is a directory", to.path);
  MR_TRY(RenameFile(core, from, to, flags, call));
  core.TouchDirectory(from.parent);
  core.TouchDirectory(to.parent);
  return {};
}

}  // namespace millrace::vfs
