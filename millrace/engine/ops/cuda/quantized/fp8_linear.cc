#include "millrace/engine/ops/cuda/quantized/fp8_linear.h"

#include <ATen/core/grad_mode.h>
#include <c10/cuda/CUDAGuard.h>

#include <utility>

#include "millrace/engine/ops/cuda/quantized/fp8_kernels.h"
#include "millrace/engine/ops/cuda/tensors/lt_product.h"
#include "millrace/engine/ops/cuda/tensors/tensors.h"

namespace millrace::engine::ops::cuda {
namespace {

constexpr std::int64_t kMultiple = 16;  // of the sizes of cuBLAS's products in FP8

/// Returns x, or a copy as the kernels read it.
at::Tensor Readable(const at::Tensor& x) {
  const at::Tensor dense = x.detach().contiguous();
  return IsAligned(dense) ? dense : dense.clone();
}

/// Returns floats beside x, which the GPU has not set.
at::Tensor FloatsLike(const at::Tensor& x, std::int64_t count) { return NewLike(x, {count}, at::kFloat); }
std::int64_t Blocks(std::int64_t elements) { return (elements + kernels::kFp8Block - 1) / kernels::kFp8Block; }

GpuNumber NumberOf(Fp8Format format) { return format == Fp8Format::kE4m3 ? GpuNumber::kE4m3 : GpuNumber::kE5m2; }

/// out [n, m] = rows [n, k] · the transpose of columns [m, k], plus `bias` [m] if that is defined; or out += that.
void Multiply(const Fp8Matrix& rows, const Fp8Matrix& columns, const at::Tensor& out, const at::Tensor& bias,
              bool adds) {
  const std::int64_t m = columns.codes.size(0), n = rows.codes.size(0), k = rows.codes.size(1);
  TORCH_CHECK(columns.codes.size(1) == k && out.size(0) == n && out.size(1) == m && out.stride(1) == 1,
              rows.codes.sizes(), " times the transpose of ", columns.codes.sizes(), " into ", out.sizes());
  const GpuNumber result = out.scalar_type() == at::kFloat ? GpuNumber::kFloat : GpuNumber::kBfloat16;
  const GpuProduct product{
      .rows = n,
      .columns = m,
      .inner = k,
      .left = {.number = NumberOf(rows.format), .grain = rows.grain, .stride = k},
      .right = {.number = NumberOf(columns.format), .grain = columns.grain, .transposed = true, .stride = k},
      .out = {.number = result, .stride = out.stride(0)},
      .result = adds             ? ProductResult::kAdd
                : bias.defined() ? ProductResult::kSetWithBias
                                 : ProductResult::kSet};
  const LtOperands operands{.left = rows.codes.data_ptr(),
                            .right = columns.codes.data_ptr(),
                            .out = out.data_ptr(),
                            .bias = bias.defined() ? bias.data_ptr() : nullptr,
                            .left_decode = MemoryOf<float>(rows.decode),
                            .right_decode = MemoryOf<float>(columns.decode)};
  const GpuAlgorithm* const chosen = AlgorithmFor(product);
  StartProduct(product, operands, chosen != nullptr ? *chosen : UsualAlgorithm(product, operands), StreamOf(out));
}

}  // namespace

bool Fp8Linear::Takes(const at::Tensor& x, const Weight& weight) {
  const at::Tensor& w = weight.value;
  const auto divides = [](std::int64_t size) { return size > 0 && size % kMultiple == 0; };
  return x.is_cuda() && x.scalar_type() == at::kBFloat16 && w.scalar_type() == at::kBFloat16 && divides(x.size(0)) &&
         divides(w.size(0)) && divides(w.size(1)) && (!weight.gradient.defined() || IsAligned(weight.gradient));
}

Fp8Linear::Fp8Linear(Weight weight, std::size_t layer, Fp8Scaling scaling, LargestValues* largest)
    : weight_(std::move(weight)),
      layer_(layer),
      scaling_(scaling),
      largest_(scaling == Fp8Scaling::kDelayed ? largest : nullptr) {
  TORCH_CHECK(scaling != Fp8Scaling::kDelayed || largest != nullptr, "delayed scaling without values");
}

Fp8Linear::Largest Fp8Linear::LargestOf(const at::Tensor& x, Fp8Tensor tensor, bool counts) const {
  Largest largest;
  if (scaling_ == Fp8Scaling::kBlock) return largest;
  if (largest_ != nullptr && largest_->HasAmax(layer_, tensor)) {
    // What does not count is noted nowhere, but is cast alike.
    return {largest_->amax(layer_, tensor), counts ? largest_->seen(layer_, tensor) : FloatsLike(x, 1).zero_()};
  }
  largest.value = FloatsLike(x, 1);
  kernels::FindLargest(x.data_ptr(), x.numel(), largest.value.data_ptr<float>(), StreamOf(x));
  if (largest_ != nullptr && counts) largest.seen = largest_->seen(layer_, tensor);
  return largest;
}

Fp8Linear::Casts Fp8Linear::Cast(const at::Tensor& x, Fp8Tensor tensor, Which which, const Largest& largest) const {
  const bool by_block = scaling_ == Fp8Scaling::kBlock, is_weight = tensor == Fp8Tensor::kWeight;
  const Fp8Grain grain = !by_block ? Fp8Grain::kTensor : is_weight ? Fp8Grain::kSquares : Fp8Grain::kLines;
  const bool wide = !by_block && tensor == Fp8Tensor::kOutputGradient;
  const Fp8Format format = wide ? Fp8Format::kE5m2 : Fp8Format::kE4m3;
  const std::int64_t rows = x.size(0), columns = x.size(1);
  // Returns memory for the factors of a matrix with these lines. cuBLAS also reads those that pad a row of squares.
  const auto factors = [&](std::int64_t lines, std::int64_t summed) {
    if (grain == Fp8Grain::kTensor) return FloatsLike(x, 1);
    if (grain == Fp8Grain::kLines) return FloatsLike(x, Blocks(summed) * lines);
    return FloatsLike(x, Blocks(lines) * kernels::Fp8SquareStride(summed)).zero_();
  };
  Casts casts;
  const bool has_rows = which != Which::kTransposed, has_transposed = which != Which::kRows;
  if (has_rows) casts.rows = {NewLike(x, {rows, columns}, at::kByte), factors(rows, columns), format, grain};
  if (has_transposed) {
    // A matrix and its transpose share one scale for all.
    const at::Tensor decode = has_rows && !by_block ? casts.rows.decode : factors(columns, rows);
    casts.transposed = {NewLike(x, {columns, rows}, at::kByte), decode, format, grain};
  }
  const kernels::Fp8Operand operand{.x = x.data_ptr(),
                                    .codes = MemoryOf<std::uint8_t>(casts.rows.codes),
                                    .transposed = MemoryOf<std::uint8_t>(casts.transposed.codes),
                                    .rows = rows,
                                    .columns = columns};
  auto* const decode = MemoryOf<float>(casts.rows.decode);
  auto* const decode_transposed = MemoryOf<float>(casts.transposed.decode);
  switch (grain) {
    case Fp8Grain::kTensor:
      kernels::CastToFp8(format, operand,
                         {.largest = MemoryOf<float>(largest.value),
                          .decode = has_rows ? decode : decode_transposed,
                          .seen = MemoryOf<float>(largest.seen)},
                         StreamOf(x));
      break;
    case Fp8Grain::kLines:
      kernels::CastLinesToFp8(operand, {decode, decode_transposed}, StreamOf(x));
      break;
    case Fp8Grain::kSquares:
      kernels::CastSquaresToFp8(operand, {decode, decode_transposed}, StreamOf(x));
      break;
  }
  return casts;
}

Fp8Linear::Casts Fp8Linear::Cast(const at::Tensor& x, Fp8Tensor tensor, Which which, bool counts) const {
  return Cast(x, tensor, which, LargestOf(x, tensor, counts));
}

at::Tensor Fp8Linear::Forward(const at::Tensor& x_in, const at::Tensor& bias, bool keeps_input) {
  const c10::cuda::CUDAGuard guard(x_in.device());
  const at::Tensor x = Readable(x_in), w = Readable(weight_.value);
  // Passes without gradients are evaluations, or are made again for the backward pass.
  const bool counts = at::GradMode::is_enabled();
  Casts inputs = Cast(x, Fp8Tensor::kInput, keeps_input ? Which::kBoth : Which::kRows, counts);
  of_weight_ = LargestOf(w, Fp8Tensor::kWeight, counts);
  const Casts weights = Cast(w, Fp8Tensor::kWeight, Which::kRows, of_weight_);
  at::Tensor out = NewLike(x, {x.size(0), w.size(0)}, at::kBFloat16);
  // cuBLAS does not say that it adds a bias to products of blocks.
  const bool adds_after = bias.defined() && scaling_ == Fp8Scaling::kBlock;
  Multiply(inputs.rows, weights.rows, out, bias.defined() && !adds_after ? Readable(bias) : at::Tensor(),
           /*adds=*/false);
  if (adds_after) out.add_(bias);
  input_ = std::move(inputs.transposed);
  return out;
}

void Fp8Linear::CastGradient(const at::Tensor& dout_in) {
  const at::Tensor dout = Readable(dout_in);
  Casts casts = Cast(dout, Fp8Tensor::kOutputGradient, weight_.gradient.defined() ? Which::kBoth : Which::kRows);
  gradient_ = std::move(casts.rows);
  gradient_transposed_ = std::move(casts.transposed);
}

at::Tensor Fp8Linear::InputGradient(const at::Tensor& dout) {
  const c10::cuda::CUDAGuard guard(dout.device());
  if (!gradient_.defined()) CastGradient(dout);
  const at::Tensor w = Readable(weight_.value);
  const Casts weights = Cast(w, Fp8Tensor::kWeight, Which::kTransposed, of_weight_);
  at::Tensor dx = NewLike(dout, {dout.size(0), w.size(1)}, at::kBFloat16);
  Multiply(gradient_, weights.transposed, dx, {}, /*adds=*/false);
  gradient_ = {};
  return dx;
}

void Fp8Linear::AddGradient(const at::Tensor& x_in, const at::Tensor& dout) {
  const c10::cuda::CUDAGuard guard(dout.device());
  if (!gradient_transposed_.defined()) CastGradient(dout);
  if (!input_.defined()) input_ = Cast(Readable(x_in), Fp8Tensor::kInput, Which::kTransposed).transposed;
  Multiply(gradient_transposed_, input_, weight_.gradient, {}, /*adds=*/true);
  gradient_transposed_ = {};
  input_ = {};
}

}  // namespace millrace::engine::ops::cuda
