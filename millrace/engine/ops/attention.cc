// Attention on a CPU. A thread takes one key-value head of a sequence and walks over blocks of queries. The
// scores of a block against all keys that it sees fit the cache, so softmax needs one pass, and nothing of size
// length² is stored. The backward pass recomputes the scores from queries, keys and the saved log-sum-exp (Dao et al.
// 2022).
#include <algorithm>
#include <atomic>
#include <cmath>

#include "millrace/engine/ops/attention.h"

#include "millrace/engine/ops/common/node.h"
#include "millrace/engine/ops/cuda_ops.h"
#include "millrace/engine/ops/dispatch.h"
#include "millrace/engine/ops/product.h"
#include "millrace/engine/ops/reference.h"

namespace millrace::engine::ops {
namespace {

/// Queries in a block. [64, length] scores are one BLAS product of good size, and fit a core's cache for thousands of
/// keys.
constexpr std::int64_t kQueryBlock = 64;

/// What all threads share.
struct AttentionPlan {
  HeadLayout layout;
  Sequences sequences;
  AttentionRule rule;
  DropoutSite dropout;
};

/// The unit of work of a thread: one key-value head of one sequence, with the query heads that share it.
struct HeadTask {
  const AttentionPlan& plan;
  std::int64_t sequence, kv_head;

