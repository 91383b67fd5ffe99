#include "millrace/vfs/core/attribute_changes.h"

#include <sys/stat.h>

#include "millrace/object/blocking.h"
#include "millrace/vfs/core/tree_core.h"
#include "millrace/vfs/types/names.h"

namespace millrace::vfs {
namespace {

/// Changes the attributes of a file with unpublished content: its next version gets them.
Status ChangeWithWriter(TreeCore& core, Inode& inode, Writer& writer, const std::string& path,
                        const AttributeStore::Change& change, const object::Call& call) {
  UserMetadata stored;
  if (!core.table.IsLocal(inode)) {
    if (auto info = MR_TRY(object::Head(core.store, path, call))) stored = std::move(info->metadata);
  }
  MR_TRY(core.attributes.Mark(std::string(DirectoryOf(path)), call));
  MutexLock lock(inode.mutex);
  StoredAttributes now = inode.reported.attributes ? *inode.reported.attributes : StoredAttributes();
  const WallTime written = writer.modified();
  if (inode.times_set != written) now.modified = now.accessed = std::nullopt;
  const auto times = std::pair(now.modified, now.accessed);
  MR_TRY(change(now));
  if (times != std::pair(now.modified, now.accessed)) inode.times_set = written;
  now.changed = core.clock.Wall();
  if (!inode.metadata) inode.metadata = std::move(stored);
  MR_TRY(ToMetadata(now, *inode.metadata));
  writer.SetMetadata(*inode.metadata);
  inode.reported.attributes = std::make_shared<const StoredAttributes>(std::move(now));
  inode.reported.complete = true;
  return {};
}

}  // namespace

StoredAttributes NewAttributes(const TreeCore& core, std::uint32_t type, const Ownership& ownership, Inode& parent) {
  StoredAttributes attributes;
  if (!core.attributes.stores()) return attributes;
  const std::uint32_t usual = S_ISDIR(type) ? core.options.directory_permissions : core.options.file_permissions;
  std::uint32_t permissions = ownership.permissions.value_or(usual) & 07777;
  if (ownership.uid && *ownership.uid != core.options.uid) attributes.uid = ownership.uid;
  std::uint32_t gid = ownership.gid.value_or(core.options.gid);
  {
    MutexLock lock(parent.mutex);
    const StoredAttributes* stored = parent.reported.attributes.get();
    const std::uint32_t mode = stored && stored->mode ? *stored->mode : core.options.directory_permissions;
    if ((mode & S_ISGID) != 0) {
      gid = stored ? stored->gid.value_or(core.options.gid) : core.options.gid;
      if (S_ISDIR(type)) permissions |= S_ISGID;
    }
  }
  if (gid != core.options.gid) attributes.gid = gid;
  if (permissions != usual || !(S_ISREG(type) || S_ISDIR(type))) attributes.mode = type | permissions;
  return attributes;
}

Status ChangeAttributes(TreeCore& core, const InodePtr& inode, const AttributeStore::Change& change,
                        const object::Call& call) {
  MR_TRY(core.CheckWritable());
  PathLock::SharedLock shared = MR_TRY(core.LockShared(*inode, call));
  if (inode->kind == NodeKind::kDirectory) {
    std::string directory = MR_TRY(core.table.DirectoryKeyOf(*inode));
    Metadata state = MR_TRY(core.attributes.ChangeDirectory(directory, change, call));
    MutexLock lock(inode->mutex);
    inode->SetReported(std::move(state));
    return {};
  }
  std::string path = MR_TRY(core.table.PathOf(*inode));
  MutexLock changing(inode->changing);
  auto writer = core.WriterOf(*inode);
  if (writer && writer->unpublished()) return ChangeWithWriter(core, *inode, *writer, path, change, call);
  std::optional<Writer::PublicationLock> turn;
  if (writer) turn.emplace(MR_TRY(Writer::Hold(writer, call)));
  Metadata reported;
  {
    MutexLock lock(inode->mutex);
    reported = inode->reported;
  }
  Metadata state = MR_TRY(core.attributes.ChangeFile(path, reported, change, call));
  if (turn) {
    turn->SetStoredVersion(path, state.etag);
    turn->ForgetMetadata();
  }
  MutexLock lock(inode->mutex);
  inode->metadata.reset();
  core.ReportMoved(*inode, std::move(state));
  return {};
}

}  // namespace millrace::vfs
