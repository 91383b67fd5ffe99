#include "millrace/engine/ops/cpu/kernels.h"

#include <cmath>

namespace millrace::engine::cpu {
namespace {

// Bodies, inlined into one clone per instruction set. `omp simd` lets reductions run in lanes.

template <class T>
MR_INLINE void RmsNormForwardBody(const RmsNormForward<T>& op, Rows rows) {
  const std::int64_t n = op.columns;
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    const T* __restrict x = op.x + row * n;
    if (op.delta != nullptr) {
      const T* __restrict delta = op.delta + row * n;
      T* __restrict sum = op.sum + row * n;
#pragma omp simd
      for (std::int64_t j = 0; j < n; ++j) sum[j] = FromFloat<T>(ToFloat(x[j]) + ToFloat(delta[j]));
      x = sum;
    }
    float squares = 0;
#pragma omp simd reduction(+ : squares)
    for (std::int64_t j = 0; j < n; ++j) squares += ToFloat(x[j]) * ToFloat(x[j]);
    const float rstd = 1 / std::sqrt(squares / static_cast<float>(n) + op.eps);
    op.rstd[row] = rstd;
    T* __restrict out = op.out + row * n;
#pragma omp simd
    for (std::int64_t j = 0; j < n; ++j) {
      out[j] = FromFloat<T>(ToFloat(op.weight[j]) * ToFloat(FromFloat<T>(ToFloat(x[j]) * rstd)));
    }
  }
}

template <class T>
MR_INLINE void RmsNormBackwardBody(const RmsNormBackward<T>& op, Rows rows, float* __restrict weight_gradient) {
  const std::int64_t n = op.columns;
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    const T* __restrict dout = op.dout + row * n;
    const T* __restrict x = op.x + row * n;
    T* __restrict dx = op.dx + row * n;
    const float rstd = op.rstd[row];
    float dot = 0;
#pragma omp simd reduction(+ : dot)
    for (std::int64_t j = 0; j < n; ++j) dot += ToFloat(dout[j]) * ToFloat(op.weight[j]) * ToFloat(x[j]);
    const float mean = dot * rstd * rstd / static_cast<float>(n);
#pragma omp simd
    for (std::int64_t j = 0; j < n; ++j) {
      weight_gradient[j] += ToFloat(dout[j]) * ToFloat(x[j]) * rstd;
      const float through = rstd * (ToFloat(dout[j]) * ToFloat(op.weight[j]) - ToFloat(x[j]) * mean);
      dx[j] = FromFloat<T>(through + (op.dsum != nullptr ? ToFloat(op.dsum[row * n + j]) : 0.0F));
    }
  }
}

template <class T>
MR_INLINE void RopeBody(const Rope<T>& op, Rows rows) {
  const std::int64_t half = op.head_dim / 2;
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    const std::int64_t position = op.positions[row];
    const float* __restrict cosine = op.cosine + position * half;
    const float* __restrict sine = op.sine + position * half;
    for (std::int64_t head = 0; head < op.heads; ++head) {
      const T* __restrict x = op.x + row * op.columns + head * op.head_dim;
      T* __restrict out = op.out + row * op.columns + head * op.head_dim;
#pragma omp simd
      for (std::int64_t j = 0; j < half; ++j) {
        const float a = ToFloat(x[j]), b = ToFloat(x[j + half]), c = cosine[j], s = op.sign * sine[j];
        out[j] = FromFloat<T>(a * c - b * s);
        out[j + half] = FromFloat<T>(b * c + a * s);
      }
    }
    const std::int64_t turned = op.heads * op.head_dim;
#pragma omp simd
    for (std::int64_t j = turned; j < op.columns; ++j) op.out[row * op.columns + j] = op.x[row * op.columns + j];
  }
}

