#include <cmath>

#include "millrace/engine/ops/cpu/kernels.h"

namespace millrace::engine::cpu {
namespace {

/// The new weight; shared by both types of Adamw.
MR_INLINE float AdamwOne(const AdamwStep& s, float weight, float gradient, float& moment1, float& moment2) {
  const float g = gradient * s.gradient_scale;
  moment1 = s.beta1 * moment1 + (1 - s.beta1) * g;
  moment2 = s.beta2 * moment2 + (1 - s.beta2) * g * g;
  const float denominator = std::sqrt(moment2 / s.correction2) + s.eps;
  return weight - s.lr * (s.weight_decay * weight + moment1 / s.correction1 / denominator);
}

}  // namespace

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
