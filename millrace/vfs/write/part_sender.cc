#include "millrace/vfs/write/part_sender.h"

#include <memory>
#include <utility>

#include "millrace/object/blocking.h"
#include "millrace/vfs/write/writer.h"

namespace millrace::vfs {

void PartSender::Send(int number) {
  if (Status begun = TrySend(number); !begun) OnSent(number, Fail(begun.error()));
}

Status PartSender::TrySend(int number) {
  Interval range;
  object::Call call;
  std::optional<cache::ObjectVersion> base;
  {
    MutexLock lock(writer_.mutex_);
    UploadPart& part = writer_.upload_.part(number);
    range = part.range;
    call.stop = writer_.upload_.stop();
    if (part.copied) {
      part.state = UploadPart::State::kSending;
      base = *writer_.content_.base();
    }
  }
  std::string upload = MR_TRY(EnsureUpload(call));
  std::string key;
  {
    MutexLock lock(writer_.mutex_);
    key = writer_.upload_.session().key;
  }
  auto done = [this, number](Result<object::PartInfo> sent) { OnSent(number, std::move(sent)); };
  if (base) {
    writer_.environment_.store.CopyPart(key, std::move(upload), number, base->key, {range.begin, range.size()},
                                        {.source_if_match = base->etag}, call, std::move(done));
    return {};
  }
  struct Memory {
    Reservation reservation;
    Buffer buffer;
  };
  auto memory = std::make_shared<Memory>();
  memory->reservation = MR_TRY(writer_.environment_.budget.Acquire(range.size(), call.stop));
  memory->buffer = Buffer(range.size());
  MR_TRY(writer_.base_.Assemble(range, memory->buffer.span(), number, call));
  const ByteSpan bytes = memory->buffer.span();
  writer_.environment_.store.UploadPart(
      key, std::move(upload), number, bytes, call,
      [done, memory = std::move(memory)](Result<object::PartInfo> sent) mutable {
        memory.reset();  // before done(): after it, the writer and the budget may be destroyed
        done(std::move(sent));
      });
  return {};
}

void PartSender::OnSent(int number, Result<object::PartInfo> sent) {
  MutexLock lock(writer_.mutex_);
  const std::optional<Interval> in_store = writer_.upload_.OnSent(number, std::move(sent), writer_.next_.key);
  if (in_store && writer_.environment_.staging.crowded() && writer_.MayDropSent()) writer_.MoveToUpload(*in_store);
  writer_.SendQueued();
  writer_.changed_.NotifyAll();  // under the lock: after it, the writer may be destroyed
}

Result<std::string> PartSender::EnsureUpload(const object::Call& call) {
  MutexLock one(upload_mutex_);
  std::string key;
  {
    MutexLock lock(writer_.mutex_);
    if (const std::string& id = writer_.upload_.session().id; !id.empty()) return id;
    key = writer_.next_.key;
  }
  const object::PutOptions options = MR_TRY(writer_.base_.NextOptions(call));
  const WallTime begun = writer_.environment_.clock.Wall();
  {
    MutexLock lock(writer_.mutex_);
    writer_.upload_.BeginSession(key, begun);
    // Before the request: if this process dies, the next mount finds the upload by this record.
    MR_TRY(writer_.SaveUpload());
  }
  auto created = object::CreateMultipart(writer_.environment_.store, key, options, call);
  if (!created) {
    if (writer_.environment_.ledger != nullptr) writer_.environment_.ledger->AddUnconfirmed(key, begun);
    return Fail(created.error().Context("starting the upload of " + key));
  }
  MutexLock lock(writer_.mutex_);
  writer_.upload_.SetId(*created);
  MR_TRY(writer_.SaveUpload());
  return created;
}

Status PartSender::DropUpload(const object::Call& call) {
  PartUpload::Session session;
  {
    MutexLock lock(writer_.mutex_);
    writer_.upload_.Cancel();
    while (writer_.upload_.in_flight() > 0) writer_.changed_.Wait(writer_.mutex_);
    session = writer_.upload_.Reset();
  }
  if (session.id.empty()) return {};
  Status aborted = object::AbortMultipart(writer_.environment_.store, session.key, session.id, call);
  if (!aborted && aborted.error().code() != Code::kNotFound && writer_.environment_.ledger != nullptr) {
    writer_.environment_.ledger->AddUnconfirmed(session.key, session.begun, session.id);
  }
  return aborted;
}

}  // namespace millrace::vfs
