// Products by algorithms that are chosen, against those that ATen and cuBLAS choose.
#include "millrace/engine/tuning/measure_gpu_products.h"

#include <gtest/gtest.h>

#include "millrace/engine/ops/common/step_kernels.h"
#include "millrace/engine/ops/cuda/tensors/lt_product.h"
#include "millrace/engine/ops/cuda/tensors/product.h"
#include "millrace/engine/ops/product.h"

namespace millrace::engine::ops {
namespace {

class GpuChoiceTest : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) GTEST_SKIP() << "there is no GPU here";
  }
  static at::Tensor Random(std::int64_t rows, std::int64_t columns, bool transposed = false) {
    const auto options = at::TensorOptions().dtype(GetParam()).device(at::kCUDA);
    return transposed ? at::randn({columns, rows}, options).t() : at::randn({rows, columns}, options);
  }
  static void ExpectNear(const at::Tensor& got, const at::Tensor& want) {
    const double distance = ((got - want).to(at::kDouble).norm() / want.to(at::kDouble).norm()).item<double>();
    EXPECT_LT(distance, GetParam() == at::kFloat ? 1e-5 : 1e-2);
  }
};
INSTANTIATE_TEST_SUITE_P(Types, GpuChoiceTest, ::testing::Values(at::kFloat, at::kBFloat16, at::kHalf));

TEST_P(GpuChoiceTest, EveryAlgorithmMakesTheProduct) {
  constexpr std::int64_t kRows = 96, kColumns = 160, kInner = 64;
  const auto options = at::TensorOptions().dtype(GetParam()).device(at::kCUDA);
  for (const bool left : {false, true}) {
    for (const bool right : {false, true}) {
      for (const ProductResult result : {ProductResult::kSet, ProductResult::kSetWithBias, ProductResult::kAdd}) {
        const at::Tensor a = Random(kRows, kInner, left), b = Random(kInner, kColumns, right);
        const at::Tensor bias = result == ProductResult::kSetWithBias ? at::randn({kColumns}, options) : at::Tensor();
        const at::Tensor before = at::randn({kRows, kColumns}, options.dtype(at::kFloat));
        const auto make = [&] {
          if (result != ProductResult::kAdd) return Product(a, b, bias);
          const at::Tensor c = before.clone();
          AddProduct(c, a, b, 0.5F);
          return c;
        };
        const at::Tensor want = make();
        SeenProducts seen;
        const StepKernels usual;
        {
          const KernelScope scope(usual, &seen);
          make();
        }
        ASSERT_EQ(seen.on_gpu.size(), 1u);
        const GpuProduct product = *seen.on_gpu.begin();
        EXPECT_EQ(product.result, result);
        const std::vector<GpuAlgorithm> algorithms =
            cuda::Algorithms(product, {.bias = bias.defined() ? bias.data_ptr() : nullptr}, 8);
        ASSERT_FALSE(algorithms.empty());
        for (const GpuAlgorithm& algorithm : algorithms) {
          const StepKernels chosen{.gpu_products = {{product, algorithm}}};
          const KernelScope scope(chosen);
          const at::Tensor got = make();
          ExpectNear(got, want);
          EXPECT_TRUE(got.equal(make()));
        }
      }
    }
  }
}

TEST_P(GpuChoiceTest, OneProductMayMakeBothGradients) {
  constexpr std::int64_t kTokens = 256, kIn = 64, kOut = 96;
  const at::Tensor x = Random(kTokens, kIn), dout = Random(kTokens, kOut);
  const auto zeros = [](at::IntArrayRef sizes) {
    return at::zeros(sizes, at::TensorOptions().dtype(at::kFloat).device(at::kCUDA));
  };
  const at::Tensor dw = zeros({kOut, kIn}), db = zeros({kOut});
  const StepKernels usual;
  SeenProducts seen;
  {
    const KernelScope scope(usual, &seen);
    EXPECT_FALSE(cuda::AddProductWithSums(dw, dout.t(), x, db));
  }
  EXPECT_EQ(dw.count_nonzero().item<std::int64_t>() + db.count_nonzero().item<std::int64_t>(), 0);
  ASSERT_EQ(seen.on_gpu.size(), 1u);
  const GpuProduct product = *seen.on_gpu.begin();
  for (const GpuAlgorithm& algorithm : cuda::Algorithms(product, {.sums = db.data_ptr()}, 8)) {
    const StepKernels chosen{.gpu_products = {{product, algorithm}}};
    const KernelScope scope(chosen);
    const at::Tensor matrix = at::ones_like(dw), bias = at::ones_like(db);
    ASSERT_TRUE(cuda::AddProductWithSums(matrix, dout.t(), x, bias));
    ExpectNear(matrix - 1, dout.t().to(at::kFloat).mm(x.to(at::kFloat)));
    ExpectNear(bias - 1, dout.to(at::kFloat).sum(0));
  }
}

TEST_P(GpuChoiceTest, ProductsOfOddMemoryAreNotChosen) {
  const at::Tensor a = Random(65, 33).narrow(1, 0, 31), b = Random(31, 33);
  const StepKernels usual;
  SeenProducts seen;
  const KernelScope scope(usual, &seen);
  ExpectNear(Product(a, b), at::mm(a, b));
  EXPECT_TRUE(seen.on_gpu.empty());
}

TEST_P(GpuChoiceTest, MeasuresProductsOfAllKinds) {
  const GpuNumber number = GetParam() == at::kFloat      ? GpuNumber::kFloat
                           : GetParam() == at::kBFloat16 ? GpuNumber::kBfloat16
                                                         : GpuNumber::kHalf;
  std::set<GpuProduct> products;
  for (const ProductResult result : {ProductResult::kSet, ProductResult::kAdd}) {
    const GpuNumber out = result == ProductResult::kAdd ? GpuNumber::kFloat : number;
    products.insert({.rows = 512,
                     .columns = 256,
                     .inner = 384,
                     .left = {.number = number, .stride = 384},
                     .right = {.number = number, .transposed = true, .stride = 384},
                     .out = {.number = out, .stride = 256},
                     .result = result});
  }
  int measured = 0;
  const auto chosen = cuda::MeasureGpuProducts(products, at::Device(at::kCUDA, 0), [&] { ++measured; });
  EXPECT_EQ(measured, 2);
  for (const auto& [product, algorithm] : chosen) EXPECT_TRUE(products.contains(product));
}

}  // namespace
}  // namespace millrace::engine::ops
