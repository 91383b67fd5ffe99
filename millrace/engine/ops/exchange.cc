#include "millrace/engine/ops/exchange.h"

#include "millrace/engine/errors.h"
#include "millrace/engine/ops/common/node.h"

namespace millrace::engine::ops {
namespace {

at::Tensor AllReduced(const at::Tensor& x, const TensorRanks& ranks) {
  at::Tensor sum = x.clone(at::MemoryFormat::Contiguous);
  ThrowIfFailed(ranks.group->AllReduce(sum));
  return sum;
}

at::Tensor Gathered(const at::Tensor& x, const TensorRanks& ranks) {
  std::vector<std::int64_t> shape = x.sizes().vec();
  shape[0] *= ranks.size();
  at::Tensor all = at::empty(shape, x.options());
  ThrowIfFailed(ranks.group->AllGather(all, x.contiguous()));
  return all;
}

at::Tensor ReduceScattered(const at::Tensor& x, const TensorRanks& ranks) {
  TORCH_CHECK(x.size(0) % ranks.size() == 0, x.size(0), " tokens do not divide among ", ranks.size(), " ranks");
  std::vector<std::int64_t> shape = x.sizes().vec();
  shape[0] /= ranks.size();
  at::Tensor mine = at::empty(shape, x.options());
  // The exchange may overwrite its input.
  ThrowIfFailed(ranks.group->ReduceScatter(mine, x.clone(at::MemoryFormat::Contiguous)));
  return mine;
}

at::Tensor OwnRows(const at::Tensor& x, const TensorRanks& ranks) {
  TORCH_CHECK(x.size(0) % ranks.size() == 0, x.size(0), " tokens do not divide among ", ranks.size(), " ranks");
  const std::int64_t rows = x.size(0) / ranks.size();
  return x.narrow(0, ranks.rank() * rows, rows).contiguous();
}

using Exchange = at::Tensor (*)(const at::Tensor& x, const TensorRanks& ranks);
at::Tensor Same(const at::Tensor& x, const TensorRanks&) { return x.detach(); }

/// Applies `forward`, and `backward` to the gradient.
at::Tensor Apply(const char* name, const at::Tensor& x, const TensorRanks& ranks, Exchange forward, Exchange backward) {
  if (ranks.size() == 1) return x;
  at::Tensor out = forward(x.detach(), ranks);
  if (Recording({x})) {
    Connect(name, {x}, {out},
            [ranks, backward](TensorList&& gradients) { return TensorList{backward(gradients[0], ranks)}; });
  }
  return out;
}

}  // namespace

at::Tensor CopyToRanks(const at::Tensor& x, const TensorRanks& ranks) {
  return Apply("CopyToRanks", x, ranks, Same, AllReduced);
}
at::Tensor SumOverRanks(const at::Tensor& x, const TensorRanks& ranks) {
  return Apply("SumOverRanks", x, ranks, AllReduced, Same);
}
at::Tensor GatherRows(const at::Tensor& x, const TensorRanks& ranks) {
  return Apply("GatherRows", x, ranks, Gathered, ReduceScattered);
}
at::Tensor SumAndDivideRows(const at::Tensor& x, const TensorRanks& ranks) {
  return Apply("SumAndDivideRows", x, ranks, ReduceScattered, Gathered);
}
at::Tensor DivideRows(const at::Tensor& x, const TensorRanks& ranks) {
  return Apply("DivideRows", x, ranks, OwnRows, Gathered);
}

at::Tensor JoinRows(const at::Tensor& x, const TensorRanks& ranks) {
  return Apply("JoinRows", x, ranks, Gathered, OwnRows);
}

at::Tensor EnterDividedLayer(const at::Tensor& x, const TensorRanks& ranks) {
  return ranks.sequence_parallel ? GatherRows(x, ranks) : CopyToRanks(x, ranks);
}
at::Tensor LeaveDividedLayer(const at::Tensor& x, const TensorRanks& ranks) {
  return ranks.sequence_parallel ? SumAndDivideRows(x, ranks) : SumOverRanks(x, ranks);
}

}  // namespace millrace::engine::ops
