#include "millrace/vfs/rename/rename_lease.h"

#include <algorithm>

#include "millrace/base/hash/random.h"
#include "millrace/object/blocking.h"

namespace millrace::vfs {
namespace {

/// The pause after a rewrite that failed. 3 s, a guess: several attempts fit before kLeaseTrusted has passed.
constexpr Duration kBeatAgain = std::chrono::seconds(3);
constexpr int kWriteTries = 3;          ///< of one rewrite that the store refuses or does not answer; a guess
constexpr std::size_t kTokenBytes = 8;  ///< 64 random bits: no two leases have the same token

}  // namespace

RenameLease::RenameLease(object::Store& store, Clock& clock, RenameRoot root, std::string key, std::string etag)
    : store_(store),
      clock_(clock),
      root_(std::move(root)),
      key_(std::move(key)),
      confirmed_(clock.Now()),
      etag_(std::move(etag)),
      token_(SecureHex(kTokenBytes)) {}

RenameLease::~RenameLease() = default;

std::unique_ptr<RenameLease> RenameLease::Prepare(object::Store& store, Clock& clock, RenameRoot root,
                                                  RenameRecord record) {
  std::string key = RenameRecordKey(root, record.id);
  std::unique_ptr<RenameLease> lease(new RenameLease(store, clock, std::move(root), std::move(key), ""));
  MutexLock lock(lease->writing_);
  lease->owner_ = record.owner;
  MutexLock record_lock(lease->record_mutex_);
  lease->record_ = std::make_shared<const RenameRecord>(std::move(record));
  return lease;
}

Status RenameLease::Create(const object::Call& call) {
  MR_TRY(Renew(call));
  StartHeartbeat();
  return {};
}

Result<std::unique_ptr<RenameLease>> RenameLease::TakeOver(object::Store& store, Clock& clock, RenameRoot root,
                                                           RenameRecord found, std::string etag, std::string owner,
                                                           const object::Call& call) {
  std::string key = RenameRecordKey(root, found.id);
  std::unique_ptr<RenameLease> lease(new RenameLease(store, clock, std::move(root), std::move(key), std::move(etag)));
  {
    MutexLock lock(lease->writing_);
    lease->owner_ = std::move(owner);
    MR_TRY(lease->WriteLocked(std::move(found), call));
  }
  lease->StartHeartbeat();
  return lease;
}

std::shared_ptr<const RenameRecord> RenameLease::record() const {
  MutexLock lock(record_mutex_);
  return record_;
}

Status RenameLease::Write(RenameRecord next, const object::Call& call) {
  MutexLock lock(writing_);
  return WriteLocked(std::move(next), call);
}

Status RenameLease::Renew(const object::Call& call) {
  MutexLock lock(writing_);
  return WriteLocked(*record(), call);
}

Result<object::Call> RenameLease::Guard(const object::Call& call) {
  if (lost_.stop_requested()) return Lost();
  if (clock_.Now() - confirmed_.load() > kLeaseTrusted / 2) MR_TRY(Renew(call));
  object::Call guarded = call;
  guarded.deadline = std::min(call.deadline, Deadline(confirmed_.load() + kLeaseTrusted));
  return guarded;
}

Status RenameLease::Remove(const object::Call& call) {
  const object::Call guarded = MR_TRY(Guard(call));
  heartbeat_thread_ = std::jthread();  // else the heartbeat would take the missing record for a takeover
  return object::Delete(store_, key_, guarded);
}

Status RenameLease::WriteLocked(RenameRecord next, const object::Call& call) {
  if (lost_.stop_requested()) return Lost();
  next.owner = owner_;
  next.lease = token_;
  for (int tries = 1;; ++tries) {
    next.beat = ++beat_;
    const std::string text = EncodeRename(next, root_);
    const TimePoint asked = clock_.Now();
    auto put = object::Put(store_, key_, AsBytes(text), {.if_match = etag_, .if_none_match = etag_.empty()}, call);
    if (put) {
      Accept(std::move(next), std::move(put->etag), asked);
      return {};
    }
    // The store may have done the rewrite: its answer was lost, or it refused a repetition.
    auto found = CheckStoredRecord(next, call);
    if (!found) return Fail(put.error());
    if (*found == StoredRecord::kLost) return Lost();
    if (*found == StoredRecord::kOurs) {
      Accept(std::move(next), etag_, asked);
      return {};
    }
    const bool again = put.error().code() == Code::kPreconditionFailed || IsRetryable(put.error().code());
    if (!again || etag_.empty() || tries == kWriteTries) return Fail(put.error());
  }
}

/// Reads the record after a rewrite that failed.
Result<RenameLease::StoredRecord> RenameLease::CheckStoredRecord(const RenameRecord& written,
                                                                 const object::Call& call) {
  auto content = MR_TRY(object::GetAll(store_, key_, kMaxRenameRecordBytes, call));
  if (!content) return etag_.empty() ? StoredRecord::kOlder : StoredRecord::kLost;
  if (content->info.etag == etag_) return StoredRecord::kOlder;
  auto there = DecodeRename(content->bytes, key_, root_);
  if (!there || there->lease != token_) return StoredRecord::kLost;
  etag_ = content->info.etag;
  return there->beat == written.beat ? StoredRecord::kOurs : StoredRecord::kOlder;
}

void RenameLease::Accept(RenameRecord written, std::string etag, TimePoint asked) {
  etag_ = std::move(etag);
  confirmed_ = asked;
  MutexLock lock(record_mutex_);
  record_ = std::make_shared<const RenameRecord>(std::move(written));
}

std::unexpected<Error> RenameLease::Lost() {
  lost_.request_stop();
  return Fail(Code::kBusy,
              "another mount has taken over the rename {}; look at both names, then repeat it if it is not done", key_);
}

void RenameLease::StartHeartbeat() {
  heartbeat_thread_ = std::jthread([this](const std::stop_token& stop) { RunHeartbeat(stop); });
}

void RenameLease::RunHeartbeat(const std::stop_token& stop) {
  TimePoint next = confirmed_.load() + kLeaseBeat;
  while (clock_.SleepUntil(next, stop)) {
    next = confirmed_.load() + kLeaseBeat;
    if (next > clock_.Now()) continue;  // it was rewritten meanwhile
    Status renewed = Renew({.stop = stop, .deadline = Deadline::After(clock_, kLeaseBeat)});
    if (lost_.stop_requested()) return;
    next = renewed ? confirmed_.load() + kLeaseBeat : clock_.Now() + kBeatAgain;
  }
}

}  // namespace millrace::vfs
