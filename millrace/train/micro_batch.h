// A batch of the data, as a model takes it.
#pragma once

#include <cstdint>

#include "millrace/data/batch/batch.h"
#include "millrace/engine/models/model.h"
#include "millrace/engine/models/preference.h"

namespace millrace::train {

/// The model's batch borrows from the data's. Neither copied nor moved.
struct MicroBatch {
  /// Inputs and segments are on `device`, and the caller does not wait until they are. Labels stay on the CPU, where
  /// the ops take them.
  MicroBatch(data::Batch from, at::Device device);
  MicroBatch(const MicroBatch&) = delete;
  MicroBatch& operator=(const MicroBatch&) = delete;

  /// Makes the batch one of pairs of answers. Afterwards batch.preferences is `preferences`.
  void SetPairs(const engine::DpoOptions& options);
  /// Returns the batch of the reference's pass, which drops nothing and adds no noise. REQUIRES: SetPairs() was called.
  engine::ModelBatch ReferenceBatch() const;

  const data::Batch data;
  engine::ModelBatch batch;
  engine::Preferences preferences;  ///< of pairs
};

/// Labels that count, of tokens and of rows.
struct LabelCounts {
  std::uint64_t tokens = 0, rows = 0;

  /// The loss of one row counts as much as that of this number of tokens. The sum of both, divided by denominator(), is
  /// the mean over the tokens plus the mean over the rows, as in BERT's pre-training.
  double row_weight() const;
  std::uint64_t denominator() const { return tokens > 0 ? tokens : rows; }
};

}  // namespace millrace::train
