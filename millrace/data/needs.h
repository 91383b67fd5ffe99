// Computes the chunks and bytes that the batches of a run need, from the plan alone.
#pragma once

#include <cstdint>
#include <vector>

#include "millrace/data/order/plan.h"
#include "millrace/data/simulate.h"

namespace millrace::data {

/// Returns the needs of the first `batches` batches of `rows` samples, or of all in the first epoch if it has fewer.
/// The time is proportional to the documents in the batches.
std::vector<BatchNeeds> NeedsOf(const Plan& plan, std::uint64_t rows, std::uint64_t batches);

}  // namespace millrace::data
