#include "millrace/engine/ops/embedding.h"

#include "millrace/engine/ops/common/node.h"
#include "millrace/engine/ops/cuda_ops.h"
#include "millrace/engine/ops/dispatch.h"
#include "millrace/engine/ops/reference.h"

namespace millrace::engine::ops {
namespace {

/// Adds dout[i] to table_gradient[ids[i]], row by row. Threads own columns, so the sum does not depend on their number.
template <class T>
void AddRowsAt(const at::Tensor& table_gradient, const at::Tensor& ids, const at::Tensor& dout) {
  const std::int64_t columns = dout.size(1), rows = dout.size(0);
  float* into = Data<float>(table_gradient);
  const std::int64_t* row_ids = Data<std::int64_t>(ids);
  const T* from = Data<T>(dout);
  constexpr std::int64_t kGrain = 64;  // columns a thread has at least: four cache lines of float
  at::parallel_for(0, columns, kGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = 0; row < rows; ++row) {
      float* target = into + row_ids[row] * columns;
      for (std::int64_t j = begin; j < end; ++j) target[j] += cpu::ToFloat(from[row * columns + j]);
    }
  });
}

template <class T>
at::Tensor FusedEmbedding(const Weight& table, const at::Tensor& ids) {
  at::Tensor out = at::embedding(table.value.detach(), ids);
  if (Recording({table.value})) {
    Connect("Embedding", {table.value}, {out}, [table, ids](TensorList&& gradients) {
      AddRowsAt<T>(table.gradient, ids.contiguous(), gradients[0].contiguous());
      return TensorList(1);
    });
  }
  return out;
}

}  // namespace

at::Tensor Embedding(const Weight& table, const at::Tensor& ids) {
  static const auto kernels =
      AndOnCuda(OnCpu("Embedding", reference::Embedding, FusedEmbedding<float>, FusedEmbedding<cpu::Bf16>),
                InCuda<cuda::Embedding>());
  return table.gradient.defined() ? kernels.For(table.value)(table, ids) : reference::Embedding(table, ids);
}

}  // namespace millrace::engine::ops
