// Layers with a low-rank update against the reference: results and gradients.
#include "millrace/engine/ops/low_rank.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <string>

#include "millrace/engine/ops/common/step_kernels.h"
#include "millrace/engine/ops/cpu/gemm.h"
#include "millrace/engine/ops/linear.h"
#include "millrace/engine/ops/reference.h"

namespace millrace::engine::ops {
namespace {

constexpr std::int64_t kTokens = 26, kIn = 24, kOut = 40, kRank = 3;

at::Tensor Noise(at::IntArrayRef shape, std::uint64_t seed) {
  return at::randn(shape, at::detail::createCPUGenerator(seed));
}
Weight Trained(const at::Tensor& value) {
  return {.value = value.detach().clone().set_requires_grad(true), .gradient = at::zeros(value.sizes())};
}
/// The same weight, whose gradient goes to autograd; float32 where ATen would add products in bfloat16.
Weight Plain(const Weight& weight) {
  if (!weight.defined()) return {};
  const at::ScalarType type = cpu::MultipliesBf16() ? weight.value.scalar_type() : at::kFloat;
  return {.value =
              weight.value.detach().to(type, false, /*copy=*/true).set_requires_grad(weight.value.requires_grad())};
}
LinearWeights Plain(const LinearWeights& weights) {
  LinearWeights plain{Plain(weights.matrix), Plain(weights.bias), weights.update};
  plain.update.down = Plain(weights.update.down);
  for (LowRankUpdate::Module& module : plain.update.modules) module.up = Plain(module.up);
  return plain;
}
void ExpectClose(const at::Tensor& got, const at::Tensor& want, double tolerance, const std::string& what) {
  ASSERT_EQ(got.sizes(), want.sizes()) << what;
  const at::Tensor a = got.detach().to(at::kDouble), b = want.detach().to(at::kDouble);
  EXPECT_LE((a - b).norm().item<double>(), tolerance * (b.norm().item<double>() + 1e-6)) << what;
}

/// Outputs 8 … 15 and 16 … 39 have an update, outputs 0 … 7 have none.
LinearWeights MakeWeights(at::ScalarType type, double dropout, bool trains_matrix) {
  const auto weight = [&](at::IntArrayRef shape, std::uint64_t seed) { return Noise(shape, seed).to(type); };
  const DropoutSite drop{.probability = dropout, .rows = {.seed = 3, .row_length = 13}};
  LinearWeights weights{.matrix = {.value = weight({kOut, kIn}, 1)}, .bias = Trained(weight({kOut}, 2))};
  if (trains_matrix) weights.matrix = Trained(weights.matrix.value);
  weights.update = {.down = Trained(weight({2 * kRank, kIn}, 3)), .scale = 0.75};
  weights.update.modules = {{8, Trained(weight({8, kRank}, 4)), drop}, {16, Trained(weight({24, kRank}, 5)), drop}};
  weights.update.modules[1].dropout.site = 1;
  weights.update.modules[1].dropout.first_column = 7;
  return weights;
}

class LowRank : public ::testing::TestWithParam<at::ScalarType> {};

TEST_P(LowRank, AgreesWithTheReference) {
  const double tolerance = GetParam() == at::kFloat ? 2e-6 : 1.5e-2;
  for (const double dropout : {0.0, 0.3}) {
    for (const bool trains_matrix : {false, true}) {
      const std::string what = fmt::format("dropout {}, matrix trained {}: ", dropout, trains_matrix);
      const LinearWeights weights = MakeWeights(GetParam(), dropout, trains_matrix), plain = Plain(weights);
      const at::Tensor x = Noise({kTokens, kIn}, 6).to(GetParam()).set_requires_grad(true);
      const at::Tensor x2 = x.detach().to(plain.matrix.value.scalar_type(), false, true).set_requires_grad(true);
      const at::Tensor got = Linear(x, weights), want = reference::Linear(x2, plain);
      ExpectClose(got, want, tolerance, what + "out");
      const at::Tensor dout = Noise({kTokens, kOut}, 7);
      got.backward(dout.to(got.scalar_type()));
      want.backward(dout.to(got.scalar_type()).to(want.scalar_type()));
      ExpectClose(x.grad(), x2.grad(), tolerance, what + "dx");
      ExpectClose(weights.bias.gradient, plain.bias.value.grad(), tolerance, what + "dbias");
      ExpectClose(weights.update.down.gradient, plain.update.down.value.grad(), tolerance, what + "ddown");
      for (std::size_t i = 0; i < 2; ++i) {
        ExpectClose(weights.update.modules[i].up.gradient, plain.update.modules[i].up.value.grad(), tolerance,
                    what + fmt::format("dup {}", i));
      }
      if (trains_matrix) ExpectClose(weights.matrix.gradient, plain.matrix.value.grad(), tolerance, what + "dmatrix");
    }
  }
}

TEST_P(LowRank, UpdatesOfManyRowsAreThoseOfEachRowAlone) {
  const at::NoGradGuard no_grad;
  const LowRankUpdate update = MakeWeights(GetParam(), 0, false).update;
  const at::Tensor x = Noise({kTokens, kIn}, 6).to(GetParam()), before = Noise({kTokens, kOut}, 7).to(GetParam());
  const at::Tensor factors = Noise({kOut}, 8);
  at::Tensor want = before.clone();
  LowRankPass(update).AddOutput(x, want);
  want.narrow(0, 0, 4).mul_(factors);

  // Two parts, of which the second has more rows than a thread takes at a time. Then each row is a part.
  const StepKernels alone{.independent_rows = true};
  const KernelScope scope(alone);
  const auto part = [&](const at::Tensor& out, std::int64_t first, std::int64_t count) {
    return UpdatedRows{&update, x.narrow(0, first, count), out.narrow(0, first, count),
                       first < 4 ? factors : at::Tensor()};
  };
  const at::Tensor together = before.clone(), each = before.clone();
  AddUpdates(std::array{part(together, 0, 4), part(together, 4, kTokens - 4)});
  for (std::int64_t row = 0; row < kTokens; ++row) AddUpdates(std::array{part(each, row, 1)});
  EXPECT_TRUE(together.equal(each));

  // A model whose own adapter it is has these bits, too.
  const at::Tensor own = before.clone();
  LowRankPass(update).AddOutput(x, own);
  EXPECT_TRUE(own.narrow(0, 4, kTokens - 4).equal(together.narrow(0, 4, kTokens - 4)));
  ExpectClose(together, want, GetParam() == at::kFloat ? 2e-6 : 1.5e-2, "out");
}

INSTANTIATE_TEST_SUITE_P(Types, LowRank, ::testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& info) { return std::string(at::toString(info.param)); });

TEST(LowRankUpdate, LearnsFromAnInputWithoutGradient) {
  const LinearWeights weights = MakeWeights(at::kFloat, 0, false);
  Linear(Noise({kTokens, kIn}, 6), weights).sum().backward();
  EXPECT_GT(weights.update.down.gradient.abs().max().item<float>(), 0);
  EXPECT_GT(weights.update.modules[0].up.gradient.abs().max().item<float>(), 0);
}

}  // namespace
}  // namespace millrace::engine::ops
