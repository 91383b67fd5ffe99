#include "millrace/engine/ops/common/gpu_product.h"

#include <gtest/gtest.h>

#include "millrace/engine/ops/common/step_kernels.h"
#include "millrace/engine/tuning/speedup_threshold.h"

namespace millrace::engine::ops {
namespace {

TEST(GpuProductTest, NamesAreParsed) {
  for (const GpuNumber number : {GpuNumber::kFloat, GpuNumber::kTf32, GpuNumber::kBfloat16, GpuNumber::kHalf,
                                 GpuNumber::kE4m3, GpuNumber::kE5m2}) {
    EXPECT_EQ(ParseGpuNumber(GpuNumberName(number)), number);
  }
  for (const Fp8Grain grain : {Fp8Grain::kTensor, Fp8Grain::kLines, Fp8Grain::kSquares}) {
    EXPECT_EQ(ParseFp8Grain(Fp8GrainName(grain)), grain);
  }
  for (const ProductResult result :
       {ProductResult::kSet, ProductResult::kSetWithBias, ProductResult::kAdd, ProductResult::kAddWithSums}) {
    EXPECT_EQ(ParseProductResult(ProductResultName(result)), result);
  }
  EXPECT_FALSE(ParseGpuNumber("f64"));
}

TEST(GpuProductTest, AnAlgorithmIsItsWords) {
  const GpuAlgorithm algorithm{{1, 0, ~std::uint64_t{0}, 4, 5, 6, 7, std::uint64_t{1} << 63}};
  const std::string text = algorithm.ToText();
  EXPECT_EQ(text.size(), 128u);
  EXPECT_TRUE(text.starts_with("00000000000000010000000000000000ffffffffffffffff"));
  EXPECT_EQ(GpuAlgorithm::FromText(text), algorithm);
  EXPECT_FALSE(GpuAlgorithm::FromText(text.substr(1)));
  EXPECT_FALSE(GpuAlgorithm::FromText(text + "0"));
  for (const char wrong : {'g', ' ', '-', '+'}) {
    std::string damaged = text;
    damaged[16] = wrong;
    EXPECT_FALSE(GpuAlgorithm::FromText(damaged)) << wrong;
  }
}

TEST(GpuProductTest, AScopeNotesProductsAndChoosesAlgorithms) {
  const GpuProduct one{.rows = 8, .columns = 16, .inner = 32}, other{.rows = 8, .columns = 16, .inner = 64};
  EXPECT_FALSE(ChoosesProducts());
  EXPECT_EQ(AlgorithmFor(one), nullptr);
  StepKernels kernels;
  SeenProducts seen;
  {
    const KernelScope usual(kernels);
    EXPECT_FALSE(ChoosesProducts());
    const KernelScope notes(kernels, &seen);
    EXPECT_TRUE(ChoosesProducts());
    EXPECT_EQ(AlgorithmFor(one), nullptr);
  }
  EXPECT_EQ(seen.on_gpu, std::set<GpuProduct>{one});
  kernels.gpu_products[one] = {{7}};
  const KernelScope chosen(kernels);
  EXPECT_TRUE(ChoosesProducts());
  ASSERT_NE(AlgorithmFor(one), nullptr);
  EXPECT_EQ(*AlgorithmFor(one), (GpuAlgorithm{{7}}));
  EXPECT_EQ(AlgorithmFor(other), nullptr);
}

TEST(FasterTest, AGainBelowTheNoiseIsNone) {
  EXPECT_EQ(FasterThan(1, {}), std::nullopt);
  EXPECT_EQ(FasterThan(1, {1.2, 0.97, 1}), std::nullopt);
  EXPECT_EQ(FasterThan(1, {1.2, 0.9, 0.8}), 2u);
}

}  // namespace
}  // namespace millrace::engine::ops
