#include <algorithm>
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

/// The new weight; updates the momentum.
MR_INLINE float SgdOne(const SgdStep& s, float weight, float gradient, float& momentum) {
  const float g = gradient * s.gradient_scale + s.weight_decay * weight;
  momentum = s.momentum * momentum + g;
  return weight - s.lr * (s.nesterov ? g + s.momentum * momentum : momentum);
}
MR_INLINE float PlainSgdOne(const SgdStep& s, float weight, float gradient) {
  return weight - s.lr * (gradient * s.gradient_scale + s.weight_decay * weight);
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

MR_SIMD LambSquares LambDirection(const LambStep& constants, float weight_decay, const float* __restrict master,
                                  float* __restrict gradients, float* __restrict moment1, float* __restrict moment2,
                                  std::int64_t count) {
  const LambStep s = constants;
  double weight = 0, update = 0;
#pragma omp simd reduction(+ : weight, update)
  for (std::int64_t i = 0; i < count; ++i) {
    const float g = gradients[i] * s.gradient_scale;
    moment1[i] = s.beta1 * moment1[i] + (1 - s.beta1) * g;
    moment2[i] = s.beta2 * moment2[i] + (1 - s.beta2) * g * g;
    const float denominator = std::sqrt(moment2[i] / s.correction2) + s.eps;
    const float direction = moment1[i] / s.correction1 / denominator + weight_decay * master[i];
    gradients[i] = direction;
    weight += static_cast<double>(master[i]) * static_cast<double>(master[i]);
    update += static_cast<double>(direction) * static_cast<double>(direction);
  }
  return {weight, update};
}

MR_SIMD static void LambApplyF32(float rate, float* __restrict weights, float* __restrict updates, std::int64_t count) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) {
    weights[i] -= rate * updates[i];
    updates[i] = 0;
  }
}
MR_SIMD static void LambApplyBf16(float rate, Bf16* __restrict weights, float* __restrict master,
                                  float* __restrict updates, std::int64_t count) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) {
    master[i] -= rate * updates[i];
    weights[i] = FromFloat<Bf16>(master[i]);
    updates[i] = 0;
  }
}
template <>
void LambApply(float rate, float* weights, float*, float* updates, std::int64_t count) {
  LambApplyF32(rate, weights, updates, count);
}
template <>
void LambApply(float rate, Bf16* weights, float* master, float* updates, std::int64_t count) {
  LambApplyBf16(rate, weights, master, updates, count);
}

MR_SIMD static void SgdF32(const SgdStep& s, float* __restrict weights, float* __restrict gradients,
                           float* __restrict momentum, std::int64_t count) {
  const SgdStep step = s;
  if (momentum == nullptr) {
#pragma omp simd
    for (std::int64_t i = 0; i < count; ++i) {
      weights[i] = PlainSgdOne(step, weights[i], gradients[i]);
      gradients[i] = 0;
    }
    return;
  }
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) {
    weights[i] = SgdOne(step, weights[i], gradients[i], momentum[i]);
    gradients[i] = 0;
  }
}
MR_SIMD static void SgdBf16(const SgdStep& s, Bf16* __restrict weights, float* __restrict master,
                            float* __restrict gradients, float* __restrict momentum, std::int64_t count) {
  const SgdStep step = s;
  if (momentum == nullptr) {
#pragma omp simd
    for (std::int64_t i = 0; i < count; ++i) {
      master[i] = PlainSgdOne(step, master[i], gradients[i]);
      weights[i] = FromFloat<Bf16>(master[i]);
      gradients[i] = 0;
    }
    return;
  }
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) {
    master[i] = SgdOne(step, master[i], gradients[i], momentum[i]);
    weights[i] = FromFloat<Bf16>(master[i]);
    gradients[i] = 0;
  }
}
template <>
void Sgd(const SgdStep& step, float* weights, float*, float* gradients, float* momentum, std::int64_t count) {
  SgdF32(step, weights, gradients, momentum, count);
}
template <>
void Sgd(const SgdStep& step, Bf16* weights, float* master, float* gradients, float* momentum, std::int64_t count) {
  SgdBf16(step, weights, master, gradients, momentum, count);
}

MR_SIMD void Widen(const Bf16* __restrict x, float* __restrict out, std::int64_t count) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) out[i] = ToFloat(x[i]);
}

/// Elements that are consecutive in the whole tensor, from number `low` + 2^32 · `high` on; `high` is the same for all.
MR_SIMD static void RoundRun(std::uint64_t key, std::uint32_t low, std::uint32_t high, const float* __restrict x,
                             Bf16* __restrict out, std::uint32_t count) {
#pragma omp simd
  for (std::uint32_t i = 0; i < count; ++i) {
    out[i] = static_cast<Bf16>(RoundStochastically(x[i], RoundingBits(key, low + i, high)));
  }
}
void RoundStochastically(const RoundedElements& elements, RoundedNumber number, const float* x, Bf16* out,
                         std::int64_t count) {
  constexpr std::int64_t kLowNumbers = std::int64_t{1} << 32;
  const auto& [run, stride, offset] = elements.numbers;
  const std::uint64_t key = RoundingKey(elements.key, number);
  for (std::int64_t done = 0; done < count;) {
    const std::int64_t element = elements.first + done, in_run = element % run;
    const std::int64_t in_whole = element / run * stride + offset + in_run, low = in_whole % kLowNumbers;
    const std::int64_t some = std::min({count - done, run - in_run, kLowNumbers - low});
    RoundRun(key, static_cast<std::uint32_t>(low), static_cast<std::uint32_t>(in_whole / kLowNumbers), x + done,
             out + done, static_cast<std::uint32_t>(some));
    done += some;
  }
}

MR_SIMD double SumOfSquares(const float* x, std::int64_t count) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < count; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return sum;
}

}  // namespace millrace::engine::cpu
