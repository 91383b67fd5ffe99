#include <c10/cuda/CUDAGuard.h>

#include "millrace/engine/ops/cuda/tensors/tensors.h"
#include "millrace/engine/ops/cuda_ops.h"
#include "millrace/engine/ops/product.h"

namespace millrace::engine::ops::cuda {

at::Tensor AddOrReturnRowSum(const Weight& weight, const at::Tensor& x_in) {
  const c10::cuda::CUDAGuard guard(x_in.device());
  const at::Tensor x = x_in.stride(1) == 1 && x_in.stride(0) >= x_in.size(1) ? x_in.detach() : Dense(x_in.detach());
  const std::int64_t rows = x.size(0), columns = x.size(1);
  const bool adds = weight.gradient.defined();
  const at::Tensor out = adds ? weight.gradient : NewLike(x, {columns}, at::kFloat);
  const at::Tensor scratch = NewLike(x, {kernels::ColumnSumSlices(rows, columns), columns}, at::kFloat);
  kernels::ColumnSum(ElementOf(x),
                     {.x = x.data_ptr(),
                      .stride = x.stride(0),
                      .out = MemoryOf<float>(out),
                      .scratch = MemoryOf<float>(scratch),
                      .rows = rows,
                      .columns = columns,
                      .adds = adds},
                     StreamOf(x));
  if (adds) return {};
  return weight.defined() ? AddOrReturn(weight, out) : out;
}

}  // namespace millrace::engine::ops::cuda
