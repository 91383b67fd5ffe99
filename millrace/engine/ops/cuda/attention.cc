// Attention by the kernels that libtorch has: cuDNN's, which are the fastest on Hopper and later, for sequences of
// equal lengths; FlashAttention 2 (Dao 2023) for others. Both read queries, keys and values in place, from the rows of
// qkv.
#include "millrace/engine/ops/cuda/attention.h"

#include <ATen/Context.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/ops/_cudnn_attention_backward.h>
#include <ATen/ops/_cudnn_attention_forward.h>
#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <c10/cuda/CUDAStream.h>

#include <optional>

#include "millrace/engine/ops/common/node.h"
#include "millrace/engine/ops/cuda/kernels/kernels.h"
#include "millrace/engine/ops/cuda_ops.h"
#include "millrace/engine/ops/dispatch.h"
#include "millrace/engine/ops/reference.h"

namespace millrace::engine::ops::cuda {
namespace {

struct Heads {
  at::Tensor queries, keys, values;
};

/// Returns views of the rows of qkv. Cut: [N, heads, dim]. Even: [sequences, length, heads, dim].
Heads HeadsOf(const at::Tensor& qkv, const HeadLayout& layout, const Sequences& sequences, bool even) {
  const std::int64_t all = layout.heads + 2 * layout.kv_heads;
  const at::Tensor rows =
      even ? qkv.view({sequences.count(), -1, all, layout.head_dim}) : qkv.view({-1, all, layout.head_dim});
  return {rows.narrow(-2, 0, layout.heads), rows.narrow(-2, layout.heads, layout.kv_heads),
          rows.narrow(-2, layout.heads + layout.kv_heads, layout.kv_heads)};
}

/// Returns gradients of heads side by side in rows, as qkv has them.
at::Tensor RowsOf(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values, at::IntArrayRef sizes) {
  return at::cat({queries, keys, values}, -2).view(sizes);
}

/// Both kernels add the gradients of queries in any order, unless libtorch is told that all algorithms are
/// deterministic. A run that stops must go on with the same bits.
class FixedOrder {
 public:
  FixedOrder()
      : before_(Context().deterministicAlgorithms()), fills_(Context().deterministicFillUninitializedMemory()) {
    Context().setDeterministicAlgorithms(true, /*warn_only=*/false);
    Context().setDeterministicFillUninitializedMemory(false);
  }
  ~FixedOrder() {
    Context().setDeterministicAlgorithms(before_, /*warn_only=*/false);
    Context().setDeterministicFillUninitializedMemory(fills_);
  }
  FixedOrder(const FixedOrder&) = delete;
  FixedOrder& operator=(const FixedOrder&) = delete;

