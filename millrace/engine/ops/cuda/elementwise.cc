#include <c10/cuda/CUDAGuard.h>

#include "millrace/engine/ops/common/node.h"
#include "millrace/engine/ops/cuda/tensors/tensors.h"
#include "millrace/engine/ops/cuda_ops.h"
#include "millrace/engine/ops/dispatch.h"
#include "millrace/engine/ops/reference.h"

namespace millrace::engine::ops::cuda {
namespace {

kernels::Function FunctionOf(Activation activation) {
  switch (activation) {
    case Activation::kGelu:
      return kernels::Function::kGeluErf;
    case Activation::kGeluTanh:
      return kernels::Function::kGeluTanh;
    case Activation::kSilu:
      return kernels::Function::kSilu;
    case Activation::kRelu:
      return kernels::Function::kRelu;
  }
  TORCH_INTERNAL_ASSERT(false, "not an activation");
}

at::Tensor Turn(const at::Tensor& qkv, const RotaryTable& table, const HeadLayout& layout, const Sequences& sequences,
                float sign) {
  const c10::cuda::CUDAGuard guard(qkv.device());
  const at::Tensor out = at::empty_like(qkv);
  const at::Tensor cosine = OnDevice(table.cosine, qkv.device()), sine = OnDevice(table.sine, qkv.device());
  const at::Tensor positions = sequences.PositionsOn(qkv.device());
  kernels::Rotate(ElementOf(qkv),
                  {.x = MemoryOf(qkv),
                   .out = MemoryOf(out),
                   .cosine = MemoryOf<float>(cosine),
                   .sine = MemoryOf<float>(sine),
                   .positions = MemoryOf<std::int32_t>(positions),
                   .rows = qkv.size(0),
                   .heads = layout.heads + layout.kv_heads,
                   .head_dim = layout.head_dim,
                   .dim = table.dim(),
                   .columns = layout.columns(),
                   .neighbours = table.pairs == RotaryPairs::kNeighbours,
                   .sign = sign},
                  StreamOf(qkv));
  return out;
}

at::Tensor Drop(const at::Tensor& x, const DropoutSite& site) {
  const c10::cuda::CUDAGuard guard(x.device());
  const at::Tensor out = at::empty_like(x);
  kernels::Dropout(ElementOf(x),
                   {.x = MemoryOf(x),
                    .out = MemoryOf(out),
                    .rows = x.size(0),
                    .columns = x.size(1),
                    .first_column = site.first_column,
                    .first_token = site.first_token,
                    .row_length = site.rows.row_length,
                    .first_sample = site.rows.first_sample,
                    .choices = KernelOf(site)},
                   StreamOf(x));
  return out;
}

}  // namespace

at::Tensor Activate(const at::Tensor& x_in, Activation activation) {
  const c10::cuda::CUDAGuard guard(x_in.device());
  const at::Tensor x = Dense(x_in);
  at::Tensor out = at::empty_like(x);
  kernels::ActivateForward(ElementOf(x), FunctionOf(activation), MemoryOf(x), MemoryOf(out), x.numel(), StreamOf(x));
  if (Recording({x_in})) {
    Connect("Activate", {x_in}, {out}, [x = x.detach(), activation](TensorList&& gradients) {
      const c10::cuda::CUDAGuard on_device(x.device());
      const at::Tensor dout = Dense(gradients[0]), dx = at::empty_like(x);
      kernels::ActivateBackward(ElementOf(x), FunctionOf(activation), MemoryOf(dout), MemoryOf(x), MemoryOf(dx),
                                x.numel(), StreamOf(x));
      return TensorList{dx};
    });
  }
  return out;
}

at::Tensor Add(const at::Tensor& a_in, const at::Tensor& b_in) {
  if (Recording({a_in, b_in})) return a_in + b_in;
  TORCH_CHECK(a_in.sizes() == b_in.sizes() && a_in.scalar_type() == b_in.scalar_type(), "terms of unlike shapes");
  const c10::cuda::CUDAGuard guard(a_in.device());
  const at::Tensor a = Dense(a_in), b = Dense(b_in), out = at::empty_like(a);
  kernels::Add(ElementOf(a), MemoryOf(a), MemoryOf(b), MemoryOf(out), a.numel(), StreamOf(a));
  return out;
}

at::Tensor Gated(const at::Tensor& gate_up_in, Activation activation) {
  if (activation != Activation::kSilu) return reference::Gated(gate_up_in, activation);
  const c10::cuda::CUDAGuard guard(gate_up_in.device());
  const at::Tensor gate_up = Dense(gate_up_in);
  const std::int64_t rows = gate_up.size(0), columns = gate_up.size(1) / 2;
  at::Tensor out = NewLike(gate_up, {rows, columns}, gate_up.scalar_type());
  kernels::SwigluForward(ElementOf(out), MemoryOf(gate_up), MemoryOf(out), rows, columns, StreamOf(out));
  if (Recording({gate_up_in})) {
    Connect("Gated", {gate_up_in}, {out}, [gate_up = gate_up.detach(), rows, columns](TensorList&& gradients) {
      const c10::cuda::CUDAGuard on_device(gate_up.device());
      const at::Tensor dout = Dense(gradients[0]), dgate_up = at::empty_like(gate_up);
      kernels::SwigluBackward(ElementOf(dout), MemoryOf(dout), MemoryOf(gate_up), MemoryOf(dgate_up), rows, columns,
                              StreamOf(dout));
      return TensorList{dgate_up};
    });
  }
  return out;
}

at::Tensor Rotate(const at::Tensor& qkv, const RotaryTable& table, const HeadLayout& layout,
                  const Sequences& sequences) {
  at::Tensor out = Turn(Dense(qkv), table, layout, sequences, 1);
  if (Recording({qkv})) {
    Connect("Rotate", {qkv}, {out}, [table, layout, sequences](TensorList&& gradients) {
      return TensorList{Turn(Dense(gradients[0]), table, layout, sequences, -1)};
    });
  }
  return out;
}

at::Tensor Dropout(const at::Tensor& x, const DropoutSite& site) {
  at::Tensor out = Drop(Dense(x), site);
  if (Recording({x})) {
    Connect("Dropout", {x}, {out},
            [site](TensorList&& gradients) { return TensorList{Drop(Dense(gradients[0]), site)}; });
  }
  return out;
}

}  // namespace millrace::engine::ops::cuda
