// Embedding, norm, RoPE and SwiGLU. Each is one pass over memory.
#include <cmath>

#include "millrace/engine/ops/dispatch.h"
#include "millrace/engine/ops/node.h"
#include "millrace/engine/ops/ops.h"
#include "millrace/engine/ops/reference.h"

namespace millrace::engine::ops {
namespace {

/// Adds dout[i] to table_gradient[ids[i]], row by row. Threads own columns, so the sum does not depend on their number.
void AddRowsAt(const at::Tensor& table_gradient, const at::Tensor& ids, const at::Tensor& dout) {
  const std::int64_t columns = dout.size(1), rows = dout.size(0);
  float* into = Data<float>(table_gradient);
  const std::int64_t* row_ids = Data<std::int64_t>(ids);
  DispatchType(dout, [&]<class T>(T) {
    const T* from = Data<T>(dout);
    constexpr std::int64_t kGrain = 64;  // columns a thread has at least: four cache lines of float
    at::parallel_for(0, columns, kGrain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = 0; row < rows; ++row) {
        float* target = into + row_ids[row] * columns;
        for (std::int64_t j = begin; j < end; ++j) target[j] += cpu::ToFloat(from[row * columns + j]);
      }
    });
  });
}

/// The number of blocks in which rows are summed. It does not depend on the number of threads, and blocks are added in
/// order, so that the sum has the same bits on every machine.
constexpr std::int64_t kNormBlocks = 32;

at::Tensor NormBackward(const at::Tensor& dout, const at::Tensor& dsum, const at::Tensor& sum, const Weight& weight,
                        const at::Tensor& rstd, at::Tensor& weight_gradient) {
  const std::int64_t rows = sum.size(0), columns = sum.size(1);
  at::Tensor dx = at::empty_like(sum);
  const std::int64_t block = (rows + kNormBlocks - 1) / kNormBlocks;
  const at::Tensor partial = at::zeros({kNormBlocks, columns}, at::kFloat);
  DispatchType(sum, [&]<class T>(T) {
    const cpu::RmsNormBackward<T> kernel{Data<T>(dout),     Data<T>(dsum), Data<T>(sum), Data<T>(weight.value),
                                         Data<float>(rstd), Data<T>(dx),   columns};
    at::parallel_for(0, kNormBlocks, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t b = begin; b < end; ++b) {
        const cpu::Rows part{std::min(rows, b * block), std::min(rows, (b + 1) * block)};
        kernel.Run(part, Data<float>(partial) + b * columns);
      }
    });
  });
  weight_gradient = partial.sum(0);
  return dx;
}

}  // namespace

at::Tensor Embedding(const Weight& table, const at::Tensor& ids) {
  if (!HasFused(table.value) || !table.gradient.defined()) return reference::Embedding(table, ids);
  at::Tensor out = at::embedding(table.value.detach(), ids);
  if (Recording({table.value})) {
    Connect("Embedding", {table.value}, {out}, [table, ids](TensorList&& gradients) {
      AddRowsAt(table.gradient, ids.contiguous(), gradients[0].contiguous());
      table.GradientAdded();
      return TensorList(1);
    });
  }
  return out;
}

Normed AddRmsNorm(const at::Tensor& x, const at::Tensor& delta, const Weight& weight, double eps) {
  if (!HasFused(x)) return reference::AddRmsNorm(x, delta, weight, eps);
  const std::int64_t rows = x.size(0), columns = x.size(1);
  Normed normed{delta.defined() ? at::empty_like(x) : x, at::empty_like(x)};
  const at::Tensor rstd = at::empty({rows}, at::kFloat);
  DispatchType(x, [&]<class T>(T) {
    const cpu::RmsNormForward<T> kernel{Data<T>(x),
                                        Data<T>(delta),
                                        Data<T>(weight.value),
                                        delta.defined() ? Data<T>(normed.sum) : nullptr,
                                        Data<T>(normed.out),
                                        Data<float>(rstd),
                                        columns,
                                        static_cast<float>(eps)};
    ParallelRows(rows, columns, [&](cpu::Rows part) { kernel.Run(part); });
  });
  if (!Recording({x, delta, weight.value})) return normed;

  auto backward = [weight, rstd, sum = normed.sum.detach(), both = delta.defined()](TensorList&& gradients) {
    const at::Tensor& dout = gradients[both ? 1 : 0];
    const at::Tensor dsum = both ? gradients[0] : at::Tensor();
    if (!dout.defined()) return TensorList{dsum, dsum, at::Tensor()};
    at::Tensor dweight;
    const at::Tensor dx =
        NormBackward(dout.contiguous(), dsum.defined() ? dsum.contiguous() : dsum, sum, weight, rstd, dweight);
    if (weight.gradient.defined()) {
      weight.gradient.add_(dweight);
      weight.GradientAdded();
      dweight = at::Tensor();
    } else {
      dweight = dweight.to(weight.value.scalar_type());
    }
    return TensorList{dx, both ? dx : at::Tensor(), dweight};
  };
  // Without a delta, `sum` is the input itself. Its other consumers use the input, not this op's output.
  TensorList outputs = delta.defined() ? TensorList{normed.sum, normed.out} : TensorList{normed.out};
  Connect("AddRmsNorm", {x, delta, weight.value}, std::move(outputs), std::move(backward));
  return normed;
}

