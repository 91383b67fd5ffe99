// The place of a run's checkpoints, and the steps at which they are made. Plain data.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "millrace/base/clock.h"
#include "millrace/checkpoint/commit/retention.h"
#include "millrace/checkpoint/save/local_tier_options.h"

namespace millrace::train {

/// The action if a checkpoint is due while the one before is still being uploaded: wait, skip it, or make it after the
/// first step at which the upload is done.
enum class WhenBusy { kWait, kSkip, kDelay };
std::string_view WhenBusyName(WhenBusy when);  ///< "wait", "skip", "delay"
std::optional<WhenBusy> ParseWhenBusy(std::string_view name);

struct CheckpointOptions {
  std::string url;  ///< empty: none are made
  std::uint64_t every_steps = 100;
  checkpoint::Retention retention;
  WhenBusy when_busy = WhenBusy::kWait;
  std::uint64_t bandwidth = 0;                        ///< bytes a second of each rank; 0: no limit
  std::optional<Duration> upload_limit;               ///< of each rank, to the store; nothing: none
  std::optional<checkpoint::LocalTierOptions> local;  ///< nothing: the store alone
  std::uint64_t local_every_steps = 10;               ///< a checkpoint there at each multiple of it
  bool local_beside = true;                           ///< while one to the store is on its way, from a second copy
  bool operator==(const CheckpointOptions&) const = default;
};

}  // namespace millrace::train
