#include "millrace/engine/ops/norm.h"

#include <c10/cuda/CUDAGuard.h>

#include "millrace/engine/ops/common/node.h"
#include "millrace/engine/ops/cuda/tensors/tensors.h"
#include "millrace/engine/ops/cuda_ops.h"
#include "millrace/engine/ops/product.h"

namespace millrace::engine::ops::cuda {
namespace {

/// What the forward pass keeps of each row: the input of the norm, and its mean and 1/deviation, float32 [N]. The
/// root-mean-square norm has no mean.
struct KeptRows {
  at::Tensor sum, mean, rstd;
};

/// Returns dx. Adds to the gradients of weight and bias, or returns them to autograd.
TensorList BackwardOfNorm(const at::Tensor& dsum, const at::Tensor& dout, const KeptRows& rows, const Weight& weight,
                          const Weight& bias, float offset) {
  const c10::cuda::CUDAGuard guard(dout.device());
  const kernels::Element element = ElementOf(rows.sum);
  const std::int64_t columns = rows.sum.size(1), width = rows.mean.defined() ? 2 : 1;
  const at::Tensor dx = at::empty_like(rows.sum), scale = Dense(weight.value);
  kernels::NormBackwardArgs args{.dout = MemoryOf(dout),
                                 .dsum = MemoryOf(dsum),
                                 .x = MemoryOf(rows.sum),
                                 .weight = MemoryOf(scale),
                                 .mean = MemoryOf<float>(rows.mean),
                                 .rstd = MemoryOf<float>(rows.rstd),
                                 .dx = MemoryOf(dx),
                                 .rows = rows.sum.size(0),
                                 .columns = columns,
                                 .offset = offset};
  const kernels::NormGrid grid = kernels::NormBackwardGrid(element, args);
  const at::Tensor partial = NewLike(dx, {grid.partial_rows(), width * columns}, at::kFloat);
  args.partial = MemoryOf<float>(partial);
  kernels::NormBackward(element, args, grid, StreamOf(dx));
  const auto sum = [&](const Weight& of, std::int64_t from) {
    const bool learns = of.gradient.defined() || of.autograd_adds();
    return learns ? AddOrReturnRowSum(of, partial.narrow(1, from, columns)) : at::Tensor();
  };
  return {dx, sum(weight, 0), sum(bias, columns)};
}

Normed AddNorm(const char* name, const at::Tensor& x_in, const at::Tensor& delta_in, const Weight& weight,
               const Weight& bias, const RmsNormOptions& options, bool has_mean) {
  const c10::cuda::CUDAGuard guard(x_in.device());
  const TensorList inputs{x_in, delta_in, weight.value, bias.value};
  const bool recording = Recording(inputs);
  const auto alias = [&](const at::Tensor& tensor) { return recording ? tensor.detach() : tensor; };
  const at::Tensor x = Dense(x_in), delta = Dense(delta_in), scale = Dense(weight.value);
  const at::Tensor shift = has_mean ? Dense(bias.value) : at::Tensor();
  const std::int64_t rows = x.size(0), columns = x.size(1);
  Normed normed{delta.defined() ? at::empty_like(x) : alias(x_in), at::empty_like(x)};
  KeptRows kept{.sum = alias(delta.defined() ? normed.sum : x),
                .mean = has_mean ? NewLike(x, {rows}, at::kFloat) : at::Tensor(),
                .rstd = NewLike(x, {rows}, at::kFloat)};
  kernels::NormForward(ElementOf(x),
                       {.x = MemoryOf(x),
                        .delta = MemoryOf(delta),
                        .weight = MemoryOf(scale),
                        .bias = MemoryOf(shift),
                        .sum = delta.defined() ? MemoryOf(normed.sum) : nullptr,
                        .out = MemoryOf(normed.out),
                        .mean = MemoryOf<float>(kept.mean),
                        .rstd = MemoryOf<float>(kept.rstd),
                        .rows = rows,
                        .columns = columns,
                        .eps = static_cast<float>(options.eps),
                        .offset = static_cast<float>(options.offset)},
                       StreamOf(x));
  if (!recording) return normed;
  Connect(name, inputs, {normed.sum, normed.out},
          [weight, bias, kept = std::move(kept), both = delta.defined(),
           offset = static_cast<float>(options.offset)](TensorList&& gradients) {
            const at::Tensor &dsum = gradients[0], &dout = gradients[1];
            if (!dout.defined()) return TensorList{dsum, both ? dsum : at::Tensor(), at::Tensor(), at::Tensor()};
            const TensorList each = BackwardOfNorm(Dense(dsum), Dense(dout), kept, weight, bias, offset);
            return TensorList{each[0], both ? each[0] : at::Tensor(), each[1], each[2]};
          });
  return normed;
}

}  // namespace

Normed AddRmsNorm(const at::Tensor& x, const at::Tensor& delta, const Weight& weight, const RmsNormOptions& options) {
  return AddNorm("AddRmsNorm", x, delta, weight, {}, options, /*has_mean=*/false);
}

Normed AddLayerNorm(const at::Tensor& x, const at::Tensor& delta, const Weight& weight, const Weight& bias,
                    double eps) {
  return AddNorm("AddLayerNorm", x, delta, weight, bias, {.eps = eps}, /*has_mean=*/true);
}

}  // namespace millrace::engine::ops::cuda
