#include "millrace/engine/ops/norm.h"

#include "millrace/engine/ops/common/node.h"
#include "millrace/engine/ops/cuda_ops.h"
#include "millrace/engine/ops/dispatch.h"
#include "millrace/engine/ops/product.h"
#include "millrace/engine/ops/reference.h"

namespace millrace::engine::ops {
namespace {

/// Rows are summed in at most kNormBlocks blocks of at least kNormBlockRows. Blocks do not depend on the number of
/// threads and are added in order, so that the sum has the same bits on every machine. With fewer rows in a block, the
/// sum over blocks would cost as much as the rows.
constexpr std::int64_t kNormBlocks = 32, kNormBlockRows = 32;

/// What the forward pass keeps of each row.
struct NormRows {
  at::Tensor sum;         ///< [N, columns]: the input of the norm
  at::Tensor mean, rstd;  ///< float32 [N]; mean is undefined for the root-mean-square norm
};

/// Returns dx. Fills `gradients`, float32 [columns] or, with a mean, [2, columns]: of the weight, then of the bias.
/// `offset`: of the root-mean-square norm's weight.
template <class T>
at::Tensor NormBackward(const at::Tensor& dout, const at::Tensor& dsum, const NormRows& norm, const Weight& weight,
                        float offset, at::Tensor& gradients) {
  const std::int64_t rows = norm.sum.size(0), columns = norm.sum.size(1), width = norm.mean.defined() ? 2 : 1;
  at::Tensor dx = at::empty_like(norm.sum);
  const std::int64_t block = std::max(kNormBlockRows, (rows + kNormBlocks - 1) / kNormBlocks);
  const std::int64_t blocks = (rows + block - 1) / block;
  const at::Tensor partial = at::zeros({blocks, width * columns}, at::kFloat);
  const auto run = [&](const auto& kernel) {
    at::parallel_for(0, blocks, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t b = begin; b < end; ++b) {
        const cpu::Rows part{std::min(rows, b * block), std::min(rows, (b + 1) * block)};
        kernel.Run(part, Data<float>(partial) + b * width * columns);
      }
    });
  };
  const T *gradient = Data<T>(dout), *sum_gradient = Data<T>(dsum), *x = Data<T>(norm.sum), *w = Data<T>(weight.value);
  const float* rstd = Data<float>(norm.rstd);
  if (norm.mean.defined()) {
    run(cpu::LayerNormBackward<T>{gradient, sum_gradient, x, w, Data<float>(norm.mean), rstd, Data<T>(dx), columns});
  } else {
    run(cpu::RmsNormBackward<T>{gradient, sum_gradient, x, w, rstd, Data<T>(dx), columns, offset});
  }
  gradients = partial.sum(0).view({width, columns});
  return dx;
}

/// Makes `normed` the result of a norm of x + delta with a weight and perhaps a bias.
template <class T>
void ConnectNorm(std::string name, const at::Tensor& x, const at::Tensor& delta, const Weight& weight,
                 const Weight& bias, const Normed& normed, NormRows rows, float offset = 0) {
  rows.sum = normed.sum.detach();
  auto backward = [weight, bias, rows, offset, both = delta.defined()](TensorList&& gradients) {
    const at::Tensor &dsum = gradients[0], &dout = gradients[1];
    if (!dout.defined()) return TensorList{dsum, both ? dsum : at::Tensor(), at::Tensor(), at::Tensor()};
    at::Tensor each;
    const at::Tensor dx =
        NormBackward<T>(dout.contiguous(), dsum.defined() ? dsum.contiguous() : dsum, rows, weight, offset, each);
    const at::Tensor dweight = AddOrReturn(weight, each[0]);
    const at::Tensor dbias = bias.defined() ? AddOrReturn(bias, each[1]) : at::Tensor();
    return TensorList{dx, both ? dx : at::Tensor(), dweight, dbias};
  };
  Connect(std::move(name), {x, delta, weight.value, bias.value}, {normed.sum, normed.out}, std::move(backward));
}

template <class T>
Normed FusedAddRmsNorm(const at::Tensor& x, const at::Tensor& delta, const Weight& weight,
                       const RmsNormOptions& options) {
  const std::int64_t rows = x.size(0), columns = x.size(1);
  Normed normed{delta.defined() ? at::empty_like(x) : x.detach(), at::empty_like(x)};
  const at::Tensor rstd = at::empty({rows}, at::kFloat);
  const cpu::RmsNormForward<T> kernel{Data<T>(x),
                                      Data<T>(delta),
                                      Data<T>(weight.value),
                                      delta.defined() ? Data<T>(normed.sum) : nullptr,
                                      Data<T>(normed.out),
                                      Data<float>(rstd),
                                      columns,
                                      static_cast<float>(options.eps),
                                      static_cast<float>(options.offset)};
  ParallelRows(rows, columns, [&](cpu::Rows part) { kernel.Run(part); });
  if (Recording({x, delta, weight.value})) {
    ConnectNorm<T>("AddRmsNorm", x, delta, weight, {}, normed, {.rstd = rstd}, static_cast<float>(options.offset));
  }
  return normed;
}

template <class T>
Normed FusedAddLayerNorm(const at::Tensor& x, const at::Tensor& delta, const Weight& weight, const Weight& bias,
                         double eps) {
  const std::int64_t rows = x.size(0), columns = x.size(1);
  Normed normed{delta.defined() ? at::empty_like(x) : x.detach(), at::empty_like(x)};
  const at::Tensor mean = at::empty({rows}, at::kFloat), rstd = at::empty({rows}, at::kFloat);
  const cpu::LayerNormForward<T> kernel{Data<T>(x),
                                        Data<T>(delta),
                                        Data<T>(weight.value),
                                        Data<T>(bias.value),
                                        delta.defined() ? Data<T>(normed.sum) : nullptr,
                                        Data<T>(normed.out),
                                        Data<float>(mean),
                                        Data<float>(rstd),
                                        columns,
                                        static_cast<float>(eps)};
  ParallelRows(rows, columns, [&](cpu::Rows part) { kernel.Run(part); });
  if (Recording({x, delta, weight.value, bias.value})) {
    ConnectNorm<T>("AddLayerNorm", x, delta, weight, bias, normed, {.mean = mean, .rstd = rstd});
  }
  return normed;
}

}  // namespace

Normed AddRmsNorm(const at::Tensor& x, const at::Tensor& delta, const Weight& weight, const RmsNormOptions& options) {
  static const auto kernels =
      AndOnCuda(OnCpu("AddRmsNorm", reference::AddRmsNorm, FusedAddRmsNorm<float>, FusedAddRmsNorm<cpu::Bf16>),
                InCuda<cuda::AddRmsNorm>());
  return kernels.For(x)(x, delta, weight, options);
}

Normed AddLayerNorm(const at::Tensor& x, const at::Tensor& delta, const Weight& weight, const Weight& bias,
                    double eps) {
  static const auto kernels =
      AndOnCuda(OnCpu("AddLayerNorm", reference::AddLayerNorm, FusedAddLayerNorm<float>, FusedAddLayerNorm<cpu::Bf16>),
                InCuda<cuda::AddLayerNorm>());
  return kernels.For(x)(x, delta, weight, bias, eps);
}

}  // namespace millrace::engine::ops
