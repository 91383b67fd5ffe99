#include "millrace/vfs/core/write_back.h"

#include "millrace/object/blocking.h"
#include "millrace/vfs/core/tree_core.h"

namespace millrace::vfs {
namespace {

constexpr Duration kRetry = std::chrono::seconds(1);  ///< after the first failure; the Publisher doubles it
/// Names that Divert tries for one file. A guess: far more than there are mounts that replace one file.
constexpr int kDivertedNames = 100;

/// Parts of one file that are sent at the same time. A guess: hides the latency of a request.
constexpr int kPartsOfWriter = 4;

bool IsLost(Code code) { return code == Code::kStale || code == Code::kAlreadyExists; }

}  // namespace

WriteBack::WriteBack(TreeCore& core)
    : core_(core),
      publisher_(
          {}, *core.options.clock,
          [this](const InodePtr& inode, const object::Call& call) { return PublishKept(inode, call); },
          [this](const InodePtr& inode) { core_.table.Forget(inode->id, 1); }) {}

Writer::Environment WriteBack::WriterEnvironment(const Inode& inode) {
  Writer::Environment environment{
      .store = core_.store,
      .cache = core_.cache,
      .budget = core_.budget,
      .staging = *core_.staging,
      .uploads = core_.uploads,
      .clock = core_.clock,
      .ledger = core_.uploads_begun(),
      .part_bytes = core_.options.write_part_bytes,
      .parallel_parts = kPartsOfWriter,
      .await_room = [this](const object::Call& call) { return publisher_.AwaitProgress(call); },
      .session = core_.options.session,
      .inode = inode.id};
  if (core_.quota) {
    environment.grow = [quota = core_.quota.get()](std::uint64_t bytes, const object::Call& call) {
      return quota->Add(bytes, call);
    };
  }
  return environment;
}

Writer::OnPublished WriteBack::OnPublishedOf(const InodePtr& inode) {
  return [this, id = inode->id](const Metadata& now, WallTime written) {
    if (auto published = core_.table.Find(id)) OnPublished(**published, now, written);
  };
}

/// Returns whether the store has kept the attributes of a file that was just published.
bool WriteBack::KeptAttributes(Inode& inode, const std::string& path, const std::string& etag) {
  constexpr Duration kPatience = std::chrono::seconds(5);  // a guess: close(2) waits for the answer
  UserMetadata stored;
  {
    MutexLock lock(inode.mutex);
    if (!inode.reported.attributes || !ToMetadata(*inode.reported.attributes, stored)) return true;
  }
  ForgetTimes(stored);
  return core_.attributes.Keeps(path, etag, stored, {.stop = {}, .deadline = Deadline::After(core_.clock, kPatience)});
}

void WriteBack::OnPublished(Inode& inode, Metadata now, WallTime written) {
  auto path = core_.table.PathOf(inode);
  const bool kept = !path || KeptAttributes(inode, *path, now.etag);
  core_.walk.Forget();
  core_.table.SetLocal(inode, false);
  MutexLock lock(inode.mutex);
  if (core_.quota && now.size < inode.reported.size) core_.quota->NoteRemoval();
  now.complete = inode.reported.complete;
  if (kept) now.attributes = inode.reported.attributes;
  if (now.attributes && inode.times_set != written) {
    StoredAttributes kept = *now.attributes;
    kept.modified = kept.accessed = kept.changed = std::nullopt;
    now.attributes = kept.empty() ? nullptr : std::make_shared<const StoredAttributes>(std::move(kept));
  }
  if (path) core_.metadata.Put(*path, now);
  core_.ReportMoved(inode, std::move(now));  // not SetReported: open files have seen these bytes already
}

// --- The writer of an inode ---

Status WriteBack::MakeWriter(const InodePtr& inode, Writer::Start start) {
  if (!start.base && !start.metadata && inode->reported.attributes) {  // a truncated file keeps its owner and mode
    MR_TRY(ToMetadata(*inode->reported.attributes, start.metadata.emplace()));
    ForgetTimes(*start.metadata);
  }
  inode->metadata = start.metadata;
  start.on_published = OnPublishedOf(inode);
  inode->writer = std::make_shared<Writer>(WriterEnvironment(*inode), std::move(start));
  return {};
}

Result<std::shared_ptr<Writer>> WriteBack::JoinWriter(const InodePtr& inode, Writer::Start start) {
  MutexLock lock(inode->mutex);
  if (!inode->reported.etag.empty()) start.replaces = inode->reported.size;
  if (!inode->writer) MR_TRY(MakeWriter(inode, std::move(start)));
  ++inode->writing_files;
  return inode->writer;
}

Result<std::shared_ptr<Writer>> WriteBack::JoinWriter(const InodePtr& inode, std::uint64_t content) {
  MutexLock lock(inode->mutex);
  if (inode->content != content) return Fail(Code::kStale, "the file was replaced after it was opened; open it again");
  if (!inode->writer) {
    Writer::Start start{.key = MR_TRY(core_.table.PathOf(*inode))};
    if (!inode->reported.etag.empty()) start.base = {start.key, inode->reported.etag, inode->reported.size};
    MR_TRY(MakeWriter(inode, std::move(start)));
  }
  ++inode->writing_files;
  return inode->writer;
}

// --- Publishing at once ---

Status WriteBack::Publish(const InodePtr& inode, const std::shared_ptr<Writer>& writer, const object::Call& call) {
  auto shared = core_.LockShared(*inode, call);
  if (!shared) {
    MutexLock changing(inode->changing);
    if (shared.error().code() == Code::kBusy) OnFailed(inode, *writer, shared.error(), call);
    return Fail(shared.error());
  }
  MR_TRY(PublishAndHold(inode, writer, call));
  return {};
}

Result<Writer::PublicationLock> WriteBack::PublishAndHold(const InodePtr& inode, const std::shared_ptr<Writer>& writer,
                                                          const object::Call& call) {
  MutexLock changing(inode->changing);
  auto held = Writer::Hold(writer, call);
  if (!held) OnFailed(inode, *writer, held.error(), call);
  return held;
}

/// Keeps content that could not be published. Queues it for another attempt, unless the base is lost; then the next
/// mount publishes it under another name. The program has got the error.
void WriteBack::OnFailed(const InodePtr& inode, Writer& writer, const Error& reason, const object::Call& call) {
  auto kept = writer.KeepOnDisk(/*durable=*/true);
  if (!kept) {
    core_.options.log.Error("what was written could not be published, nor written down", {{"reason", kept.error()}});
    return;
  }
  if (kept->empty()) return;
  const bool later = !IsLost(reason.code()) && PublishLater(inode, kRetry);
  if (!later) writer.GiveUpParts(call);
  core_.options.log.Error(
      later ? "what was written could not be published; it is kept, and tried again"
            : "what was written could not be published; it is kept, and the next mount will try again",
      {{"file", *kept}, {"reason", reason}});
}

Status WriteBack::Close(const InodePtr& inode, const std::shared_ptr<Writer>& writer, const object::Call& call) {
  if (!core_.options.close_async) return Publish(inode, writer, call);
  if (!writer->unpublished()) return {};
  auto kept = writer->KeepOnDisk(/*durable=*/false);
  // If the staging area or the queue is full, the close publishes the content itself.
  if (!kept || !PublishLater(inode, core_.options.publish_delay)) return Publish(inode, writer, call);
  return {};
}

Status WriteBack::LeaveWriter(const InodePtr& inode, const std::shared_ptr<Writer>& writer, bool publish,
                              const object::Call& call) {
  Status closed;
  std::shared_ptr<Writer> ended;  // destroyed after the lock, since ~Writer may send requests
  for (bool done = false; !done;) {
    {
      MutexLock lock(inode->mutex);
      const bool last = inode->writing_files == 1;
      const bool staged = writer->kept() && publisher_.Waits(*inode);
      // While this thread published, another open file may have written and closed. Then this thread publishes again.
      done = !publish || !closed || !last || staged || !writer->unpublished();
      if (done) {
        if (publish && closed && last && staged && !core_.options.close_async) {
          closed = Fail(Code::kUnavailable, "the file is staged, and tried again");
        }
        --inode->writing_files;
        const bool given_up = last && inode->writer == writer && writer->unpublished() && !staged;
        if (given_up && core_.table.IsLinked(*inode)) {
          ended = std::move(inode->writer);
          inode->metadata.reset();
          inode->times_set.reset();
        }
      }
    }
    if (!done) closed = Close(inode, writer, call);
  }
  // A file that never reached the store does not exist any more.
  if (ended && core_.table.IsLocal(*inode) && !writer->stored()) core_.table.Unlink(*inode);
  ReleaseWriter(inode);
  if (closed) RemoveLeftUploads(call);
  return closed;
}

/// Releases the writer if no open file and no content needs it.
void WriteBack::ReleaseWriter(const InodePtr& inode) {
  std::shared_ptr<Writer> ended;
  MutexLock lock(inode->mutex);
  if (inode->writing_files > 0 || !inode->writer || inode->writer->unpublished()) return;
  const bool linked = core_.table.IsLinked(*inode);
  if (!linked && inode->open_files > 0) return;      // only the writer has the content
  if (linked && inode->writer->abandoned()) return;  // the unlink is under way
  ended = std::move(inode->writer);
  inode->metadata.reset();
  inode->times_set.reset();
  lock.Unlock();
}

// --- Publishing in the background ---

Status WriteBack::PublishLater(const InodePtr& inode, Duration delay) {
  core_.table.Hold(*inode);  // the kernel may forget the inode meanwhile
  auto added = publisher_.Add(inode, delay);
  if (!added || !*added) core_.table.Forget(inode->id, 1);
  if (!added) return Fail(added.error());
  return {};
}

/// One attempt of the Publisher. After success, releases the writer.
Status WriteBack::PublishKept(const InodePtr& inode, const object::Call& call) {
  Status published;
  auto writer = core_.WriterOf(*inode);
  if (writer && writer->kept()) {
    PathLock::SharedLock shared = MR_TRY(core_.LockShared(*inode, call));
    MutexLock changing(inode->changing);
    published = writer->PublishKept(call);
    if (!published && IsLost(published.error().code()))
      published = PublishElsewhere(*inode, *writer, std::move(published), call);
  }
  if (published) {
    ReleaseWriter(inode);
    RemoveLeftUploads(call);
  } else if (published.error().code() != Code::kCancelled) {
    core_.options.log.Warning("a file cannot be published yet; it stays staged, and is tried again",
                              {{"key", core_.table.PathOf(*inode).value_or("?")}, {"reason", published.error()}});
  }
  return published;
}

/// Call when another client has replaced the base, or created the file first. Publishes the content under a new name,
/// so that the other client's file stays.
Status WriteBack::PublishElsewhere(Inode& inode, Writer& writer, Status failed, const object::Call& call) {
  {
    MutexLock lock(inode.mutex);
    if (inode.writing_files > 0) return failed;  // the program that writes gets the error
  }
  const std::string key = MR_TRY(core_.table.PathOf(inode));
  for (int n = 1; n <= kDivertedNames && !failed && IsLost(failed.error().code()); ++n) {
    const std::string name = fmt::format("{}.millrace-recovered-{}", key, n);
    MR_TRY(writer.PublishUnder(name, call));
    failed = writer.Publish(call);
    if (failed) {
      core_.options.log.Warning("others replaced a file; what was written here has a name of its own",
                                {{"key", key}, {"name", name}});
    }
  }
  MR_TRY(std::move(failed));
  core_.table.SetLocal(inode, false);
  MutexLock lock(inode.mutex);
  inode.reported.as_of = TimePoint();  // any answer of the store is newer
  inode.reported.etag.clear();
  return {};
}

Status WriteBack::FlushAll(const object::Call& call) {
  core_.settler.TryAll(call);  // then files below their names can be published
  Status first = publisher_.Flush(call);
  for (const InodePtr& inode : core_.table.InUse()) {
    auto writer = core_.WriterOf(*inode);
    if (!writer || (writer->kept() && publisher_.Waits(*inode))) continue;  // tried just now
    if (Status done = Publish(inode, writer, call); !done && first) first = done;
  }
  RemoveLeftUploads(call);
  return first;
}

/// Aborts the uploads whose beginning or end the store did not confirm.
void WriteBack::RemoveLeftUploads(const object::Call& call) {
  if (!core_.ledger) return;
  if (Status removed = core_.ledger->Remove(call); !removed) {
    core_.options.log.Debug("an upload is not removed yet", {{"reason", removed.error()}});
  }
}

std::uint64_t WriteBack::unpublished_growth() {
  std::uint64_t bytes = 0;
  for (const InodePtr& inode : core_.table.InUse()) {
    MutexLock lock(inode->mutex);
    if (!inode->writer || !inode->writer->unpublished()) continue;
    // Of a restored file, the size that is reported is the new one.
    const auto base = inode->writer->stored();
    const std::uint64_t replaced = inode->reported.etag.empty() ? 0 : inode->reported.size;
    const std::uint64_t size = inode->writer->size(), stored = base ? base->size : replaced;
    if (size > stored) bytes += size - stored;
  }
  return bytes;
}

PendingWrites WriteBack::pending() {
  PendingWrites pending;
  for (const InodePtr& inode : core_.table.InUse()) {
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

Status WriteBack::Resume(const InodePtr& inode, StagingArea::AdoptedFile left, Metadata reported) {
  const bool has_base = left.record.base.has_value();
  {
    MutexLock lock(inode->mutex);
    inode->reported = std::move(reported);
    inode->metadata = left.record.metadata;
    inode->writer = std::make_shared<Writer>(WriterEnvironment(*inode), std::move(left), OnPublishedOf(inode));
  }
  core_.table.SetLocal(*inode, !has_base);
  return PublishLater(inode, Duration::zero());
}

void WriteBack::Restore(const InodePtr& inode, const SavedContent& saved, StagingArea::AdoptedFile left,
                        Metadata reported) {
  const bool stored = left.record.base.has_value();
  {
    MutexLock lock(inode->mutex);
    inode->reported = std::move(reported);
    inode->metadata = left.record.metadata;
    inode->writer = std::make_shared<Writer>(WriterEnvironment(*inode), saved, std::move(left), OnPublishedOf(inode));
  }
  core_.table.SetLocal(*inode, !stored);
}

std::shared_ptr<Writer> WriteBack::JoinRestored(const InodePtr& inode) {
  MutexLock lock(inode->mutex);
  if (inode->writer) ++inode->writing_files;
  return inode->writer;
}

// --- Unlinking ---

std::shared_ptr<Writer> WriteBack::BeginUnlink(const InodePtr& inode, const object::Call& call) {
  std::shared_ptr<Writer> writer;
  bool open;
  for (bool held = false; !held;) {
    MutexLock lock(inode->mutex);
    open = inode->open_files > 0;
    if (open && !inode->writer && core_.staging && !inode->reported.etag.empty()) {
      if (auto key = core_.table.PathOf(*inode)) {
        (void)MakeWriter(inode,
                         {.key = *key, .base = cache::ObjectVersion{*key, inode->reported.etag, inode->reported.size}});
      }
    }
    writer = inode->writer;
    if (!writer) return nullptr;
    lock.Unlock();
    writer->Abandon(writer->kept() ? StoredEtag(*inode, *writer, call) : std::nullopt);
    lock.Lock();
    held = inode->writer == writer;  // else it was released when the publication ended that Abandon() waited for
  }
  if (Status kept = open ? writer->Detach(call) : Status(); !kept) {
    core_.options.log.Warning("a file that is open and removed cannot be read on in full", {{"reason", kept.error()}});
  }
  return writer;
}

/// Returns the ETag that the store has under the name of a kept file; empty: no object. Nothing if the store fails.
std::optional<std::string> WriteBack::StoredEtag(const Inode& inode, const Writer& writer, const object::Call& call) {
  if (core_.table.IsLocal(inode) && !writer.may_be_stored()) return "";
  auto path = core_.table.PathOf(inode);
  if (!path) return std::nullopt;
  auto info = object::Head(core_.store, *path, call);
  if (!info) return std::nullopt;
  return *info ? (*info)->etag : "";
}

void WriteBack::EndUnlink(const InodePtr& inode, const std::shared_ptr<Writer>& writer, bool unlinked) {
  if (!writer) return;
  if (unlinked) {
    writer->Discard();
    return ReleaseWriter(inode);
  }
  writer->UndoAbandon();
  bool closed;
  {
    MutexLock lock(inode->mutex);
    closed = inode->writing_files == 0;
  }
  if (closed)
    (void)writer->KeepOnDisk(/*durable=*/false);  // a close meanwhile kept nothing, since the file was being removed
  if (writer->kept()) (void)PublishLater(inode, kRetry);
  ReleaseWriter(inode);
}

}  // namespace millrace::vfs
