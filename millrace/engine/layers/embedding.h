// An embedding table: maps each token id to a row.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "millrace/engine/layers/forward_context.h"
#include "millrace/engine/ops/embedding.h"
#include "millrace/engine/ops/exchange.h"
#include "millrace/engine/parameters/parameter_buffer.h"

namespace millrace::engine {

/// Returns x [N, columns] plus noise that is uniform in ±alpha/sqrt(row length · columns). As in transformers, the row
/// length includes padding. The numbers come from Philox 4x32-10, keyed by seed and step, at the counter (column,
/// position in the row, sample). So they do not depend on ranks, micro-batches or threads.
at::Tensor AddNoise(const at::Tensor& x, const EmbeddingNoise& noise);

/// Maps ids int64 [N] to rows of a table [N, columns]. With sequence parallelism, returns only this rank's rows [N /
/// ranks, columns]. A value type. LayerFactory makes it.
class Embedding {
 public:
  Embedding() = default;
  Embedding(WeightHandle table, std::int64_t rows, bool divided, TensorRanks ranks)
      : table_(table), rows_(rows), divided_(divided), ranks_(ranks) {}

  at::Tensor Forward(const at::Tensor& ids) const;
  /// The same for the tokens of the model's input, plus the noise that the context asks for.
  at::Tensor Forward(const at::Tensor& ids, const ForwardContext& context) const {
    return AddNoise(Forward(ids), context.noise);
  }

 private:
  WeightHandle table_;
  std::int64_t rows_ = 0;  ///< of the whole table
  bool divided_ = false;   ///< a rank has its ShareOf(rows)
  TensorRanks ranks_;
};

}  // namespace millrace::engine
