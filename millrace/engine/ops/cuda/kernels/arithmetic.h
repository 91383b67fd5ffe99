// The arithmetic of one element, which the kernels of GPUs call. Includes nothing of CUDA, so that a test holds it
// against the CPU's kernels on machines without a GPU.
#pragma once

#include <cmath>

#include "millrace/engine/ops/cpu/kernels.h"
#include "millrace/engine/ops/cpu/simd.h"
#include "millrace/engine/quantized/host_device.h"

namespace millrace::engine::cuda {

/// 1/x to 2 units in the last place, for x >= 1.
MR_HOST_DEVICE MR_INLINE float Reciprocal(float x) {
#ifdef __CUDA_ARCH__
  return __fdividef(1.0F, x);
#else
  return 1 / x;
#endif
}

MR_HOST_DEVICE MR_INLINE float Sigmoid(float x) { return Reciprocal(1 + expf(-x)); }

/// The functions of activations, and their derivatives.
struct GeluErf {
  static MR_HOST_DEVICE MR_INLINE float Value(float x) { return 0.5F * x * (1 + erff(x * 0.70710678118654752F)); }
  static MR_HOST_DEVICE MR_INLINE float Slope(float x) {
    constexpr float kInverseSqrt2Pi = 0.39894228040143268F;
    return 0.5F * (1 + erff(x * 0.70710678118654752F)) + x * kInverseSqrt2Pi * expf(-0.5F * x * x);
  }
};
// (1 + tanh(u)) / 2 is sigmoid(2u), without the difference of numbers that are nearly equal.
struct GeluTanh {
  static constexpr float kTwice = 2 * 0.79788456080286536F, kCubic = 0.044715F;  // 2 · sqrt(2/π)
  static MR_HOST_DEVICE MR_INLINE float Value(float x) { return x * Sigmoid(kTwice * x * (1 + kCubic * x * x)); }
  static MR_HOST_DEVICE MR_INLINE float Slope(float x) {
    const float square = x * x < 1e4F ? x * x : 1e4F;  // no infinite factor where the sigmoid is 0 or 1 already
    const float s = Sigmoid(kTwice * x * (1 + kCubic * square));
    return s + x * s * (1 - s) * (kTwice * (1 + 3 * kCubic * square));
  }
};
struct Silu {
  static MR_HOST_DEVICE MR_INLINE float Value(float x) { return x * Sigmoid(x); }
  static MR_HOST_DEVICE MR_INLINE float Slope(float x) {
    const float s = Sigmoid(x);
    return s * (1 + x * (1 - s));
  }
};
struct Relu {
  static MR_HOST_DEVICE MR_INLINE float Value(float x) { return x < 0 ? 0 : x; }
  static MR_HOST_DEVICE MR_INLINE float Slope(float x) { return x > 0 ? 1 : 0; }
};

/// Rotates the pair (a, b) by the angle of this cosine and sine.
struct Pair {
  float a, b;
};
MR_HOST_DEVICE MR_INLINE Pair Turned(Pair x, float cosine, float sine) {
  return {x.a * cosine - x.b * sine, x.b * cosine + x.a * sine};
}

/// Returns the new weight of one element; updates the moments.
MR_HOST_DEVICE MR_INLINE float AdamwOne(const cpu::AdamwStep& s, float weight, float gradient, float& moment1,
                                        float& moment2) {
  const float g = gradient * s.gradient_scale;
  moment1 = s.beta1 * moment1 + (1 - s.beta1) * g;
  moment2 = s.beta2 * moment2 + (1 - s.beta2) * g * g;
  const float denominator = sqrtf(moment2 / s.correction2) + s.eps;
  return weight - s.lr * (s.weight_decay * weight + moment1 / s.correction1 / denominator);
}

/// Returns LAMB's update of one element, before the trust ratio; updates the moments.
MR_HOST_DEVICE MR_INLINE float LambOne(const cpu::LambStep& s, float weight_decay, float weight, float gradient,
                                       float& moment1, float& moment2) {
  const float g = gradient * s.gradient_scale;
  moment1 = s.beta1 * moment1 + (1 - s.beta1) * g;
  moment2 = s.beta2 * moment2 + (1 - s.beta2) * g * g;
  const float denominator = sqrtf(moment2 / s.correction2) + s.eps;
  return moment1 / s.correction1 / denominator + weight_decay * weight;
}

/// Returns the new weight of one element; updates the momentum. Without momentum, s.momentum is 0, and the momentum is
/// not kept.
MR_HOST_DEVICE MR_INLINE float SgdOne(const cpu::SgdStep& s, float weight, float gradient, float& momentum) {
  const float g = gradient * s.gradient_scale + s.weight_decay * weight;
  momentum = s.momentum * momentum + g;
  return weight - s.lr * (s.nesterov ? g + s.momentum * momentum : momentum);
}

}  // namespace millrace::engine::cuda
