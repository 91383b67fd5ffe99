// The exchanges between tensor-parallel ranks, as ops with a backward pass (Megatron's f, g, and their
// sequence-parallel forms; Shoeybi et al. 2019, Korthikanti et al. 2022). N is the number of tokens; a rank's rows are
// [N / ranks, columns]. With one rank each returns x. All throw ErrorException if the exchange fails.
#pragma once

#include <ATen/ATen.h>

#include "millrace/engine/parallel/tensor_ranks.h"

namespace millrace::engine::ops {

/// x where a layer that is divided by columns begins. All ranks have the same x; its gradient is the sum of theirs.
at::Tensor CopyToRanks(const at::Tensor& x, const TensorRanks& ranks);
/// The sum of the ranks' x, where a layer that is divided by rows ends. Its gradient goes to each rank as it is.
at::Tensor SumOverRanks(const at::Tensor& x, const TensorRanks& ranks);
/// All rows of the ranks' rows x. The gradient is summed over the ranks, and each gets its rows.
at::Tensor GatherRows(const at::Tensor& x, const TensorRanks& ranks);
/// This rank's rows of the sum of the ranks' x. The gradient is that of all ranks' rows.
at::Tensor SumAndDivideRows(const at::Tensor& x, const TensorRanks& ranks);
/// This rank's rows of an x that all ranks have. The gradient is that of all ranks' rows.
at::Tensor DivideRows(const at::Tensor& x, const TensorRanks& ranks);

/// All rows of the ranks' rows x, where every rank computes the same from then on. The gradient is this rank's rows.
at::Tensor JoinRows(const at::Tensor& x, const TensorRanks& ranks);

/// Returns the rows that a layer divided by columns sees of the residual stream: GatherRows or CopyToRanks.
at::Tensor EnterDividedLayer(const at::Tensor& x, const TensorRanks& ranks);
/// Returns the sums that a layer divided by rows adds to the residual stream: SumAndDivideRows or SumOverRanks.
at::Tensor LeaveDividedLayer(const at::Tensor& x, const TensorRanks& ranks);

}  // namespace millrace::engine::ops
