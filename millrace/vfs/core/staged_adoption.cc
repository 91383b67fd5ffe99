#include "millrace/vfs/core/staged_adoption.h"

#include <map>

#include "millrace/base/text.h"
#include "millrace/object/blocking.h"
#include "millrace/vfs/core/tree_core.h"
#include "millrace/vfs/types/names.h"

namespace millrace::vfs {
namespace {

/// Returns true if the store no longer has the version that the earlier process was about to remove or replace.
bool WasRemoved(TreeCore& core, const StagedRecord& record, const object::Call& call) {
  auto now = object::Head(core.store, record.key, call);
  if (!now) return false;  // the publication will show it
  return (*now ? (*now)->etag : "") != *record.removing;
}

/// Returns the inode of a file, with one lookup. The store need not have the file.
Result<InodePtr> InodeAt(TreeCore& core, std::string_view key) {
  const auto names = Split(key.substr(core.options.prefix.size()), '/');
  InodePtr at = MR_TRY(core.table.Find(kRootInode));
  std::vector<InodeId> passed;
  for (const std::string_view& name : names) {
    const bool last = &name == &names.back();
    if (!IsShowable(name)) return Fail(Code::kInvalidArgument, "a mount does not show {}", key);
    at = core.table.Acquire(at->id, name, last ? NodeKind::kFile : NodeKind::kDirectory);
    if (!last) passed.push_back(at->id);
  }
  for (InodeId id : passed) core.table.Forget(id, 1);  // the inode below holds them
  return at;
}

}  // namespace

bool WasPublished(TreeCore& core, const StagedRecord& record, const object::Call& call) {
  auto now = object::Head(core.store, record.key, call);
  if (!now || !*now || (*now)->etag != record.expected) return false;
  return !record.metadata || *record.metadata == (*now)->metadata;
}

Metadata ReportedOf(TreeCore& core, const StagedRecord& record, const object::Call& call) {
  Metadata reported{.state = Metadata::State::kFile, .size = record.size, .modified = record.modified};
  if (record.base) reported.etag = record.base->etag;
  if (record.metadata) {
    StoredAttributes stored = FromMetadata(*record.metadata);
    if (!stored.empty()) reported.attributes = std::make_shared<const StoredAttributes>(std::move(stored));
    reported.complete = true;
  } else if (Status known = core.attributes.Complete(record.key, reported, call); !known) {
    core.options.log.Warning("the attributes of a file that an earlier mount changed are not known yet",
                             {{"key", record.key}, {"reason", known.error()}});
  }
  reported.as_of = core.clock.Now();
  return reported;
}

namespace {

/// Returns true if a file of the tree has the content now.
bool AdoptFile(TreeCore& core, StagingArea::AdoptedFile left, const std::set<std::string>& published,
               const object::Call& call) {
  const StagedRecord record = left.record;
  // The upload is not continued: its parts are not recorded, and its metadata may be outdated.
  Status removed = AbortRecorded(core.store, record, call);
  if (!removed) {
    core.options.log.Warning("an upload that an earlier mount began is not removed yet; the next mount tries again",
                             {{"key", record.upload_key}, {"reason", removed.error()}});
  }
  if (!record.complete) {
    if (removed) left.file->RemoveRecord();
    return false;
  }
  if (!removed) core.ledger->AddUnconfirmed(record.upload_key, record.upload_begun, record.upload_id);
  if (record.removing && WasRemoved(core, record, call)) {
    left.file->RemoveRecord();
    return false;
  }
  if (!record.expected.empty() && WasPublished(core, record, call)) {
    left.file->RemoveRecord();
    return false;
  }
  auto inode = InodeAt(core, record.key);
  if (!inode) {
    core.options.log.Error("what an earlier mount wrote has no place in this one; it stays staged",
                           {{"key", record.key}, {"reason", inode.error()}});
    return false;
  }
  if (auto restored = core.WriterOf(**inode)) {  // the file was changed after this content was kept
    if (published.contains(record.key)) {
      left.file->RemoveRecord();
    } else if (restored->unpublished()) {
      restored->SetOlder(std::move(left.file));
    }  // else it had been given up; it stays staged for the next mount
    core.table.Forget((*inode)->id, 1);
    return false;
  }
  Metadata reported = ReportedOf(core, record, call);
  core.options.log.Warning("publishing what an earlier mount did not", {{"key", record.key}});
  if (!core.write_back.Resume(*inode, std::move(left), std::move(reported))) {
    core.options.log.Error("too many files of earlier mounts; the next mount publishes the rest",
                           {{"key", record.key}});
  }
  core.table.Forget((*inode)->id, 1);
  return true;
}

}  // namespace

AdoptedFiles AdoptStaged(TreeCore& core, const std::set<std::string>& published, const object::Call& call) {
  std::vector<std::string> unreadable;
  AdoptedFiles adopted;
  auto found = core.staging->Adopt(core.options.prefix, &unreadable);
  if (!found) {
    adopted.status = Fail(found.error());
    return adopted;
  }
  std::vector<StagingArea::AdoptedFile> all = *std::move(found);
  // If several records have the same key, only the latest is published.
  std::map<std::string, const StagedRecord*> latest;
  for (const auto& left : all) {
    if (left.record.complete) latest[left.record.key] = &left.record;
  }
  for (auto& left : all) {
    if (left.record.complete && latest.at(left.record.key) != &left.record) left.record.complete = false;
  }
  for (auto& left : all) adopted.files += AdoptFile(core, std::move(left), published, call) ? 1 : 0;
  for (const std::string& reason : unreadable) {
    core.options.log.Error("a record in the staging folder cannot be read; it is left alone", {{"reason", reason}});
  }
  if (!unreadable.empty()) {
    adopted.status = Fail(Code::kCorrupt, "a record in the staging folder cannot be read: {}", unreadable.front());
  }
  return adopted;
}

}  // namespace millrace::vfs