 private:
  static at::Context& Context() { return at::globalContext(); }
  const bool before_, fills_;
};

/// What the kernels are called with.
struct Plan {
  HeadLayout layout;
  Sequences sequences;
  AttentionRule rule;
  double scale() const { return rule.ScaleOf(layout.head_dim); }
};

// cuDNN takes [sequences, heads, length, dim], in any order in memory.
at::Tensor CudnnAttention(const at::Tensor& qkv, const Plan& plan) {
  const auto swapped = [](const at::Tensor& x) { return x.transpose(1, 2); };
  const Heads heads = HeadsOf(qkv.detach(), plan.layout, plan.sequences, /*even=*/true);
  const std::int64_t length = plan.sequences.longest();
  const bool recording = Recording({qkv});
  auto [out, lse, unused_q, unused_k, most_q, most_k, seed, offset, unused] = at::_cudnn_attention_forward(
      swapped(heads.queries), swapped(heads.keys), swapped(heads.values), std::nullopt, std::nullopt, std::nullopt,
      length, length, /*compute_log_sumexp=*/recording, /*dropout_p=*/0, plan.rule.causal,
      /*return_debug_mask=*/false, std::optional<double>(plan.scale()));
  at::Tensor result = swapped(out).reshape({qkv.size(0), plan.layout.heads * plan.layout.head_dim}).detach();
  if (recording) {
    Connect("Attention", {qkv}, {result},
            [qkv = qkv.detach(), out = out, lse = lse, seed = seed, offset = offset, plan,
             swapped](TensorList&& gradients) {
              const Heads kept = HeadsOf(qkv, plan.layout, plan.sequences, /*even=*/true);
              const at::Tensor dout =
                  gradients[0].view({plan.sequences.count(), -1, plan.layout.heads, plan.layout.head_dim});
              const std::int64_t most = plan.sequences.longest();
              const FixedOrder fixed_order;
              const auto [dq, dk, dv] = at::_cudnn_attention_backward(
                  swapped(dout), swapped(kept.queries), swapped(kept.keys), swapped(kept.values), out, lse, seed,
                  offset, at::Tensor(), at::Tensor(), at::Tensor(), most, most, /*dropout_p=*/0, plan.rule.causal,
                  std::optional<double>(plan.scale()));
              return TensorList{RowsOf(swapped(dq), swapped(dk), swapped(dv), qkv.sizes())};
            });
  }
  return result;
}

/// How many tokens before and behind its own a query sees, as flash attention is told; nothing: all that the rule lets
/// it see.
struct Window {
  std::optional<std::int64_t> left, right;
  explicit Window(const AttentionRule& rule) {
    if (rule.window == 0) return;
    left = rule.window - 1;
    right = 0;
  }
};

at::Tensor FlashAttention(const at::Tensor& qkv, const Plan& plan) {
  const bool even = plan.sequences.even();
  std::optional<at::Tensor> bounds;
  if (!even) bounds = plan.sequences.BoundsOn(qkv.device());
  const Window window(plan.rule);
  const Heads heads = HeadsOf(qkv.detach(), plan.layout, plan.sequences, even);
  const std::int64_t length = plan.sequences.longest();
  const std::optional<double> scale = plan.scale();
  auto [out, lse, seed, offset, unused] = at::_flash_attention_forward(
      heads.queries, heads.keys, heads.values, bounds, bounds, length, length,
      /*dropout_p=*/0, plan.rule.causal, /*return_debug_mask=*/false, scale, window.left, window.right);
  at::Tensor result = out.view({qkv.size(0), plan.layout.heads * plan.layout.head_dim}).detach();
  if (Recording({qkv})) {
    Connect("Attention", {qkv}, {result},
            [qkv = qkv.detach(), out = out, lse = lse, seed = seed, offset = offset, plan, even, bounds,
             window](TensorList&& gradients) {
              const Heads kept = HeadsOf(qkv, plan.layout, plan.sequences, even);
              const std::int64_t most = plan.sequences.longest();
              const FixedOrder fixed_order;
              const at::Tensor ends = bounds.value_or(at::Tensor());
              const auto [dq, dk, dv] = at::_flash_attention_backward(
                  gradients[0].contiguous().view(out.sizes()), kept.queries, kept.keys, kept.values, out, lse, ends,
                  ends, most, most, /*dropout_p=*/0, plan.rule.causal, seed, offset,
                  std::optional<double>(plan.scale()), window.left, window.right);
              return TensorList{RowsOf(dq, dk, dv, qkv.sizes())};
            });
  }
  return result;
}

/// libtorch's kernels cap no scores.
bool FlashTakes(at::ScalarType type, std::int64_t head_dim, const AttentionRule& rule) {
  return rule.softcap == 0 && type != at::kFloat && head_dim % 8 == 0 && head_dim <= 256;
}

/// Returns whether cuDNN computes both passes for heads of this size on this GPU. It has no windows.
bool CudnnTakes(const Plan& plan) {
  constexpr std::int64_t kMaxDim = 128;
  return plan.sequences.even() && plan.rule.window == 0 && plan.layout.head_dim <= kMaxDim &&
         at::cuda::getCurrentDeviceProperties()->major >= 9 && at::globalContext().userEnabledCuDNNSDP();
}

}  // namespace

at::Tensor KeptProbabilities(const DropoutSite& site, const HeadLayout& layout, std::int64_t begin, std::int64_t length,
                             at::Device device) {
  at::Tensor kept = at::empty({1, layout.heads, length, length}, at::device(device).dtype(at::kFloat));
  const cpu::DropoutRow kernel = KernelOf(site);
  const std::int64_t row = begin / site.rows.row_length;
  engine::cuda::FillKeptProbabilities(
      {.key = kernel.key,
       .threshold = kernel.threshold,
       .sample = static_cast<std::uint32_t>(site.rows.first_sample + static_cast<std::uint64_t>(row)),
       .scale = kernel.scale,
       .first_head = site.first_head,
       .heads = layout.heads,
       .first_position = begin % site.rows.row_length,
       .length = length},
      kept.data_ptr<float>(), c10::cuda::getCurrentCUDAStream());
  return kept;
}

at::Tensor Attention(const at::Tensor& qkv, const HeadLayout& layout, const Sequences& sequences,
                     const AttentionRule& rule, const DropoutSite& dropout) {
  if (!FlashTakes(qkv.scalar_type(), layout.head_dim, rule) || dropout.active()) {
    return reference::Attention(qkv, layout, sequences, rule, dropout);
  }
  const Plan plan{layout, sequences, rule};
  return CudnnTakes(plan) ? CudnnAttention(qkv, plan) : FlashAttention(qkv, plan);
}

at::Tensor AttendPrompts(const at::Tensor& qkv, const HeadLayout& layout, const Sequences& sequences,
                         const AttentionRule& rule) {
  if (!FlashTakes(qkv.scalar_type(), layout.head_dim, rule))
    return reference::Attention(qkv, layout, sequences, rule, {});
  return FlashAttention(qkv, Plan{layout, sequences, rule});
}

at::Tensor AttendBehind(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                        const AttentionRule& rule) {
  const std::int64_t count = queries.size(0), total = keys.size(0), dim = queries.size(2);
  if (!FlashTakes(queries.scalar_type(), dim, rule)) {
    const auto heads_first = [](const at::Tensor& x) { return x.transpose(0, 1).unsqueeze(0); };
    return reference::AttendCached(heads_first(queries), heads_first(keys), heads_first(values), rule).squeeze(0);
  }
  const Window window(rule);
  // With fewer queries than keys, the kernel takes the queries as the last tokens.
  const auto [out, lse, seed, offset, unused] = at::_flash_attention_forward(
      queries.unsqueeze(0), keys.unsqueeze(0), values.unsqueeze(0), std::nullopt, std::nullopt, count, total,
      /*dropout_p=*/0, rule.causal, /*return_debug_mask=*/false, std::optional<double>(rule.ScaleOf(dim)), window.left,
      window.right);
  return out.view({count, -1});
}

}  // namespace millrace::engine::ops::cuda
