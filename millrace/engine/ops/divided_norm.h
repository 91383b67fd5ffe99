// The root-mean-square norm of rows whose columns tensor-parallel ranks divide.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "millrace/engine/parallel/tensor_ranks.h"
#include "millrace/engine/parameters/weight.h"

namespace millrace::engine::ops {

/// The division of a norm's columns among ranks.
struct DividedColumns {
  std::int64_t columns = 0;  ///< of all ranks, each counted once
  int repeats = 1;           ///< ranks that hold the same columns
  double eps = 0;            ///< is added to the mean square
};

/// Returns AddRmsNorm(x) where each rank has some of the columns of x [N, own columns] and of the weight. The ranks sum
/// the squares of their columns, and one number a row in the backward pass. Ranks that hold the same columns each see a
/// part of their gradient, and get a part of the gradients of x and of the weight. With one rank, this is AddRmsNorm().
/// Throws ErrorException if an exchange fails, in the backward pass, too.
at::Tensor DividedRmsNorm(const at::Tensor& x, const Weight& weight, const DividedColumns& divided,
                          const TensorRanks& ranks);

}  // namespace millrace::engine::ops
