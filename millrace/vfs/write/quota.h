// A limit of the bytes below the root of a tree.
//
// A bucket has no such limit, so each tree keeps its own count: the sum of a listing, and what this tree has written
// since. What other clients write is seen at the next listing. So several trees together may pass the limit, by what
// they write between two listings.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "millrace/base/clock.h"
#include "millrace/base/log.h"
#include "millrace/base/result.h"
#include "millrace/base/threads/sync.h"
#include "millrace/object/read_store.h"
#include "millrace/vfs/types/usage.h"

namespace millrace::vfs {

/// The count of one tree. Thread-safe. Its dependencies must outlive it.
class Quota {
 public:
  struct Dependencies {
    object::ReadStore& store;
    std::string prefix;  ///< of the keys that count
    /// The limit in bytes; 0: none. Asked at each listing, so that it can change. If it fails, the last one stays.
    /// Blocks on the store.
    std::function<Result<std::uint64_t>(const object::Call&)> limit;
    /// By how many bytes the tree will grow when all that it has not published is published.
    std::function<std::uint64_t()> unpublished;
    const Clock& clock;
    Logger log;
  };
  explicit Quota(Dependencies dependencies) : with_(std::move(dependencies)) {}

  /// Adds bytes by which a file grows. Lists the tree if nothing is known yet, or if the limit seems to be reached and
  /// the last listing is not fresh. Errors: kNoSpace if the limit is reached; then nothing has changed. If the store
  /// cannot be listed, the bytes are accepted: a quota is no reason to lose what was written.
  Status Add(std::uint64_t bytes, const object::Call& call) MR_EXCLUDES(mutex_);
  /// Call when something was removed, or replaced by less: the next shortage lists at once.
  void NoteRemoval() MR_EXCLUDES(mutex_);
  /// Limit and use. Lists if the last listing is old: a minute, or a hundred times as long as a listing takes; after a
  /// removal, if it is not fresh. Fails only if the tree could not be listed yet.
  Result<Usage> Current(const object::Call& call) MR_EXCLUDES(mutex_);

 private:
  bool HasRoom(std::uint64_t bytes) const MR_REQUIRES(mutex_);
  bool OlderThan(Duration least, int times) const MR_REQUIRES(mutex_);
  Status Measure(const object::Call& call) MR_EXCLUDES(mutex_);
  Result<std::uint64_t> SumOfListing(const object::Call& call) const;

  const Dependencies with_;
  Mutex mutex_;
  CondVar measured_again_;
  bool measuring_ MR_GUARDED_BY(mutex_) = false;
  Status last_outcome_ MR_GUARDED_BY(mutex_);  ///< of the last listing
  bool removed_ MR_GUARDED_BY(mutex_) = false;
  std::optional<TimePoint> measured_at_ MR_GUARDED_BY(mutex_);  ///< when the last listing ended
  Duration took_ MR_GUARDED_BY(mutex_){};
  Usage usage_ MR_GUARDED_BY(mutex_);
};

}  // namespace millrace::vfs
