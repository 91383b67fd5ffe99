// Normalizes the queries or the keys of a token over all heads.
#pragma once

#include <ATen/ATen.h>

#include "millrace/engine/ops/divided_norm.h"
#include "millrace/engine/ops/norm.h"
#include "millrace/engine/parallel/tensor_ranks.h"
#include "millrace/engine/parameters/parameter_buffer.h"

namespace millrace::engine {

/// A root-mean-square norm of rows that tensor-parallel ranks divide by columns: x [N, own columns] → the same. A value
/// type. LayerFactory makes it.
class AllHeadsNorm {
 public:
  AllHeadsNorm() = default;
  AllHeadsNorm(WeightHandle weight, ops::DividedColumns columns, TensorRanks ranks)
      : weight_(weight), columns_(columns), ranks_(ranks) {}
  at::Tensor Forward(const at::Tensor& x) const { return ops::DividedRmsNorm(x, *weight_, columns_, ranks_); }

 private:
  WeightHandle weight_;
  ops::DividedColumns columns_;
  TensorRanks ranks_;
};

}  // namespace millrace::engine
