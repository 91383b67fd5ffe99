// One sequence of a batch, as a view of the memory that a reader fills.
#pragma once

#include <cstdint>
#include <span>

#include "millrace/data/batch/token.h"

namespace millrace::data {

/// The spans' memory belongs to the caller.
struct SequenceRow {
  std::span<TokenId> inputs, labels;       ///< sequence_length elements each
  std::span<std::int32_t> positions = {};  ///< sequence_length elements with DatasetOptions::boundaries, else none
  std::int32_t length = 0;                 ///< output: inputs in front of the padding
};

}  // namespace millrace::data
