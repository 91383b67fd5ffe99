// The right of one attempt of a run to save to a checkpoint URL, proved at the store: docs/formats/checkpoint.md, "The
// owner". Each attempt takes the next epoch before its first step, by a conditional put of the owner object. The epoch
// is a fencing token: readers ignore what an earlier epoch commits after a later one has begun.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>

#include "millrace/base/clock.h"
#include "millrace/base/log.h"
#include "millrace/base/threads/sync.h"
#include "millrace/base/threads/task_scope.h"
#include "millrace/checkpoint/format/checkpoint_keys.h"
#include "millrace/checkpoint/format/contents.h"
#include "millrace/checkpoint/format/owner_record.h"
#include "millrace/object/location.h"

namespace millrace::checkpoint {

/// An owner that has not renewed for this long is dead. As the lease of a job's agents: longer than pauses of the
/// network, shorter than a user's patience.
inline constexpr Duration kOwnerLease = std::chrono::seconds(30);
/// The time between two renewals: two may fail before the lease is over.
inline constexpr Duration kRenewalInterval = std::chrono::seconds(10);

/// One attempt's claim on the place of a run's checkpoints. Rank 0 has one. Thread-safe.
class Ownership {
 public:
  struct Options {
    RunLineage run;                 ///< a later attempt of the owner's run claims at once
    Provenance who;                 ///< for people
    bool takes_over = false;        ///< whether to claim although the owner lives, which then ends
    Clock* clock = &SystemClock();  ///< must outlive the claim
    Logger log;
  };
  /// Takes the next epoch. Call it before looking for the checkpoint to go on from. Claims at once if there is no
  /// owner, if the owner has ended, was an earlier attempt of this run, or was a process of this machine that is gone.
  /// Else waits for up to kOwnerLease, and claims if the owner does not renew meanwhile. No clocks are compared.
  /// Blocks. Errors: kBusy if the owner lives, or is a later attempt of this run: the message says who and since when;
  /// kUnsupported if the store ignores conditions of writes; kCorrupt if the owner object is damaged.
  static Result<std::shared_ptr<Ownership>> Claim(object::Location root, Options options, std::stop_token stop = {});
  ~Ownership() = default;
  /// Ends the run that owns the place, if there is one, so that the next run need not wait. The run learns of it by its
  /// next renewal. Returns whose claim was ended. `who`: who ends it. Blocks. Errors: those of the store.
  static Result<std::optional<OwnerEpoch>> EndOwner(object::Location root, Provenance who, Clock& clock);

  std::uint64_t epoch() const { return epoch_; }
  /// Renews the claim in the background from now on.
  void StartRenewing();
  /// Says from which step this attempt goes on; nothing: it begins anew. The next renewal writes it.
  void Begin(std::optional<std::uint64_t> from);
  /// Makes sure that the owner object says from which step this attempt went on. Call it before each commit. It writes
  /// only if no renewal has written since Begin(). Errors: as Renew().
  Status EnsureBegun();
  /// Renews the claim now. Errors: lost(), if another epoch has begun; those of the store, and then nothing is known.
  Status Renew(const object::Call& call = {});
  /// Checks that this attempt was still the owner when a listing began, by the owner object's ETag there: nothing if
  /// the listing has none; empty if the store lists no ETags. Makes a request only if the ETag is not the expected one.
  /// Errors: as Renew().
  Status Confirm(const std::optional<std::string>& listed_etag);
  /// Returns whether a manifest is of an epoch before this one, and of a step that this attempt makes itself.
  bool Supersedes(std::uint64_t epoch, std::uint64_t step) const;
  /// Returns why this attempt must not save any more: who has taken over. Does not block.
  std::optional<Error> lost() const;
  /// Ends the claim, so that the next run need not wait. Stops renewing. Blocks for kRenewalInterval at most. A failure
  /// is logged.
  void Release();

 private:
  Ownership(object::Location root, Options options);
  Status TryClaim(std::stop_token stop, bool& claimed);
  Status AwaitDeath(const OwnerRecord& record, std::string etag, std::stop_token stop);
  bool MayClaim(const OwnerRecord& record) const;
  Status CheckNotLater(const OwnerRecord& record) const;
  Result<std::uint64_t> NewestEpoch() const;
  OwnerRecord Next(bool has_ended) const;
  Status Write(OwnerRecord record, const object::Call& call) MR_REQUIRES(request_mutex_);
  Status FindOut(const Error& why, const object::Call& call) MR_REQUIRES(request_mutex_);
  Status Lose(const OwnerRecord& record);

  const object::Location root_;
  const CheckpointKeys keys_;
  const Options options_;
  const std::string token_;
  const std::string place_;  ///< for messages
  std::uint64_t epoch_ = 0;  ///< constant after Claim()

  Mutex request_mutex_;                       ///< held during requests on the owner object: one at a time
  mutable Mutex mutex_;                       ///< never held during requests
  OwnerRecord record_ MR_GUARDED_BY(mutex_);  ///< as last written or read
  std::string etag_ MR_GUARDED_BY(mutex_);
  bool has_begun_ MR_GUARDED_BY(mutex_) = false;
  std::optional<std::uint64_t> began_from_ MR_GUARDED_BY(mutex_);
  std::optional<Error> lost_ MR_GUARDED_BY(mutex_);
  TimePoint renewed_ MR_GUARDED_BY(mutex_);
  TaskScope renewer_;  ///< the last member: its thread uses the others
};

}  // namespace millrace::checkpoint
