#include <cmath>

#include "millrace/engine/ops/cpu/rows_kernel.h"

namespace millrace::engine::cpu {
namespace {

MR_INLINE float MaxOf(const float* __restrict x, std::int64_t n) {
  float most = x[0];
#pragma omp simd reduction(max : most)
  for (std::int64_t j = 0; j < n; ++j) most = x[j] > most ? x[j] : most;
  return most;
}

template <class T>
MR_INLINE void UnpackBody(const float* x, T* out, std::int64_t stride, std::int64_t rows, std::int64_t n,
                          const float* divisors, float factor) {
  for (std::int64_t row = 0; row < rows; ++row) {
    const float* __restrict from = x + row * n;
    T* __restrict to = out + row * stride;
    const float scale = divisors != nullptr ? factor / divisors[row] : factor;
#pragma omp simd
    for (std::int64_t j = 0; j < n; ++j) to[j] = FromFloat<T>(from[j] * scale);
  }
}

template <class T>
MR_INLINE void SoftmaxBody(const float* scores, T* out, std::int64_t rows, const VisibleKeys& visible, float* sums,
                           float* lse) {
  for (std::int64_t row = 0; row < rows; ++row) {
    const float* s = scores + row * visible.stride();
    T* p = out + row * visible.stride();
    const std::int64_t begin = visible.begin(row), end = visible.end(row);
    const float most = MaxOf(s + begin, end - begin);
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (std::int64_t j = begin; j < end; ++j) {
      const float weight = Exp(s[j] - most);
      sum += weight;
      p[j] = FromFloat<T>(weight);
    }
    std::fill(p, p + begin, T{});
    std::fill(p + end, p + visible.keys, T{});
    sums[row] = sum;
    lse[row] = most + std::log(sum);
  }
}

/// SoftmaxBackward for one row of capped scores. The slope of a cap follows from what it made of a score. So the scores
/// stay until the second loop, which computes the probabilities again.
template <class T>
MR_INLINE void CappedRowBackward(const float* s, const float* d, T* p, T* ds, std::int64_t begin, std::int64_t end,
                                 float shift, float softcap) {
  const float inverse = 1 / softcap;
  float dot = 0;
#pragma omp simd reduction(+ : dot)
  for (std::int64_t j = begin; j < end; ++j) dot += Exp(s[j] - shift) * d[j];
#pragma omp simd
  for (std::int64_t j = begin; j < end; ++j) {
    const float probability = Exp(s[j] - shift), part = s[j] * inverse;
    ds[j] = FromFloat<T>(probability * (d[j] - dot) * (1 - part * part));
    p[j] = FromFloat<T>(probability);
  }
}

template <class T>
MR_INLINE void SoftmaxBackwardBody(const float* scores, const float* dprobabilities, T* probabilities, T* dscores,
                                   std::int64_t rows, const VisibleKeys& visible, const float* lse, float softcap) {
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t offset = row * visible.stride(), begin = visible.begin(row), end = visible.end(row);
    const float* s = scores + offset;
    const float* d = dprobabilities + offset;
    T* p = probabilities + offset;
    T* ds = dscores + offset;
    const float shift = lse[row];
    if (softcap > 0) {
      CappedRowBackward(s, d, p, ds, begin, end, shift, softcap);
    } else {
      float dot = 0;
#pragma omp simd reduction(+ : dot)
      for (std::int64_t j = begin; j < end; ++j) {
        const float probability = Exp(s[j] - shift);
        dot += probability * d[j];
        p[j] = FromFloat<T>(probability);
      }
#pragma omp simd
      for (std::int64_t j = begin; j < end; ++j) ds[j] = FromFloat<T>(ToFloat(p[j]) * (d[j] - dot));
    }
    for (T* const x : {p, ds}) {
      std::fill(x, x + begin, T{});
      std::fill(x + end, x + visible.keys, T{});
    }
  }
}

}  // namespace

#define MR_SOFTMAX(T)                                                                                                 \
  MR_SIMD static void Softmax##T(const float* scores, T* out, std::int64_t rows, const VisibleKeys& visible,          \
                                 float* sums, float* lse) {                                                           \
    SoftmaxBody(scores, out, rows, visible, sums, lse);                                                               \
  }                                                                                                                   \
  MR_SIMD static void SoftmaxBackward##T(const float* scores, const float* dprobabilities, T* probabilities,          \
                                         T* dscores, std::int64_t rows, const VisibleKeys& visible, const float* lse, \
                                         float softcap) {                                                             \
    SoftmaxBackwardBody(scores, dprobabilities, probabilities, dscores, rows, visible, lse, softcap);                 \
  }                                                                                                                   \
  template <>                                                                                                         \
  void Softmax(const float* scores, T* out, std::int64_t rows, const VisibleKeys& visible, float* sums, float* lse) { \
    Softmax##T(scores, out, rows, visible, sums, lse);                                                                \
  }                                                                                                                   \
  template <>                                                                                                         \
  void SoftmaxBackward(const float* scores, const float* dprobabilities, T* probabilities, T* dscores,                \
                       std::int64_t rows, const VisibleKeys& visible, const float* lse, float softcap) {              \
    SoftmaxBackward##T(scores, dprobabilities, probabilities, dscores, rows, visible, lse, softcap);                  \
  }
MR_SOFTMAX(float)
MR_SOFTMAX(Bf16)
#undef MR_SOFTMAX

MR_SIMD void CapScores(float* scores, std::int64_t rows, const VisibleKeys& visible, float softcap) {
  for (std::int64_t row = 0; row < rows; ++row) {
    float* const s = scores + row * visible.stride();
#pragma omp simd
    for (std::int64_t j = visible.begin(row); j < visible.end(row); ++j) s[j] = Capped(s[j], softcap);
  }
}

MR_SIMD void PackRows(const Bf16* x, std::int64_t x_stride, float* out, std::int64_t rows, std::int64_t columns) {
  for (std::int64_t row = 0; row < rows; ++row) {
    const Bf16* __restrict from = x + row * x_stride;
    float* __restrict to = out + row * columns;
#pragma omp simd
    for (std::int64_t j = 0; j < columns; ++j) to[j] = ToFloat(from[j]);
  }
}

MR_SIMD static void UnpackF32(const float* x, float* out, std::int64_t stride, std::int64_t rows, std::int64_t columns,
                              const float* divisors, float factor) {
  UnpackBody(x, out, stride, rows, columns, divisors, factor);
}
MR_SIMD static void UnpackBf16(const float* x, Bf16* out, std::int64_t stride, std::int64_t rows, std::int64_t columns,
                               const float* divisors, float factor) {
  UnpackBody(x, out, stride, rows, columns, divisors, factor);
}
template <>
void UnpackRows(const float* x, float* out, std::int64_t out_stride, std::int64_t rows, std::int64_t columns,
                const float* divisors, float factor) {
  UnpackF32(x, out, out_stride, rows, columns, divisors, factor);
}
template <>
void UnpackRows(const float* x, Bf16* out, std::int64_t out_stride, std::int64_t rows, std::int64_t columns,
                const float* divisors, float factor) {
  UnpackBf16(x, out, out_stride, rows, columns, divisors, factor);
}

}  // namespace millrace::engine::cpu
