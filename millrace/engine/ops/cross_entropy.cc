#include "millrace/engine/ops/cross_entropy.h"

#include "millrace/engine/ops/dispatch.h"
#include "millrace/engine/ops/node.h"
#include "millrace/engine/ops/reference.h"
#include "millrace/engine/ops/weight_gradient.h"

namespace millrace::engine::ops {
namespace {

/// The approximate number of logits in a chunk: large enough for GEMM to run at full speed, small enough for the cache.
constexpr std::int64_t kChunkElements = 4 << 20;
constexpr std::int64_t kLeastChunkRows = 64;

struct LossAndGradients {
  double loss = 0;
  at::Tensor dx, dhead, dbias;  ///< undefined unless asked for; dhead and dbias are float32
};

LossAndGradients LossByChunks(const at::Tensor& x, const at::Tensor& head, const at::Tensor& bias,
                              const at::Tensor& labels, bool gradients) {
  const std::int64_t rows = x.size(0), vocab = head.size(0);
  const std::int64_t* label = Data<std::int64_t>(labels);
  for (std::int64_t row = 0; row < rows; ++row) {
    TORCH_CHECK(label[row] >= 0 && label[row] < vocab, "label ", label[row], " is outside the vocabulary of ", vocab);
  }
  LossAndGradients result;
  if (gradients) {
    result.dx = at::empty_like(x);
    result.dhead = at::zeros(head.sizes(), at::kFloat);
    if (bias.defined()) result.dbias = at::zeros(bias.sizes(), at::kFloat);
  }
  const at::Tensor losses = at::empty({rows}, at::kDouble);
  const std::int64_t chunk = std::max(kLeastChunkRows, kChunkElements / vocab);
  for (std::int64_t begin = 0; begin < rows; begin += chunk) {
    const std::int64_t count = std::min(chunk, rows - begin);
    const at::Tensor part = x.narrow(0, begin, count);
    const at::Tensor logits = bias.defined() ? at::addmm(bias, part, head.t()) : at::mm(part, head.t());
    DispatchType(logits, [&]<class T>(T) {
      const cpu::CrossEntropy<T> kernel{Data<T>(logits), label + begin, Data<double>(losses) + begin, vocab, gradients};
      ParallelRows(count, vocab, [&](cpu::Rows r) { kernel.Run(r); });
    });
    if (!gradients) continue;
    at::Tensor dpart = result.dx.narrow(0, begin, count);
    at::mm_out(dpart, logits, head);
    AddOuter(result.dhead, logits, part);
    if (bias.defined()) result.dbias.add_(logits.sum(0, /*keepdim=*/false, at::kFloat));
  }
  const double* each = Data<double>(losses);
  for (std::int64_t row = 0; row < rows; ++row) result.loss += each[row];
  return result;
}

}  // namespace

at::Tensor LinearCrossEntropy(const at::Tensor& x, const Weight& head, const Weight& bias, const at::Tensor& labels) {
  if (!HasFused(x)) return reference::LinearCrossEntropy(x, head, bias, labels);
  const bool recording = Recording({x, head.value, bias.value});
  // Only rows with a label reach the head.
  const at::Tensor kept = at::nonzero(labels != kIgnoreLabel).view({-1});
  const bool all = kept.numel() == labels.numel();
  at::Tensor loss;
  LossAndGradients result;
  {
    const at::NoGradGuard no_grad;
    result = LossByChunks(all ? x : x.index_select(0, kept), head.value, bias.value,
                          all ? labels.contiguous() : labels.index_select(0, kept), recording);
    loss = at::scalar_tensor(result.loss, at::kFloat);
  }
  if (!recording) return loss;
  Connect("LinearCrossEntropy", {x, head.value, bias.value}, {loss},
          [head, bias, kept, all, rows = x.size(0), result = std::move(result)](TensorList&& gradients) {
            const auto scale = gradients[0].item<float>();
            at::Tensor dx = result.dx;
            if (scale != 1) dx.mul_(scale);
            if (!all) dx = at::zeros({rows, dx.size(1)}, dx.options()).index_copy_(0, kept, dx);
            return TensorList{dx, AddOrReturn(head, result.dhead, scale),
                              bias.defined() ? AddOrReturn(bias, result.dbias, scale) : at::Tensor()};
          });
  return loss;
}

}  // namespace millrace::engine::ops
