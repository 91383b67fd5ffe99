#include "millrace/engine/layers/embedding.h"

namespace millrace::engine {

at::Tensor Embedding::Forward(const at::Tensor& ids) const {
  if (ranks_.size() == 1) return ops::Embedding(*table_, ids);
  if (!divided_) {
    // Every rank looks up its own tokens. Without sequence parallelism, these are all of them.
    if (!ranks_.sequence_parallel) return ops::Embedding(*table_, ids);
    const std::int64_t rows = ids.size(0) / ranks_.size();
    return ops::Embedding(*table_, ids.narrow(0, ranks_.rank() * rows, rows));
  }
  // Tokens of other ranks are looked up as the first row, and then removed.
  const auto [first, count] = ranks_.ShareOf(rows_);
  const at::Tensor mine = (ids >= first).logical_and(ids < first + count);
  const at::Tensor local = (ids - first).masked_fill(mine.logical_not(), 0);
  const at::Tensor found = ops::Embedding(*table_, local);
  return ops::LeaveDividedLayer(found * mine.unsqueeze(1).to(found.scalar_type()), ranks_);
}

}  // namespace millrace::engine
