// A batch of sequences, as a model consumes it.
#pragma once

#include <cstdint>
#include <vector>

#include "millrace/data/batch/token.h"

namespace millrace::data {

/// Consecutive sequences of the global order. Arrays are row-major int32.
struct Batch {
  int rows = 0;                 ///< sequences
  int sequence_length = 0;      ///< tokens of each row
  std::vector<TokenId> inputs;  ///< [rows, sequence_length]
  /// [rows, sequence_length]. Objective::kCausalLm: shifted by one, the model predicts labels[t] from inputs[0] to
  /// inputs[t]. kMlm: not shifted, labels[t] is the token that inputs[t] hides. kClassification: all kIgnoreLabel.
  /// kDpo: as kCausalLm, in a pair's first document the better answer, in its second one the other.
  std::vector<TokenId> labels;
  std::uint64_t first_sample = 0;     ///< index of row 0 in the epoch's global order; row i is sample first_sample + i
  std::uint64_t loss_tokens = 0;      ///< labels that are not kIgnoreLabel; 0 if tokens are not learnt one by one
  std::vector<std::int32_t> lengths;  ///< [rows]: inputs in front of the padding
  // The next three are not filled for Objective::kCausalLm.
  std::vector<std::int32_t> segments;  ///< [rows, sequence_length]: 1 in the second text of a row, else 0; not of kDpo
  /// [rows]: the row's class, or kIgnoreLabel. kMlm: 1 if the pair is random. kDpo: one for each pair, in order: 0 if
  /// both answers have labels.
  std::vector<std::int32_t> row_labels;
  std::uint64_t loss_rows = 0;  ///< row labels that are not kIgnoreLabel
  // The next two are filled if DatasetOptions::boundaries is set or the objective is not kCausalLm. Otherwise they are
  // empty. Padding counts as a document.
  std::vector<std::int32_t> positions;   ///< [rows, sequence_length]: position in the document's part of this row
  std::vector<std::int32_t> cu_seqlens;  ///< offset of each document in the flattened rows, and the end of the last one
  /// kDpo: for each document 2·p or 2·p + 1, if it is the better or the other answer of pair p, and -1 for padding.
  std::vector<std::int32_t> answers;
};

}  // namespace millrace::data
