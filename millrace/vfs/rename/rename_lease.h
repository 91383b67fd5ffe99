// A lease on a rename: a record in the bucket, which its holder rewrites as a heartbeat.
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
/// The interval at which a holder rewrites its record. 15 s, a guess: few requests, and no long wait for a takeover.
inline constexpr Duration kLeaseBeat = std::chrono::seconds(15);
/// A holder whose last rewrite is older deletes nothing. Three beats: two rewrites in a row may fail.
inline constexpr Duration kLeaseTrusted = std::chrono::seconds(45);
/// Another mount may take over a record whose last rewrite is older. The 15 s above kLeaseTrusted allow for clocks that
/// disagree.
inline constexpr Duration kLeaseExpired = std::chrono::seconds(60);

/// The right to work on one rename. A thread of the lease rewrites the record every kLeaseBeat (the heartbeat). Each
/// rewrite is conditional on the version that this lease wrote last. So a holder learns of a takeover at its next
/// rewrite at the latest.
///
/// One thread calls Write, Renew, Guard and Remove; the heartbeat runs beside it. The destructor ends the heartbeat and
/// leaves the record. The store and the clock must outlive the lease.
class RenameLease {
 public:
  /// Returns a lease without a record. Create makes the record.
  static std::unique_ptr<RenameLease> Prepare(object::Store& store, Clock& clock, RenameRoot root, RenameRecord record);
  /// Creates the record and starts the heartbeat. Call once, first. Errors: those of the store. If the answer of the
  /// store was lost, the record may exist after an error; call Renew and Remove to remove it.
  Status Create(const object::Call& call) MR_EXCLUDES(writing_);
  /// Takes over the record `found`, which was read as the version `etag`. Errors: kBusy if the record has changed
  /// since; those of the store.
  static Result<std::unique_ptr<RenameLease>> TakeOver(object::Store& store, Clock& clock, RenameRoot root,
                                                       RenameRecord found, std::string etag, std::string owner,
                                                       const object::Call& call);
  ~RenameLease();
  RenameLease(const RenameLease&) = delete;
  RenameLease& operator=(const RenameLease&) = delete;

  /// Returns the record that the store confirmed last.
  std::shared_ptr<const RenameRecord> record() const MR_EXCLUDES(record_mutex_);
  const std::string& key() const { return key_; }

  /// Replaces the record by `next`, with the owner, the token and the beat of this lease. After an error, the store may
  /// have either record, until a later Write or Renew succeeds.
  /// Errors: kBusy if another mount has taken over or removed the record; those of the store.
  Status Write(RenameRecord next, const object::Call& call) MR_EXCLUDES(writing_);
  /// Rewrites record(). So it also undoes a Write that failed. Errors: as Write.
  Status Renew(const object::Call& call) MR_EXCLUDES(writing_);
  /// Returns `call` with a deadline before which no other mount takes the lease over. Use the result for deletions.
  /// Renews the lease first if half of kLeaseTrusted has passed. Errors: as Write.
  Result<object::Call> Guard(const object::Call& call) MR_EXCLUDES(writing_);
  /// Fires when this lease has learnt that another mount has taken over or removed the record.
  std::stop_token lost() const { return lost_.get_token(); }
  /// Removes the record and ends the lease. Errors: as Write.
  Status Remove(const object::Call& call) MR_EXCLUDES(writing_);

 private:
  RenameLease(object::Store& store, Clock& clock, RenameRoot root, std::string key, std::string etag);
  void StartHeartbeat();
  void RunHeartbeat(const std::stop_token& stop);
  Status WriteLocked(RenameRecord next, const object::Call& call) MR_REQUIRES(writing_);
  enum class StoredRecord {
    kOurs,   ///< the rewrite that seemed to fail has been done
    kOlder,  ///< the version before it, whose ETag is etag_; none if etag_ is empty
    kLost,   ///< another lease's record, or none
  };
  Result<StoredRecord> CheckStoredRecord(const RenameRecord& written, const object::Call& call) MR_REQUIRES(writing_);
  void Accept(RenameRecord written, std::string etag, TimePoint asked) MR_REQUIRES(writing_);
  std::unexpected<Error> Lost();

  object::Store& store_;
  Clock& clock_;
  const RenameRoot root_;
  const std::string key_;
  std::atomic<TimePoint> confirmed_;  ///< when the last rewrite that succeeded was sent
  std::stop_source lost_;

  mutable Mutex writing_;                     ///< held during a rewrite, so that rewrites follow each other
  std::string etag_ MR_GUARDED_BY(writing_);  ///< empty: the record is to be created
  std::string owner_ MR_GUARDED_BY(writing_);
  std::string token_ MR_GUARDED_BY(writing_);
  std::uint64_t beat_ MR_GUARDED_BY(writing_) = 0;
  mutable Mutex record_mutex_;
  std::shared_ptr<const RenameRecord> record_ MR_GUARDED_BY(record_mutex_);
  std::jthread heartbeat_thread_;  ///< last: the thread uses all other members
};

}  // namespace millrace::vfs
