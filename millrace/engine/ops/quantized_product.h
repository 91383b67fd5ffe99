// Products with matrices of codes. Each dequantizes some rows at a time into a buffer that stays in the processor's
// cache, and multiplies with these. So the matrix never exists in float32.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <memory>

#include "millrace/engine/quantized/quantized_matrix.h"

namespace millrace::engine::ops {

/// Adds something to rows of the matrix that are float32 for the moment: LowRankUpdate::AddTo.
using AddToRows = std::function<void(std::int64_t first, const at::Tensor& rows)>;

/// Returns x [N, in] · matrix^T [in, out], plus `bias` [out] in each row if that is defined: [N, out], of x's type.
/// On a CPU, elements are multiplied in float32. Where products have rows that do not depend on each other
/// (MultipliesRowsAlone()), and nothing is added, it reads each code once for some rows, and makes its number in a
/// register. A GPU does so for some 100 rows at most, if nothing is added (cuda/quantized/coded_product.h). Otherwise
/// it multiplies in x's type, and the whole matrix exists in it for a moment. `add` may be empty.
at::Tensor Product(const at::Tensor& x, const QuantizedRows& matrix, const at::Tensor& bias = {},
                   const AddToRows& add = {});

/// Returns y [N, out] · matrix [out, in]: the gradient of x from that of Product()'s result. Otherwise as Product().
at::Tensor ProductWithTranspose(const at::Tensor& y, const QuantizedRows& matrix, const AddToRows& add = {});

/// Returns the sum of the squares of each row [out] in float32, computed on `device`. `add` may be empty.
at::Tensor RowSquares(const QuantizedRows& matrix, const AddToRows& add, at::Device device);

/// Returns the codes of a matrix [out, in] on a CPU: 8-bit integers, with a scale a row.
std::shared_ptr<const QuantizedRows> InInt8(const at::Tensor& matrix);

/// Returns the whole matrix in float32.
at::Tensor Dequantized(const QuantizedRows& matrix);

}  // namespace millrace::engine::ops
