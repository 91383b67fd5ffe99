// Products of few rows with a weight's transpose, over raw memory of the GPU.
#pragma once

#include <cstdint>

#include "millrace/engine/ops/cuda/kernels/kernels.h"

namespace millrace::engine::cuda {

inline constexpr std::int64_t kMostFewRows = 4;

/// out [rows, outputs] = x [rows, inputs] · weight [outputs, inputs]^T + bias [outputs], which may be null. Sums are
/// float32. Rows of x are `x_stride` elements apart; all else is dense. The weight may be read before kernels that
/// Launch() started have ended (device.cuh): they must not write it.
struct FewRowsArgs {
  const void *x = nullptr, *weight = nullptr, *bias = nullptr;
  void* out = nullptr;
  std::int64_t rows = 0, inputs = 0, outputs = 0, x_stride = 0;
};
/// Returns whether MultiplyFewRows() takes these: at most kMostFewRows rows, and vectors of 16 bytes fit.
bool FitsFewRows(Element element, const FewRowsArgs& args);
void MultiplyFewRows(Element element, const FewRowsArgs& args, Stream stream);

}  // namespace millrace::engine::cuda
