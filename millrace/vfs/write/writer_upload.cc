// How the parts of a Writer reach the store while the file is written.
#include <cstring>

#include "millrace/object/blocking.h"
#include "millrace/vfs/write/writer.h"

namespace millrace::vfs {

/// Sends the parts that the upload lacks for the whole content. Returns false if it lacks nothing.
bool Writer::SendMissing() {
  const bool missing = upload_.QueueMissing(content_);
  SendQueued();
  return missing;
}

void Writer::SendQueued() {
  while (const std::optional<int> number = upload_.TakeQueued()) {
    environment_.uploads.Submit([this, part = *number] { Send(part); });
  }
}

void Writer::Send(int number) {
  if (Status begun = TrySend(number); !begun) OnSent(number, Fail(begun.error()));
}

Status Writer::TrySend(int number) {
  Interval range;
  object::Call call;
  std::optional<cache::ObjectVersion> base;
  {
    MutexLock lock(mutex_);
    UploadPart& part = upload_.part(number);
    range = part.range;
    call.stop = upload_.stop();
    if (part.copied) {
      part.state = UploadPart::State::kSending;
      base = *content_.base();
    }
  }
  std::string upload = MR_TRY(EnsureUpload(call));
  std::string key;
  {
    MutexLock lock(mutex_);
    key = upload_.session().key;
  }
  auto done = [this, number](Result<object::PartInfo> sent) { OnSent(number, std::move(sent)); };
  if (base) {
    environment_.store.CopyPart(key, std::move(upload), number, base->key, {range.begin, range.size()},
                                {.source_if_match = base->etag}, call, std::move(done));
    return {};
  }
  struct Memory {
    Reservation reservation;
    Buffer buffer;
  };
  auto memory = std::make_shared<Memory>();
  memory->reservation = MR_TRY(environment_.budget.Acquire(range.size(), call.stop));
  memory->buffer = Buffer(range.size());
  MR_TRY(Assemble(range, memory->buffer.span(), number, call));
  const ByteSpan bytes = memory->buffer.span();
  environment_.store.UploadPart(
      key, std::move(upload), number, bytes, call,
      [done, memory = std::move(memory)](Result<object::PartInfo> sent) mutable {
        memory.reset();  // before done(): after it, the writer and the budget may be destroyed
        done(std::move(sent));
      });
  return {};
}

void Writer::OnSent(int number, Result<object::PartInfo> sent) {
  MutexLock lock(mutex_);
  const std::optional<Interval> in_store = upload_.OnSent(number, std::move(sent), next_.key);
  if (in_store && environment_.staging.crowded() && MayDropSent()) MoveToUpload(*in_store);
  SendQueued();
  changed_.NotifyAll();  // under the lock: after it, the writer may be destroyed
}

/// Copies the bytes of a range, all as of one moment. From then on, changes of the range make `part` dirty.
Status Writer::Assemble(Interval range, MutableByteSpan into, std::optional<int> part, const object::Call& call) {
  IntervalSet fetched;
  while (true) {
    std::vector<Interval> missing;
    cache::ObjectVersion base;
    {
      MutexLock lock(mutex_);
      for (const Interval& gap : content_.InBase(range)) {
        for (const Interval& unknown : fetched.Gaps(gap.begin, gap.end)) missing.push_back(unknown);
      }
      if (missing.empty()) {
        MR_TRY(content_.Read(range.begin, into));
        if (part) upload_.part(*part).state = UploadPart::State::kSending;
        return {};
      }
      base = *content_.base();
    }
    for (const Interval& gap : missing) {
      const MutableByteSpan bytes = into.subspan(gap.begin - range.begin, gap.size());
      const std::size_t read =
          MR_TRY(environment_.cache.Read(base, gap.begin, bytes, cache::BlockCache::Mode::kExact, call));
      if (read != gap.size()) return Fail(Code::kStale, "{} became shorter", base.key);
      fetched.Add(gap.begin, gap.end);
    }
  }
}

/// Returns the options of the next version. If its metadata were not set, reads those of the base from the store.
Result<object::PutOptions> Writer::NextOptions(const object::Call& call) {
  cache::ObjectVersion base;
  {
    MutexLock lock(mutex_);
    if (next_.metadata) return TakeOptions();
    base = *content_.base();
  }
  auto info = MR_TRY(object::Head(environment_.store, base.key, call));
  if (!info || info->etag != base.etag) return Fail(Code::kStale, "{} was replaced or removed", base.key);
  MutexLock lock(mutex_);
  if (!next_.metadata) {
    next_.metadata = std::move(info->metadata);
    if (next_.times_outdated) ForgetTimes(*next_.metadata);
    next_.content_type = std::move(info->content_type);
  }
  return TakeOptions();
}

object::PutOptions Writer::TakeOptions() {
  next_.metadata_changed = false;
  return {.if_match = {}, .content_type = next_.content_type, .metadata = *next_.metadata};
}

Result<std::string> Writer::EnsureUpload(const object::Call& call) {
  MutexLock one(upload_mutex_);
  std::string key;
  {
    MutexLock lock(mutex_);
    if (const std::string& id = upload_.session().id; !id.empty()) return id;
    key = next_.key;
  }
  const object::PutOptions options = MR_TRY(NextOptions(call));
  const WallTime begun = environment_.clock.Wall();
  {
    MutexLock lock(mutex_);
    upload_.BeginSession(key, begun);
    MR_TRY(SaveUpload());  // before the request: if this process dies, the next mount finds the upload by this record
  }
  auto created = object::CreateMultipart(environment_.store, key, options, call);
  if (!created) {
    if (environment_.ledger != nullptr) environment_.ledger->AddUnconfirmed(key, begun);
    return Fail(created.error().Context("starting the upload of " + key));
  }
  MutexLock lock(mutex_);
  upload_.SetId(*created);
  MR_TRY(SaveUpload());
  return created;
}

/// Aborts the upload and forgets its parts. Blocks until the requests of parts have ended.
Status Writer::DropUpload(const object::Call& call) {
  PartUpload::Session session;
  {
    MutexLock lock(mutex_);
    upload_.Cancel();
    while (upload_.in_flight() > 0) changed_.Wait(mutex_);
    session = upload_.Reset();
  }
  if (session.id.empty()) return {};
  Status aborted = object::AbortMultipart(environment_.store, session.key, session.id, call);
  if (!aborted && aborted.error().code() != Code::kNotFound && environment_.ledger != nullptr) {
    environment_.ledger->AddUnconfirmed(session.key, session.begun, session.id);
  }
  return aborted;
}

}  // namespace millrace::vfs
