// Causal attention on a CPU. A thread takes a row's key-value head and walks over blocks of queries; a block's scores
// against all keys up to its diagonal fit the cache, so softmax is exact in one go and nothing of size length² is
// stored. The backward pass recomputes the scores from queries, keys and the saved log-sum-exp (Dao et al. 2022).
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

/// Where a head's rows lie in [N, columns].
struct HeadView {
  const HeadLayout& layout;
  std::int64_t Query(std::int64_t row, std::int64_t head) const {
    return row * layout.length * layout.columns() + head * layout.head_dim;
  }
  std::int64_t Key(std::int64_t row, std::int64_t kv_head) const { return Query(row, layout.heads + kv_head); }
  std::int64_t Value(std::int64_t row, std::int64_t kv_head) const { return Key(row, layout.kv_heads + kv_head); }
  std::int64_t Out(std::int64_t row, std::int64_t head) const {
    return row * layout.length * layout.heads * layout.head_dim + head * layout.head_dim;
  }
  std::int64_t Lse(std::int64_t row, std::int64_t head) const { return (row * layout.heads + head) * layout.length; }
};

/// One thread's workspace, in float32.
struct Scratch {
  std::vector<float> keys, values, queries, dout, scores, dscores, block, dkeys, dvalues, sums;
  Scratch(const HeadLayout& layout, bool backward)
      : keys(layout.length * layout.head_dim),
        values(keys.size()),
        queries(kQueryBlock * layout.head_dim),
        scores(kQueryBlock * layout.length),
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
void ForwardHead(const T* qkv, T* out, float* lse, const HeadLayout& layout, std::int64_t row, std::int64_t kv_head,
                 Scratch& s) {
  const HeadView at{layout};
  const std::int64_t dim = layout.head_dim, stride = layout.columns(), group = layout.heads / layout.kv_heads;
  const float scale = 1 / std::sqrt(static_cast<float>(dim));
  cpu::PackRows(qkv + at.Key(row, kv_head), stride, s.keys.data(), layout.length, dim, 1);
  cpu::PackRows(qkv + at.Value(row, kv_head), stride, s.values.data(), layout.length, dim, 1);
  for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    for (std::int64_t first = 0; first < layout.length; first += kQueryBlock) {
      const std::int64_t count = std::min(kQueryBlock, layout.length - first), keys = first + count;
      cpu::PackRows(qkv + at.Query(row, head) + first * stride, stride, s.queries.data(), count, dim, scale);
      Multiply({s.queries.data(), dim}, {s.keys.data(), dim, true}, 0, s.scores.data(), count, keys, dim);
      cpu::CausalSoftmax(s.scores.data(), count, keys, first, s.sums.data(), lse + at.Lse(row, head) + first);
      Multiply({s.scores.data(), keys}, {s.values.data(), dim}, 0, s.block.data(), count, dim, keys);
      const std::int64_t out_stride = layout.heads * dim;
      cpu::UnpackRows(s.block.data(), out + at.Out(row, head) + first * out_stride, out_stride, count, dim,
                      s.sums.data(), 1);
    }
  }
}

