// Products with a weight matrix that tensor-parallel ranks divide, with their exchanges (Megatron-LM's
// ColumnParallelLinear and RowParallelLinear). In the backward pass, exchanges run beside products.
#pragma once

#include <ATen/ATen.h>

#include "millrace/engine/ops/linear.h"
#include "millrace/engine/parallel/tensor_ranks.h"

namespace millrace::engine::ops {

/// Each rank has some rows of the matrix and of the update's `up`, and returns its columns of the output: [N, out /
/// ranks]. x is the same on all ranks, [N, in], or with sequence parallelism this rank's rows of it, [N / ranks, in].
///
/// The backward pass sums the gradient of x over the ranks while it computes the gradient of the weight. If it computes
/// x again, it gathers the ranks' rows of x while it computes the gradient of x. With one rank this is Linear().
/// Throws ErrorException if an exchange fails, also from the backward pass.
at::Tensor ColumnLinear(const LayerInput& x, const LinearWeights& weights, const TensorRanks& ranks);

/// Each rank has some columns of the matrix and of the update's `down`, and of x [N, in / ranks]. Returns the sum of
/// the ranks' products, [N, out] or, with sequence parallelism, this rank's rows of it. The update is linear in x, so
/// the sum includes it. With magnitudes, the ranks sum the squares of the rows first. With one rank this is Linear().
/// Throws as ColumnLinear(). REQUIRES: there is no bias.
at::Tensor RowLinear(const LayerInput& x, const LinearWeights& weights, const TensorRanks& ranks);

}  // namespace millrace::engine::ops
