// How a Writer's content reaches the store.
#include <algorithm>

#include "millrace/base/hash/digest.h"
#include "millrace/object/blocking.h"
#include "millrace/vfs/write/writer.h"

namespace millrace::vfs {
namespace {

constexpr std::uint64_t kCompareBytes = 1 * kMiB;

/// The ETag that S3 gives an object made of these parts: the MD5 of their MD5s. Empty where theirs are no MD5s.
std::string EtagOfParts(const std::vector<object::PartInfo>& parts) {
  std::vector<std::byte> digests;
  for (const object::PartInfo& part : parts) {
    auto digest = HexDecode(part.etag);
    if (!digest || digest->size() != sizeof(Md5Digest)) return {};
    digests.insert(digests.end(), digest->begin(), digest->end());
  }
  return fmt::format("{}-{}", HexEncode(Md5(digests)), parts.size());
}

/// The version that should have been replaced, or copied from, is not there.
bool MeansReplaced(Code code) {
  return code == Code::kPreconditionFailed || code == Code::kNotFound || code == Code::kStale;
}

}  // namespace

// --- Parts ---

/// Sends the parts that a change has filled, once there is something behind them: a file of one part is one request.
void Writer::SendPassed(std::uint64_t begin, std::uint64_t end) {
  if (abandoned_ || failure_) return;
  for (int number = layout_.IndexOf(begin > 0 ? begin - 1 : 0);; ++number) {
    const Interval range = layout_.Range(number);
    if (range.end >= end) return;
    auto known = FirstPart(range.begin);
    const bool sent = known != parts_.end() && known->second.range.begin < range.end;
    if (!sent && changed_.Covers(range.begin, range.end)) Enqueue(number, range, /*copied=*/false);
  }
}

void Writer::Enqueue(int number, Interval range, bool copied) {
  parts_[number] = Part{.range = range, .copied = copied, .info = {}};
  queue_.push_back(number);
  Pump();
}

void Writer::Pump() {
  while (in_flight_ < environment_.parallel_parts && !queue_.empty()) {
    const int number = queue_.front();
    queue_.pop_front();
    ++in_flight_;
    environment_.uploads.Submit([this, number] { Send(number); });
  }
}

void Writer::ClearQueue() {
  for (int number : queue_) parts_.erase(number);
  queue_.clear();
}

void Writer::Send(int number) {
  if (Status begun = TrySend(number); !begun) OnSent(number, Fail(begun.error()));
}

Status Writer::TrySend(int number) {
  Part* part;
  Interval range;
  object::Call call;
  cache::ObjectVersion base;
  {
    MutexLock lock(mutex_);
    part = &parts_.at(number);  // stays until it is sent
    range = part->range;
    call.stop = stop_.get_token();
    if (part->copied) {
      part->state = Part::State::kSending;
      base = *base_;
    }
  }
  std::string upload = MR_TRY(EnsureUpload(call));
  std::string key;
  {
    MutexLock lock(mutex_);
    key = upload_key_;
  }
  auto done = [this, number](Result<object::PartInfo> sent) { OnSent(number, std::move(sent)); };
  if (!base.key.empty()) {
    environment_.store.CopyPart(key, std::move(upload), number, base.key, {range.begin, range.size()},
                                {.source_if_match = base.etag}, call, std::move(done));
    return {};
  }
  struct Memory {
    Reservation reservation;
    Buffer buffer;
  };
  auto memory = std::make_shared<Memory>();
  memory->reservation = MR_TRY(environment_.budget.Acquire(range.size(), call.stop));
  memory->buffer = Buffer(range.size());
  MR_TRY(Assemble(range, memory->buffer.span(), part, call));
  const ByteSpan bytes = memory->buffer.span();
  environment_.store.UploadPart(key, std::move(upload), number, bytes, call,
                                [done, memory = std::move(memory)](Result<object::PartInfo> sent) mutable {
                                  memory.reset();  // before the writer, whose budget it is, may go
                                  done(std::move(sent));
                                });
  return {};
}

void Writer::OnSent(int number, Result<object::PartInfo> sent) {
  MutexLock lock(mutex_);
  Part& part = parts_.at(number);
  if (!sent) {
    Error error = sent.error().Context(fmt::format("part {} of {}", number, key_));
    const Code code = error.code();
    if (part.copied && (code == Code::kPreconditionFailed || code == Code::kNotFound)) {
      error = error.WithCode(Code::kStale);  // the base has gone
    }
    if (!failure_) failure_ = std::move(error);
    parts_.erase(number);
    ClearQueue();
  } else if (part.dirty) {
    parts_.erase(number);
  } else {
    part.state = Part::State::kSent;
    part.info = *std::move(sent);
    if (environment_.staging.crowded()) DropSent(part);
  }
  --in_flight_;
  ++parts_done_;
  Pump();
  news_.NotifyAll();  // under the lock: the writer may go once it is released
}

/// The first part that reaches beyond `from`.
std::map<int, Writer::Part>::iterator Writer::FirstPart(std::uint64_t from) {
  auto at = parts_.upper_bound(layout_.IndexOf(std::min(from, layout_.max_size())));
  if (at != parts_.begin() && std::prev(at)->second.range.end > from) --at;
  return at;
}

bool Writer::Unchanged(Interval range) const {
  return base_ && range.end <= base_bytes_ && !changed_.Intersects(range.begin, range.end);
}

Result<object::PutOptions> Writer::NextOptions(const object::Call& call) {
  MutexLock lock(mutex_);
  if (!metadata_) {
    const cache::ObjectVersion base = *base_;
    lock.Unlock();
    auto info = MR_TRY(object::Head(environment_.store, base.key, call));
    if (!info || info->etag != base.etag) return Fail(Code::kStale, "{} was replaced or removed", base.key);
    lock.Lock();
    if (!metadata_) {
      metadata_ = std::move(info->metadata);
      if (touched_) ForgetTimes(*metadata_);
      content_type_ = std::move(info->content_type);
    }
  }
  metadata_changed_ = false;
  return object::PutOptions{.if_match = {}, .content_type = content_type_, .metadata = *metadata_};
}

Result<std::string> Writer::EnsureUpload(const object::Call& call) {
  MutexLock one(upload_mutex_);
  std::string key;
  {
    MutexLock lock(mutex_);
    if (!upload_id_.empty()) return upload_id_;
    key = key_;
  }
  const object::PutOptions options = MR_TRY(NextOptions(call));
  const WallTime begun = environment_.clock.Wall();
  {
    MutexLock lock(mutex_);
    upload_key_ = key;
    upload_begun_ = begun;
    MR_TRY(SaveUpload());  // first: whoever finds the record looks for the upload, should we not live to tell its id
  }
  auto created = object::CreateMultipart(environment_.store, key, options, call);
  if (!created) {
    if (environment_.ledger != nullptr) environment_.ledger->Lost(key, begun);
    return Fail(created.error().Context("starting the upload of " + key));
  }
  MutexLock lock(mutex_);
  upload_id_ = *created;
  MR_TRY(SaveUpload());
  return created;
}

/// Gives up the parts sent so far.
Status Writer::DropUpload(const object::Call& call) {
  ClearQueue();
  stop_.request_stop();
  while (in_flight_ > 0) news_.Wait(mutex_);
  stop_ = std::stop_source();
  parts_.clear();
  failure_.reset();
  const std::string id = std::exchange(upload_id_, {}), key = std::exchange(upload_key_, {});
  const WallTime begun = upload_begun_;
  if (id.empty()) return {};
  mutex_.unlock();
  Status aborted = object::AbortMultipart(environment_.store, key, id, call);
  if (!aborted && aborted.error().code() != Code::kNotFound && environment_.ledger != nullptr) {
    environment_.ledger->Lost(key, begun, id);
  }
  mutex_.lock();
  return aborted;
}

// --- Publishing ---

Status Writer::Publish(const object::Call& call) {
  MutexLock lock(mutex_);
  return PublishInTurn(call);
}

Status Writer::PublishKept(const object::Call& call) {
  MutexLock lock(mutex_);
  MR_TRY(AwaitTurn(call));
  return kept_ ? PublishInTurn(call) : Status();
}

Status Writer::PublishInTurn(const object::Call& call) {
  MR_TRY(AwaitTurn(call));
  publishing_ = true;
  Status published = PublishAll(call);
  publishing_ = false;
  news_.NotifyAll();
  return published;
}

Result<Writer::Turn> Writer::Hold(std::shared_ptr<Writer> writer, const object::Call& call) {
  MutexLock lock(writer->mutex_);
  MR_TRY(writer->AwaitTurn(call));
  writer->publishing_ = true;
  Status published = writer->PublishAll(call);
  lock.Unlock();
  Turn turn(std::move(writer));
  if (!published) return Fail(published.error());
  return turn;
}

Status Writer::PublishAll(const object::Call& call) {
  Status published;
  // Metadata that changed while the upload ran makes another version, of the same bytes.
  while (published && unpublished_ && !abandoned_) published = PublishOnce(call);
  return published;
}

Status Writer::PublishOnce(const object::Call& call) {
  failure_.reset();
  attempted_ = true;
  const std::uint64_t size = size_;
  // Nothing builds on a base that was truncated away; what is appended to an empty file does.
  const bool on_base = base_ && (base_bytes_ > 0 || base_->size == 0), exclusive = exclusive_;
  const bool may_be_there =
      !exclusive || kept_;  // else whoever is about to create the file must be told that it exists
  const bool whole = size <= layout_.Range(1).size() && sent_only_.empty();
  object::PutOptions conditions{.if_match = on_base ? base_->etag : "", .if_none_match = exclusive};
  mutex_.unlock();
  auto etag = whole ? PutWhole(conditions, call) : PutParts(conditions, call);
  bool other_metadata = false;
  if (!etag && may_be_there && MeansReplaced(etag.error().code())) {
    auto published = FindPublished(call, other_metadata);
    mutex_.lock();
    if (published) {
      etag = *std::move(published);
      metadata_changed_ = metadata_changed_ || other_metadata;
      (void)DropUpload(call);
    }
    mutex_.unlock();
  }
  // A store that has given up the upload gets a new one.
  if (!etag && !whole && etag.error().code() == Code::kNotFound) etag = PutParts(conditions, call);
  mutex_.lock();
  if (!etag) {
    Error error = etag.error().Context(fmt::format("publishing {}", key_));
    if (error.code() == Code::kPreconditionFailed && exclusive) error = error.WithCode(Code::kAlreadyExists);
    if (error.code() == Code::kPreconditionFailed && on_base) error = error.WithCode(Code::kStale);
    return Fail(error);
  }
  parts_.clear();
  upload_id_.clear();
  upload_key_.clear();
  expected_.clear();
  exclusive_ = false;
  base_ = cache::ObjectVersion{key_, *etag, size};
  base_bytes_ = size;
  changed_.Clear();
  sent_only_.Clear();
  unpublished_ = metadata_changed_;
  ++publications_;
  // What is still to be published, as chmod has promised, is written down before anything less is forgotten.
  if (!unpublished_ || !kept_ || !SaveContent(/*durable=*/false)) Unsave();
  if (!kept_ && environment_.staging.crowded()) DropClean();
  const Metadata now{Metadata::State::kFile, size, modified(), *etag, environment_.clock.Now()};
  const auto on_published = on_published_;
  mutex_.unlock();
  if (on_published) on_published(now);
  mutex_.lock();
  return {};
}

Result<std::string> Writer::PutWhole(object::PutOptions conditions, const object::Call& call) {
  std::string key;
  {
    MutexLock lock(mutex_);
    if (!upload_id_.empty() || in_flight_ > 0) (void)DropUpload(call);  // it was longer before
    key = key_;
  }
  object::PutOptions options = MR_TRY(NextOptions(call));
  options.if_match = std::move(conditions.if_match);
  options.if_none_match = conditions.if_none_match;
  const std::uint64_t size = size_;
  Reservation reservation = MR_TRY(environment_.budget.Acquire(size, call.stop));
  Buffer content(size);
  MR_TRY(Assemble({0, size}, content.span(), nullptr, call));
  if (!options.if_match.empty()) Expect(HexEncode(Md5(content.span())));
  return MR_TRY(object::Put(environment_.store, std::move(key), content.span(), std::move(options), call)).etag;
}

Result<std::string> Writer::PutParts(object::PutOptions conditions, const object::Call& call) {
  std::vector<object::PartInfo> parts;
  std::string key, upload;
  {
    MutexLock lock(mutex_);
    while (EnqueueMissing()) {
      MR_TRY(Await(call, [this]() MR_NO_THREAD_SAFETY_ANALYSIS { return in_flight_ == 0 && queue_.empty(); }));
      if (!failure_) continue;
      const Error error = *failure_;
      if (error.code() == Code::kNotFound && sent_only_.empty()) (void)DropUpload(call);
      return Fail(error);
    }
    for (const auto& [number, part] : parts_) parts.push_back(part.info);
    key = upload_key_;
    upload = upload_id_;
  }
  if (!conditions.if_match.empty()) Expect(EtagOfParts(parts));
  auto completed =
      object::CompleteMultipart(environment_.store, key, upload, std::move(parts), std::move(conditions), call);
  if (completed) return std::move(completed->etag);
  if (completed.error().code() == Code::kNotFound) {
    MutexLock lock(mutex_);
    if (sent_only_.empty()) (void)DropUpload(call);
  }
  return Fail(completed.error());
}

/// Queues what the upload lacks; false when it lacks nothing.
bool Writer::EnqueueMissing() {
  bool missing = in_flight_ > 0;
  const std::uint64_t size = size_;
  for (std::uint64_t at = 0; at < size;) {
    const int number = layout_.IndexOf(at);
    Interval range = layout_.Range(number);
    range.end = std::min(range.end, size);
    auto known = FirstPart(range.begin);
    if (known != parts_.end() && known->second.range.begin < range.end) {
      at = known->second.range.end;
      continue;
    }
    missing = true;
    bool copy = Unchanged(range);
    for (Interval more = range; copy && more.end < size; range.end = more.end) {
      more = layout_.Range(layout_.IndexOf(more.end));
      more.end = std::min(more.end, size);
      auto next = FirstPart(more.begin);
      const bool taken = next != parts_.end() && next->second.range.begin < more.end;
      if (taken || !Unchanged(more) || more.end - range.begin > limits_.max_part) break;
    }
    Enqueue(number, range, copy);
    at = range.end;
  }
  return missing;
}

/// What shall be published is about to replace the base, after which some of it can be read nowhere else: from here on
/// it is known by its ETag.
void Writer::Expect(std::string etag) {
  MutexLock lock(mutex_);
  expected_ = std::move(etag);
  if (kept_) (void)SaveContent(/*durable=*/false);  // what is there already will do but for this
}

/// The version under the key when it has exactly this content: an answer of the store may get lost, and the request
/// that is sent again then fails on what the first one did. Its metadata may be older.
std::optional<std::string> Writer::FindPublished(const object::Call& call, bool& other_metadata) {
  std::string key, expected;
  bool readable;
  {
    MutexLock lock(mutex_);
    key = key_;
    expected = expected_;
    readable = sent_only_.empty();
  }
  auto info = object::Head(environment_.store, key, call);
  if (!info || !*info || (*info)->size != size_) return std::nullopt;
  {
    MutexLock lock(mutex_);
    other_metadata = metadata_ && *metadata_ != (*info)->metadata;
  }
  if ((*info)->etag == expected) return expected;
  if (!readable) return std::nullopt;
  auto reservation = environment_.budget.Acquire(2 * kCompareBytes, call.stop);
  if (!reservation) return std::nullopt;
  Buffer theirs(kCompareBytes), ours(kCompareBytes);
  for (std::uint64_t at = 0; at < size_; at += kCompareBytes) {
    const std::uint64_t length = std::min(kCompareBytes, size_ - at);
    const MutableByteSpan a = theirs.span().first(length), b = ours.span().first(length);
    auto got = object::Get(environment_.store, key, {.range = object::ByteRange{at, length}, .if_match = (*info)->etag},
                           a, call);
    if (!got || !*got || (*got)->bytes != length || !Assemble({at, at + length}, b, nullptr, call)) return std::nullopt;
    if (!std::ranges::equal(a, b)) return std::nullopt;
  }
  return (*info)->etag;
}

}  // namespace millrace::vfs
