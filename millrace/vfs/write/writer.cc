#include "millrace/vfs/write/writer.h"

#include <algorithm>

#include "millrace/object/blocking.h"

namespace millrace::vfs {
namespace {

std::uint64_t ContentNumber(const Writer::Environment& environment) {
  return environment.session != nullptr ? environment.session->NextContent() : 0;
}

PartLayout LayoutFor(const Writer::Environment& environment) {
  const object::Limits limits = environment.store.limits();
  // A part is in memory while it is sent. Two parts must fit into the budget.
  const std::uint64_t most = std::min({limits.max_part, limits.max_put, environment.budget.total() / 2});
  return PartLayout(std::max(environment.part_bytes, limits.min_part), most, limits.max_parts);
}

/// How much of a continued content the quota knows: all of it, and the version that it replaces.
std::uint64_t CountedOf(const StagedRecord& record) {
  return std::max(record.size, record.base ? record.base->size : 0);
}

}  // namespace

/// Gives the turn back. REQUIRES: the scope's owner has taken it.
class Writer::TurnScope {
 public:
  explicit TurnScope(Writer& writer) : writer_(writer) {}
  ~TurnScope() { writer_.GiveTurnBack(); }
  TurnScope(const TurnScope&) = delete;
  TurnScope& operator=(const TurnScope&) = delete;

