// Compares the clocks of the ranks, whose machines may count time from different moments.
#pragma once

#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/result.h"
#include "millrace/engine/parallel/collective.h"

namespace millrace::train {

/// A rank's clock minus rank 0's, and the most that this may be off.
struct ClockOffset {
  Duration offset{0}, error{0};
};

/// Returns the offset of each rank. An offset below its error is 0: the ranks of a machine share its clock. All ranks
/// call it. Takes about 16 round trips for each rank. Errors: kUnavailable if a rank is lost.
Result<std::vector<ClockOffset>> MeasureClockOffsets(engine::Collective& world, const Clock& clock);

}  // namespace millrace::train
