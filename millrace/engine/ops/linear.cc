// Products with weights, and the LM head's product together with the cross-entropy.
#include "millrace/engine/ops/dispatch.h"
#include "millrace/engine/ops/node.h"
#include "millrace/engine/ops/ops.h"
#include "millrace/engine/ops/reference.h"

namespace millrace::engine::ops {
namespace {

/// Adds dy^T · x to `gradient`. A float32 product accumulates in place. A bfloat16 product needs a temporary.
void AddOuter(const at::Tensor& gradient, const at::Tensor& dy, const at::Tensor& x) {
  if (dy.scalar_type() == gradient.scalar_type()) {
    at::Tensor into = gradient;
    into.addmm_(dy.t(), x);
  } else {
    gradient.add_(at::mm(dy.t(), x));
  }
}

/// The approximate number of logits in a chunk: large enough for GEMM to run at full speed, small enough for the cache.
constexpr std::int64_t kChunkElements = 4 << 20;
constexpr std::int64_t kLeastChunkRows = 64;

struct LossAndGradients {
  double loss = 0;
  at::Tensor dx, dhead;  ///< undefined unless asked for; dhead is float32
};

LossAndGradients LossByChunks(const at::Tensor& x, const at::Tensor& head, const at::Tensor& labels, bool gradients) {
  const std::int64_t rows = x.size(0), vocab = head.size(0);
  const std::int64_t* label = Data<std::int64_t>(labels);
  for (std::int64_t row = 0; row < rows; ++row) {
    TORCH_CHECK(label[row] >= 0 && label[row] < vocab, "label ", label[row], " is outside the vocabulary of ", vocab);
  }
  LossAndGradients result;
  if (gradients) {
    result.dx = at::empty_like(x);
    result.dhead = at::zeros(head.sizes(), at::kFloat);
  }
  const at::Tensor losses = at::empty({rows}, at::kDouble);
  const std::int64_t chunk = std::max(kLeastChunkRows, kChunkElements / vocab);
  for (std::int64_t begin = 0; begin < rows; begin += chunk) {
    const std::int64_t count = std::min(chunk, rows - begin);
    const at::Tensor part = x.narrow(0, begin, count);
    const at::Tensor logits = at::mm(part, head.t());
    DispatchType(logits, [&]<class T>(T) {
      const cpu::CrossEntropy<T> kernel{Data<T>(logits), label + begin, Data<double>(losses) + begin, vocab, gradients};
      ParallelRows(count, vocab, [&](cpu::Rows r) { kernel.Run(r); });
    });
    if (!gradients) continue;
    at::Tensor dpart = result.dx.narrow(0, begin, count);
    at::mm_out(dpart, logits, head);
    AddOuter(result.dhead, logits, part);
  }
  const double* each = Data<double>(losses);
  for (std::int64_t row = 0; row < rows; ++row) result.loss += each[row];
  return result;
}

}  // namespace

at::Tensor Linear(const at::Tensor& x, const Weight& weight) {
  if (!HasFused(x) || !weight.gradient.defined()) return reference::Linear(x, weight);
  at::Tensor out = at::mm(x.detach(), weight.value.detach().t());
  if (Recording({x, weight.value})) {
    Connect("Linear", {x, weight.value}, {out}, [x = x.detach(), weight](TensorList&& gradients) {
      const at::Tensor& dout = gradients[0];
      AddOuter(weight.gradient, dout, x);
      weight.GradientAdded();
      return TensorList{at::mm(dout, weight.value.detach()), at::Tensor()};
    });
  }
  return out;
}

at::Tensor LinearCrossEntropy(const at::Tensor& x, const Weight& head, const at::Tensor& labels) {
  if (!HasFused(x)) return reference::LinearCrossEntropy(x, head, labels);
  const bool recording = Recording({x, head.value});
  // Only rows with a label reach the head.
  const at::Tensor kept = at::nonzero(labels != kIgnoreLabel).view({-1});
  const bool all = kept.numel() == labels.numel();
  at::Tensor loss;
  LossAndGradients result;
  {
    const at::NoGradGuard no_grad;
    result = LossByChunks(all ? x : x.index_select(0, kept), head.value,
                          all ? labels.contiguous() : labels.index_select(0, kept), recording);
    loss = at::scalar_tensor(result.loss, at::kFloat);
  }
  if (!recording) return loss;
  Connect("LinearCrossEntropy", {x, head.value}, {loss},
          [head, kept, all, rows = x.size(0), result = std::move(result)](TensorList&& gradients) {
            const auto scale = gradients[0].item<float>();
            at::Tensor dx = result.dx;
            if (scale != 1) dx.mul_(scale);
            if (!all) dx = at::zeros({rows, dx.size(1)}, dx.options()).index_copy_(0, kept, dx);
            if (!head.gradient.defined()) return TensorList{dx, (result.dhead * scale).to(head.value.scalar_type())};
            head.gradient.add_(result.dhead, scale);
            head.GradientAdded();
            return TensorList{dx, at::Tensor()};
          });
  return loss;
}

}  // namespace millrace::engine::ops