template <class T>
void BackwardHead(const T* dout, const T* qkv, const float* lse, T* dqkv, const HeadLayout& layout, std::int64_t row,
                  std::int64_t kv_head, Scratch& s) {
  const HeadView at{layout};
  const std::int64_t dim = layout.head_dim, stride = layout.columns(), group = layout.heads / layout.kv_heads;
  const std::int64_t out_stride = layout.heads * dim;
  const float scale = 1 / std::sqrt(static_cast<float>(dim));
  cpu::PackRows(qkv + at.Key(row, kv_head), stride, s.keys.data(), layout.length, dim, 1);
  cpu::PackRows(qkv + at.Value(row, kv_head), stride, s.values.data(), layout.length, dim, 1);
  std::ranges::fill(s.dkeys, 0.0F);
  std::ranges::fill(s.dvalues, 0.0F);
  for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    for (std::int64_t first = 0; first < layout.length; first += kQueryBlock) {
      const std::int64_t count = std::min(kQueryBlock, layout.length - first), keys = first + count;
      cpu::PackRows(qkv + at.Query(row, head) + first * stride, stride, s.queries.data(), count, dim, scale);
      cpu::PackRows(dout + at.Out(row, head) + first * out_stride, out_stride, s.dout.data(), count, dim, 1);
      Multiply({s.queries.data(), dim}, {s.keys.data(), dim, true}, 0, s.scores.data(), count, keys, dim);
      Multiply({s.dout.data(), dim}, {s.values.data(), dim, true}, 0, s.dscores.data(), count, keys, dim);
      cpu::CausalSoftmaxBackward(s.scores.data(), s.dscores.data(), count, keys, first,
                                 lse + at.Lse(row, head) + first);
      Multiply({s.scores.data(), keys, true}, {s.dout.data(), dim}, 1, s.dvalues.data(), keys, dim, count);
      Multiply({s.dscores.data(), keys, true}, {s.queries.data(), dim}, 1, s.dkeys.data(), keys, dim, count);
      Multiply({s.dscores.data(), keys}, {s.keys.data(), dim}, 0, s.block.data(), count, dim, keys);
      cpu::UnpackRows(s.block.data(), dqkv + at.Query(row, head) + first * stride, stride, count, dim, nullptr, scale);
    }
  }
  cpu::UnpackRows(s.dkeys.data(), dqkv + at.Key(row, kv_head), stride, layout.length, dim, nullptr, 1);
  cpu::UnpackRows(s.dvalues.data(), dqkv + at.Value(row, kv_head), stride, layout.length, dim, nullptr, 1);
}

template <class Work>
void ParallelHeads(const HeadLayout& layout, bool backward, Work&& work) {
  at::parallel_for(0, layout.rows * layout.kv_heads, 1, [&](std::int64_t begin, std::int64_t end) {
    Scratch scratch(layout, backward);
    for (std::int64_t i = begin; i < end; ++i) work(i / layout.kv_heads, i % layout.kv_heads, scratch);
  });
}

at::Tensor AttentionBackward(const at::Tensor& dout, const at::Tensor& qkv, const at::Tensor& lse,
                             const HeadLayout& layout) {
  at::Tensor dqkv = at::empty_like(qkv);
  DispatchType(qkv, [&]<class T>(T) {
    ParallelHeads(layout, true, [&](std::int64_t row, std::int64_t kv_head, Scratch& scratch) {
      BackwardHead(Data<T>(dout), Data<T>(qkv), Data<float>(lse), Data<T>(dqkv), layout, row, kv_head, scratch);
    });
  });
  return dqkv;
}

}  // namespace

at::Tensor CausalAttention(const at::Tensor& qkv, const HeadLayout& layout) {
  if (!HasFused(qkv)) return reference::CausalAttention(qkv, layout);
  at::Tensor out = at::empty({qkv.size(0), layout.heads * layout.head_dim}, qkv.options());
  const at::Tensor lse = at::empty({layout.rows, layout.heads, layout.length}, at::kFloat);
  DispatchType(qkv, [&]<class T>(T) {
    ParallelHeads(layout, false, [&](std::int64_t row, std::int64_t kv_head, Scratch& scratch) {
      ForwardHead(Data<T>(qkv), Data<T>(out), Data<float>(lse), layout, row, kv_head, scratch);
    });
  });
  if (Recording({qkv})) {
    Connect("CausalAttention", {qkv}, {out}, [qkv = qkv.detach(), lse, layout](TensorList&& gradients) {
      return TensorList{AttentionBackward(gradients[0].contiguous(), qkv, lse, layout)};
    });
  }
  return out;
}

}  // namespace millrace::engine::ops
