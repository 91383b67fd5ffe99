// Elements of quantized matrices on the GPU.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "millrace/engine/quantized/quantized_matrix.h"

namespace millrace::engine::ops::cuda {

/// Returns rows `first` … of a matrix, dense, of a type and on a GPU as `options` say. The first call copies the codes
/// of the matrices to the GPU, where they stay as long as the matrices do.
at::Tensor Dequantized(const QuantizedRows& matrix, std::int64_t first, std::int64_t count,
                       const at::TensorOptions& options);

}  // namespace millrace::engine::ops::cuda