template <class T>
MR_INLINE void SwigluForwardBody(const SwigluForward<T>& op, Rows rows) {
  const std::int64_t n = op.columns;
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    const T* __restrict gate = op.gate_up + row * 2 * n;
    const T* __restrict up = gate + n;
    T* __restrict out = op.out + row * n;
#pragma omp simd
    for (std::int64_t j = 0; j < n; ++j) {
      const float g = ToFloat(gate[j]);
      out[j] = FromFloat<T>(ToFloat(FromFloat<T>(g / (1 + Exp(-g)))) * ToFloat(up[j]));
    }
  }
}

template <class T>
MR_INLINE void SwigluBackwardBody(const SwigluBackward<T>& op, Rows rows) {
  const std::int64_t n = op.columns;
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    const T* __restrict gate = op.gate_up + row * 2 * n;
    const T* __restrict up = gate + n;
    const T* __restrict dout = op.dout + row * n;
    T* __restrict dgate = op.dgate_up + row * 2 * n;
    T* __restrict dup = dgate + n;
#pragma omp simd
    for (std::int64_t j = 0; j < n; ++j) {
      const float g = ToFloat(gate[j]), d = ToFloat(dout[j]);
      const float sigmoid = 1 / (1 + Exp(-g));
      dgate[j] = FromFloat<T>(d * ToFloat(up[j]) * sigmoid * (1 + g * (1 - sigmoid)));
      dup[j] = FromFloat<T>(d * g * sigmoid);
    }
  }
}

template <class T>
MR_INLINE float RowMax(const T* __restrict x, std::int64_t n) {
  float most = ToFloat(x[0]);
#pragma omp simd reduction(max : most)
  for (std::int64_t j = 0; j < n; ++j) most = ToFloat(x[j]) > most ? ToFloat(x[j]) : most;
  return most;
}

template <class T>
MR_INLINE void CrossEntropyBody(const CrossEntropy<T>& op, Rows rows) {
  const std::int64_t n = op.columns;
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    T* __restrict logits = op.logits + row * n;
    const std::int64_t label = op.labels[row];
    const float most = RowMax(logits, n);
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (std::int64_t j = 0; j < n; ++j) sum += Exp(ToFloat(logits[j]) - most);
    op.losses[row] = std::log(static_cast<double>(sum)) + most - ToFloat(logits[label]);
    if (!op.gradient) continue;
    const float probability = Exp(ToFloat(logits[label]) - most) / sum;
    const float inverse = 1 / sum;
#pragma omp simd
    for (std::int64_t j = 0; j < n; ++j) logits[j] = FromFloat<T>(Exp(ToFloat(logits[j]) - most) * inverse);
    logits[label] = FromFloat<T>(probability - 1);
  }
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

/// The new weight; shared by both types of Adamw.
MR_INLINE float AdamwOne(const AdamwStep& s, float weight, float gradient, float& moment1, float& moment2) {
  const float g = gradient * s.gradient_scale;
  moment1 = s.beta1 * moment1 + (1 - s.beta1) * g;
  moment2 = s.beta2 * moment2 + (1 - s.beta2) * g * g;
  const float denominator = std::sqrt(moment2 / s.correction2) + s.eps;
  return weight - s.lr * (s.weight_decay * weight + moment1 / s.correction1 / denominator);
}

}  // namespace

// One clone per instruction set and element type; members cannot be cloned, free functions can.
#define MR_ROWS_KERNEL(Op)                                                                 \
  MR_SIMD static void Run##Op##F32(const Op<float>& op, Rows rows) { Op##Body(op, rows); } \
  MR_SIMD static void Run##Op##Bf16(const Op<Bf16>& op, Rows rows) { Op##Body(op, rows); } \
  template <>                                                                              \
  void Op<float>::Run(Rows rows) const {                                                   \
    Run##Op##F32(*this, rows);                                                             \
  }                                                                                        \
  template <>                                                                              \
  void Op<Bf16>::Run(Rows rows) const {                                                    \
    Run##Op##Bf16(*this, rows);                                                            \
  }
MR_ROWS_KERNEL(RmsNormForward)
MR_ROWS_KERNEL(Rope)
MR_ROWS_KERNEL(SwigluForward)
MR_ROWS_KERNEL(SwigluBackward)
MR_ROWS_KERNEL(CrossEntropy)
#undef MR_ROWS_KERNEL

