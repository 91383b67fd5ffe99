#include "millrace/engine/ops/dropout.h"

#include "millrace/base/hash/random.h"
#include "millrace/engine/ops/common/node.h"
#include "millrace/engine/ops/cuda_ops.h"
#include "millrace/engine/ops/dispatch.h"
#include "millrace/engine/ops/reference.h"

namespace millrace::engine::ops {
namespace {

template <class T>
at::Tensor DropRows(const at::Tensor& x, const DropoutSite& site) {
  at::Tensor out = at::empty_like(x);
  const std::int64_t columns = x.size(1), length = site.rows.row_length;
  const cpu::DropoutRow kernel = KernelOf(site);
  ParallelRows(x.size(0), columns, [&](cpu::Rows part) {
    for (std::int64_t row = part.begin; row < part.end; ++row) {
      const std::int64_t token = site.first_token + row;
      const std::uint64_t sample = site.rows.first_sample + static_cast<std::uint64_t>(token / length);
      kernel.Run(Data<T>(x) + row * columns, Data<T>(out) + row * columns, site.first_column, columns,
                 static_cast<std::uint32_t>(token % length), static_cast<std::uint32_t>(sample),
                 static_cast<std::uint32_t>(sample >> 32));
    }
  });
  return out;
}

template <class T>
at::Tensor FusedDropout(const at::Tensor& x, const DropoutSite& site) {
  at::Tensor out = DropRows<T>(x, site);
  if (Recording({x})) {
    Connect("Dropout", {x}, {out},
            [site](TensorList&& gradients) { return TensorList{DropRows<T>(gradients[0].contiguous(), site)}; });
  }
  return out;
}

}  // namespace

std::uint64_t DropoutSite::key() const { return Mix64(Mix64(Mix64(rows.seed) ^ rows.step) ^ site); }

at::Tensor Dropout(const at::Tensor& x, const DropoutSite& site) {
  static const auto kernels = AndOnCuda(
      OnCpu("Dropout", reference::Dropout, FusedDropout<float>, FusedDropout<cpu::Bf16>), InCuda<cuda::Dropout>());
  return site.active() ? kernels.For(x)(x, site) : x;
}

}  // namespace millrace::engine::ops