RopeTable RopeTable::Make(std::int64_t positions, std::int64_t head_dim, double theta, at::Device device) {
  const at::Tensor exponents = at::arange(0, head_dim, 2, at::kFloat) / static_cast<double>(head_dim);
  const at::Tensor frequencies = at::pow(at::scalar_tensor(theta, at::kFloat), exponents).reciprocal();
  const at::Tensor angles = at::outer(at::arange(positions, at::kFloat), frequencies);
  return {at::cos(angles).to(device), at::sin(angles).to(device)};
}

namespace {
at::Tensor Turn(const at::Tensor& qkv, const RopeTable& table, const HeadLayout& layout, const Sequences& sequences,
                float sign) {
  at::Tensor out = at::empty_like(qkv);
  DispatchType(qkv, [&]<class T>(T) {
    const cpu::Rope<T> kernel{Data<T>(qkv),
                              Data<T>(out),
                              Data<float>(table.cosine),
                              Data<float>(table.sine),
                              Data<std::int32_t>(sequences.positions()),
                              layout.heads + layout.kv_heads,
                              layout.head_dim,
                              layout.columns(),
                              sign};
    ParallelRows(qkv.size(0), qkv.size(1), [&](cpu::Rows part) { kernel.Run(part); });
  });
  return out;
}
}  // namespace

at::Tensor Rope(const at::Tensor& qkv, const RopeTable& table, const HeadLayout& layout, const Sequences& sequences) {
  TORCH_CHECK(qkv.size(0) == sequences.tokens(), qkv.size(0), " rows are not ", sequences.tokens(), " tokens");
  TORCH_CHECK(sequences.limit() <= table.positions(), "positions up to ", sequences.limit(), " exceed the model's ",
              table.positions());
  if (!HasFused(qkv)) return reference::Rope(qkv, table, layout, sequences);
  at::Tensor out = Turn(qkv, table, layout, sequences, 1);
  if (Recording({qkv})) {
    Connect("Rope", {qkv}, {out}, [table, layout, sequences](TensorList&& gradients) {
      return TensorList{Turn(gradients[0].contiguous(), table, layout, sequences, -1)};
    });
  }
  return out;
}

at::Tensor Swiglu(const at::Tensor& gate_up) {
  if (!HasFused(gate_up)) return reference::Swiglu(gate_up);
  const std::int64_t rows = gate_up.size(0), columns = gate_up.size(1) / 2;
  at::Tensor out = at::empty({rows, columns}, gate_up.options());
  DispatchType(gate_up, [&]<class T>(T) {
    const cpu::SwigluForward<T> kernel{Data<T>(gate_up), Data<T>(out), columns};
    ParallelRows(rows, columns, [&](cpu::Rows part) { kernel.Run(part); });
  });
  if (Recording({gate_up})) {
    Connect("Swiglu", {gate_up}, {out}, [saved = gate_up.detach(), rows, columns](TensorList&& gradients) {
      const at::Tensor dout = gradients[0].contiguous();
      at::Tensor dgate_up = at::empty_like(saved);
      DispatchType(saved, [&]<class T>(T) {
        const cpu::SwigluBackward<T> kernel{Data<T>(dout), Data<T>(saved), Data<T>(dgate_up), columns};
        ParallelRows(rows, columns, [&](cpu::Rows part) { kernel.Run(part); });
      });
      return TensorList{dgate_up};
    });
  }
  return out;
}

}  // namespace millrace::engine::ops
