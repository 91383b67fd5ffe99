#include <cmath>

#include "millrace/engine/ops/cpu/philox.h"
#include "millrace/engine/ops/cpu/rows_kernel.h"

namespace millrace::engine::cpu {
namespace {

template <class T>
MR_INLINE void RotateBody(const Rotate<T>& op, Rows rows) {
  const std::int64_t half = op.dim / 2, turned = op.heads * op.head_dim;
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    const std::int64_t position = op.positions[row];
    const float* __restrict cosine = op.cosine + position * half;
    const float* __restrict sine = op.sine + position * half;
    for (std::int64_t head = 0; head < op.heads; ++head) {
      const T* __restrict x = op.x + row * op.columns + head * op.head_dim;
      T* __restrict out = op.out + row * op.columns + head * op.head_dim;
      if (op.neighbours) {
#pragma omp simd
        for (std::int64_t j = 0; j < half; ++j) {
          const float a = ToFloat(x[2 * j]), b = ToFloat(x[2 * j + 1]), c = cosine[j], s = op.sign * sine[j];
          out[2 * j] = FromFloat<T>(a * c - b * s);
          out[2 * j + 1] = FromFloat<T>(b * c + a * s);
        }
      } else {
#pragma omp simd
        for (std::int64_t j = 0; j < half; ++j) {
          const float a = ToFloat(x[j]), b = ToFloat(x[j + half]), c = cosine[j], s = op.sign * sine[j];
          out[j] = FromFloat<T>(a * c - b * s);
          out[j + half] = FromFloat<T>(b * c + a * s);
        }
      }
      for (std::int64_t j = op.dim; j < op.head_dim; ++j) out[j] = x[j];
    }
#pragma omp simd
    for (std::int64_t j = turned; j < op.columns; ++j) op.out[row * op.columns + j] = op.x[row * op.columns + j];
  }
}

MR_INLINE float Sigmoid(float x) { return 1 / (1 + Exp(-x)); }

// The functions of an activation. `omp simd` vectorises the loops that inline them.

/// The error function to 4e-7: the rational approximation on [-4, 4] that Eigen and XLA use for float.
MR_INLINE float Erf(float x) {
  x = x < -4.0F ? -4.0F : x;
  x = x > 4.0F ? 4.0F : x;
  const float y = x * x;
  float p = -2.72614225801306e-10F;
  p = p * y + 2.77068142495902e-08F;
  p = p * y - 2.10102402082508e-06F;
  p = p * y - 5.69250639462346e-05F;
  p = p * y - 7.34990630326855e-04F;
  p = p * y - 2.95459980854025e-03F;
  p = p * y - 1.60960333262415e-02F;
  float q = -1.45660718464996e-05F;
  q = q * y - 2.13374055278905e-04F;
  q = q * y - 1.68282697438203e-03F;
  q = q * y - 7.37332916720468e-03F;
  q = q * y - 1.42647390514189e-02F;
  return x * p / q;
}

constexpr float kSqrtHalf = 0.70710678118654752F, kInverseSqrt2Pi = 0.39894228040143268F;
constexpr float kSqrt2OverPi = 0.79788456080286536F, kCubic = 0.044715F;  // of the tanh form of GELU

}  // namespace

MR_INLINE float GeluErf::Value(float x) { return 0.5F * x * (1 + Erf(x * kSqrtHalf)); }
MR_INLINE float GeluErf::Slope(float x) {
  return 0.5F * (1 + Erf(x * kSqrtHalf)) + x * kInverseSqrt2Pi * Exp(-0.5F * x * x);
}
// (1 + tanh(u)) / 2 is sigmoid(2u), without the difference of numbers that are nearly equal.
MR_INLINE float GeluTanh::Value(float x) { return x * Sigmoid(2 * kSqrt2OverPi * x * (1 + kCubic * x * x)); }
MR_INLINE float GeluTanh::Slope(float x) {
  const float square = x * x < 1e4F ? x * x : 1e4F;  // no infinite factor where the sigmoid is 0 or 1 already
  const float s = Sigmoid(2 * kSqrt2OverPi * x * (1 + kCubic * square));
  return s + x * s * (1 - s) * (2 * kSqrt2OverPi * (1 + 3 * kCubic * square));
}
MR_INLINE float Silu::Value(float x) { return x * Sigmoid(x); }
MR_INLINE float Silu::Slope(float x) { return Sigmoid(x) * (1 + x * (1 - Sigmoid(x))); }

