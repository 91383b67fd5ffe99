#include <cmath>
#include <type_traits>

#include "millrace/engine/ops/cpu/rows_kernel.h"

namespace millrace::engine::cpu {
namespace {

/// Writes x + delta of a row, and returns the row that the norm is of: the sum, or x if there is no delta.
template <class Op>
MR_INLINE auto SumRow(const Op& op, std::int64_t row) -> decltype(op.x) {
  using T = std::remove_pointer_t<decltype(op.sum)>;
  const std::int64_t n = op.columns;
  if (op.delta == nullptr) return op.x + row * n;
  const T* __restrict x = op.x + row * n;
  const T* __restrict delta = op.delta + row * n;
  T* __restrict sum = op.sum + row * n;
#pragma omp simd
  for (std::int64_t j = 0; j < n; ++j) sum[j] = FromFloat<T>(ToFloat(x[j]) + ToFloat(delta[j]));
  return sum;
}

template <class T>
MR_INLINE void RmsNormForwardBody(const RmsNormForward<T>& op, Rows rows) {
  const std::int64_t n = op.columns;
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    const T* __restrict x = SumRow(op, row);
    float squares = 0;
#pragma omp simd reduction(+ : squares)
    for (std::int64_t j = 0; j < n; ++j) squares += ToFloat(x[j]) * ToFloat(x[j]);
    const float rstd = 1 / std::sqrt(squares / static_cast<float>(n) + op.eps);
    op.rstd[row] = rstd;
    T* __restrict out = op.out + row * n;
    if (op.offset != 0) {
#pragma omp simd
      for (std::int64_t j = 0; j < n; ++j)
        out[j] = FromFloat<T>((op.offset + ToFloat(op.weight[j])) * (ToFloat(x[j]) * rstd));
      continue;
    }
#pragma omp simd
    for (std::int64_t j = 0; j < n; ++j) {
      out[j] = FromFloat<T>(ToFloat(op.weight[j]) * ToFloat(FromFloat<T>(ToFloat(x[j]) * rstd)));
    }
  }
}

template <class T>
MR_INLINE void RmsNormBackwardBody(const RmsNormBackward<T>& op, Rows rows, float* __restrict weight_gradient) {
  const std::int64_t n = op.columns;
  const T* __restrict weight = op.weight;
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    const T* __restrict dout = op.dout + row * n;
    const T* __restrict x = op.x + row * n;
    T* __restrict dx = op.dx + row * n;
    const float rstd = op.rstd[row];
    float dot = 0;
#pragma omp simd reduction(+ : dot)
    for (std::int64_t j = 0; j < n; ++j) dot += ToFloat(dout[j]) * (op.offset + ToFloat(weight[j])) * ToFloat(x[j]);
    const float mean = dot * rstd * rstd / static_cast<float>(n);
    const auto through = [&](std::int64_t j) {
      weight_gradient[j] += ToFloat(dout[j]) * ToFloat(x[j]) * rstd;
      return rstd * (ToFloat(dout[j]) * (op.offset + ToFloat(weight[j])) - ToFloat(x[j]) * mean);
    };
    if (op.dsum == nullptr) {
#pragma omp simd
      for (std::int64_t j = 0; j < n; ++j) dx[j] = FromFloat<T>(through(j));
    } else {
      const T* __restrict dsum = op.dsum + row * n;
#pragma omp simd
      for (std::int64_t j = 0; j < n; ++j) dx[j] = FromFloat<T>(through(j) + ToFloat(dsum[j]));
    }
  }
}

template <class T>
MR_INLINE void LayerNormForwardBody(const LayerNormForward<T>& op, Rows rows) {
  const std::int64_t n = op.columns;
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    const T* __restrict x = SumRow(op, row);
    float total = 0;
#pragma omp simd reduction(+ : total)
    for (std::int64_t j = 0; j < n; ++j) total += ToFloat(x[j]);
    const float mean = total / static_cast<float>(n);
    float squares = 0;  // of differences from the mean: a row's mean may be much larger than its spread
#pragma omp simd reduction(+ : squares)
    for (std::int64_t j = 0; j < n; ++j) squares += (ToFloat(x[j]) - mean) * (ToFloat(x[j]) - mean);
    const float rstd = 1 / std::sqrt(squares / static_cast<float>(n) + op.eps);
    op.mean[row] = mean;
    op.rstd[row] = rstd;
    T* __restrict out = op.out + row * n;
#pragma omp simd
    for (std::int64_t j = 0; j < n; ++j) {
      out[j] = FromFloat<T>((ToFloat(x[j]) - mean) * rstd * ToFloat(op.weight[j]) + ToFloat(op.bias[j]));
    }
  }
}

template <class T>
MR_INLINE void LayerNormBackwardBody(const LayerNormBackward<T>& op, Rows rows, float* __restrict gradients) {
  const std::int64_t n = op.columns;
  const T* __restrict weight = op.weight;
  float* __restrict weight_gradient = gradients;
  float* __restrict bias_gradient = gradients + n;
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    const T* __restrict dout = op.dout + row * n;
    const T* __restrict x = op.x + row * n;
    T* __restrict dx = op.dx + row * n;
    const float mean = op.mean[row], rstd = op.rstd[row];
    float sum = 0, dot = 0;
#pragma omp simd reduction(+ : sum, dot)
    for (std::int64_t j = 0; j < n; ++j) {
      const float through = ToFloat(dout[j]) * ToFloat(weight[j]);
      sum += through;
      dot += through * (ToFloat(x[j]) - mean) * rstd;
    }
    const float mean_through = sum / static_cast<float>(n), mean_dot = dot / static_cast<float>(n);
    const auto through = [&](std::int64_t j) {
      const float normed = (ToFloat(x[j]) - mean) * rstd;
      weight_gradient[j] += ToFloat(dout[j]) * normed;
      bias_gradient[j] += ToFloat(dout[j]);
      return rstd * (ToFloat(dout[j]) * ToFloat(weight[j]) - mean_through - normed * mean_dot);
    };
    if (op.dsum == nullptr) {
#pragma omp simd
      for (std::int64_t j = 0; j < n; ++j) dx[j] = FromFloat<T>(through(j));
    } else {
      const T* __restrict dsum = op.dsum + row * n;
#pragma omp simd
      for (std::int64_t j = 0; j < n; ++j) dx[j] = FromFloat<T>(through(j) + ToFloat(dsum[j]));
    }
  }
}

}  // namespace

MR_ROWS_KERNEL(RmsNormForward)
MR_ROWS_KERNEL(LayerNormForward)
MR_ROWS_GRADIENT_KERNEL(RmsNormBackward)
MR_ROWS_GRADIENT_KERNEL(LayerNormBackward)

}  // namespace millrace::engine::cpu
