#include "millrace/engine/ops/reference.h"

#include <cmath>

#include "millrace/engine/ops/node.h"

namespace millrace::engine::ops::reference {
namespace {

/// Returns the weight's value. Its gradient goes to Weight::gradient if that is defined.
at::Tensor Tapped(const Weight& weight) {
  if (!weight.gradient.defined() || !Recording({weight.value})) return weight.value;
  at::Tensor alias = weight.value.detach();
  Connect("WeightGradient", {weight.value}, {alias}, [weight](TensorList&& gradients) {
    if (gradients[0].defined()) weight.gradient.add_(gradients[0]);
    weight.GradientAdded();
    return TensorList(1);
  });
  return alias;
}

/// Computes the attention of `rows` sequences of the same length.
at::Tensor AttendEven(const at::Tensor& qkv, const HeadLayout& layout, std::int64_t rows) {
  const at::Tensor all = qkv.view({rows, -1, layout.heads + 2 * layout.kv_heads, layout.head_dim}).transpose(1, 2);
  const at::Tensor queries = all.narrow(1, 0, layout.heads), keys = all.narrow(1, layout.heads, layout.kv_heads);
  const at::Tensor values = all.narrow(1, layout.heads + layout.kv_heads, layout.kv_heads);
  return AttendCached(queries, keys, values).view({-1, layout.heads * layout.head_dim});
}

}  // namespace

at::Tensor Embedding(const Weight& table, const at::Tensor& ids) { return at::embedding(Tapped(table), ids); }

at::Tensor Linear(const at::Tensor& x, const Weight& weight) { return at::mm(x, Tapped(weight).t()); }

Normed AddRmsNorm(const at::Tensor& x, const at::Tensor& delta, const Weight& weight, double eps) {
  const at::Tensor sum = delta.defined() ? x + delta : x;
  const at::Tensor wide = sum.to(at::kFloat);
  const at::Tensor rstd = at::rsqrt(wide.square().mean(-1, /*keepdim=*/true) + eps);
  return {sum, Tapped(weight) * (wide * rstd).to(x.scalar_type())};
}

at::Tensor Rope(const at::Tensor& qkv, const RopeTable& table, const HeadLayout& layout, const Sequences& sequences) {
  const std::int64_t turned = layout.heads + layout.kv_heads, half = layout.head_dim / 2;
  const at::Tensor all = qkv.view({-1, turned + layout.kv_heads, layout.head_dim});
  const at::Tensor positions = sequences.positions().to(qkv.device());
  const at::Tensor cosine = table.cosine.index_select(0, positions).unsqueeze(1);
  const at::Tensor sine = table.sine.index_select(0, positions).unsqueeze(1);
  const at::Tensor a = all.narrow(1, 0, turned).narrow(2, 0, half).to(at::kFloat);
  const at::Tensor b = all.narrow(1, 0, turned).narrow(2, half, half).to(at::kFloat);
  const at::Tensor rotated = at::cat({a * cosine - b * sine, b * cosine + a * sine}, 2).to(qkv.scalar_type());
  return at::cat({rotated, all.narrow(1, turned, layout.kv_heads)}, 1).view(qkv.sizes());
}

at::Tensor AttendCached(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values) {
  const std::int64_t rows = queries.size(0), heads = queries.size(1), count = queries.size(2), dim = queries.size(3);
  const std::int64_t kv_heads = keys.size(1), total = keys.size(2), group = heads / kv_heads;
  // The query heads of a group become rows of one product. So keys and values are not repeated in memory.
  const at::Tensor grouped = queries.reshape({rows, kv_heads, group * count, dim}).to(at::kFloat);
  at::Tensor scores = at::matmul(grouped, keys.to(at::kFloat).transpose(2, 3)) / std::sqrt(static_cast<double>(dim));
  if (count > 1) {
    const at::Tensor hidden = at::ones({count, total}, queries.options().dtype(at::kBool))
                                  .triu(total - count + 1);  // keys of later positions
    scores = scores.view({rows, kv_heads, group, count, total}).masked_fill(hidden, -INFINITY);
  }
  const at::Tensor weights = at::softmax(scores, -1).view({rows, kv_heads, group * count, total});
  const at::Tensor mixed = at::matmul(weights, values.to(at::kFloat)).to(queries.scalar_type());
  return mixed.view({rows, heads, count, dim}).transpose(1, 2).reshape({rows, count, heads * dim});
}

at::Tensor CausalAttention(const at::Tensor& qkv, const HeadLayout& layout, const Sequences& sequences) {
  if (sequences.even()) return AttendEven(qkv, layout, sequences.count());
  std::vector<std::int64_t> lengths;
  for (std::int64_t i = 0; i < sequences.count(); ++i) lengths.push_back(sequences.length(i));
  TensorList mixed;
  for (const at::Tensor& one : qkv.split_with_sizes(lengths)) mixed.push_back(AttendEven(one, layout, 1));
  return at::cat(mixed);
}

at::Tensor Swiglu(const at::Tensor& gate_up) {
  const std::int64_t columns = gate_up.size(1) / 2;
  return at::silu(gate_up.narrow(1, 0, columns)) * gate_up.narrow(1, columns, columns);
}

at::Tensor LinearCrossEntropy(const at::Tensor& x, const Weight& head, const at::Tensor& labels) {
  const at::Tensor logits = Linear(x, head).to(at::kFloat);
  return at::nll_loss(at::log_softmax(logits, 1), labels, /*weight=*/{}, at::Reduction::Sum, kIgnoreLabel);
}

}  // namespace millrace::engine::ops::reference
