#include "millrace/engine/ops/cuda/tensors/product.h"

#include <ATen/Context.h>
#include <ATen/cuda/CUDAContext.h>

#include "millrace/engine/ops/cuda/kernels/few_rows.h"
#include "millrace/engine/ops/cuda/tensors/tensors.h"

namespace millrace::engine::ops::cuda {
namespace {

cudaDataType TypeOf(const at::Tensor& x) {
  switch (x.scalar_type()) {
    case at::kFloat:
      return CUDA_R_32F;
    case at::kBFloat16:
      return CUDA_R_16BF;
    case at::kHalf:
      return CUDA_R_16F;
    default:
      TORCH_CHECK(false, "no product of ", x.scalar_type(), " on a GPU");
  }
}

/// A matrix as cuBLAS reads it: by columns. Row-major memory is then the transpose.
struct Operand {
  const void* data;
  cublasOperation_t transpose;
  int stride;
  explicit Operand(const at::Tensor& x)
      : data(x.data_ptr()),
        transpose(x.stride(1) == 1 ? CUBLAS_OP_N : CUBLAS_OP_T),
        stride(static_cast<int>(std::max<std::int64_t>(1, x.stride(1) == 1 ? x.stride(0) : x.stride(1)))) {}
};

/// Returns a · b + bias if MultiplyFewRows() takes them; otherwise an undefined tensor.
at::Tensor ProductOfFewRows(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias) {
  const bool of_weight = b.stride(0) == 1 && b.stride(1) == b.size(0) && a.stride(1) == 1;
  if (!of_weight || a.size(0) > kernels::kMostFewRows || a.size(0) == 0 || b.size(0) == 0) return {};
  if (bias.defined() && !bias.is_contiguous()) return {};
  kernels::FewRowsArgs args{.x = a.data_ptr(),
                            .weight = b.data_ptr(),
                            .bias = bias.defined() ? bias.data_ptr() : nullptr,
                            .rows = a.size(0),
                            .inputs = a.size(1),
                            .outputs = b.size(1),
                            .x_stride = a.stride(0)};
  if (!kernels::FitsFewRows(ElementOf(a), args)) return {};
  at::Tensor out = NewLike(a, {args.rows, args.outputs}, a.scalar_type());
  args.out = out.data_ptr();
  kernels::MultiplyFewRows(ElementOf(a), args, StreamOf(a));
  return out;
}

/// c = scale · a · b + kept · c, for a c in float32.
void MultiplyInFloat(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b, float scale, float kept) {
  const bool tf32 = a.scalar_type() == at::kFloat && at::globalContext().allowTF32CuBLAS();
  const Operand left(a), right(b);
  // By columns, c is its transpose: that of b times that of a.
  const cublasStatus_t status = cublasGemmEx(
      at::cuda::getCurrentCUDABlasHandle(), right.transpose, left.transpose, static_cast<int>(b.size(1)),
      static_cast<int>(a.size(0)), static_cast<int>(a.size(1)), &scale, right.data, TypeOf(b), right.stride, left.data,
      TypeOf(a), left.stride, &kept, c.data_ptr(), CUDA_R_32F, static_cast<int>(c.stride(0)),
      tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
  TORCH_CHECK(status == CUBLAS_STATUS_SUCCESS, "cuBLAS failed to multiply ", a.sizes(), " by ", b.sizes(), ": ",
              cublasGetStatusString(status));
}

}  // namespace

at::Tensor Product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias) {
  at::Tensor few = ProductOfFewRows(a, b, bias);
  if (few.defined()) return few;
  return bias.defined() ? at::addmm(bias, a, b) : at::mm(a, b);
}

void AddProduct(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b, float scale) {
  MultiplyInFloat(c, a, b, scale, 1);
}

void SetProduct(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b) { MultiplyInFloat(c, a, b, 1, 0); }

}  // namespace millrace::engine::ops::cuda
