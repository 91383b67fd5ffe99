// The right to work on a rename: a record in the bucket that its holder rewrites again and again.
#pragma once

#include <atomic>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>

#include "millrace/base/bytes.h"
#include "millrace/base/clock.h"
#include "millrace/base/threads/sync.h"
#include "millrace/object/store.h"
#include "millrace/vfs/rename/rename_record.h"

namespace millrace::vfs {

/// The largest record that is read: about 1 KiB for each of the 250,000 objects that one rename may move.
inline constexpr std::uint64_t kMaxRenameRecordBytes = 256 * kMiB;
/// How often a holder rewrites its record. 15 s, a guess: few requests, and no long wait for a takeover.
inline constexpr Duration kLeaseBeat = std::chrono::seconds(15);
/// A holder whose last rewrite is older deletes nothing. Three beats: two rewrites in a row may fail.
inline constexpr Duration kLeaseTrusted = std::chrono::seconds(45);
/// Another mount may take over a record whose last rewrite is older. The 15 s above kLeaseTrusted allow for clocks that
/// disagree.
inline constexpr Duration kLeaseExpired = std::chrono::seconds(60);

/// A lease on one rename, with a thread of its own that rewrites the record (the heartbeat). Each rewrite is
/// conditional on the version that this lease wrote last, so a holder learns of a takeover at its next rewrite at the
/// latest.
///
/// One thread calls Write, Renew, Guard and Remove; the heartbeat runs beside it. Destruction ends the heartbeat and
/// leaves the record. The store and the clock must outlive the lease.
class RenameLease {
 public:
  /// A lease whose record is not there yet: Create makes it.
  static std::unique_ptr<RenameLease> Prepare(object::Store& store, Clock& clock, RenameRoot root, RenameRecord record);
  /// Creates the record and starts the heartbeat. Call once, first. Errors: what the store says; the record may exist
  /// all the same when an answer was lost. Renew and Remove then see to it that it goes.
  Status Create(const object::Call& call) MR_EXCLUDES(writing_);
  /// Takes over a record that was read as the version `etag`. Errors: kBusy when the record has changed since.
  static Result<std::unique_ptr<RenameLease>> TakeOver(object::Store& store, Clock& clock, RenameRoot root,
                                                       RenameRecord found, std::string etag, std::string owner,
                                                       const object::Call& call);
  ~RenameLease();
  RenameLease(const RenameLease&) = delete;
  RenameLease& operator=(const RenameLease&) = delete;

  /// What the store confirmed last.
  std::shared_ptr<const RenameRecord> record() const MR_EXCLUDES(record_mutex_);
  const std::string& key() const { return key_; }

  /// Rewrites the record with what `next` says of its sources and its commit. After a failure it is open whether the
  /// record was rewritten, until a later Write or Renew succeeds: that one settles it.
  /// Errors: kBusy when another mount holds the record now, or has removed it; else what the store says.
  Status Write(RenameRecord next, const object::Call& call) MR_EXCLUDES(writing_);
  /// Rewrites record(): a heartbeat, which also takes back a Write whose outcome is open.
  Status Renew(const object::Call& call) MR_EXCLUDES(writing_);
  /// The call to delete something with: it ends before anybody may take the lease over. Renews an old lease first.
  /// Errors: as Renew.
  Result<object::Call> Guard(const object::Call& call) MR_EXCLUDES(writing_);
  /// Fires when another mount has taken the record over.
  std::stop_token lost() const { return lost_.get_token(); }
  /// Removes the record. The lease is over.
  Status Remove(const object::Call& call) MR_EXCLUDES(writing_);

 private:
  RenameLease(object::Store& store, Clock& clock, RenameRoot root, std::string key, std::string etag);
  void StartHeartbeat();
  void RunHeartbeat(const std::stop_token& stop);
  Status WriteLocked(RenameRecord next, const object::Call& call) MR_REQUIRES(writing_);
  enum class StoredRecord { kOurs, kOlder, kLost };
  Result<StoredRecord> CheckStoredRecord(const RenameRecord& written, const object::Call& call) MR_REQUIRES(writing_);
  void Accept(RenameRecord written, std::string etag, TimePoint asked) MR_REQUIRES(writing_);
  std::unexpected<Error> Lost();

  object::Store& store_;
  Clock& clock_;
  const RenameRoot root_;
  const std::string key_;
  std::atomic<TimePoint> confirmed_;  ///< when the last rewrite that succeeded was sent
  std::stop_source lost_;

  mutable Mutex writing_;                     ///< held while the store is asked: rewrites follow each other
  std::string etag_ MR_GUARDED_BY(writing_);  ///< empty: the record is to be created
  std::string owner_ MR_GUARDED_BY(writing_);
  std::string token_ MR_GUARDED_BY(writing_);
  std::uint64_t beat_ MR_GUARDED_BY(writing_) = 0;
  mutable Mutex record_mutex_;
  std::shared_ptr<const RenameRecord> record_ MR_GUARDED_BY(record_mutex_);
  std::jthread heartbeat_thread_;  ///< last: it uses all the rest
};

}  // namespace millrace::vfs
