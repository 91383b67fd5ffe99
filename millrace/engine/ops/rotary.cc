#include "millrace/engine/ops/rotary.h"

#include "millrace/engine/ops/common/node.h"
#include "millrace/engine/ops/cuda_ops.h"
#include "millrace/engine/ops/dispatch.h"
#include "millrace/engine/ops/reference.h"

namespace millrace::engine::ops {
namespace {

template <class T>
at::Tensor Turn(const at::Tensor& qkv, const RotaryTable& table, const HeadLayout& layout, const Sequences& sequences,
                float sign) {
  at::Tensor out = at::empty_like(qkv);
  const cpu::Rotate<T> kernel{Data<T>(qkv),
                              Data<T>(out),
                              Data<float>(table.cosine),
                              Data<float>(table.sine),
                              Data<std::int32_t>(sequences.positions()),
                              layout.heads + layout.kv_heads,
                              layout.head_dim,
                              table.dim(),
                              layout.columns(),
                              table.pairs == RotaryPairs::kNeighbours,
                              sign};
  ParallelRows(qkv.size(0), qkv.size(1), [&](cpu::Rows part) { kernel.Run(part); });
  return out;
}

template <class T>
at::Tensor FusedRotate(const at::Tensor& qkv, const RotaryTable& table, const HeadLayout& layout,
                       const Sequences& sequences) {
  at::Tensor out = Turn<T>(qkv, table, layout, sequences, 1);
  if (Recording({qkv})) {
    Connect("Rotate", {qkv}, {out}, [table, layout, sequences](TensorList&& gradients) {
      return TensorList{Turn<T>(gradients[0].contiguous(), table, layout, sequences, -1)};
    });
  }
  return out;
}

}  // namespace

RotaryTable RotaryTable::Make(std::int64_t positions, std::span<const float> frequencies, RotaryPairs pairs,
                              at::Device device, double scale) {
  at::Tensor each = at::empty({static_cast<std::int64_t>(frequencies.size())}, at::kFloat);
  std::ranges::copy(frequencies, each.data_ptr<float>());
  const at::Tensor angles = at::outer(at::arange(positions, at::kFloat), each);
  return {at::cos(angles).mul_(scale).to(device), at::sin(angles).mul_(scale).to(device), pairs};
}

std::vector<float> RotaryFrequencies(std::int64_t dim, double theta) {
  // In float32 and in transformers' order, so that angles of far positions have its bits.
  const at::Tensor exponents = at::arange(0, dim, 2, at::kFloat) / static_cast<double>(dim);
  const at::Tensor each = at::pow(at::scalar_tensor(theta, at::kFloat), exponents).reciprocal();
  return {each.data_ptr<float>(), each.data_ptr<float>() + each.numel()};
}

at::Tensor Rotate(const at::Tensor& qkv, const RotaryTable& table, const HeadLayout& layout,
                  const Sequences& sequences) {
  static const auto kernels =
      AndOnCuda(OnCpu("Rotate", reference::Rotate, FusedRotate<float>, FusedRotate<cpu::Bf16>), InCuda<cuda::Rotate>());
  TORCH_CHECK(qkv.size(0) == sequences.tokens(), qkv.size(0), " rows are not ", sequences.tokens(), " tokens");
  TORCH_CHECK(sequences.limit() <= table.positions(), "positions up to ", sequences.limit(), " exceed the model's ",
              table.positions());
  return kernels.For(qkv)(qkv, table, layout, sequences);
}

}  // namespace millrace::engine::ops