  const HeadLayout& layout() const { return plan.layout; }
  std::int64_t begin() const { return plan.sequences.begin(sequence); }
  std::int64_t length() const { return plan.sequences.length(sequence); }
  std::int64_t group() const { return layout().heads / layout().kv_heads; }
  // Offsets of the sequence's first row in [N, columns], [N, heads·head_dim] and [heads, N].
  std::int64_t Query(std::int64_t head) const { return begin() * layout().columns() + head * layout().head_dim; }
  std::int64_t Key() const { return Query(layout().heads + kv_head); }
  std::int64_t Value() const { return Query(layout().heads + layout().kv_heads + kv_head); }
  std::int64_t Out(std::int64_t head) const { return (begin() * layout().heads + head) * layout().head_dim; }
  std::int64_t Lse(std::int64_t head) const { return head * plan.sequences.tokens() + begin(); }
};

/// A block of queries of one head, and the keys that one of them at least sees.
struct QueryBlock {
  std::int64_t first, count;     ///< queries, counted within the sequence
  std::int64_t first_key, keys;  ///< counted within the sequence
  cpu::VisibleKeys visible;      ///< counted within the block's keys
  QueryBlock(const HeadTask& task, std::int64_t first_query)
      : first(first_query), count(std::min(kQueryBlock, task.length() - first_query)) {
    const AttentionRule& rule = task.plan.rule;
    first_key = rule.begin(first);
    keys = rule.end(first + count - 1, task.length()) - first_key;
    visible = {.keys = keys, .first_row = first - first_key, .window = rule.window, .causal = rule.causal};
  }
};

/// One thread's workspace. T is the type that the kernel multiplies; rows of the tensors are copied to it. Products of
/// T are added in float32. With float, the probabilities and the gradient of the scores take the place of what they are
/// computed from.
template <class T>
struct Scratch {
  static constexpr bool kInPlace = std::is_same_v<T, float>;
  std::vector<T> keys, values, queries, dout, rounded, drounded;
  std::vector<float> scores, dscores, block, dkeys, dvalues, sums;
  Scratch(std::int64_t longest, const HeadLayout& layout, bool backward)
      : keys(longest * layout.head_dim),
        values(keys.size()),
        queries(kQueryBlock * layout.head_dim),
        scores(kQueryBlock * cpu::VisibleKeys::Stride(longest)),
        block(queries.size()),
        sums(kQueryBlock) {
    if constexpr (!kInPlace) rounded.resize(scores.size());
    if (!backward) return;
    if constexpr (!kInPlace) drounded.resize(scores.size());
    dout.resize(queries.size());
    dscores.resize(scores.size());
    dkeys.resize(keys.size());
    dvalues.resize(values.size());
  }
  T* probabilities() {
    if constexpr (kInPlace) return scores.data();
    return rounded.data();
  }
  T* score_gradients() {
    if constexpr (kInPlace) return dscores.data();
    return drounded.data();
  }
};

/// Multiplies `rows` [block.count, block.keys], as far apart as scores, with the dropout's 0 or 1/(1-p).
template <class T>
void DropProbabilities(const HeadTask& task, const QueryBlock& block, std::int64_t head, T* rows) {
  const DropoutSite& site = task.plan.dropout;
  const cpu::DropoutRow kernel = KernelOf(site);
  const std::int64_t row_begin = task.begin() / site.rows.row_length * site.rows.row_length;
  const std::int64_t sample = static_cast<std::int64_t>(site.rows.first_sample) + task.begin() / site.rows.row_length;
  for (std::int64_t row = 0; row < block.count; ++row) {
    const auto position = static_cast<std::uint32_t>(task.begin() - row_begin + block.first + row);
    T* probabilities = rows + row * block.visible.stride();
    kernel.Run(probabilities, probabilities, block.first_key, block.keys, position, static_cast<std::uint32_t>(sample),
               static_cast<std::uint32_t>(site.first_head + head));
  }
}

// Element is the type of the tensors.
template <class Element, class T>
void ForwardHead(const Element* qkv, Element* out, float* lse, const HeadTask& task, Scratch<T>& s) {
  const HeadLayout& layout = task.layout();
  const std::int64_t dim = layout.head_dim, stride = layout.columns(), out_stride = layout.heads * dim;
  const auto scale = static_cast<float>(task.plan.rule.ScaleOf(dim)),
             softcap = static_cast<float>(task.plan.rule.softcap);
  cpu::PackRows(qkv + task.Key(), stride, s.keys.data(), task.length(), dim);
  cpu::PackRows(qkv + task.Value(), stride, s.values.data(), task.length(), dim);
  for (std::int64_t head = task.kv_head * task.group(); head < (task.kv_head + 1) * task.group(); ++head) {
    for (std::int64_t first = 0; first < task.length(); first += kQueryBlock) {
      const QueryBlock block(task, first);
      const std::int64_t count = block.count, keys = block.keys, skipped = block.first_key * dim;
      const std::int64_t between = block.visible.stride();
      T* const probabilities = s.probabilities();
      cpu::PackRows(qkv + task.Query(head) + first * stride, stride, s.queries.data(), count, dim);
      cpu::Multiply<T>(scale, {s.queries.data(), dim}, {s.keys.data() + skipped, dim, true}, 0, s.scores.data(),
                       {count, keys, dim, between});
      if (softcap > 0) cpu::CapScores(s.scores.data(), count, block.visible, softcap);
      cpu::Softmax(s.scores.data(), probabilities, count, block.visible, s.sums.data(), lse + task.Lse(head) + first);
      if (task.plan.dropout.active()) DropProbabilities(task, block, head, probabilities);
      cpu::Multiply<T>(1, {probabilities, between}, {s.values.data() + skipped, dim}, 0, s.block.data(),
                       {count, dim, keys});
      cpu::UnpackRows(s.block.data(), out + task.Out(head) + first * out_stride, out_stride, block.count, dim,
                      s.sums.data(), 1);
    }
  }
}

template <class Element, class T>
void BackwardHead(const Element* dout, const Element* qkv, const float* lse, Element* dqkv, const HeadTask& task,
                  Scratch<T>& s) {
  const HeadLayout& layout = task.layout();
  const std::int64_t dim = layout.head_dim, stride = layout.columns(), out_stride = layout.heads * dim;
  const auto scale = static_cast<float>(task.plan.rule.ScaleOf(dim)),
             softcap = static_cast<float>(task.plan.rule.softcap);
  cpu::PackRows(qkv + task.Key(), stride, s.keys.data(), task.length(), dim);
  cpu::PackRows(qkv + task.Value(), stride, s.values.data(), task.length(), dim);
  std::fill_n(s.dkeys.begin(), task.length() * dim, 0.0F);
  std::fill_n(s.dvalues.begin(), task.length() * dim, 0.0F);
  for (std::int64_t head = task.kv_head * task.group(); head < (task.kv_head + 1) * task.group(); ++head) {
    for (std::int64_t first = 0; first < task.length(); first += kQueryBlock) {
      const QueryBlock block(task, first);
      const std::int64_t count = block.count, keys = block.keys, skipped = block.first_key * dim;
      const std::int64_t between = block.visible.stride();
      T *const probabilities = s.probabilities(), *const dscores = s.score_gradients();
      cpu::PackRows(qkv + task.Query(head) + first * stride, stride, s.queries.data(), count, dim);
      cpu::PackRows(dout + task.Out(head) + first * out_stride, out_stride, s.dout.data(), count, dim);
      cpu::Multiply<T>(scale, {s.queries.data(), dim}, {s.keys.data() + skipped, dim, true}, 0, s.scores.data(),
                       {count, keys, dim, between});
      if (softcap > 0) cpu::CapScores(s.scores.data(), count, block.visible, softcap);
      cpu::Multiply<T>(1, {s.dout.data(), dim}, {s.values.data() + skipped, dim, true}, 0, s.dscores.data(),
                       {count, keys, dim, between});
      if (task.plan.dropout.active()) DropProbabilities(task, block, head, s.dscores.data());
      cpu::SoftmaxBackward(s.scores.data(), s.dscores.data(), probabilities, dscores, count, block.visible,
                           lse + task.Lse(head) + first, softcap);
      cpu::Multiply<T>(scale, {dscores, between, true}, {s.queries.data(), dim}, 1, s.dkeys.data() + skipped,
                       {keys, dim, count});
      cpu::Multiply<T>(1, {dscores, between}, {s.keys.data() + skipped, dim}, 0, s.block.data(), {count, dim, keys});
      cpu::UnpackRows(s.block.data(), dqkv + task.Query(head) + first * stride, stride, count, dim, nullptr, scale);
      if (task.plan.dropout.active()) DropProbabilities(task, block, head, probabilities);
      cpu::Multiply<T>(1, {probabilities, between, true}, {s.dout.data(), dim}, 1, s.dvalues.data() + skipped,
                       {keys, dim, count});
    }
  }
  cpu::UnpackRows(s.dkeys.data(), dqkv + task.Key(), stride, task.length(), dim, nullptr, 1);
  cpu::UnpackRows(s.dvalues.data(), dqkv + task.Value(), stride, task.length(), dim, nullptr, 1);
}

/// Calls `work` once for each HeadTask. Each thread takes the next task when it is free, so that sequences of different
/// lengths keep all threads busy. No two tasks write the same memory, so the order does not change the results.
template <class T, class Work>
void ForEachHead(const AttentionPlan& plan, bool backward, Work&& work) {
  const std::int64_t tasks = plan.sequences.count() * plan.layout.kv_heads;
  std::atomic<std::int64_t> next = 0;
  at::parallel_for(0, std::min<std::int64_t>(tasks, at::get_num_threads()), 1, [&](std::int64_t, std::int64_t) {
    Scratch<T> scratch(plan.sequences.longest(), plan.layout, backward);
    for (std::int64_t i = next++; i < tasks; i = next++) {
      const auto nth = static_cast<std::size_t>(i / plan.layout.kv_heads);
      work(HeadTask{plan, plan.sequences.longest_first()[nth], i % plan.layout.kv_heads}, scratch);
    }
  });
}

template <class Element, class T>
at::Tensor AttentionBackward(const at::Tensor& dout, const at::Tensor& qkv, const at::Tensor& lse,
                             const AttentionPlan& plan) {
  const at::Tensor dqkv = at::empty_like(qkv);
  ForEachHead<T>(plan, true, [&](const HeadTask& task, Scratch<T>& scratch) {
    BackwardHead(Data<Element>(dout), Data<Element>(qkv), Data<float>(lse), Data<Element>(dqkv), task, scratch);
  });
  return dqkv;
}

/// For tensors of type Element. Multiplies in type T.
template <class Element, class T>
at::Tensor FusedAttention(const at::Tensor& qkv, const HeadLayout& layout, const Sequences& sequences,
                          const AttentionRule& rule, const DropoutSite& dropout) {
  const AttentionPlan plan{layout, sequences, rule, dropout};
  at::Tensor out = at::empty({qkv.size(0), layout.heads * layout.head_dim}, qkv.options());
  const at::Tensor lse = at::empty({layout.heads, sequences.tokens()}, at::kFloat);
  ForEachHead<T>(plan, false, [&](const HeadTask& task, Scratch<T>& scratch) {
    ForwardHead(Data<Element>(qkv), Data<Element>(out), Data<float>(lse), task, scratch);
  });
  if (Recording({qkv})) {
    Connect("Attention", {qkv}, {out}, [qkv = qkv.detach(), lse, plan](TensorList&& gradients) {
      return TensorList{AttentionBackward<Element, T>(gradients[0].contiguous(), qkv, lse, plan)};
    });
  }
  return out;
}

}  // namespace

at::Tensor Attention(const at::Tensor& qkv, const HeadLayout& layout, const Sequences& sequences,
                     const AttentionRule& rule, const DropoutSite& dropout) {
  static const auto kernels =
      AndOnCuda(OnCpu("Attention", reference::Attention, FusedAttention<float, float>,
                      cpu::MultipliesBf16() ? FusedAttention<cpu::Bf16, cpu::Bf16> : FusedAttention<cpu::Bf16, float>),
                InCuda<cuda::Attention>());
  TORCH_CHECK(qkv.size(0) == sequences.tokens(), qkv.size(0), " rows are not ", sequences.tokens(), " tokens");
  return kernels.For(qkv)(qkv, layout, sequences, rule, dropout);
}

}  // namespace millrace::engine::ops
