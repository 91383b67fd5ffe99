// Causal attention on a CPU. A thread takes one key-value head of a sequence and walks over blocks of queries. The
// scores of a block against all keys up to its diagonal fit the cache, so softmax needs one pass, and nothing of size
// length² is stored. The backward pass recomputes the scores from queries, keys and the saved log-sum-exp (Dao et al.
// 2022).
#include <algorithm>
#include <atomic>
#include <cmath>

#include "millrace/engine/ops/dispatch.h"
#include "millrace/engine/ops/node.h"
#include "millrace/engine/ops/ops.h"
#include "millrace/engine/ops/reference.h"

extern "C" void sgemm_(const char* transa, const char* transb, const int* m, const int* n, const int* k,
                       const float* alpha, const float* a, const int* lda, const float* b, const int* ldb,
                       const float* beta, float* c, const int* ldc);

namespace millrace::engine::ops {
namespace {

/// Queries in a block. [64, length] scores are one BLAS product of good size, and fit a core's cache for thousands of
/// keys.
constexpr std::int64_t kQueryBlock = 64;

/// A dense row-major matrix, read as its transpose where `transposed`.
struct Matrix {
  const float* data;
  std::int64_t columns;
  bool transposed = false;
};
/// c [m, n] = a [m, k] · b [k, n] + beta · c. BLAS is column-major, so it is handed the transposed product.
void Multiply(Matrix a, Matrix b, float beta, float* c, std::int64_t m, std::int64_t n, std::int64_t k) {
  const float one = 1;
  const int rows = static_cast<int>(m), columns = static_cast<int>(n), inner = static_cast<int>(k);
  const int lda = static_cast<int>(a.columns), ldb = static_cast<int>(b.columns);
  sgemm_(b.transposed ? "T" : "N", a.transposed ? "T" : "N", &columns, &rows, &inner, &one, b.data, &ldb, a.data, &lda,
         &beta, c, &columns);
}

/// The unit of work of a thread: one key-value head of one sequence, with the query heads that share it.
struct HeadTask {
  const HeadLayout& layout;
  std::int64_t tokens, begin, length, kv_head;  ///< of all sequences, and of this one

