// Products with matrices of codes. Each dequantizes some rows at a time into a buffer that stays in the processor's
// cache, and multiplies with these. So the matrix never exists in float32.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>

#include "millrace/engine/quantized/quantized_matrix.h"

namespace millrace::engine::ops {

/// Adds something to rows of the matrix that are float32 for the moment: LowRankUpdate::AddTo.
using AddToRows = std::function<void(std::int64_t first, const at::Tensor& rows)>;

/// Returns x [N, in] · matrix^T [in, out], plus `bias` [out] in each row if that is defined: [N, out], of x's type.
/// Elements are multiplied in float32. `add` may be empty. On a CPU.
at::Tensor Product(const at::Tensor& x, const QuantizedRows& matrix, const at::Tensor& bias = {},
                   const AddToRows& add = {});

/// Returns y [N, out] · matrix [out, in]: the gradient of x from that of Product()'s result. Otherwise as Product().
at::Tensor ProductWithTranspose(const at::Tensor& y, const QuantizedRows& matrix, const AddToRows& add = {});

/// Returns the sum of the squares of each row [out] in float32. `add` may be empty.
at::Tensor RowSquares(const QuantizedRows& matrix, const AddToRows& add);

/// Returns the whole matrix in float32.
at::Tensor Dequantized(const QuantizedRows& matrix);

}  // namespace millrace::engine::ops