MR_SIMD static void RunRmsNormBackwardF32(const RmsNormBackward<float>& op, Rows rows, float* weight_gradient) {
  RmsNormBackwardBody(op, rows, weight_gradient);
}
MR_SIMD static void RunRmsNormBackwardBf16(const RmsNormBackward<Bf16>& op, Rows rows, float* weight_gradient) {
  RmsNormBackwardBody(op, rows, weight_gradient);
}
template <>
void RmsNormBackward<float>::Run(Rows rows, float* weight_gradient) const {
  RunRmsNormBackwardF32(*this, rows, weight_gradient);
}
template <>
void RmsNormBackward<Bf16>::Run(Rows rows, float* weight_gradient) const {
  RunRmsNormBackwardBf16(*this, rows, weight_gradient);
}

MR_SIMD void CausalSoftmax(float* scores, std::int64_t rows, std::int64_t keys, std::int64_t first_row, float* sums,
                           float* lse) {
  for (std::int64_t row = 0; row < rows; ++row) {
    float* __restrict s = scores + row * keys;
    const std::int64_t seen = first_row + row + 1 < keys ? first_row + row + 1 : keys;
    const float most = RowMax(s, seen);
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (std::int64_t j = 0; j < seen; ++j) {
      s[j] = Exp(s[j] - most);
      sum += s[j];
    }
    for (std::int64_t j = seen; j < keys; ++j) s[j] = 0;
    sums[row] = sum;
    lse[row] = most + std::log(sum);
  }
}

MR_SIMD void CausalSoftmaxBackward(float* scores, float* dprobabilities, std::int64_t rows, std::int64_t keys,
                                   std::int64_t first_row, const float* lse) {
  for (std::int64_t row = 0; row < rows; ++row) {
    float* __restrict p = scores + row * keys;
    float* __restrict d = dprobabilities + row * keys;
    const std::int64_t seen = first_row + row + 1 < keys ? first_row + row + 1 : keys;
    const float shift = lse[row];
    float dot = 0;
#pragma omp simd reduction(+ : dot)
    for (std::int64_t j = 0; j < seen; ++j) {
      p[j] = Exp(p[j] - shift);
      dot += p[j] * d[j];
    }
#pragma omp simd
    for (std::int64_t j = 0; j < seen; ++j) d[j] = p[j] * (d[j] - dot);
    for (std::int64_t j = seen; j < keys; ++j) p[j] = d[j] = 0;
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

MR_SIMD static void AdamwF32(const AdamwStep& s, float* __restrict weights, float* __restrict gradients,
                             float* __restrict moment1, float* __restrict moment2, std::int64_t count) {
  const AdamwStep step = s;
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) {
    weights[i] = AdamwOne(step, weights[i], gradients[i], moment1[i], moment2[i]);
    gradients[i] = 0;
  }
}
MR_SIMD static void AdamwBf16(const AdamwStep& s, Bf16* __restrict weights, float* __restrict master,
                              float* __restrict gradients, float* __restrict moment1, float* __restrict moment2,
                              std::int64_t count) {
  const AdamwStep step = s;
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) {
    master[i] = AdamwOne(step, master[i], gradients[i], moment1[i], moment2[i]);
    weights[i] = FromFloat<Bf16>(master[i]);
    gradients[i] = 0;
  }
}
template <>
void Adamw(const AdamwStep& step, float* weights, float*, float* gradients, float* moment1, float* moment2,
           std::int64_t count) {
  AdamwF32(step, weights, gradients, moment1, moment2, count);
}
template <>
void Adamw(const AdamwStep& step, Bf16* weights, float* master, float* gradients, float* moment1, float* moment2,
           std::int64_t count) {
  AdamwBf16(step, weights, master, gradients, moment1, moment2, count);
}

MR_SIMD double SumOfSquares(const float* x, std::int64_t count) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < count; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return sum;
}

}  // namespace millrace::engine::cpu