namespace {

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
      out[j] = FromFloat<T>(ToFloat(FromFloat<T>(g * Sigmoid(g))) * ToFloat(up[j]));
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
      const float sigmoid = Sigmoid(g);
      dgate[j] = FromFloat<T>(d * ToFloat(up[j]) * sigmoid * (1 + g * (1 - sigmoid)));
      dup[j] = FromFloat<T>(d * g * sigmoid);
    }
  }
}

template <class T>
MR_INLINE void GegluForwardBody(const GegluForward<T>& op, Rows rows) {
  const std::int64_t n = op.columns;
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    const T* __restrict gate = op.gate_up + row * 2 * n;
    const T* __restrict up = gate + n;
    T* __restrict out = op.out + row * n;
#pragma omp simd
    for (std::int64_t j = 0; j < n; ++j) {
      out[j] = FromFloat<T>(ToFloat(FromFloat<T>(GeluTanh::Value(ToFloat(gate[j])))) * ToFloat(up[j]));
    }
  }
}

template <class T>
MR_INLINE void GegluBackwardBody(const GegluBackward<T>& op, Rows rows) {
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
      dgate[j] = FromFloat<T>(d * ToFloat(up[j]) * GeluTanh::Slope(g));
      dup[j] = FromFloat<T>(d * GeluTanh::Value(g));
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

/// Σ exp(x - most). Runs of 4,096 are added in float32, and their sums in double: so the result of a large vocabulary
/// is as exact where the compiler makes no vectors (sanitizers).
template <class T>
MR_INLINE float SumOfExponentials(const T* __restrict x, std::int64_t n, float most) {
  constexpr std::int64_t kRun = 4096;
  double sum = 0;
  for (std::int64_t begin = 0; begin < n; begin += kRun) {
    const std::int64_t end = begin + kRun < n ? begin + kRun : n;
    float of_run = 0;
#pragma omp simd reduction(+ : of_run)
    for (std::int64_t j = begin; j < end; ++j) of_run += Exp(ToFloat(x[j]) - most);
    sum += of_run;
  }
  return static_cast<float>(sum);
}

template <class T>
MR_INLINE void CrossEntropyBody(const CrossEntropy<T>& op, Rows rows) {
  const std::int64_t n = op.columns;
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    T* __restrict logits = op.logits + row * n;
    const std::int64_t label = op.labels[row];
    const float most = RowMax(logits, n);
    const float sum = SumOfExponentials(logits, n, most);
    const double log_sum = std::log(static_cast<double>(sum)) + most;
    op.losses[row] = log_sum - ToFloat(logits[label]);
    if (!op.gradient) continue;
    // Without smoothing and z-loss, `factor` is 1 and `floor` 0: the bits are those of softmax - onehot(label).
    const float factor = 1 + 2 * op.z_loss * static_cast<float>(log_sum);
    const float floor = op.label_smoothing / static_cast<float>(n);
    const float probability = Exp(ToFloat(logits[label]) - most) / sum;
    const float inverse = 1 / sum * factor;
#pragma omp simd
    for (std::int64_t j = 0; j < n; ++j) logits[j] = FromFloat<T>(Exp(ToFloat(logits[j]) - most) * inverse - floor);
    logits[label] = FromFloat<T>(probability * factor - floor - (1 - op.label_smoothing));
  }
}

template <class T>
MR_INLINE void CrossEntropyScanBody(const CrossEntropyScan<T>& op, Rows rows) {
  const std::int64_t n = op.columns;
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    const T* __restrict logits = op.logits + row * n;
    const std::int64_t label = op.labels[row];
    const float most = RowMax(logits, n);
    const float sum = SumOfExponentials(logits, n, most);
    op.partial[row] = {most, sum, label >= 0 && label < n ? ToFloat(logits[label]) : 0.0F};
  }
}

template <class T>
MR_INLINE void CrossEntropyGradientBody(const CrossEntropyGradient<T>& op, Rows rows) {
  const std::int64_t n = op.columns;
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    T* __restrict logits = op.logits + row * n;
    const std::int64_t label = op.labels[row];
    const float lse = op.lse[row];
    const float factor = 1 + 2 * op.z_loss * lse, floor = op.label_smoothing / static_cast<float>(op.vocab);
    const bool mine = label >= 0 && label < n;
    const float probability = mine ? Exp(ToFloat(logits[label]) - lse) : 0;
#pragma omp simd
    for (std::int64_t j = 0; j < n; ++j) logits[j] = FromFloat<T>(Exp(ToFloat(logits[j]) - lse) * factor - floor);
    if (mine) logits[label] = FromFloat<T>(probability * factor - floor - (1 - op.label_smoothing));
  }
}

