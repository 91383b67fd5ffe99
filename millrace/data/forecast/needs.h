// What samples are made of, without reading any.
#pragma once

#include <cstdint>
#include <vector>

#include "millrace/data/forecast/simulate.h"
#include "millrace/data/order/plan.h"

namespace millrace::data {

/// Of the first `batches` batches of `rows` samples of the first epoch, as far as it goes. Arithmetic; takes about as
/// long as the batches have documents.
std::vector<BatchNeeds> NeedsOf(const Plan& plan, std::uint64_t rows, std::uint64_t batches);

}  // namespace millrace::data
