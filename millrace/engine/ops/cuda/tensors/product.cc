#include "millrace/engine/ops/cuda/tensors/product.h"

#include <ATen/Context.h>
#include <ATen/cuda/CUDAContext.h>

#include <optional>

#include "millrace/engine/ops/common/step_kernels.h"
#include "millrace/engine/ops/cuda/kernels/kernels.h"
#include "millrace/engine/ops/cuda/tensors/lt_product.h"
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
  if (!of_weight || a.size(0) > kernels::kMaxFewRows || a.size(0) == 0 || b.size(0) == 0) return {};
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

GpuNumber NumberOf(const at::Tensor& x) {
  switch (x.scalar_type()) {
    case at::kBFloat16:
      return GpuNumber::kBfloat16;
    case at::kHalf:
      return GpuNumber::kHalf;
    default:
      return at::globalContext().allowTF32CuBLAS() ? GpuNumber::kTf32 : GpuNumber::kFloat;
  }
}

/// Returns the product out = a · b, if its algorithm can be chosen: its matrices begin at vectors.
std::optional<GpuProduct> ChoosableProduct(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b,
                                           ProductResult result) {
  const auto fits = [](const at::Tensor& x) {
    constexpr std::int64_t kVector = 16;
    const std::int64_t stride = x.stride(1) == 1 ? x.stride(0) : x.stride(1);
    const bool has_lines = x.stride(1) == 1 ? x.stride(0) >= x.size(1) : x.stride(0) == 1 && x.stride(1) >= x.size(0);
    return has_lines && IsAligned(x) && stride * static_cast<std::int64_t>(x.element_size()) % kVector == 0;
  };
  const auto is_known = [](const at::Tensor& x) {
    return x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf;
  };
  if (!is_known(a) || a.numel() == 0 || b.numel() == 0 || out.stride(1) != 1) return std::nullopt;
  if (!fits(out) || !fits(a) || !fits(b)) return std::nullopt;
  const auto operand = [](const at::Tensor& x) {
    const bool transposed = x.stride(1) != 1;
    return GpuOperand{.number = NumberOf(x), .transposed = transposed, .stride = x.stride(transposed ? 1 : 0)};
  };
  GpuProduct product{.rows = a.size(0),
                     .columns = b.size(1),
                     .inner = a.size(1),
                     .left = operand(a),
                     .right = operand(b),
                     .out = operand(out),
                     .result = result};
  if (product.out.number == GpuNumber::kTf32) product.out.number = GpuNumber::kFloat;
  return product;
}

/// Makes out = a · b + bias, or adds to it, by the algorithm that was chosen for it. Returns whether there is one.
bool MakeAsChosen(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias,
                  ProductResult result, float factor = 1) {
  const std::optional<GpuProduct> product = ChoosableProduct(out, a, b, result);
  const GpuAlgorithm* const algorithm = product ? AlgorithmFor(*product) : nullptr;
  if (algorithm == nullptr) return false;
  StartProduct(*product,
               {.left = a.data_ptr(),
                .right = b.data_ptr(),
                .out = out.data_ptr(),
                .bias = bias.defined() ? bias.data_ptr() : nullptr,
                .factor = factor},
               *algorithm, StreamOf(out));
  return true;
}

}  // namespace

at::Tensor Product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias) {
  at::Tensor few = ProductOfFewRows(a, b, bias);
  if (few.defined()) return few;
  if (ChoosesProducts()) {
    at::Tensor out = NewLike(a, {a.size(0), b.size(1)}, a.scalar_type());
    const bool adds_bias = bias.defined();
    const bool reads_bias =
        !adds_bias || (bias.is_contiguous() && bias.scalar_type() == a.scalar_type() && IsAligned(bias));
    const ProductResult result = adds_bias ? ProductResult::kSetWithBias : ProductResult::kSet;
    if (reads_bias && MakeAsChosen(out, a, b, bias, result)) return out;
  }
  return bias.defined() ? at::addmm(bias, a, b) : at::mm(a, b);
}

void AddProduct(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b, float scale) {
  if (ChoosesProducts() && MakeAsChosen(c, a, b, {}, ProductResult::kAdd, scale)) return;
  MultiplyInFloat(c, a, b, scale, 1);
}

bool AddProductWithSums(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b, const at::Tensor& sums) {
  if (!ChoosesProducts()) return false;
  const std::optional<GpuProduct> product = ChoosableProduct(c, a, b, ProductResult::kAddWithSums);
  const GpuAlgorithm* const algorithm = product ? AlgorithmFor(*product) : nullptr;
  if (algorithm == nullptr) return false;
  const at::Tensor of_product = NewLike(a, {a.size(0)}, at::kFloat);
  StartProduct(*product,
               {.left = a.data_ptr(), .right = b.data_ptr(), .out = c.data_ptr(), .sums = of_product.data_ptr()},
               *algorithm, StreamOf(c));
  at::Tensor into = sums;
  into.add_(of_product);
  return true;
}

void SetProduct(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b) {
  if (ChoosesProducts() && MakeAsChosen(c, a, b, {}, ProductResult::kSet)) return;
  MultiplyInFloat(c, a, b, 1, 0);
}

}  // namespace millrace::engine::ops::cuda