  std::int64_t group() const { return layout.heads / layout.kv_heads; }
  // Offsets of the sequence's first row in [N, columns], [N, heads·head_dim] and [heads, N].
  std::int64_t Query(std::int64_t head) const { return begin * layout.columns() + head * layout.head_dim; }
  std::int64_t Key() const { return Query(layout.heads + kv_head); }
  std::int64_t Value() const { return Query(layout.heads + layout.kv_heads + kv_head); }
  std::int64_t Out(std::int64_t head) const { return (begin * layout.heads + head) * layout.head_dim; }
  std::int64_t Lse(std::int64_t head) const { return head * tokens + begin; }
};

/// One thread's workspace, in float32.
struct Scratch {
  std::vector<float> keys, values, queries, dout, scores, dscores, block, dkeys, dvalues, sums;
  Scratch(std::int64_t longest, const HeadLayout& layout, bool backward)
      : keys(longest * layout.head_dim),
        values(keys.size()),
        queries(kQueryBlock * layout.head_dim),
        scores(kQueryBlock * longest),
        block(queries.size()),
        sums(kQueryBlock) {
    if (!backward) return;
    dout.resize(queries.size());
    dscores.resize(scores.size());
    dkeys.resize(keys.size());
    dvalues.resize(values.size());
  }
};

template <class T>
void ForwardHead(const T* qkv, T* out, float* lse, const HeadTask& at, Scratch& s) {
  const std::int64_t dim = at.layout.head_dim, stride = at.layout.columns(), out_stride = at.layout.heads * dim;
  const float scale = 1 / std::sqrt(static_cast<float>(dim));
  cpu::PackRows(qkv + at.Key(), stride, s.keys.data(), at.length, dim, 1);
  cpu::PackRows(qkv + at.Value(), stride, s.values.data(), at.length, dim, 1);
  for (std::int64_t head = at.kv_head * at.group(); head < (at.kv_head + 1) * at.group(); ++head) {
    for (std::int64_t first = 0; first < at.length; first += kQueryBlock) {
      const std::int64_t count = std::min(kQueryBlock, at.length - first), keys = first + count;
      cpu::PackRows(qkv + at.Query(head) + first * stride, stride, s.queries.data(), count, dim, scale);
      Multiply({s.queries.data(), dim}, {s.keys.data(), dim, true}, 0, s.scores.data(), count, keys, dim);
      cpu::CausalSoftmax(s.scores.data(), count, keys, first, s.sums.data(), lse + at.Lse(head) + first);
      Multiply({s.scores.data(), keys}, {s.values.data(), dim}, 0, s.block.data(), count, dim, keys);
      cpu::UnpackRows(s.block.data(), out + at.Out(head) + first * out_stride, out_stride, count, dim, s.sums.data(),
                      1);
    }
  }
}

template <class T>
void BackwardHead(const T* dout, const T* qkv, const float* lse, T* dqkv, const HeadTask& at, Scratch& s) {
  const std::int64_t dim = at.layout.head_dim, stride = at.layout.columns(), out_stride = at.layout.heads * dim;
  const float scale = 1 / std::sqrt(static_cast<float>(dim));
  cpu::PackRows(qkv + at.Key(), stride, s.keys.data(), at.length, dim, 1);
  cpu::PackRows(qkv + at.Value(), stride, s.values.data(), at.length, dim, 1);
  std::fill_n(s.dkeys.begin(), at.length * dim, 0.0F);
  std::fill_n(s.dvalues.begin(), at.length * dim, 0.0F);
  for (std::int64_t head = at.kv_head * at.group(); head < (at.kv_head + 1) * at.group(); ++head) {
    for (std::int64_t first = 0; first < at.length; first += kQueryBlock) {
      const std::int64_t count = std::min(kQueryBlock, at.length - first), keys = first + count;
      cpu::PackRows(qkv + at.Query(head) + first * stride, stride, s.queries.data(), count, dim, scale);
      cpu::PackRows(dout + at.Out(head) + first * out_stride, out_stride, s.dout.data(), count, dim, 1);
      Multiply({s.queries.data(), dim}, {s.keys.data(), dim, true}, 0, s.scores.data(), count, keys, dim);
      Multiply({s.dout.data(), dim}, {s.values.data(), dim, true}, 0, s.dscores.data(), count, keys, dim);
      cpu::CausalSoftmaxBackward(s.scores.data(), s.dscores.data(), count, keys, first, lse + at.Lse(head) + first);
      Multiply({s.scores.data(), keys, true}, {s.dout.data(), dim}, 1, s.dvalues.data(), keys, dim, count);
      Multiply({s.dscores.data(), keys, true}, {s.queries.data(), dim}, 1, s.dkeys.data(), keys, dim, count);
      Multiply({s.dscores.data(), keys}, {s.keys.data(), dim}, 0, s.block.data(), count, dim, keys);
      cpu::UnpackRows(s.block.data(), dqkv + at.Query(head) + first * stride, stride, count, dim, nullptr, scale);
    }
  }
  cpu::UnpackRows(s.dkeys.data(), dqkv + at.Key(), stride, at.length, dim, nullptr, 1);
  cpu::UnpackRows(s.dvalues.data(), dqkv + at.Value(), stride, at.length, dim, nullptr, 1);
}

/// Calls `work` once for each HeadTask. Each thread takes the next task when it is free, so that sequences of different
/// lengths keep all threads busy. No two tasks write the same memory, so the order does not change the results.
template <class Work>
void ForEachHead(const HeadLayout& layout, const Sequences& sequences, bool backward, Work&& work) {
  const std::int64_t tasks = sequences.count() * layout.kv_heads;
  std::atomic<std::int64_t> next = 0;
  at::parallel_for(0, std::min<std::int64_t>(tasks, at::get_num_threads()), 1, [&](std::int64_t, std::int64_t) {
    Scratch scratch(sequences.longest(), layout, backward);
    for (std::int64_t i = next++; i < tasks; i = next++) {
      const std::int64_t sequence = sequences.longest_first()[static_cast<std::size_t>(i / layout.kv_heads)];
      work(HeadTask{layout, sequences.tokens(), sequences.begin(sequence), sequences.length(sequence),
                    i % layout.kv_heads},
           scratch);
    }
  });
}

at::Tensor AttentionBackward(const at::Tensor& dout, const at::Tensor& qkv, const at::Tensor& lse,
                             const HeadLayout& layout, const Sequences& sequences) {
  at::Tensor dqkv = at::empty_like(qkv);
  DispatchType(qkv, [&]<class T>(T) {
    ForEachHead(layout, sequences, true, [&](const HeadTask& task, Scratch& scratch) {
      BackwardHead(Data<T>(dout), Data<T>(qkv), Data<float>(lse), Data<T>(dqkv), task, scratch);
    });
  });
  return dqkv;
}

}  // namespace

at::Tensor CausalAttention(const at::Tensor& qkv, const HeadLayout& layout, const Sequences& sequences) {
  TORCH_CHECK(qkv.size(0) == sequences.tokens(), qkv.size(0), " rows are not ", sequences.tokens(), " tokens");
  if (!HasFused(qkv)) return reference::CausalAttention(qkv, layout, sequences);
  at::Tensor out = at::empty({qkv.size(0), layout.heads * layout.head_dim}, qkv.options());
  const at::Tensor lse = at::empty({layout.heads, sequences.tokens()}, at::kFloat);
  DispatchType(qkv, [&]<class T>(T) {
    ForEachHead(layout, sequences, false, [&](const HeadTask& task, Scratch& scratch) {
      ForwardHead(Data<T>(qkv), Data<T>(out), Data<float>(lse), task, scratch);
    });
  });
  if (Recording({qkv})) {
    Connect("CausalAttention", {qkv}, {out}, [qkv = qkv.detach(), lse, layout, sequences](TensorList&& gradients) {
      return TensorList{AttentionBackward(gradients[0].contiguous(), qkv, lse, layout, sequences)};
    });
  }
  return out;
}

}  // namespace millrace::engine::ops
