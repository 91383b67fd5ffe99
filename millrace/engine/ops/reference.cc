#include "millrace/engine/ops/reference.h"

#include <cmath>

#include "millrace/engine/ops/common/node.h"
#include "millrace/engine/ops/cpu/philox.h"
#include "millrace/engine/ops/cuda_ops.h"
#include "millrace/engine/ops/dispatch.h"
#include "millrace/engine/ops/quantized_product.h"

namespace millrace::engine::ops::reference {
namespace {

/// Returns the weight's value. Its gradient goes to Weight::gradient if that is defined.
at::Tensor Tapped(const Weight& weight) {
  if (!weight.gradient.defined() || !Recording({weight.value})) return weight.value;
  at::Tensor alias = weight.value.detach();
  Connect("WeightGradient", {weight.value}, {alias}, [weight](TensorList&& gradients) {
    if (gradients[0].defined()) weight.gradient.add_(gradients[0]);
    return TensorList(1);
  });
  return alias;
}

/// Returns which keys the last `count` of `total` positions do not see: bool [count, total]; undefined if they see all.
at::Tensor Hidden(std::int64_t count, std::int64_t total, const AttentionRule& rule) {
  const bool sees_all = count == 1 && (rule.window == 0 || rule.window >= total);  // a token that is generated
  if (!rule.causal || sees_all) return {};
  const at::Tensor all = at::ones({count, total}, at::kBool);
  const at::Tensor later = all.triu(total - count + 1);
  return rule.window > 0 ? later.logical_or(all.tril(total - count - rule.window)) : later;
}

/// Returns 0 or 1/(1-p) for `columns` elements of one row, from the same random numbers as the fused ops.
void FillKept(float* into, const cpu::DropoutRow& kernel, std::int64_t first, std::int64_t columns, std::uint32_t c1,
              std::uint32_t c2, std::uint32_t c3) {
  for (std::int64_t j = first; j < first + columns; ++j) {
    const cpu::PhiloxWords random = cpu::Philox(kernel.key, static_cast<std::uint32_t>(j / 4), c1, c2, c3);
    into[j - first] = random.words[j % 4] < kernel.threshold ? 0 : kernel.scale;
  }
}

/// Returns the factors of attention probabilities [1, heads, length, length] of one sequence.
at::Tensor KeptProbabilities(const DropoutSite& site, const HeadLayout& layout, std::int64_t begin, std::int64_t length,
                             at::Device device) {
  if constexpr (kBuiltWithCuda) {
    if (device.is_cuda()) return cuda::KeptProbabilities(site, layout, begin, length, device);
  }
  at::Tensor kept = at::empty({1, layout.heads, length, length}, at::kFloat);
  const std::int64_t row = begin / site.rows.row_length, position = begin % site.rows.row_length;
  const std::uint64_t sample = site.rows.first_sample + static_cast<std::uint64_t>(row);
  for (std::int64_t head = 0; head < layout.heads; ++head) {
    for (std::int64_t query = 0; query < length; ++query) {
      FillKept(kept.data_ptr<float>() + (head * length + query) * length, KernelOf(site), 0, length,
               static_cast<std::uint32_t>(position + query), static_cast<std::uint32_t>(sample),
               static_cast<std::uint32_t>(site.first_head + head));
    }
  }
  return kept;
}

/// Computes the attention of `rows` sequences of the same length.
at::Tensor AttendEven(const at::Tensor& qkv, const HeadLayout& layout, std::int64_t rows, const AttentionRule& rule,
                      const at::Tensor& keep) {
  const at::Tensor all = qkv.view({rows, -1, layout.heads + 2 * layout.kv_heads, layout.head_dim}).transpose(1, 2);
  const at::Tensor queries = all.narrow(1, 0, layout.heads), keys = all.narrow(1, layout.heads, layout.kv_heads);
  const at::Tensor values = all.narrow(1, layout.heads + layout.kv_heads, layout.kv_heads);
  return AttendCached(queries, keys, values, rule, keep).view({-1, layout.heads * layout.head_dim});
}

}  // namespace

at::Tensor Embedding(const Weight& table, const at::Tensor& ids) { return at::embedding(Tapped(table), ids); }

at::Tensor Linear(const LayerInput& input, const LinearWeights& weights) {
  const at::Tensor& x = input.value;
  const at::Tensor matrix =
      weights.codes ? Dequantized(*weights.codes).to(x.options()).t() : Tapped(weights.matrix).t();
  at::Tensor out = weights.bias.defined() ? at::addmm(Tapped(weights.bias), x, matrix) : at::mm(x, matrix);
  const LowRankUpdate& update = weights.update;
  if (!update.defined()) return out;
  const at::Tensor down = Tapped(update.down);
  const std::int64_t rank = down.size(0) / static_cast<std::int64_t>(update.modules.size());
  at::Tensor sum = out;
  for (std::size_t i = 0; i < update.modules.size(); ++i) {
    const LowRankUpdate::Module& module = update.modules[i];
    const at::Tensor rows = down.narrow(0, static_cast<std::int64_t>(i) * rank, rank);
    const at::Tensor seen = module.dropout.active() ? reference::Dropout(x, module.dropout) : x;
    const at::Tensor up = Tapped(module.up);
    at::Tensor added = at::mm(at::mm(seen, rows.t()), up.t()) * update.scale;
    if (update.has_magnitudes()) {
      const at::Tensor weight = matrix.narrow(1, module.first_output, module.outputs());  // [in, outputs]
      const at::Tensor whole = weight.detach().to(at::kFloat) +
                               at::mm(rows.detach().t().to(at::kFloat), up.detach().t().to(at::kFloat)) * update.scale;
      const at::Tensor factors = Tapped(module.magnitude).to(at::kFloat) / whole.square().sum(0).sqrt();
      const at::Tensor own = at::mm(seen, weight);
      added = ((own + added) * factors).to(x.scalar_type()) - own;
    }
    const std::int64_t behind = out.size(1) - module.first_output - added.size(1);
    sum = sum + at::constant_pad_nd(added, {module.first_output, behind});
  }
  return sum;
}

at::Tensor AddBias(const at::Tensor& x, const Weight& bias) { return x + Tapped(bias); }

Normed AddRmsNorm(const at::Tensor& x, const at::Tensor& delta, const Weight& weight, const RmsNormOptions& options) {
  const at::Tensor sum = delta.defined() ? x + delta : x;
  const at::Tensor wide = sum.to(at::kFloat);
  const at::Tensor rstd = at::rsqrt(wide.square().mean(-1, /*keepdim=*/true) + options.eps);
  if (options.offset == 0) return {sum, Tapped(weight) * (wide * rstd).to(x.scalar_type())};
  return {sum, ((Tapped(weight).to(at::kFloat) + options.offset) * (wide * rstd)).to(x.scalar_type())};
}

Normed AddLayerNorm(const at::Tensor& x, const at::Tensor& delta, const Weight& weight, const Weight& bias,
                    double eps) {
  const at::Tensor sum = delta.defined() ? x + delta : x;
  const at::Tensor centred = sum.to(at::kFloat) - sum.to(at::kFloat).mean(-1, /*keepdim=*/true);
  const at::Tensor rstd = at::rsqrt(centred.square().mean(-1, /*keepdim=*/true) + eps);
  const at::Tensor out = centred * rstd * Tapped(weight).to(at::kFloat) + Tapped(bias).to(at::kFloat);
  return {sum, out.to(x.scalar_type())};
}

at::Tensor Rotate(const at::Tensor& qkv, const RotaryTable& table, const HeadLayout& layout,
                  const Sequences& sequences) {
  const std::int64_t turned = layout.heads + layout.kv_heads, half = table.dim() / 2;
  const at::Tensor all = qkv.view({-1, turned + layout.kv_heads, layout.head_dim});
  const at::Tensor positions = sequences.PositionsOn(qkv.device());
  const at::Tensor cosine = table.cosine.index_select(0, positions).unsqueeze(1);
  const at::Tensor sine = table.sine.index_select(0, positions).unsqueeze(1);
  const bool neighbours = table.pairs == RotaryPairs::kNeighbours;
  const at::Tensor heads = all.narrow(1, 0, turned);
  const at::Tensor pairs = heads.narrow(2, 0, table.dim()).to(at::kFloat);
  const at::Tensor a = neighbours ? pairs.slice(2, 0, table.dim(), 2) : pairs.narrow(2, 0, half);
  const at::Tensor b = neighbours ? pairs.slice(2, 1, table.dim(), 2) : pairs.narrow(2, half, half);
  const at::Tensor first = a * cosine - b * sine, second = b * cosine + a * sine;
  const at::Tensor rotated = neighbours ? at::stack({first, second}, 3).flatten(2) : at::cat({first, second}, 2);
  const at::Tensor whole =
      at::cat({rotated.to(qkv.scalar_type()), heads.narrow(2, table.dim(), layout.head_dim - table.dim())}, 2);
  return at::cat({whole, all.narrow(1, turned, layout.kv_heads)}, 1).view(qkv.sizes());
}

at::Tensor AttendCached(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                        const AttentionRule& rule, const at::Tensor& keep) {
  const std::int64_t rows = queries.size(0), heads = queries.size(1), count = queries.size(2), dim = queries.size(3);
  const std::int64_t kv_heads = keys.size(1), total = keys.size(2), group = heads / kv_heads;
  // The query heads of a group become rows of one product. So keys and values are not repeated in memory.
  const at::Tensor grouped = queries.reshape({rows, kv_heads, group * count, dim}).to(at::kFloat);
  at::Tensor scores = at::matmul(grouped, keys.to(at::kFloat).transpose(2, 3)) * rule.ScaleOf(dim);
  scores = SoftCapped(scores, rule.softcap);
  if (const at::Tensor hidden = Hidden(count, total, rule); hidden.defined()) {
    scores = scores.view({rows, kv_heads, group, count, total}).masked_fill(hidden.to(queries.device()), -INFINITY);
  }
  at::Tensor weights = at::softmax(scores, -1).view({rows, kv_heads, group * count, total});
  if (keep.defined()) weights = weights * keep.view({rows, kv_heads, group * count, total});
  const at::Tensor mixed = at::matmul(weights, values.to(at::kFloat)).to(queries.scalar_type());
  return mixed.view({rows, heads, count, dim}).transpose(1, 2).reshape({rows, count, heads * dim});
}

at::Tensor Attention(const at::Tensor& qkv, const HeadLayout& layout, const Sequences& sequences,
                     const AttentionRule& rule, const DropoutSite& dropout) {
  if (sequences.even() && !dropout.active()) return AttendEven(qkv, layout, sequences.count(), rule, {});
  std::vector<std::int64_t> lengths;
  for (std::int64_t i = 0; i < sequences.count(); ++i) lengths.push_back(sequences.length(i));
  TensorList mixed;
  for (const at::Tensor& one : qkv.split_with_sizes(lengths)) {
    const auto i = static_cast<std::int64_t>(mixed.size());
    at::Tensor keep;
    if (dropout.active()) {
      keep = KeptProbabilities(dropout, layout, sequences.begin(i), sequences.length(i), qkv.device());
    }
    mixed.push_back(AttendEven(one, layout, 1, rule, keep));
  }
  return at::cat(mixed);
}

at::Tensor Activate(const at::Tensor& x, Activation activation) {
  switch (activation) {
    case Activation::kGelu:
      return at::gelu(x);
    case Activation::kGeluTanh:
      return at::gelu(x, "tanh");
    case Activation::kRelu:
      return at::relu(x);
    case Activation::kSilu:
      return at::silu(x);
  }
  TORCH_INTERNAL_ASSERT(false, "not an activation");
}

at::Tensor Gated(const at::Tensor& gate_up, Activation activation) {
  const std::int64_t columns = gate_up.size(1) / 2;
  return Activate(gate_up.narrow(1, 0, columns), activation) * gate_up.narrow(1, columns, columns);
}

at::Tensor Dropout(const at::Tensor& x, const DropoutSite& site) {
  at::Tensor kept = at::empty(x.sizes(), at::kFloat);
  for (std::int64_t row = 0; row < x.size(0); ++row) {
    const std::int64_t token = site.first_token + row;
    const std::uint64_t sample = site.rows.first_sample + static_cast<std::uint64_t>(token / site.rows.row_length);
    FillKept(kept.data_ptr<float>() + row * x.size(1), KernelOf(site), site.first_column, x.size(1),
             static_cast<std::uint32_t>(token % site.rows.row_length), static_cast<std::uint32_t>(sample),
             static_cast<std::uint32_t>(sample >> 32));
  }
  return (x.to(at::kFloat) * kept.to(x.device())).to(x.scalar_type());
}

at::Tensor LinearCrossEntropy(const at::Tensor& x, const Weight& head, const Weight& bias, const at::Tensor& labels_in,
                              const LossOptions& options, std::int64_t* correct, const HeadUpdate& update,
                              double softcap) {
  const at::Tensor labels = labels_in.to(x.device());
  at::Tensor logits = Linear(x, {head, bias});
  if (update.inner.defined()) logits = logits + at::mm(update.inner, Tapped(update.up).t());
  logits = SoftCapped(logits, softcap).to(at::kFloat);
  if (correct != nullptr) {
    const at::Tensor own = logits.gather(1, labels.clamp_min(0).unsqueeze(1)).squeeze(1);
    const at::Tensor most = std::get<0>(logits.max(1));
    *correct += own.ge(most).logical_and(labels != kIgnoreLabel).sum().item<std::int64_t>();
  }
  const at::Tensor log_p = at::log_softmax(logits, 1);
  at::Tensor plain = at::nll_loss(log_p, labels, /*weight=*/{}, at::Reduction::Sum, kIgnoreLabel);
  if (options.label_smoothing == 0 && options.z_loss == 0) return plain;
  const at::Tensor counts = (labels != kIgnoreLabel).to(at::kFloat);
  const at::Tensor uniform = -(log_p.mean(1) * counts).sum();
  const at::Tensor squares = (at::logsumexp(logits, 1).square() * counts).sum();
  const at::Tensor objective =
      plain * (1 - options.label_smoothing) + uniform * options.label_smoothing + squares * options.z_loss;
  return objective + (plain - objective).detach();  // the value of the one, the gradient of the other
}

at::Tensor TokenCrossEntropies(const at::Tensor& x, const Weight& head, const Weight& bias, const at::Tensor& labels,
                               std::int64_t vocab, const TensorRanks& ranks, double softcap) {
  TORCH_CHECK(ranks.size() == 1 && head.value.size(0) == vocab, "ranks that divide a head need a fused op");
  const at::Tensor log_p = at::log_softmax(SoftCapped(Linear(x, {head, bias}), softcap).to(at::kDouble), 1);
  return at::nll_loss(log_p, labels.to(x.device()), /*weight=*/{}, at::Reduction::None, kIgnoreLabel);
}

}  // namespace millrace::engine::ops::reference
