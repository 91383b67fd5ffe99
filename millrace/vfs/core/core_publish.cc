// How files of a tree reach the store: at once, in the background, or after another process has left them.
#include "millrace/base/text.h"
#include "millrace/object/blocking.h"
#include "millrace/vfs/core/tree_core.h"
#include "millrace/vfs/names/names.h"

namespace millrace::vfs {
namespace {

constexpr Duration kRetry = std::chrono::seconds(1);  ///< of what failed for the first time
constexpr int kNames = 100;

bool IsLost(Code code) { return code == Code::kStale || code == Code::kAlreadyExists; }

}  // namespace

Writer::Environment TreeCore::WriterEnvironment() {
  return {.store = store,
          .cache = cache,
          .budget = budget,
          .staging = *staging,
          .uploads = uploads,
          .clock = clock,
          .ledger = uploads_begun(),
          .part_bytes = options.write_part_bytes,
          .parallel_parts = options.write_parallel_parts,
          .await_room = [this](const object::Call& call) { return publisher_.AwaitProgress(call); }};
}

std::function<void(const Metadata&)> TreeCore::OnPublishedOf(const InodePtr& inode) {
  return [this, id = inode->id](const Metadata& now) {
    if (auto published = table.Find(id)) OnPublished(**published, now);
  };
}

void TreeCore::OnPublished(Inode& inode, Metadata now) {
  auto path = table.PathOf(inode);
  walk.Forget();
  table.SetLocal(inode, false);
  MutexLock lock(inode.mutex);
  now.complete = inode.told.complete;
  now.attributes = inode.told.attributes;
  if (now.attributes && inode.times_set != now.modified) {
    StoredAttributes kept = *now.attributes;
    kept.modified = kept.accessed = kept.changed = std::nullopt;
    now.attributes = kept.empty() ? nullptr : std::make_shared<const StoredAttributes>(std::move(kept));
  }
  if (path) metadata.Put(*path, now);
  inode.LearnMove(std::move(now));  // what is open here has seen it grow
}

// --- Now ---

Status TreeCore::Publish(const InodePtr& inode, const std::shared_ptr<Writer>& writer, const object::Call& call) {
  auto shared = LockShared(*inode, call);
  if (!shared) {
    MutexLock changing(inode->changing);
    if (shared.error().code() == Code::kBusy) OnFailed(inode, *writer, shared.error(), call);
    return Fail(shared.error());
  }
  MR_TRY(HoldHere(inode, writer, call));
  return {};
}

Result<Writer::Turn> TreeCore::HoldHere(const InodePtr& inode, const std::shared_ptr<Writer>& writer,
                                        const object::Call& call) {
  MutexLock changing(inode->changing);
  auto held = Writer::Hold(writer, call);
  if (!held) OnFailed(inode, *writer, held.error(), call);
  return held;
}

/// Keeps what could not be published, for a later attempt or, where that cannot be of use, for the next mount: its
/// program has been told.
void TreeCore::OnFailed(const InodePtr& inode, Writer& writer, const Error& reason, const object::Call& call) {
  auto kept = writer.Keep(/*durable=*/true);
  if (!kept) {
    options.log.Error("what was written could not be published, nor written down", {{"reason", kept.error()}});
    return;
  }
  if (kept->empty()) return;
  const bool later = !IsLost(reason.code()) && PublishLater(inode, kRetry);
  if (!later) writer.GiveUpParts(call);
  options.log.Error(later ? "what was written could not be published; it is kept, and tried again"
                          : "what was written could not be published; it is kept, and the next mount will try again",
                    {{"file", *kept}, {"reason", reason}});
}

Status TreeCore::Close(const InodePtr& inode, const std::shared_ptr<Writer>& writer, const object::Call& call) {
  if (!options.close_async) return Publish(inode, writer, call);
  if (!writer->unpublished()) return {};
  auto kept = writer->Keep(/*durable=*/false);
  // What the staging area cannot hold, or is one too many, is published before the close returns.
  if (!kept || !PublishLater(inode, options.publish_delay)) return Publish(inode, writer, call);
  return {};
}

Status TreeCore::LeaveWriter(const InodePtr& inode, const std::shared_ptr<Writer>& writer, bool publish,
                             const object::Call& call) {
  Status closed;
  std::shared_ptr<Writer> ended;  // outlives the lock: its end may ask the store
  for (bool done = false; !done;) {
    {
      MutexLock lock(inode->mutex);
      const bool last = inode->writing_files == 1;
      const bool staged = writer->kept() && publisher_.Waits(*inode);
      // Others may have come, changed something and left it to us while we were publishing.
      done = !publish || !closed || !last || staged || !writer->unpublished();
      if (done) {
        if (publish && closed && last && staged && !options.close_async) {
          closed = Fail(Code::kUnavailable, "the file is staged, and tried again");
        }
        --inode->writing_files;
        const bool given_up = last && inode->writer == writer && writer->unpublished() && !staged;
        if (given_up && table.IsLinked(*inode)) {
          ended = std::move(inode->writer);
          inode->metadata.reset();
          inode->times_set.reset();
        }
      }
    }
    if (!done) closed = Close(inode, writer, call);
  }
  // What never reached the store does not exist.
  if (ended && table.IsLocal(*inode) && !writer->stored()) table.Unlink(*inode);
  Settle(inode);
  if (closed) RemoveLeftUploads(call);
  return closed;
}

/// Lets the writer go when nobody needs it any more.
void TreeCore::Settle(const InodePtr& inode) {
  std::shared_ptr<Writer> ended;
  MutexLock lock(inode->mutex);
  if (inode->writing_files > 0 || !inode->writer || inode->writer->unpublished()) return;
  const bool linked = table.IsLinked(*inode);
  if (!linked && inode->open_files > 0) return;      // it holds what can be read of the file
  if (linked && inode->writer->abandoned()) return;  // and is about to
  ended = std::move(inode->writer);
  inode->metadata.reset();
  inode->times_set.reset();
  lock.Unlock();
}

// --- Later ---

Status TreeCore::PublishLater(const InodePtr& inode, Duration delay) {
  table.Hold(*inode);  // the kernel may forget it meanwhile
  auto added = publisher_.Add(inode, delay);
  if (!added || !*added) table.Forget(inode->id, 1);
  if (!added) return Fail(added.error());
  return {};
}

/// For the publisher. Once it does not wait any more, nor does its writer.
Status TreeCore::PublishKept(const InodePtr& inode, const object::Call& call) {
  Status published;
  auto writer = WriterOf(*inode);
  if (writer && writer->kept()) {
    PathLock::SharedLock shared = MR_TRY(LockShared(*inode, call));
    MutexLock changing(inode->changing);
    published = writer->PublishKept(call);
    if (!published && IsLost(published.error().code())) published = Divert(*inode, *writer, std::move(published), call);
  }
  if (published) {
    Settle(inode);
    RemoveLeftUploads(call);
  } else if (published.error().code() != Code::kCancelled) {
    options.log.Warning("a file cannot be published yet; it stays staged, and is tried again",
                        {{"key", table.PathOf(*inode).value_or("?")}, {"reason", published.error()}});
  }
  return published;
}

/// Others have replaced the version that a file builds on, or made the file that it was to be: its content gets a name
/// of its own, never theirs.
Status TreeCore::Divert(Inode& inode, Writer& writer, Status failed, const object::Call& call) {
  {
    MutexLock lock(inode.mutex);
    if (inode.writing_files > 0) return failed;  // it is told whoever writes
  }
  const std::string key = MR_TRY(table.PathOf(inode));
  for (int n = 1; n <= kNames && !failed && IsLost(failed.error().code()); ++n) {
    const std::string name = fmt::format("{}.millrace-recovered-{}", key, n);
    MR_TRY(writer.Divert(name, call));
    failed = writer.Publish(call);
    if (failed) {
      options.log.Warning("others replaced a file; what was written here has a name of its own",
                          {{"key", key}, {"name", name}});
    }
  }
  MR_TRY(std::move(failed));
  table.SetLocal(inode, false);
  MutexLock lock(inode.mutex);
  inode.told.as_of = TimePoint();  // whatever the store tells is newer
  inode.told.etag.clear();
  return {};
}

Status TreeCore::FlushAll(const object::Call& call) {
  settler.TryAll(call);  // what is below their names can be published then
  Status first = publisher_.Flush(call);
  for (const InodePtr& inode : table.InUse()) {
    auto writer = WriterOf(*inode);
    if (!writer || (writer->kept() && publisher_.Waits(*inode))) continue;  // tried just now
    if (Status done = Publish(inode, writer, call); !done && first) first = done;
  }
  RemoveLeftUploads(call);
  return first;
}

/// Those whose beginning or end the store did not confirm.
void TreeCore::RemoveLeftUploads(const object::Call& call) {
  if (!ledger) return;
  if (Status removed = ledger->Remove(call); !removed) {
    options.log.Debug("an upload is not removed yet", {{"reason", removed.error()}});
  }
}

PendingWrites TreeCore::PendingNow() {
  PendingWrites pending;
  for (const InodePtr& inode : table.InUse()) {
    MutexLock lock(inode->mutex);
    if (!inode->writer || !inode->writer->unpublished()) continue;
    ++pending.files;
    pending.bytes += inode->writer->size();
  }
  const Publisher::Stats later = publisher_.stats();
  pending.waiting = later.waiting;
  pending.failing = later.failing;
  pending.failures = later.failures;
  if (later.error) pending.reason = later.error->ToString();
  return pending;
}

// --- The end of a name ---

std::shared_ptr<Writer> TreeCore::BeginUnlink(const InodePtr& inode, const object::Call& call) {
  std::shared_ptr<Writer> writer;
  bool open;
  for (bool held = false; !held;) {
    MutexLock lock(inode->mutex);
    open = inode->open_files > 0;
    if (open && !inode->writer && staging && !inode->told.etag.empty()) {
      if (auto key = table.PathOf(*inode)) {
        (void)MakeWriter(inode, {.key = *key, .base = cache::ObjectVersion{*key, inode->told.etag, inode->told.size}});
      }
    }
    writer = inode->writer;
    if (!writer) return nullptr;
    lock.Unlock();
    writer->Abandon(writer->kept() ? StoredEtag(*inode, *writer, call) : std::nullopt);
    lock.Lock();
    held = inode->writer == writer;  // else it was let go once its publication, for which we waited, was done
  }
  if (Status kept = open ? writer->Detach(call) : Status(); !kept) {
    options.log.Warning("a file that is open and removed cannot be read on in full", {{"reason", kept.error()}});
  }
  return writer;
}

/// What the store has under the name of a file that is kept; empty: nothing. Nothing when that cannot be found out.
std::optional<std::string> TreeCore::StoredEtag(const Inode& inode, const Writer& writer, const object::Call& call) {
  if (table.IsLocal(inode) && !writer.may_be_stored()) return "";
  auto path = table.PathOf(inode);
  if (!path) return std::nullopt;
  auto info = object::Head(store, *path, call);
  if (!info) return std::nullopt;
  return *info ? (*info)->etag : "";
}

void TreeCore::EndUnlink(const InodePtr& inode, const std::shared_ptr<Writer>& writer, bool unlinked) {
  if (!writer) return;
  if (unlinked) {
    writer->Discard();
    return Settle(inode);
  }
  writer->Revive();
  bool closed;
  {
    MutexLock lock(inode->mutex);
    closed = inode->writing_files == 0;
  }
  if (closed) (void)writer->Keep(/*durable=*/false);  // whoever closed it meanwhile counted on its going
  if (writer->kept()) (void)PublishLater(inode, kRetry);
  Settle(inode);
}

// --- What others left ---

Status TreeCore::AdoptStaged(const object::Call& call) {
  std::vector<std::string> unreadable;
  auto all = MR_TRY(staging->Adopt(options.prefix, &unreadable));
  // Of one key the last is the file; none of the others is published.
  std::map<std::string, const StagedRecord*> latest;
  for (const auto& left : all) {
    if (left.record.complete) latest[left.record.key] = &left.record;
  }
  for (auto& left : all) {
    if (left.record.complete && latest.at(left.record.key) != &left.record) left.record.complete = false;
  }
  for (auto& left : all) Adopt(std::move(left), call);
  for (const std::string& reason : unreadable) {
    options.log.Error("a record in the staging folder cannot be read; it is left alone", {{"reason", reason}});
  }
  if (unreadable.empty()) return {};
  return Fail(Code::kCorrupt, "a record in the staging folder cannot be read: {}", unreadable.front());
}

void TreeCore::Adopt(StagingArea::Adopted left, const object::Call& call) {
  const StagedRecord record = left.record;
  // Its parts are not known, and its metadata may be older: what is to be published is sent anew.
  Status removed = AbortRecorded(store, record, call);
  if (!removed) {
    options.log.Warning("an upload that an earlier mount began is not removed yet; the next mount tries again",
                        {{"key", record.upload_key}, {"reason", removed.error()}});
  }
  if (!record.complete) {
    if (removed) left.file->Unsave();
    return;
  }
  if (!removed) ledger->Lost(record.upload_key, record.upload_begun, record.upload_id);
  if (record.removing && WasRemoved(record, call)) return left.file->Unsave();
  if (!record.expected.empty() && WasPublished(record, call)) return left.file->Unsave();
  auto inode = InodeAt(record.key);
  if (!inode) {
    options.log.Error("what an earlier mount wrote has no place in this one; it stays staged",
                      {{"key", record.key}, {"reason", inode.error()}});
    return;
  }
  Metadata told{.state = Metadata::State::kFile, .size = record.size, .modified = record.modified};
  if (record.base) told.etag = record.base->etag;
  if (record.metadata) {
    StoredAttributes stored = FromMetadata(*record.metadata);
    if (!stored.empty()) told.attributes = std::make_shared<const StoredAttributes>(std::move(stored));
    told.complete = true;
  } else if (Status known = attributes.Complete(record.key, told, call); !known) {
    options.log.Warning("the attributes of a file that an earlier mount changed are not known yet",
                        {{"key", record.key}, {"reason", known.error()}});
  }
  told.as_of = clock.Now();
  {
    MutexLock lock((*inode)->mutex);
    (*inode)->told = std::move(told);
    (*inode)->metadata = record.metadata;
    (*inode)->writer = std::make_shared<Writer>(WriterEnvironment(), std::move(left), OnPublishedOf(*inode));
  }
  table.SetLocal(**inode, !record.base);
  ++adopted;
  options.log.Warning("publishing what an earlier mount did not", {{"key", record.key}});
  if (!PublishLater(*inode, Duration::zero())) {
    options.log.Error("too many files of earlier mounts; the next mount publishes the rest", {{"key", record.key}});
  }
  table.Forget((*inode)->id, 1);
}

/// What the earlier process was about to remove, or to replace by another file, has gone.
bool TreeCore::WasRemoved(const StagedRecord& record, const object::Call& call) {
  auto now = object::Head(store, record.key, call);
  if (!now) return false;  // then it is seen when it is published
  return (*now ? (*now)->etag : "") != *record.removing;
}

/// The publication that was under way is done, and nothing more is to be published.
bool TreeCore::WasPublished(const StagedRecord& record, const object::Call& call) {
  auto now = object::Head(store, record.key, call);
  if (!now || !*now || (*now)->etag != record.expected) return false;
  return !record.metadata || *record.metadata == (*now)->metadata;
}

/// The inode of a file, with one lookup, whether or not the store has it.
Result<InodePtr> TreeCore::InodeAt(std::string_view key) {
  const auto names = Split(key.substr(options.prefix.size()), '/');
  InodePtr at = MR_TRY(table.Find(kRootInode));
  std::vector<InodeId> passed;
  for (const std::string_view& name : names) {
    const bool last = &name == &names.back();
    if (!IsShowable(name)) return Fail(Code::kInvalidArgument, "a mount does not show {}", key);
    at = table.Acquire(at->id, name, last ? NodeKind::kFile : NodeKind::kDirectory);
    if (!last) passed.push_back(at->id);
  }
  for (InodeId id : passed) table.Forget(id, 1);  // what is below holds them
  return at;
}

}  // namespace millrace::vfs
