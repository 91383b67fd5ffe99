// Layers with adapters, with and without magnitudes, over weights in full and over codes: fused passes against the
// reference.
#include "millrace/engine/ops/low_rank.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "millrace/engine/ops/cpu/gemm.h"
#include "millrace/engine/ops/linear.h"
#include "millrace/engine/ops/reference.h"
#include "millrace/engine/testing/in_memory_codes.h"

namespace millrace::engine::ops {
namespace {

constexpr std::int64_t kInputs = 40, kOutputs = 365, kRank = 4;

struct AdapterCase {
  bool codes = false, magnitudes = false, dropout = false;
  at::ScalarType type = at::kFloat;
  std::int64_t tokens = 30;  ///< fewer than inputs
  std::string Name() const {
    return fmt::format("{}{}{}{}{}", codes ? "Codes" : "Full", magnitudes ? "Magnitudes" : "", dropout ? "Dropout" : "",
                       type == at::kFloat ? "F32" : "Bf16", tokens);
  }
};

class AdaptedLayer : public ::testing::TestWithParam<AdapterCase> {
 protected:
  /// Returns `values`, rounded to the layer's type. The reference computes with them in float32: how ATen adds products
  /// of bfloat16 depends on the processor.
  static at::Tensor Rounded(const at::Tensor& values, bool fused) {
    const at::Tensor rounded = values.to(GetParam().type);
    return fused ? rounded : rounded.to(at::kFloat);
  }

  static Weight Trained(const at::Tensor& values, bool fused) {
    Weight weight{.value = Rounded(values, fused).clone().set_requires_grad(true)};
    if (fused) weight.gradient = at::zeros(values.sizes(), at::kFloat);
    return weight;
  }

  /// Two modules; the outputs before and between them have no adapter.
  LinearWeights Weights(bool fused) const {
    const AdapterCase& c = GetParam();
    at::manual_seed(2);
    const at::Tensor matrix = at::randn({kOutputs, kInputs});
    LinearWeights weights{.bias = {.value = Rounded(at::randn({kOutputs}), fused)}};
    if (c.codes) {
      auto rows = std::make_shared<QuantizedRows>();
      rows->Append(testing::ToNf4(matrix.narrow(0, 0, 90)), {.rows = 90, .columns = kInputs});
      rows->Append(testing::ToNf4(matrix.narrow(0, 90, kOutputs - 90)), {.rows = kOutputs - 90, .columns = kInputs});
      weights.codes = std::move(rows);
    } else {
      weights.matrix.value = Rounded(matrix, fused);
    }
    LowRankUpdate& update = weights.update;
    update = {.down = Trained(at::randn({2 * kRank, kInputs}), fused), .scale = 0.5};
    for (const auto& [first, outputs] : {std::pair(5, 100), std::pair(120, 245)}) {
      LowRankUpdate::Module module{.first_output = first, .up = Trained(at::randn({outputs, kRank}), fused)};
      if (c.dropout) {
        module.dropout = {.probability = 0.3, .site = static_cast<std::uint64_t>(first), .rows = {.row_length = 10}};
      }
      const at::Tensor magnitude = at::rand({outputs}) + 3;
      if (c.magnitudes) module.magnitude = Trained(magnitude, fused);
      update.modules.push_back(std::move(module));
    }
    return weights;
  }

  /// Returns output and gradients.
  std::vector<at::Tensor> Run(bool fused) const {
    const LinearWeights weights = Weights(fused);
    at::manual_seed(3);
    const at::Tensor x = Rounded(at::randn({GetParam().tokens, kInputs}), fused).set_requires_grad(true);
    const at::Tensor out = fused ? Linear(x, weights) : reference::Linear(x, weights);
    (out * at::randn(out.sizes())).sum().backward();
    std::vector<at::Tensor> results{out.detach(), x.grad()};
    const auto add = [&](const Weight& weight) { results.push_back(fused ? weight.gradient : weight.value.grad()); };
    add(weights.update.down);
    for (const LowRankUpdate::Module& module : weights.update.modules) {
      add(module.up);
      if (module.magnitude.value.defined()) add(module.magnitude);
    }
    return results;
  }
};

TEST_P(AdaptedLayer, HasTheReferencesGradients) {
  const std::vector<at::Tensor> got = Run(true), want = Run(false);
  ASSERT_EQ(got.size(), want.size());
  const double tolerance = GetParam().type == at::kFloat ? 2e-6 : 1e-2;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const at::Tensor exact = want[i].to(at::kDouble);
    const double difference = (got[i].to(at::kDouble) - exact).norm().item<double>();
    EXPECT_LE(difference, tolerance * exact.norm().item<double>()) << i;
  }
}

std::vector<AdapterCase> Cases() {
  std::vector<AdapterCase> cases;
  for (const bool codes : {false, true}) {
    for (const bool magnitudes : {false, true}) {
      for (const bool dropout : {false, true}) {
        for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
          for (const std::int64_t tokens : {30, 60}) cases.push_back({codes, magnitudes, dropout, type, tokens});
        }
      }
    }
  }
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Cases, AdaptedLayer, ::testing::ValuesIn(Cases()),
                         [](const auto& info) { return info.param.Name(); });

/// The rows of the matrix that a layer multiplies with have the magnitudes as their norms.
TEST(Magnitudes, AreTheNormsOfTheRows) {
  at::manual_seed(4);
  LinearWeights weights{.matrix = {.value = at::randn({9, 6})}};
  weights.update = {.down = {.value = at::randn({2, 6})}, .scale = 2};
  const at::Tensor magnitude = at::rand({9}) + 1;
  weights.update.modules = {{.up = {.value = at::randn({9, 2})}, .magnitude = {.value = magnitude}}};
  const at::Tensor rows = Linear(at::eye(6), weights).t();
  EXPECT_TRUE(at::allclose(rows.norm(2, 1), magnitude, 1e-5, 0));
  const at::Tensor sum =
      weights.matrix.value + 2 * at::mm(weights.update.modules[0].up.value, weights.update.down.value);
  EXPECT_TRUE(at::allclose(rows, sum * (magnitude / sum.norm(2, 1)).unsqueeze(1), 1e-5, 1e-6));
}

}  // namespace
}  // namespace millrace::engine::ops
