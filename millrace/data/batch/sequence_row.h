// One sequence of a batch, as a view of the memory that a reader fills.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "millrace/data/batch/token.h"

namespace millrace::data {

/// The spans' memory belongs to the caller.
struct SequenceRow {
  std::span<TokenId> inputs, labels;       ///< sequence_length elements each
  std::span<std::int32_t> positions = {};  ///< sequence_length elements with DatasetOptions::boundaries, else none
  std::span<std::int32_t> segments = {};   ///< sequence_length elements as in Batch, or none
  std::int32_t length = 0;                 ///< output: inputs in front of the padding
  std::int32_t row_label = kIgnoreLabel;   ///< output: as in Batch; not of Objective::kDpo
  std::vector<std::int32_t> pair_labels;   ///< output of Objective::kDpo: the labels of the row's pairs, as in Batch
};

}  // namespace millrace::data