template <class Function, class T>
MR_INLINE void ActivateForwardBody(const T* __restrict x, T* __restrict out, std::int64_t begin, std::int64_t end) {
#pragma omp simd
  for (std::int64_t i = begin; i < end; ++i) out[i] = FromFloat<T>(Function::Value(ToFloat(x[i])));
}
template <class Function, class T>
MR_INLINE void ActivateBackwardBody(const T* __restrict dout, const T* __restrict x, T* __restrict dx,
                                    std::int64_t begin, std::int64_t end) {
#pragma omp simd
  for (std::int64_t i = begin; i < end; ++i) dx[i] = FromFloat<T>(ToFloat(dout[i]) * Function::Slope(ToFloat(x[i])));
}

/// Numbers for four elements come from one call of Philox.
template <class T>
MR_INLINE void DropoutBody(const DropoutRow& op, const T* x, T* out, std::int64_t first, std::int64_t n,
                           std::uint32_t c1, std::uint32_t c2, std::uint32_t c3) {
  for (std::int64_t group = first / 4; group * 4 < first + n; ++group) {
    const PhiloxWords random = Philox(op.key, static_cast<std::uint32_t>(group), c1, c2, c3);
    const std::int64_t begin = group * 4 < first ? first - group * 4 : 0;
    const std::int64_t end = first + n - group * 4 < 4 ? first + n - group * 4 : 4;
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t j = group * 4 + i - first;
      out[j] = random.words[i] < op.threshold ? T{} : FromFloat<T>(ToFloat(x[j]) * op.scale);
    }
  }
}

}  // namespace

MR_ROWS_KERNEL(Rotate)
MR_ROWS_KERNEL(SwigluForward)
MR_ROWS_KERNEL(SwigluBackward)
MR_ROWS_KERNEL(GegluForward)
MR_ROWS_KERNEL(GegluBackward)
MR_ROWS_KERNEL(CrossEntropy)
MR_ROWS_KERNEL(CrossEntropyScan)
MR_ROWS_KERNEL(CrossEntropyGradient)

#define MR_ACTIVATION(Function, T)                                                                                    \
  MR_SIMD static void Forward##Function##T(const T* x, T* out, std::int64_t begin, std::int64_t end) {                \
    ActivateForwardBody<Function>(x, out, begin, end);                                                                \
  }                                                                                                                   \
  MR_SIMD static void Backward##Function##T(const T* dout, const T* x, T* dx, std::int64_t begin, std::int64_t end) { \
    ActivateBackwardBody<Function>(dout, x, dx, begin, end);                                                          \
  }                                                                                                                   \
  template <>                                                                                                         \
  void ActivateForward<Function>(const T* x, T* out, std::int64_t begin, std::int64_t end) {                          \
    Forward##Function##T(x, out, begin, end);                                                                         \
  }                                                                                                                   \
  template <>                                                                                                         \
  void ActivateBackward<Function>(const T* dout, const T* x, T* dx, std::int64_t begin, std::int64_t end) {           \
    Backward##Function##T(dout, x, dx, begin, end);                                                                   \
  }
MR_ACTIVATION(GeluErf, float)
MR_ACTIVATION(GeluErf, Bf16)
MR_ACTIVATION(GeluTanh, float)
MR_ACTIVATION(GeluTanh, Bf16)
MR_ACTIVATION(Silu, float)
MR_ACTIVATION(Silu, Bf16)
#undef MR_ACTIVATION

MR_SIMD static void DropoutF32(const DropoutRow& op, const float* x, float* out, std::int64_t first, std::int64_t n,
                               std::uint32_t c1, std::uint32_t c2, std::uint32_t c3) {
  DropoutBody(op, x, out, first, n, c1, c2, c3);
}
MR_SIMD static void DropoutBf16(const DropoutRow& op, const Bf16* x, Bf16* out, std::int64_t first, std::int64_t n,
                                std::uint32_t c1, std::uint32_t c2, std::uint32_t c3) {
  DropoutBody(op, x, out, first, n, c1, c2, c3);
}
template <>
void DropoutRow::Run(const float* x, float* out, std::int64_t first, std::int64_t n, std::uint32_t c1, std::uint32_t c2,
                     std::uint32_t c3) const {
  DropoutF32(*this, x, out, first, n, c1, c2, c3);
}
template <>
void DropoutRow::Run(const Bf16* x, Bf16* out, std::int64_t first, std::int64_t n, std::uint32_t c1, std::uint32_t c2,
                     std::uint32_t c3) const {
  DropoutBf16(*this, x, out, first, n, c1, c2, c3);
}

}  // namespace millrace::engine::cpu
