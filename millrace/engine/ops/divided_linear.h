// Products with a weight matrix that tensor-parallel ranks divide (Megatron-LM's ColumnParallelLinear and
// RowParallelLinear). The ops also exchange inputs and outputs between the ranks. In the backward pass, exchanges run
// beside products.
#pragma once

#include <ATen/ATen.h>

#include "millrace/engine/ops/linear.h"
#include "millrace/engine/parallel/tensor_ranks.h"

namespace millrace::engine::ops {

/// Each rank has some rows of the matrix [out, in], and of the update's `up`. Returns this rank's columns of the
/// output: [N, out / ranks]. x is [N, in], the same on all ranks. With sequence parallelism, x is only this rank's
/// rows: [N / ranks, in].
///
/// The backward pass exchanges in two places, beside a product. It sums the gradient of x over the ranks while it
/// computes the gradient of the weight. If x was not kept (LayerInput::again), it gathers the rows of x from the ranks
/// while it computes the gradient of x.
///
/// With one rank, this is Linear(). Throws ErrorException if an exchange fails, in the backward pass, too.
at::Tensor ColumnLinear(const LayerInput& x, const LinearWeights& weights, const TensorRanks& ranks);

/// Each rank has some columns of the matrix, of the update's `down`, and of x: [N, in / ranks]. Returns the sum of the
/// ranks' products: [N, out]. With sequence parallelism, returns this rank's rows of the sum. The update is linear in
/// x, so the sum includes it. With magnitudes, the ranks first sum the squares of the rows.
///
/// With one rank, this is Linear(). Throws as ColumnLinear(). REQUIRES: there is no bias.
at::Tensor RowLinear(const LayerInput& x, const LinearWeights& weights, const TensorRanks& ranks);

}  // namespace millrace::engine::ops
