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
MR_INLINE void PackBody(const T* x, std::int64_t stride, float* out, std::int64_t rows, std::int64_t n, float factor) {
  for (std::int64_t row = 0; row < rows; ++row) {
    const T* __restrict from = x + row * stride;
    float* __restrict to = out + row * n;
#pragma omp simd
    for (std::int64_t j = 0; j < n; ++j) to[j] = ToFloat(from[j]) * factor;
  }
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

}  // namespace

MR_SIMD void Softmax(float* scores, std::int64_t rows, const VisibleKeys& visible, float* sums, float* lse) {
  for (std::int64_t row = 0; row < rows; ++row) {
    float* __restrict s = scores + row * visible.keys;
    const std::int64_t begin = visible.begin(row), end = visible.end(row);
    const float most = MaxOf(s + begin, end - begin);
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (std::int64_t j = begin; j < end; ++j) {
      s[j] = Exp(s[j] - most);
      sum += s[j];
    }
    for (std::int64_t j = 0; j < begin; ++j) s[j] = 0;
    for (std::int64_t j = end; j < visible.keys; ++j) s[j] = 0;
    sums[row] = sum;
    lse[row] = most + std::log(sum);
  }
}

MR_SIMD void SoftmaxBackward(float* scores, float* dprobabilities, std::int64_t rows, const VisibleKeys& visible,
                             const float* lse) {
  for (std::int64_t row = 0; row < rows; ++row) {
    float* __restrict p = scores + row * visible.keys;
    float* __restrict d = dprobabilities + row * visible.keys;
    const std::int64_t begin = visible.begin(row), end = visible.end(row);
    const float shift = lse[row];
    float dot = 0;
#pragma omp simd reduction(+ : dot)
    for (std::int64_t j = begin; j < end; ++j) {
      p[j] = Exp(p[j] - shift);
      dot += p[j] * d[j];
    }
#pragma omp simd
    for (std::int64_t j = begin; j < end; ++j) d[j] = p[j] * (d[j] - dot);
    for (std::int64_t j = 0; j < begin; ++j) p[j] = d[j] = 0;
    for (std::int64_t j = end; j < visible.keys; ++j) p[j] = d[j] = 0;
  }
}

MR_SIMD static void PackF32(const float* x, std::int64_t stride, float* out, std::int64_t rows, std::int64_t columns,
                            float factor) {
  PackBody(x, stride, out, rows, columns, factor);
}
MR_SIMD static void PackBf16(const Bf16* x, std::int64_t stride, float* out, std::int64_t rows, std::int64_t columns,
                             float factor) {
  PackBody(x, stride, out, rows, columns, factor);
}
template <>
void PackRows(const float* x, std::int64_t x_stride, float* out, std::int64_t rows, std::int64_t columns,
              float factor) {
  PackF32(x, x_stride, out, rows, columns, factor);
}
template <>
void PackRows(const Bf16* x, std::int64_t x_stride, float* out, std::int64_t rows, std::int64_t columns, float factor) {
  PackBf16(x, x_stride, out, rows, columns, factor);
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
