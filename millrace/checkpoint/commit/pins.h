// Marks beside a manifest that keep its checkpoint from collectors: docs/formats/checkpoint.md, "Marks".
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "millrace/object/location.h"

namespace millrace::checkpoint {

/// Keeps the checkpoint until it is unpinned, whatever retention says. `by` and `reason` are for people; a second pin
/// replaces both. A call that fails never removes an earlier pin. Blocks.
/// Errors: kNotFound if there is no such checkpoint; kBusy if a collector is removing it. After either error the new
/// pin may exist. It keeps the checkpoint if it came in time; else a collector removes the pin after kLeaseTime.
Status Pin(const object::Location& root, std::uint64_t step, std::string_view by, std::string_view reason,
           object::Call call = {});
/// Removes the pin. Blocks.
/// Errors: kNotFound if the step is not pinned.
Status Unpin(const object::Location& root, std::uint64_t step, object::Call call = {});

/// A lease on a checkpoint for a reader. No collector removes the checkpoint while the hold lives, at most kLeaseTime
/// by the store's clock. Destruction removes the mark and blocks. The mark of a killed reader expires.
class CheckpointLease {
 public:
  /// Needs the right to write to the store.
  /// Errors: as Pin.
  static Result<std::unique_ptr<CheckpointLease>> Acquire(const object::Location& root, std::uint64_t step,
                                                          object::Call call = {});
  ~CheckpointLease();

 private:
  CheckpointLease(std::shared_ptr<object::Store> store, std::string key)
      : store_(std::move(store)), key_(std::move(key)) {}
  const std::shared_ptr<object::Store> store_;
  const std::string key_;
};
/// The time that a hold lasts. A guess: longer than any load of a checkpoint. The hold of a killed reader delays the
/// removal of the checkpoint by this time.
inline constexpr Duration kLeaseTime = std::chrono::hours(24);

}  // namespace millrace::checkpoint
