// Tables that are looked up.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "millrace/engine/ops/embedding.h"
#include "millrace/engine/ops/exchange/exchange.h"
#include "millrace/engine/parameters/parameter_buffer.h"

namespace millrace::engine {

/// ids int64 [N] → rows of a table [N, columns]; with sequence parallelism this rank's rows of them [N / ranks,
/// columns]. A value type; LayerFactory makes it.
class Embedding {
 public:
  Embedding() = default;
  Embedding(std::size_t parameter, WeightHandle table, std::int64_t rows, bool divided, TensorRanks ranks)
      : parameter_(parameter), table_(table), rows_(rows), divided_(divided), ranks_(ranks) {}

  at::Tensor Forward(const at::Tensor& ids) const;
  std::size_t parameter() const { return parameter_; }  ///< its number in the ParameterBuffer
  std::int64_t rows() const { return rows_; }           ///< of the whole table

 private:
  std::size_t parameter_ = 0;
  WeightHandle table_;
  std::int64_t rows_ = 0;
  bool divided_ = false;  ///< a rank has its ShareOf(rows)
  TensorRanks ranks_;
};

}  // namespace millrace::engine