 private:
  Writer& writer_;
};

Writer::Initial Writer::Begin(const Environment& environment, Start start) {
  const std::uint64_t size = start.base ? start.base->size : 0;
  return {.content = FileContent(environment.staging, std::move(start.base)),
          .next = {.key = std::move(start.key), .exclusive = start.exclusive, .metadata = std::move(start.metadata)},
          .modified = environment.clock.Wall(),
          .counted = std::max(start.replaces, size),
          .unpublished = start.unpublished,
          .on_published = std::move(start.on_published)};
}

Writer::Initial Writer::Adopt(const Environment& environment, StagingArea::AdoptedFile left, OnPublished on_published) {
  NextVersion next = NextVersion::Of(left.record);
  const WallTime modified = left.record.modified;
  const std::uint64_t counted = CountedOf(left.record);
  return {.content = FileContent(environment.staging, std::move(left)),
          .next = std::move(next),
          .modified = modified,
          .counted = counted,
          .on_published = std::move(on_published)};
}

Writer::Initial Writer::Restore(const Environment& environment, const SavedContent& saved,
                                StagingArea::AdoptedFile left, OnPublished on_published) {
  NextVersion next = NextVersion::Of(left.record);
  next.attempted = saved.attempted;
  next.restored = true;
  next.times_outdated = saved.times_outdated;
  next.metadata_changed = saved.metadata_changed;
  if (next.metadata && saved.forget_times) ForgetTimes(*next.metadata);
  const WallTime modified = left.record.modified;
  const std::uint64_t counted = CountedOf(left.record);
  return {.content = FileContent::Restore(environment.staging, std::move(left)),
          .next = std::move(next),
          .modified = modified,
          .counted = counted,
          .unpublished = saved.unpublished,
          .abandoned = saved.abandoned,
          .on_published = std::move(on_published)};
}

Writer::Writer(Environment environment, Initial initial)
    : environment_(std::move(environment)),
      session_content_(ContentNumber(environment_)),
      layout_(LayoutFor(environment_)),
      size_(initial.content.size()),
      modified_(initial.modified.time_since_epoch().count()),
      counted_(initial.counted),
      content_(std::move(initial.content)),
      upload_(layout_, environment_.store.limits().max_part, environment_.parallel_parts),
      next_(std::move(initial.next)),
      unpublished_(initial.unpublished),
      abandoned_(initial.abandoned),
      on_published_(std::move(initial.on_published)) {
  if (!content_.base() && !next_.metadata) next_.metadata.emplace();
  MutexLock lock(mutex_);
  LogContent();
}

Writer::Writer(Environment environment, Start start) : Writer(environment, Begin(environment, std::move(start))) {}

Writer::Writer(Environment environment, StagingArea::AdoptedFile left, OnPublished on_published)
    : Writer(environment, Adopt(environment, std::move(left), std::move(on_published))) {}

Writer::Writer(Environment environment, const SavedContent& saved, StagingArea::AdoptedFile left,
               OnPublished on_published)
    : Writer(environment, Restore(environment, saved, std::move(left), std::move(on_published))) {}

Writer::~Writer() {
  MutexLock lock(mutex_);
  if (environment_.session != nullptr) environment_.session->RemoveContent(session_content_);
  upload_.Cancel();
  while (upload_.in_flight() > 0) changed_.Wait(mutex_);
  const PartUpload::Session& session = upload_.session();
  if (session.id.empty() || content_.kept()) return;  // the process that adopts the kept content aborts the upload
  Status aborted = object::AbortMultipart(environment_.store, session.key, session.id);
  if (aborted || aborted.error().code() == Code::kNotFound) return;
  content_.LeaveUpload(RecordNow());  // the process that adopts the record tries again
}

// --- Turns ---

Status Writer::Await(const object::Call& call, const std::function<bool()>& ready) {
  const bool in_time = call.deadline.infinite() ? changed_.Wait(mutex_, call.stop, ready)
                                                : changed_.WaitUntil(mutex_, call.deadline.at(), call.stop, ready);
  if (in_time) return {};
  return call.stop.stop_requested() ? Fail(Code::kCancelled, "waiting for the upload of {} was cancelled", next_.key)
                                    : Fail(Code::kDeadlineExceeded, "uploading {} took too long", next_.key);
}

Status Writer::AwaitTurn(const object::Call& call) {
  return Await(call, [this]() MR_NO_THREAD_SAFETY_ANALYSIS { return !in_turn_; });
}

Status Writer::TakeTurn(const object::Call& call) {
  MutexLock lock(mutex_);
  MR_TRY(AwaitTurn(call));
  in_turn_ = true;
  return {};
}

void Writer::GiveTurnBack() {
  MutexLock lock(mutex_);
  in_turn_ = false;
  changed_.NotifyAll();
}

void Writer::PublicationLock::SetStoredVersion(std::string key, std::string etag) {
  MutexLock lock(writer_->mutex_);
  writer_->next_.key = key;
  writer_->content_.MoveBase(std::move(key), std::move(etag));
  writer_->LogContent();
}

void Writer::PublicationLock::ForgetMetadata() {
  MutexLock lock(writer_->mutex_);
  writer_->next_.metadata.reset();
  writer_->LogContent();
}

Writer::PublicationLock::~PublicationLock() {
  if (writer_) writer_->GiveTurnBack();
}

// --- Publishing ---

Status Writer::Publish(const object::Call& call) {
  MR_TRY(TakeTurn(call));
  TurnScope turn(*this);
  return PublishAll(call);
}

Status Writer::PublishKept(const object::Call& call) {
  {
    MutexLock lock(mutex_);
    MR_TRY(AwaitTurn(call));
    if (!content_.kept()) return {};
    in_turn_ = true;
  }
  TurnScope turn(*this);
  return PublishAll(call);
}

Result<Writer::PublicationLock> Writer::Hold(std::shared_ptr<Writer> writer, const object::Call& call) {
  Writer& held = *writer;
  MR_TRY(held.TakeTurn(call));
  PublicationLock turn(std::move(writer));
  MR_TRY(held.PublishAll(call));
  return turn;
}

/// REQUIRES: the caller has the turn.
Status Writer::PublishAll(const object::Call& call) {
  while (true) {
    {
      MutexLock lock(mutex_);
      if (!unpublished_ || abandoned_) return {};
    }
    // Repeats if metadata changed during the upload: they make another version of the same bytes.
    MR_TRY(Publication(*this, call).PublishContent());
  }
}

// --- Changes ---

Status Writer::Write(std::uint64_t offset, ByteSpan bytes, const object::Call& call) {
  if (bytes.empty()) return {};
  if (bytes.size() > layout_.max_size() || offset > layout_.max_size() - bytes.size()) return TooLong();
  MR_TRY(GrowTo(offset + bytes.size(), call));
  return Change({.range = {offset, offset + bytes.size()},
                 .apply = [&](FileContent& content) { return content.Write(offset, bytes); },
                 .adds_bytes = true},
                call);
}

Status Writer::Zero(std::uint64_t offset, std::uint64_t length, const object::Call& call) {
  const std::uint64_t size = size_;
  if (offset >= size) return {};
  const Interval range{offset, offset + std::min(length, size - offset)};
  return Change({.range = range, .apply = [&](FileContent& content) { return content.Zero(range.begin, range.end); }},
                call);
}

Status Writer::Truncate(std::uint64_t size, const object::Call& call) {
  if (size > layout_.max_size()) return TooLong();
  MR_TRY(GrowTo(size, call));
  while (true) {
    Obstacle obstacle;
    {
      MutexLock lock(mutex_);
      obstacle = MR_TRY(TryTruncate(size, call));
    }
    if (obstacle == Obstacle::kNone) return {};
    MR_TRY(Publish(call));
  }
}

Status Writer::TooLong() const {
  MutexLock lock(mutex_);
  return Fail(Code::kInvalidArgument, "{}: files have at most {} bytes", next_.key, layout_.max_size());
}

Status Writer::GrowTo(std::uint64_t end, const object::Call& call) {
  const std::uint64_t counted = counted_;
  if (!environment_.grow || end <= counted) return {};
  MR_TRY(environment_.grow(end - counted, call));
  counted_ = end;
  return {};
}

/// Changes the content, after waiting for the obstacles.
Status Writer::Change(const ContentChange& change, const object::Call& call) {
  while (true) {
    Obstacle obstacle;
    Status full;
    {
      MutexLock lock(mutex_);
      obstacle = MR_TRY(TryChange(change, full, call));
    }
    if (obstacle == Obstacle::kNone) return {};
    if (obstacle == Obstacle::kPublication) MR_TRY(Publish(call));
    if (obstacle == Obstacle::kFullStaging) {
      if (!environment_.await_room || !environment_.await_room(call)) return full;
    }
  }
}

/// Returns kNone when the change is made. `full` gets the error of a full staging area, for kFullStaging.
Result<Writer::Obstacle> Writer::TryChange(const ContentChange& change, Status& full, const object::Call& call) {
  const auto [begin, end] = change.range;
  std::uint64_t size_before = 0;
  while (true) {
    MR_TRY(AwaitTurn(call));
    const Obstacle in_upload = MR_TRY(FindUploadOnly(std::min(begin, content_.size()), end));
    if (in_upload != Obstacle::kNone) return in_upload;
    const Obstacle frozen = MR_TRY(Unfreeze(/*with_bytes=*/true));
    if (frozen != Obstacle::kNone) return frozen;
    if (!content_.has_staged()) logged_ = false;
    MR_TRY(content_.EnsureStaged());
    size_before = content_.size();
    Status done = change.apply(content_);
    if (done) break;
    full = Fail(done.error().Context("writing " + next_.key));
    if (done.error().code() != Code::kNoSpace) return Fail(full.error());
    if (FreeStaged()) continue;
    if (upload_.in_flight() == 0) return Obstacle::kFullStaging;
    const std::uint64_t seen = upload_.parts_done();
    MR_TRY(Await(call, [this, seen]() MR_NO_THREAD_SAFETY_ANALYSIS { return upload_.parts_done() != seen; }));
  }
  upload_.OnChanged(end > size_before ? std::min(begin, PartEnd(size_before)) : begin, end);
  OnContentChanged();
  change.adds_bytes ? LogWrite(change.range) : LogContent();
  if (change.adds_bytes && !abandoned_) {
    upload_.QueuePassed(content_, begin, end);
    SendQueued();
  }
  return Obstacle::kNone;
}

Result<Writer::Obstacle> Writer::TryTruncate(std::uint64_t size, const object::Call& call) {
  MR_TRY(AwaitTurn(call));
  if (size == content_.size()) return Obstacle::kNone;
  const std::uint64_t end = std::min(size, content_.size());
  if (PartEnd(end) < end) {
    const Obstacle in_upload = MR_TRY(FindUploadOnly(end, end + 1));
    if (in_upload != Obstacle::kNone) return in_upload;
  }
  const Obstacle frozen = MR_TRY(Unfreeze(/*with_bytes=*/end > 0));
  if (frozen != Obstacle::kNone) return frozen;
  if (end < content_.size()) upload_.ClearQueue();
  upload_.OnChanged(PartEnd(end), IntervalSet::kEnd);
  content_.Truncate(size);
  OnContentChanged();
  LogContent();
  return Obstacle::kNone;
}

/// Call after each change of the content.
void Writer::OnContentChanged() {
  size_ = content_.size();
  modified_ = environment_.clock.Wall().time_since_epoch().count();
  unpublished_ = true;
  next_.OnContentChanged();
}

/// Returns where a change begins that moves the file's end away from `end`. The part in which the file ends changes,
/// too.
std::uint64_t Writer::PartEnd(std::uint64_t end) const {
  return layout_.Range(layout_.IndexOf(end)).begin < end ? end - 1 : end;
}

/// Returns kPublication if a part of the range is only in the upload. Its bytes cannot be read, so the part cannot be
/// sent again. After a publication they are in the base.
Result<Writer::Obstacle> Writer::FindUploadOnly(std::uint64_t begin, std::uint64_t end) const {
  if (content_.readable()) return Obstacle::kNone;
  const Interval first = layout_.Range(layout_.IndexOf(begin)), last = layout_.Range(layout_.IndexOf(end - 1));
  if (!content_.IsUploadOnly(first.begin, last.end)) return Obstacle::kNone;
  if (abandoned_) return Fail(Code::kStale, "{} was removed, and the staging area could not hold all of it", next_.key);
  return Obstacle::kPublication;
}

/// Call before a change. A kept content stays as it is; the change goes to a copy. If there is no room for a copy, the
/// content is published first. An abandoned content is changed in place, since it is not published.
Result<Writer::Obstacle> Writer::Unfreeze(bool with_bytes) {
  if (!content_.kept()) return Obstacle::kNone;
  logged_ = false;
  if (Status copied = content_.Unfreeze(with_bytes); !copied) {
    if (copied.error().code() != Code::kNoSpace) return Fail(copied.error());
    return abandoned_ ? Obstacle::kNone : Obstacle::kPublication;
  }
  if (!upload_.session().key.empty()) MR_TRY(SaveUpload());
  return Obstacle::kNone;
}

/// Frees staged bytes that the store also has. Returns false if there are none.
bool Writer::FreeStaged() {
  const std::uint64_t before = content_.staged_bytes();
  DropUnchanged();
  if (MayDropSent()) {
    for (const Interval& range : upload_.SentRanges()) MoveToUpload(range);
  }
  return content_.staged_bytes() < before;
}

void Writer::DropUnchanged() {
  if (abandoned_) return;
  LogContent(/*recoverable=*/false);  // until the log has what is left, it would have bytes that are gone
  content_.DropUnchanged();
  LogContent();
}

/// Frees the staged bytes of a sent part. No other process can read them then.
void Writer::MoveToUpload(Interval range) {
  LogContent(/*recoverable=*/false);
  content_.MoveToUpload(range);
}

/// Returns true if the staged bytes of sent parts may be dropped.
bool Writer::MayDropSent() const { return !abandoned_ && !content_.kept(); }

// --- Parts ---

/// Sends the parts that the upload lacks for the whole content. Returns false if it lacks nothing.
bool Writer::SendMissing() {
  const bool missing = upload_.QueueMissing(content_);
  SendQueued();
  return missing;
}

void Writer::SendQueued() {
  while (const std::optional<int> number = upload_.TakeQueued()) {
    environment_.uploads.Submit([this, part = *number] { sender_.Send(part); });
  }
}

// --- Reading ---

Result<std::size_t> Writer::Read(std::uint64_t offset, MutableByteSpan into, const ReadStored& read_stored,
                                 const object::Call& call) {
  while (true) {
    Obstacle obstacle = Obstacle::kNone;
    std::vector<Interval> from_base;
    cache::ObjectVersion base;
    std::uint64_t publications = 0;
    {
      MutexLock lock(mutex_);
      if (offset >= content_.size() || into.empty()) return 0;
      into = into.first(std::min<std::uint64_t>(into.size(), content_.size() - offset));
      const std::uint64_t end = offset + into.size();
      if (content_.IsUploadOnly(offset, end)) {
        MR_TRY(AwaitTurn(call));
        obstacle = MR_TRY(FindUploadOnly(offset, end));
        if (obstacle == Obstacle::kNone) continue;
      } else {
        from_base = MR_TRY(content_.Read(offset, into));
        if (from_base.empty()) return into.size();
        base = *content_.base();
        publications = publications_;
      }
    }
    if (obstacle != Obstacle::kNone) {
      MR_TRY(Publish(call));
      continue;
    }
    Status stored;
    for (const Interval& range : from_base) {
      auto read = read_stored(base, range.begin, into.subspan(range.begin - offset, range.size()));
      if (read && *read != range.size()) read = Fail(Code::kStale, "{} became shorter", base.key);
      if (!read) stored = Fail(read.error());
      if (!stored) break;
    }
    if (stored) return into.size();
    MutexLock lock(mutex_);
    // If this writer's publication has replaced the base, the new base has the same bytes.
    if (stored.error().code() != Code::kStale || publications == publications_) return Fail(stored.error());
  }
}

// --- The end of a name ---

void Writer::Abandon(std::optional<std::string> stored) {
  MutexLock lock(mutex_);
  while (in_turn_) changed_.Wait(mutex_);
  abandoned_ = true;
  removing_ = std::move(stored);
  upload_.ClearQueue();
  if (content_.kept()) (void)SaveContent(/*durable=*/false);
  LogContent();
}

void Writer::UndoAbandon() {
  MutexLock lock(mutex_);
  abandoned_ = false;
  removing_.reset();
  if (content_.kept()) (void)SaveContent(/*durable=*/false);
  LogContent();
}

void Writer::Discard() {
  MutexLock lock(mutex_);
  // Removes the content now. The upload is aborted later: by this writer, or by a process that adopts its record.
  const StagedRecord upload = RecordNow();
  content_.GiveUp(upload.upload_key.empty() ? nullptr : &upload);
  LogContent();
}

Result<bool> Writer::MoveUnstored(std::string key, bool exclusive, bool over_stored, const object::Call& call) {
  bool active;
  {
    MutexLock lock(mutex_);
    MR_TRY(AwaitTurn(call));
    if (!unpublished_ || abandoned_ || MayBeStored() || content_.has_older() || !content_.readable()) return false;
    in_turn_ = true;
    active = upload_.active();
  }
  TurnScope turn(*this);
  if (active) (void)sender_.DropUpload(call);
  MutexLock lock(mutex_);
  const NextVersion before = next_;
  next_.key = std::move(key);
  next_.exclusive = exclusive;
  next_.named = environment_.staging.NextStamp();
  if (Status saved = content_.kept() ? SaveContent(/*durable=*/false) : Status(); !saved) {
    next_.key = before.key;
    next_.exclusive = before.exclusive;
    next_.named = before.named;
    return Fail(saved.error());
  }
  next_.attempted = over_stored;
  LogContent();
  return true;
}

Status Writer::PublishUnder(std::string key, const object::Call& call) {
  MR_TRY(base_.Detach(call));
  MR_TRY(TakeTurn(call));
  TurnScope turn(*this);
  (void)sender_.DropUpload(call);
  MutexLock lock(mutex_);
  next_.key = std::move(key);
  next_.exclusive = true;
  next_.attempted = false;
  content_.DropBase();
  on_published_ = nullptr;  // the old name is another client's file now
  if (!next_.metadata) next_.metadata.emplace();
  LogContent();
  return {};
}

// --- Records ---

Result<std::string> Writer::KeepOnDisk(bool durable) {
  MutexLock lock(mutex_);
  while (in_turn_ && !content_.kept()) changed_.Wait(mutex_);
  if (!unpublished_ || abandoned_) return std::string();
  if (!content_.readable()) {
    return Fail(Code::kNoSpace, "{} is too long for the staging area to keep all of it", next_.key);
  }
  if (!content_.kept()) next_.named = environment_.staging.NextStamp();
  if (!content_.kept() || durable) MR_TRY(SaveContent(durable));
  return content_.staged_path();
}

void Writer::GiveUpParts(const object::Call& call) {
  {
    MutexLock lock(mutex_);
    if (!AwaitTurn(call) || !content_.kept() || upload_.session().key.empty()) return;
    in_turn_ = true;
  }
  TurnScope turn(*this);
  (void)sender_.DropUpload(call);  // if the store does not confirm it, the ledger has a record
  MutexLock lock(mutex_);
  if (content_.kept()) (void)SaveContent(/*durable=*/false);
}

/// Returns a record of the upload and the name, without the content.
StagedRecord Writer::RecordNow() const {
  const PartUpload::Session& session = upload_.session();
  return {.key = next_.key,
          .size = content_.size(),
          .modified = modified(),
          .saved = next_.named,
          .exclusive = next_.exclusive,
          .upload_id = session.id,
          .upload_key = session.key,
          .upload_begun = session.begun};
}

Status Writer::SaveContent(bool durable) {
  StagedRecord record = RecordNow();
  record.removing = removing_;
  next_.Describe(record);
  MR_TRY(content_.SaveRecord(std::move(record), durable));
  LogContent();
  return {};
}

/// Writes a record of the upload, so that it can be aborted after a crash.
Status Writer::SaveUpload() {
  if (content_.kept()) return SaveContent(/*durable=*/false);
  MR_TRY(content_.SaveUpload(RecordNow()));
  LogContent();
  return {};
}

/// Writes the whole content into the session's log. `recoverable`: all its bytes are in the staging file or the base.
void Writer::LogContent(bool recoverable) {
  if (environment_.session == nullptr) return;
  SavedContent saved{.inode = environment_.inode,
                     .record = RecordNow(),
                     .unpublished = unpublished_,
                     .abandoned = abandoned_,
                     .attempted = next_.attempted,
                     .kept = content_.kept(),
                     .recoverable = recoverable && content_.readable(),
                     .times_outdated = next_.times_outdated,
                     .metadata_changed = next_.metadata_changed};
  saved.staged = content_.Describe(saved.record);
  next_.Describe(saved.record);
  environment_.session->PutContent(session_content_, saved);
  logged_ = true;
}

/// Adds a write to the session's log. Most changes of a content are writes, so they have a short record.
void Writer::LogWrite(Interval range) {
  if (environment_.session == nullptr) return;
  if (!logged_) return LogContent();
  environment_.session->PutWrite(session_content_, range, modified());
}

void Writer::SetMetadata(UserMetadata metadata) {
  MutexLock lock(mutex_);
  next_.SetMetadata(std::move(metadata));
  unpublished_ = true;
  // Best effort: without these metadata, the kept content still has all bytes.
  if (content_.kept() && !in_turn_) (void)SaveContent(/*durable=*/false);
  LogContent();
}

}  // namespace millrace::vfs
