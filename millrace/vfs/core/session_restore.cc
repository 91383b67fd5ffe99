#include "millrace/vfs/core/session_restore.h"

#include <algorithm>

#include "millrace/vfs/core/staged_adoption.h"
#include "millrace/vfs/core/tree_core.h"
#include "millrace/vfs/staging/staged_record.h"

namespace millrace::vfs {
namespace {

bool IsOpen(const SessionState& state, InodeId inode) {
  return std::ranges::any_of(state.files, [inode](const auto& file) { return file.second.inode == inode; });
}

/// Returns the last content of each inode.
std::map<InodeId, const SavedContent*> LastContents(const SessionState& state) {
  std::map<InodeId, const SavedContent*> last;
  for (const auto& [number, content] : state.contents) last[content.inode] = &content;
  return last;
}

/// Returns true if AdoptStaged takes the content over.
bool IsInFolder(const SavedContent& saved) { return saved.kept && saved.unpublished && !saved.abandoned; }

/// Returns true if the content turns out to be published.
Result<bool> RestoreContent(TreeCore& core, const SavedContent& saved, const object::Call& call) {
  InodePtr inode = MR_TRY(core.table.Find(saved.inode));
  MR_TRY(CheckKeys(saved.record, core.options.prefix, "the log of a mount"));
  StagingArea::AdoptedFile left{.file = nullptr, .record = saved.record};
  if (!saved.staged.empty()) left.file = MR_TRY(core.staging->Claim(saved.staged, saved.record.held));
  // The upload is not continued: its parts are not recorded.
  if (!saved.record.upload_key.empty()) {
    if (Status removed = AbortRecorded(core.store, saved.record, call); !removed) {
      core.ledger->AddUnconfirmed(saved.record.upload_key, saved.record.upload_begun, saved.record.upload_id);
    }
  }
  if (left.file) left.file->RemoveRecord();
  SavedContent now = saved;
  now.abandoned = now.abandoned && !core.table.IsLinked(*inode);  // an unlink that had not ended comes again
  const bool published = now.unpublished && !now.record.expected.empty() && WasPublished(core, now.record, call);
  if (published) {
    left.record.base = cache::ObjectVersion{now.record.key, now.record.expected, now.record.size};
    left.record.base_bytes = now.record.size;
    left.record.changed.Clear();
    left.record.expected.clear();
    left.record.exclusive = now.unpublished = now.metadata_changed = false;
  }
  Metadata reported = ReportedOf(core, left.record, call);
  core.write_back.Restore(inode, now, std::move(left), std::move(reported));
  return published;
}

}  // namespace

std::set<std::string> RestoreContents(TreeCore& core, const SessionState& state, const object::Call& call) {
  std::set<std::string> published;
  for (const auto& [id, saved] : LastContents(state)) {
    if (IsInFolder(*saved) || !saved->recoverable || !IsOpen(state, id)) continue;
    const auto restored = RestoreContent(core, *saved, call);
    if (restored && *restored) published.insert(saved->record.key);
    if (!restored) {
      core.options.log.Error("what a program was writing is lost with the process of the mount",
                             {{"key", saved->record.key}, {"reason", restored.error()}});
    }
  }
  return published;
}

void RestoreVersions(TreeCore& core, const SessionState& state) {
  const auto contents = LastContents(state);
  for (const auto& [number, file] : state.files) {  // in the order of the opens: the last one has the present version
    auto inode = core.table.Find(file.inode);
    if (!inode) continue;
    // As old as can be: any answer of the store is later.
    Metadata version{.state = Metadata::State::kFile, .size = file.size, .etag = file.etag};
    if (auto content = contents.find(file.inode); content != contents.end() && IsInFolder(*content->second)) {
      version.size = content->second->record.size;  // without a writer, it is published
      version.etag = content->second->record.expected;
    }
    MutexLock lock((*inode)->mutex);
    if (!(*inode)->writer && !version.etag.empty()) (*inode)->reported = std::move(version);
  }
}

bool IsStale(const InodePtr& inode, const SavedFile& saved, const SessionState& state) {
  const auto last = LastContents(state);
  MutexLock lock(inode->mutex);
  if (inode->writer) return false;
  if (auto content = last.find(saved.inode); content != last.end() && content->second->unpublished) {
    return !IsInFolder(*content->second) || inode->reported.etag.empty();  // else it is published already
  }
  return saved.etag.empty() || inode->reported.etag != saved.etag;
}

}  // namespace millrace::vfs
