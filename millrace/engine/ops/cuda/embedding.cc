#include "millrace/engine/ops/embedding.h"

#include <c10/cuda/CUDAGuard.h>

#include "millrace/engine/ops/common/node.h"
#include "millrace/engine/ops/cuda/tensors/tensors.h"
#include "millrace/engine/ops/cuda_ops.h"

namespace millrace::engine::ops::cuda {

at::Tensor Embedding(const Weight& table, const at::Tensor& ids_in) {
  const c10::cuda::CUDAGuard guard(table.value.device());
  const at::Tensor ids = OnDevice(ids_in, table.value.device());
  at::Tensor out = at::embedding(table.value.detach(), ids);
  if (Recording({table.value})) {
    Connect("Embedding", {table.value}, {out}, [table, ids](TensorList&& gradients) {
      const at::Tensor dout = Dense(gradients[0]);
      const c10::cuda::CUDAGuard on_device(dout.device());
      const auto [sorted, order] = at::sort(ids, /*stable=*/true, /*dim=*/0, /*descending=*/false);
      const std::int64_t count = sorted.numel(), columns = dout.size(1);
      const at::Tensor scratch = NewLike(dout, {kernels::AddRowsScratchRows(count), columns}, at::kFloat);
      kernels::AddRows(ElementOf(dout),
                       {.dout = MemoryOf(dout),
                        .ids = MemoryOf<std::int64_t>(sorted),
                        .order = MemoryOf<std::int64_t>(order),
                        .into = MemoryOf<float>(table.gradient),
                        .scratch = MemoryOf<float>(scratch),
                        .count = count,
                        .columns = columns},
                       StreamOf(dout));
      return TensorList(1);
    });
  }
  return out;
}

}  // namespace millrace::engine::ops::cuda
