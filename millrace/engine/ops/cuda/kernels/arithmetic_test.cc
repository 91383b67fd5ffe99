// What kernels of GPUs compute of an element, against the CPU's kernels.
#include "millrace/engine/ops/cuda/kernels/arithmetic.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace millrace::engine::cuda {
namespace {

std::vector<float> Numbers() {
  std::vector<float> numbers;
  for (float x = -30; x < 30; x += 0.0371F) numbers.push_back(x);
  for (const float x : {0.0F, -0.0F, 1e-30F, -100.0F, 100.0F, 1e4F, -1e4F}) numbers.push_back(x);
  return numbers;
}

template <class Mine, class Theirs>
void ExpectTheSame() {
  const std::vector<float> x = Numbers(), ones(x.size(), 1);
  std::vector<float> values(x.size()), slopes(x.size());
  const auto n = static_cast<std::int64_t>(x.size());
  cpu::ActivateForward<Theirs>(x.data(), values.data(), 0, n);
  cpu::ActivateBackward<Theirs>(ones.data(), x.data(), slopes.data(), 0, n);
  for (std::size_t i = 0; i < x.size(); ++i) {
    EXPECT_NEAR(Mine::Value(x[i]), values[i], 2e-6 * std::max(1.0F, std::abs(x[i]))) << x[i];
    EXPECT_NEAR(Mine::Slope(x[i]), slopes[i], 4e-6) << x[i];
  }
}

TEST(CudaArithmetic, ActivationsAreTheCpus) {
  ExpectTheSame<GeluErf, cpu::GeluErf>();
  ExpectTheSame<GeluTanh, cpu::GeluTanh>();
  ExpectTheSame<Silu, cpu::Silu>();
  EXPECT_EQ(Relu::Value(-2), 0);
  EXPECT_EQ(Relu::Value(2), 2);
  EXPECT_EQ(Relu::Slope(-2), 0);
  EXPECT_EQ(Relu::Slope(2), 1);
  EXPECT_TRUE(std::isnan(Relu::Value(std::nanf(""))));
}

TEST(CudaArithmetic, TurnsAPairByItsAngle) {
  const Pair turned = Turned({3, 4}, std::cos(0.5F), std::sin(0.5F));
  const float angle = std::atan2(4.0F, 3.0F) + 0.5F;
  EXPECT_NEAR(turned.a, 5 * std::cos(angle), 1e-5);
  EXPECT_NEAR(turned.b, 5 * std::sin(angle), 1e-5);
}

/// One step of each optimizer from the same state as a kernel of the CPU.
class CudaOptimizers : public ::testing::Test {
 protected:
  static constexpr std::size_t kCount = 1000;
  struct State {
    std::vector<float> weight, gradient, moment1, moment2;
  };
  State Make() const {
    State state{std::vector<float>(kCount), std::vector<float>(kCount), std::vector<float>(kCount),
                std::vector<float>(kCount)};
    for (std::size_t i = 0; i < kCount; ++i) {
      const auto x = static_cast<float>(i);
      state.weight[i] = std::sin(x);
      state.gradient[i] = std::cos(3 * x);
      state.moment1[i] = std::sin(7 * x) / 4;
      state.moment2[i] = std::abs(std::cos(5 * x)) / 9;
    }
    return state;
  }
  static void ExpectNear(const State& got, const State& want) {
    for (std::size_t i = 0; i < kCount; ++i) {
      EXPECT_NEAR(got.weight[i], want.weight[i], 1e-6) << i;
      EXPECT_NEAR(got.moment1[i], want.moment1[i], 1e-6) << i;
      EXPECT_NEAR(got.moment2[i], want.moment2[i], 1e-6) << i;
    }
  }
};

TEST_F(CudaOptimizers, AdamwIsTheCpus) {
  const cpu::AdamwStep step{.lr = 0.01F,
                            .beta1 = 0.9F,
                            .beta2 = 0.95F,
                            .eps = 1e-8F,
                            .weight_decay = 0.1F,
                            .correction1 = 0.19F,
                            .correction2 = 0.0975F,
                            .gradient_scale = 0.3F};
  State want = Make(), got = Make();
  cpu::Adamw<float>(step, want.weight.data(), want.weight.data(), want.gradient.data(), want.moment1.data(),
                    want.moment2.data(), kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    got.weight[i] = AdamwOne(step, got.weight[i], got.gradient[i], got.moment1[i], got.moment2[i]);
  }
  ExpectNear(got, want);
}

TEST_F(CudaOptimizers, LambIsTheCpus) {
  const cpu::LambStep step{.beta1 = 0.9F,
                           .beta2 = 0.999F,
                           .eps = 1e-6F,
                           .correction1 = 0.19F,
                           .correction2 = 0.002F,
                           .gradient_scale = 0.3F};
  State want = Make(), got = Make();
  cpu::LambDirection(step, 0.1F, want.weight.data(), want.gradient.data(), want.moment1.data(), want.moment2.data(),
                     kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    const float direction = LambOne(step, 0.1F, got.weight[i], got.gradient[i], got.moment1[i], got.moment2[i]);
    EXPECT_NEAR(direction, want.gradient[i], 1e-5 * std::max(1.0F, std::abs(want.gradient[i]))) << i;
  }
  ExpectNear(got, want);
}

TEST_F(CudaOptimizers, SgdIsTheCpus) {
  for (const float momentum : {0.0F, 0.9F}) {
    for (const bool nesterov : {false, true}) {
      const cpu::SgdStep step{
          .lr = 0.01F, .momentum = momentum, .weight_decay = 0.1F, .gradient_scale = 0.3F, .nesterov = nesterov};
      State want = Make(), got = Make();
      cpu::Sgd<float>(step, want.weight.data(), want.weight.data(), want.gradient.data(),
                      momentum > 0 ? want.moment1.data() : nullptr, kCount);
      for (std::size_t i = 0; i < kCount; ++i) {
        float unused = 0;
        got.weight[i] = SgdOne(step, got.weight[i], got.gradient[i], momentum > 0 ? got.moment1[i] : unused);
      }
      ExpectNear(got, want);
    }
  }
}

}  // namespace
}  // namespace millrace::engine::cuda
