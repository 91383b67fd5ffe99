// Products with codes against products with the numbers that they stand for.
#include "millrace/engine/ops/quantized_product.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <memory>
#include <tuple>
#include <vector>

#include "millrace/engine/ops/common/step_kernels.h"
#include "millrace/engine/ops/linear.h"
#include "millrace/engine/ops/reference.h"
#include "millrace/engine/testing/in_memory_codes.h"

namespace millrace::engine::ops {
namespace {

std::shared_ptr<const QuantizedMatrix> RandomMatrix(std::int64_t rows, std::int64_t columns) {
  return testing::ToNf4(at::randn({rows, columns}));
}

void ExpectNear(const at::Tensor& got, const at::Tensor& want, double tolerance) {
  ASSERT_EQ(got.sizes(), want.sizes());
  EXPECT_EQ(got.scalar_type(), want.scalar_type());
  const at::Tensor difference = (got.to(at::kDouble) - want.to(at::kDouble)).norm();
  EXPECT_LE(difference.item<double>(), tolerance * want.to(at::kDouble).norm().item<double>() + 1e-30);
}

/// A layer of two matrices, of which one is a box inside a larger one, with rows for several panels.
std::shared_ptr<const QuantizedRows> RandomRows(std::int64_t columns) {
  auto rows = std::make_shared<QuantizedRows>();
  const auto first = RandomMatrix(300, columns + 6);
  rows->Append(first, {.row = 10, .column = 3, .rows = 290, .columns = columns});
  rows->Append(RandomMatrix(75, columns), {.rows = 75, .columns = columns});
  return rows;
}

TEST(QuantizedProductTest, AreThoseOfTheNumbers) {
  at::manual_seed(1);
  for (const std::int64_t columns : {37, 5000}) {  // one panel, several
    const auto matrix = RandomRows(columns);
    const at::Tensor whole = Dequantized(*matrix);
    for (const std::int64_t tokens : {0, 1, 50}) {
      for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
        const double tolerance = type == at::kFloat ? 1e-6 : 4e-3;
        const at::Tensor x = at::randn({tokens, columns}).to(type), y = at::randn({tokens, 365}).to(type);
        const at::Tensor bias = at::randn({365}).to(type);
        ExpectNear(Product(x, *matrix), at::mm(x.to(at::kFloat), whole.t()).to(type), tolerance);
        ExpectNear(Product(x, *matrix, bias), at::addmm(bias.to(at::kFloat), x.to(at::kFloat), whole.t()).to(type),
                   tolerance);
        ExpectNear(ProductWithTranspose(y, *matrix), at::mm(y.to(at::kFloat), whole).to(type), tolerance);
      }
    }
  }
}

TEST(QuantizedProductTest, RowsAloneAreThoseOfTheNumbers) {
  at::manual_seed(4);
  const StepKernels kernels{.independent_rows = true};
  const KernelScope scope(kernels);
  const auto whole_blocks = std::make_shared<QuantizedRows>();
  whole_blocks->Append(RandomMatrix(70, 192), {.row = 5, .column = 64, .rows = 65, .columns = 128});
  whole_blocks->Append(RandomMatrix(33, 128), {.rows = 33, .columns = 128});
  const auto in_fp8 = std::make_shared<QuantizedRows>();
  in_fp8->Append(testing::ToFp8(at::randn({80, 120})), {.row = 3, .column = 20, .rows = 77, .columns = 100});
  for (const std::shared_ptr<const QuantizedRows>& matrix :
       {RandomRows(37), std::shared_ptr<const QuantizedRows>(whole_blocks), InInt8(at::randn({77, 100})),
        std::shared_ptr<const QuantizedRows>(in_fp8)}) {
    const at::Tensor whole = Dequantized(*matrix), bias = at::randn({matrix->rows()});
    for (const std::int64_t tokens : {1, 50}) {
      for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
        const at::Tensor x = at::randn({tokens, matrix->columns()}).to(type), got = Product(x, *matrix, bias.to(type));
        ExpectNear(got, at::addmm(bias.to(type).to(at::kFloat), x.to(at::kFloat), whole.t()).to(type),
                   type == at::kFloat ? 1e-6 : 4e-3);
        EXPECT_TRUE(Product(x.narrow(0, tokens - 1, 1), *matrix, bias.to(type)).equal(got.narrow(0, tokens - 1, 1)));
      }
    }
  }
}

TEST(QuantizedProductTest, InInt8IsWithinHalfACode) {
  const at::Tensor matrix = at::randn({40, 30});
  const at::Tensor error = (Dequantized(*InInt8(matrix)) - matrix).abs();
  EXPECT_TRUE((error <= std::get<0>(matrix.abs().max(1, /*keepdim=*/true)) / 254 * 1.001).all().item<bool>());
}

TEST(QuantizedProductTest, ALayerWithAnAdapterHasTheReferencesGradients) {
  at::manual_seed(2);
  const std::int64_t columns = 40;
  const auto trained = [](at::Tensor value) {
    Weight weight{.value = std::move(value)};
    weight.value.set_requires_grad(true);
    return weight;
  };
  LinearWeights weights{.bias = {.value = at::randn({365})}, .codes = RandomRows(columns)};
  weights.update = {.down = trained(at::randn({8, columns})), .scale = 0.5};
  weights.update.modules = {{.first_output = 0, .up = trained(at::randn({100, 4}))},
                            {.first_output = 100, .up = trained(at::randn({265, 4}))}};
  const auto run = [&](bool fused, std::int64_t tokens) {
    LinearWeights used = weights;
    const auto alone = [&](Weight& weight) {
      weight.value = weight.value.detach().clone().set_requires_grad(true);
      if (fused) weight.gradient = at::zeros_like(weight.value).detach();
    };
    alone(used.update.down);
    for (LowRankUpdate::Module& module : used.update.modules) alone(module.up);
    at::manual_seed(3);
    const at::Tensor x = at::randn({tokens, columns}).set_requires_grad(true), factor = at::randn({tokens, 365});
    const at::Tensor out = fused ? Linear(x, used) : reference::Linear(x, used);
    (out * factor).sum().backward();
    std::vector<at::Tensor> results{out.detach(), x.grad()};
    const auto gradient = [&](const Weight& weight) { return fused ? weight.gradient : weight.value.grad(); };
    results.push_back(gradient(used.update.down));
    for (const LowRankUpdate::Module& module : used.update.modules) results.push_back(gradient(module.up));
    return results;
  };
  for (const std::int64_t tokens : {30, 60}) {  // fewer than inputs, more
    const std::vector<at::Tensor> got = run(true, tokens), want = run(false, tokens);
    for (std::size_t i = 0; i < want.size(); ++i) ExpectNear(got[i], want[i], 1e-6);
  }
}

}  // namespace
}  // namespace millrace::engine::ops
