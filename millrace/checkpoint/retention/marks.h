// Marks beside a manifest that keep its checkpoint from collectors: docs/formats/checkpoint.md, "Marks".
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "millrace/object/location.h"

namespace millrace::checkpoint {

/// Keeps the checkpoint until it is unpinned, whatever retention says. `by` and `reason` are for people. Pinning what
/// is pinned replaces both. A call that fails never removes a pin that is there.
/// Errors: kNotFound if there is no such checkpoint; kBusy if a collector is removing it. After either a pin may stand:
/// it keeps the checkpoint if it came in time, else a collector removes it after kHoldTime. Blocks.
Status Pin(const object::Location& root, std::uint64_t step, std::string_view by, std::string_view reason,
           object::Call call = {});
/// kNotFound when the step is not pinned. Blocks.
Status Unpin(const object::Location& root, std::uint64_t step, object::Call call = {});

/// As long as it lives, and at most kHoldTime of the store's clock, no collector removes the checkpoint: for readers.
/// Destruction removes the mark and blocks for that; what a killed reader leaves runs out.
class Hold {
 public:
  /// Needs the right to write. Fails as Pin does.
  static Result<std::unique_ptr<Hold>> Take(const object::Location& root, std::uint64_t step, object::Call call = {});
  ~Hold();

 private:
  Hold(std::shared_ptr<object::Store> store, std::string key) : store_(std::move(store)), key_(std::move(key)) {}
  const std::shared_ptr<object::Store> store_;
  const std::string key_;
};
inline constexpr Duration kHoldTime = std::chrono::hours(24);

}  // namespace millrace::checkpoint
