#include "millrace/vfs/write/writer.h"

#include <algorithm>
#include <cstring>

#include "millrace/object/blocking.h"

namespace millrace::vfs {
namespace {

constexpr std::uint64_t kDetachBytes = 1 * kMiB;
constexpr auto kExact = cache::BlockCache::Mode::kExact;

PartLayout LayoutFor(const Writer::Environment& environment, const object::Limits& limits) {
  // A part is in memory while it is sent, and two must fit.
  const std::uint64_t most = std::min({limits.max_part, limits.max_put, environment.budget.total() / 2});
  return PartLayout(std::max(environment.part_bytes, limits.min_part), most, limits.max_parts);
}

MutableByteSpan Slice(MutableByteSpan bytes, std::uint64_t origin, Interval range) {
  return bytes.subspan(range.begin - origin, range.size());
}

}  // namespace

Writer::Writer(Environment environment, Start start)
    : environment_(std::move(environment)),
      limits_(environment_.store.limits()),
      layout_(LayoutFor(environment_, limits_)),
      size_(start.base ? start.base->size : 0),
      modified_(environment_.clock.Wall().time_since_epoch().count()),
      unpublished_(start.unpublished),
      key_(std::move(start.key)),
      exclusive_(start.exclusive),
      on_published_(std::move(start.on_published)),
      base_(std::move(start.base)),
      base_bytes_(size_),
      metadata_(std::move(start.metadata)) {
  if (!base_ && !metadata_) metadata_.emplace();
}

Writer::Writer(Environment environment, StagingArea::Adopted left, std::function<void(const Metadata&)> on_published)
    : Writer(std::move(environment), {.key = left.record.key,
                                      .base = left.record.base,
                                      .unpublished = true,
                                      .exclusive = left.record.exclusive,
                                      .metadata = left.record.metadata,
                                      .on_published = std::move(on_published)}) {
  MutexLock lock(mutex_);
  attempted_ = kept_ = true;
  size_ = left.record.size;
  modified_ = left.record.modified.time_since_epoch().count();
  named_ = left.record.saved;
  base_bytes_ = left.record.base_bytes;
  content_type_ = left.record.content_type;
  staged_ = std::move(left.file);
  changed_ = std::move(left.record.changed);
  expected_ = std::move(left.record.expected);
}

Writer::~Writer() {
  MutexLock lock(mutex_);
  ClearQueue();
  stop_.request_stop();
  while (in_flight_ > 0) news_.Wait(mutex_);
  if (upload_id_.empty() || kept_) return;  // whoever adopts what is kept removes the upload
  Status aborted = object::AbortMultipart(environment_.store, upload_key_, upload_id_);
  if (aborted || aborted.error().code() == Code::kNotFound || !staged_) return;
  // Whoever adopts the record tries again.
  staged_->Drop(0, IntervalSet::kEnd);
  if (SaveUpload()) staged_->Keep();
}

bool Writer::unpublished() const {
  MutexLock lock(mutex_);
  return unpublished_ && !abandoned_;
}

std::optional<cache::ObjectVersion> Writer::stored() const {
  MutexLock lock(mutex_);
  return base_;
}

bool Writer::may_be_stored() const {
  MutexLock lock(mutex_);
  return base_ || attempted_;
}

bool Writer::kept() const {
  MutexLock lock(mutex_);
  return kept_ && unpublished_ && !abandoned_;
}

Status Writer::Await(const object::Call& call, const std::function<bool()>& ready) {
  const bool in_time = call.deadline.infinite() ? news_.Wait(mutex_, call.stop, ready)
                                                : news_.WaitUntil(mutex_, call.deadline.at(), call.stop, ready);
  if (in_time) return {};
  return call.stop.stop_requested() ? Fail(Code::kCancelled, "waiting for the upload of {} was cancelled", key_)
                                    : Fail(Code::kDeadlineExceeded, "uploading {} took too long", key_);
}

Status Writer::AwaitTurn(const object::Call& call) {
  return Await(call, [this]() MR_NO_THREAD_SAFETY_ANALYSIS { return !publishing_; });
}

// --- Changes ---

Status Writer::Write(std::uint64_t offset, ByteSpan bytes, const object::Call& call) {
  if (bytes.empty()) return {};
  MutexLock lock(mutex_);
  if (bytes.size() > layout_.max_size() || offset > layout_.max_size() - bytes.size()) {
    return Fail(Code::kInvalidArgument, "{}: files have at most {} bytes", key_, layout_.max_size());
  }
  const std::uint64_t end = offset + bytes.size();
  MR_TRY(Change(offset, end, call, [&](StagedFile& staged) { return staged.Write(offset, bytes); }));
  size_ = std::max(size_.load(), end);
  SendPassed(offset, end);
  return {};
}

Status Writer::Zero(std::uint64_t offset, std::uint64_t length, const object::Call& call) {
  MutexLock lock(mutex_);
  if (offset >= size_) return {};
  const std::uint64_t end = offset + std::min(length, size_ - offset);
  return Change(offset, end, call, [&](StagedFile& staged) MR_NO_THREAD_SAFETY_ANALYSIS -> Status {
    const std::uint64_t on_base = std::clamp(base_bytes_, offset, end);
    if (offset < on_base) MR_TRY(staged.Zero(offset, on_base));
    staged.Drop(on_base, end);  // where there is nothing, there are zeros
    return {};
  });
}

Status Writer::Truncate(std::uint64_t size, const object::Call& call) {
  MutexLock lock(mutex_);
  if (size > layout_.max_size()) {
    return Fail(Code::kInvalidArgument, "{}: files have at most {} bytes", key_, layout_.max_size());
  }
  MR_TRY(AwaitTurn(call));
  if (size == size_) return {};
  const std::uint64_t end = std::min(size, size_.load());
  if (PartEnd(end) < end) MR_TRY(NeedHere(end, end + 1, call));
  MR_TRY(Thaw(/*with_content=*/end > 0, call));
  if (end < size_) ClearQueue();
  Spoil(PartEnd(end), IntervalSet::kEnd);
  sent_only_.Remove(end, IntervalSet::kEnd);
  changed_.Remove(end, IntervalSet::kEnd);
  if (staged_) staged_->Drop(end, IntervalSet::kEnd);
  base_bytes_ = std::min(base_bytes_, end);
  size_ = size;
  Touch();
  return {};
}

void Writer::Touch() {
  modified_ = environment_.clock.Wall().time_since_epoch().count();
  unpublished_ = true;
  touched_ = true;
  expected_.clear();
  if (metadata_) ForgetTimes(*metadata_);
}

Status Writer::Change(std::uint64_t begin, std::uint64_t end, const object::Call& call,
                      const std::function<Status(StagedFile&)>& change) {
  while (true) {
    MR_TRY(AwaitTurn(call));
    MR_TRY(NeedHere(std::min(begin, size_.load()), end, call));
    MR_TRY(Thaw(/*with_content=*/true, call));
    if (!staged_) staged_ = MR_TRY(environment_.staging.Create());
    Status done = change(*staged_);
    if (done) break;
    if (done.error().code() != Code::kNoSpace) return Fail(done.error().Context("writing " + key_));
    if (Status room = MakeRoom(call); !room) {
      return room.error().code() == Code::kNoSpace ? Fail(done.error().Context("writing " + key_)) : room;
    }
  }
  changed_.Add(begin, end);
  Spoil(end > size_ ? std::min(begin, PartEnd(size_)) : begin, end);
  Touch();
  return {};
}

/// Where to spoil from when the file's end moves away from `end`: the part in which a file ends changes with it.
std::uint64_t Writer::PartEnd(std::uint64_t end) const {
  return layout_.Range(layout_.IndexOf(end)).begin < end ? end - 1 : end;
}

/// Frees some of what the store has as well, or waits until it has more. kNoSpace: there is no more to come.
Status Writer::MakeRoom(const object::Call& call) {
  const std::uint64_t before = staged_->held().bytes();
  DropClean();
  for (const auto& [number, part] : parts_) DropSent(part);
  if (staged_->held().bytes() < before) return {};
  if (in_flight_ == 0) {
    if (!environment_.await_room) return Fail(Code::kNoSpace, "the staging area is full");
    mutex_.unlock();
    const bool room = environment_.await_room(call);
    mutex_.lock();
    if (!room) return Fail(Code::kNoSpace, "the staging area is full");
    return {};
  }
  return Await(call, [this, seen = parts_done_]() MR_NO_THREAD_SAFETY_ANALYSIS { return parts_done_ != seen; });
}

/// Bytes that the base has too.
void Writer::DropClean() {
  if (!staged_ || !base_ || abandoned_) return;
  for (const Interval& clean : changed_.Gaps(0, base_bytes_)) staged_->Drop(clean.begin, clean.end);
}

void Writer::DropSent(const Part& part) {
  if (part.state != Part::State::kSent || part.copied || abandoned_ || kept_) return;
  for (const Interval& held : staged_->held().In(part.range.begin, part.range.end)) {
    sent_only_.Add(held.begin, held.end);
  }
  staged_->Drop(part.range.begin, part.range.end);
}

/// Bytes that only an unfinished upload has cannot be read, and their parts cannot be made again: what is there is
/// published first, and becomes the base.
Status Writer::NeedHere(std::uint64_t begin, std::uint64_t end, const object::Call& call) {
  if (sent_only_.empty()) return {};
  const Interval first = layout_.Range(layout_.IndexOf(begin)), last = layout_.Range(layout_.IndexOf(end - 1));
  if (!sent_only_.Intersects(first.begin, last.end)) return {};
  if (abandoned_) return Fail(Code::kStale, "{} was removed, and the staging area could not hold all of it", key_);
  return PublishInTurn(call);
}

/// Parts of a changed range have to be sent again. One whose bytes have not been taken yet will have the new ones, but
/// when the file was cut, also too many.
void Writer::Spoil(std::uint64_t begin, std::uint64_t end) {
  const bool cut = end == IntervalSet::kEnd;
  for (auto at = FirstPart(begin); at != parts_.end() && at->second.range.begin < end;) {
    Part& part = at->second;
    if (part.range.end <= begin || (part.state == Part::State::kQueued && !cut)) {
      ++at;
    } else if (part.state != Part::State::kSent) {
      part.dirty = true;
      ++at;
    } else {
      at = parts_.erase(at);
    }
  }
}

// --- Reading ---

/// Fills what is known without the store; gives the ranges that the base has to fill.
std::vector<Interval> Writer::ReadHere(std::uint64_t offset, MutableByteSpan into) const {
  const std::uint64_t end = offset + into.size();
  std::vector<Interval> from_base;
  const IntervalSet nothing;
  for (const Interval& gap : (staged_ ? staged_->held() : nothing).Gaps(offset, end)) {
    const std::uint64_t split = std::clamp(base_bytes_, gap.begin, gap.end);
    if (gap.begin < split) from_base.push_back({gap.begin, split});
    std::memset(into.data() + (split - offset), 0, gap.end - split);
  }
  return from_base;
}

Result<std::size_t> Writer::Read(std::uint64_t offset, MutableByteSpan into, const ReadStored& read_stored,
                                 const object::Call& call) {
  while (true) {
    MutexLock lock(mutex_);
    if (offset >= size_ || into.empty()) return 0;
    into = into.first(std::min<std::uint64_t>(into.size(), size_ - offset));
    const std::uint64_t end = offset + into.size();
    if (sent_only_.Intersects(offset, end)) {
      MR_TRY(AwaitTurn(call));
      MR_TRY(NeedHere(offset, end, call));
      continue;
    }
    const std::vector<Interval> from_base = ReadHere(offset, into);
    if (staged_) {
      for (const Interval& held : staged_->held().In(offset, end)) {
        MR_TRY(staged_->Read(held.begin, Slice(into, offset, held)));
      }
    }
    if (from_base.empty()) return into.size();
    const cache::ObjectVersion base = *base_;
    const std::uint64_t publications = publications_;
    lock.Unlock();
    Status stored;
    for (const Interval& range : from_base) {
      auto read = read_stored(base, range.begin, Slice(into, offset, range));
      if (read && *read != range.size()) read = Fail(Code::kStale, "{} became shorter", base.key);
      if (!read) stored = Fail(read.error());
      if (!stored) break;
    }
    if (stored) return into.size();
    lock.Lock();
    // Our own publication has replaced the base: the same bytes are in the new one.
    if (stored.error().code() != Code::kStale || publications == publications_) return Fail(stored.error());
  }
}

/// Takes the bytes of a range as they are at one moment. From then on, changes make the part dirty.
Status Writer::Assemble(Interval range, MutableByteSpan into, Part* part, const object::Call& call) {
  IntervalSet fetched;
  while (true) {
    MutexLock lock(mutex_);
    std::vector<Interval> missing;
    const IntervalSet nothing;
    const IntervalSet& held = staged_ ? staged_->held() : nothing;
    for (const Interval& gap : held.Gaps(range.begin, std::clamp(base_bytes_, range.begin, range.end))) {
      for (const Interval& unknown : fetched.Gaps(gap.begin, gap.end)) missing.push_back(unknown);
    }
    if (missing.empty()) {
      for (const Interval& gap : held.Gaps(std::clamp(base_bytes_, range.begin, range.end), range.end)) {
        std::memset(Slice(into, range.begin, gap).data(), 0, gap.size());
      }
      for (const Interval& here : held.In(range.begin, range.end)) {
        MR_TRY(staged_->Read(here.begin, Slice(into, range.begin, here)));
      }
      if (part != nullptr) part->state = Part::State::kSending;
      return {};
    }
    const cache::ObjectVersion base = *base_;
    lock.Unlock();
    for (const Interval& gap : missing) {
      const std::size_t read =
          MR_TRY(environment_.cache.Read(base, gap.begin, Slice(into, range.begin, gap), kExact, call));
      if (read != gap.size()) return Fail(Code::kStale, "{} became shorter", base.key);
      fetched.Add(gap.begin, gap.end);
    }
  }
}

// --- The end of a name ---

void Writer::Abandon(std::optional<std::string> stored) {
  MutexLock lock(mutex_);
  while (publishing_) news_.Wait(mutex_);
  abandoned_ = true;
  removing_ = std::move(stored);
  ClearQueue();
  if (kept_) (void)SaveContent(/*durable=*/false);
}

bool Writer::abandoned() const {
  MutexLock lock(mutex_);
  return abandoned_;
}

void Writer::Discard() {
  MutexLock lock(mutex_);
  kept_ = false;
  // The content goes at once, but the upload is still to be aborted: by us, or whoever finds its record.
  if (!upload_key_.empty() && staged_ && SaveUpload()) {
    staged_->Release();
    if (previous_) previous_->Unsave();
    previous_.reset();
  } else {
    Unsave();
  }
}

void Writer::Revive() {
  MutexLock lock(mutex_);
  abandoned_ = false;
  removing_.reset();
  if (kept_) (void)SaveContent(/*durable=*/false);
}

// --- What outlives the process ---

Result<std::string> Writer::Keep(bool durable) {
  MutexLock lock(mutex_);
  while (publishing_ && !kept_) news_.Wait(mutex_);
  if (!unpublished_ || abandoned_) return std::string();
  if (!sent_only_.empty()) {
    return Fail(Code::kNoSpace, "{} is too long for the staging area to keep all of it", key_);
  }
  if (!kept_) named_ = environment_.staging.NextStamp();
  if (!kept_ || durable) MR_TRY(SaveContent(durable));
  return staged_->path();
}

void Writer::GiveUpParts(const object::Call& call) {
  MutexLock lock(mutex_);
  if (!AwaitTurn(call) || !kept_ || upload_key_.empty()) return;
  publishing_ = true;
  (void)DropUpload(call);  // where the store does not confirm it, the ledger knows
  if (kept_) (void)SaveContent(/*durable=*/false);
  publishing_ = false;
  news_.NotifyAll();
}

StagedRecord Writer::RecordNow() const {
  return {.key = key_,
          .size = size_,
          .modified = modified(),
          .saved = named_,
          .exclusive = exclusive_,
          .upload_id = upload_id_,
          .upload_key = upload_key_,
          .upload_begun = upload_begun_};
}

Status Writer::SaveContent(bool durable) {
  if (!staged_) staged_ = MR_TRY(environment_.staging.Create());
  StagedRecord record = RecordNow();
  record.complete = true;
  record.removing = removing_;
  record.base = base_;
  record.base_bytes = base_bytes_;
  record.metadata = metadata_;
  record.content_type = content_type_;
  record.held = staged_->held();
  record.changed = changed_;
  record.expected = expected_;
  MR_TRY(staged_->Save(record, durable));
  staged_->Keep();
  kept_ = true;
  if (previous_) previous_->Unsave();
  previous_.reset();
  return {};
}

/// Writes down that there is an upload, so that it can be removed.
Status Writer::SaveUpload() {
  if (kept_) return SaveContent(/*durable=*/false);
  if (!staged_) staged_ = MR_TRY(environment_.staging.Create());
  return staged_->Save(RecordNow(), /*durable=*/false);
}

/// Before a change: what was kept stays as it is, and the change is made to a copy of it. Where there is no room for
/// one, it is published first.
Status Writer::Thaw(bool with_content, const object::Call& call) {
  if (!kept_) return {};
  std::unique_ptr<StagedFile> fresh;
  if (with_content) {
    auto clone = staged_->Clone();
    if (!clone && clone.error().code() == Code::kNoSpace) return PublishInTurn(call);
    if (!clone) return Fail(clone.error());
    fresh = *std::move(clone);
  }
  kept_ = false;
  previous_ = std::exchange(staged_, std::move(fresh));
  return upload_key_.empty() ? Status() : SaveUpload();
}

/// The content is where it belongs, or nowhere any more.
void Writer::Unsave() {
  kept_ = false;
  if (staged_) staged_->Unsave();
  if (previous_) previous_->Unsave();
  previous_.reset();
}

Status Writer::Divert(std::string key, const object::Call& call) {
  MR_TRY(Detach(call));
  MutexLock lock(mutex_);
  MR_TRY(AwaitTurn(call));
  (void)DropUpload(call);
  key_ = std::move(key);
  base_.reset();
  base_bytes_ = 0;
  exclusive_ = true;
  attempted_ = false;
  on_published_ = nullptr;  // the file under the old name is another one's
  if (!metadata_) metadata_.emplace();
  return {};
}

Status Writer::Detach(const object::Call& call) {
  Buffer piece(kDetachBytes);
  for (std::uint64_t at = 0;;) {
    MutexLock lock(mutex_);
    MR_TRY(AwaitTurn(call));
    if (!staged_) staged_ = MR_TRY(environment_.staging.Create());
    const auto gaps = staged_->held().Gaps(std::min(at, base_bytes_), base_bytes_);
    if (gaps.empty()) return {};
    const Interval range{gaps[0].begin, std::min(gaps[0].end, gaps[0].begin + kDetachBytes)};
    const cache::ObjectVersion base = *base_;
    lock.Unlock();
    const MutableByteSpan bytes = piece.span().first(range.size());
    const std::size_t read = MR_TRY(environment_.cache.Read(base, range.begin, bytes, kExact, call));
    if (read != range.size()) return Fail(Code::kStale, "{} became shorter", base.key);
    lock.Lock();
    at = range.end;
    for (const Interval& gap : staged_->held().Gaps(range.begin, std::clamp(base_bytes_, range.begin, range.end))) {
      MR_TRY(staged_->Write(gap.begin, Slice(bytes, range.begin, gap)));
    }
  }
}

void Writer::Turn::Move(std::string key, std::string etag) {
  Writer& writer = *writer_;
  MutexLock lock(writer.mutex_);
  writer.key_ = std::move(key);
  writer.base_ = cache::ObjectVersion{writer.key_, std::move(etag), writer.size_};
}

void Writer::Turn::ForgetMetadata() {
  MutexLock lock(writer_->mutex_);
  writer_->metadata_.reset();
}

Writer::Turn::~Turn() {
  if (!writer_) return;
  MutexLock lock(writer_->mutex_);
  writer_->publishing_ = false;
  writer_->news_.NotifyAll();
}

Result<bool> Writer::MoveUnstored(std::string key, bool exclusive, bool over_stored, const object::Call& call) {
  MutexLock lock(mutex_);
  MR_TRY(AwaitTurn(call));
  if (!unpublished_ || abandoned_ || base_ || attempted_ || previous_ || !sent_only_.empty()) return false;
  if (!upload_id_.empty() || in_flight_ > 0) (void)DropUpload(call);
  std::swap(key_, key);
  std::swap(exclusive_, exclusive);
  const WallTime before = std::exchange(named_, environment_.staging.NextStamp());
  Status saved = kept_ ? SaveContent(/*durable=*/false) : Status();
  if (saved) attempted_ = over_stored;
  if (saved) return true;
  std::swap(key_, key);
  std::swap(exclusive_, exclusive);
  named_ = before;
  return Fail(saved.error());
}

void Writer::SetMetadata(UserMetadata metadata) {
  MutexLock lock(mutex_);
  metadata_ = std::move(metadata);
  metadata_changed_ = true;
  unpublished_ = true;
  expected_.clear();
  // Best effort: what is kept without it has all the bytes.
  if (kept_ && !publishing_) (void)SaveContent(/*durable=*/false);
}

}  // namespace millrace::vfs
