#include "millrace/collectives/combine.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

namespace millrace::engine {
namespace {

at::Tensor CombineTensors(Reduction reduction, const std::vector<at::Tensor>& inputs) {
  at::Tensor out = at::empty_like(inputs[0]);
  std::vector<const void*> sources;
  for (const at::Tensor& input : inputs) sources.push_back(input.data_ptr());
  Combine(out.scalar_type(), reduction, out.data_ptr(), sources, out.numel());
  return out;
}

TEST(Combine, RoundsSumsOfBfloat16Once) {
  // In bfloat16, 256 + 1 is 256 again.
  const at::Tensor large = at::full({3}, 256, at::kBFloat16), one = at::ones({3}, at::kBFloat16);
  EXPECT_EQ(CombineTensors(Reduction::kSum, {large, one, one})[1].item<float>(), 258);
}

TEST(Combine, RoundsMeansOfBfloat16Once) {
  // The sum 261 is no bfloat16: rounded to 260 before the division, it would give 43.25.
  const at::Tensor large = at::full({3}, 256, at::kBFloat16), one = at::ones({3}, at::kBFloat16);
  EXPECT_EQ(CombineTensors(Reduction::kMean, {large, one, one, one, one, one})[1].item<float>(), 43.5F);
}

TEST(Combine, DoesNotDependOnHowElementsAreCut) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kDouble}) {
    std::vector<at::Tensor> inputs;
    for (int i = 0; i < 5; ++i) inputs.push_back(at::randn({3'001}).to(type));
    const at::Tensor whole = CombineTensors(Reduction::kSum, inputs);
    for (const std::int64_t cut : {1, 17, 1'024, 3'000}) {
      const auto part = [&](std::int64_t begin, std::int64_t elements) {
        std::vector<at::Tensor> parts;
        for (const at::Tensor& input : inputs) parts.push_back(input.narrow(0, begin, elements));
        return CombineTensors(Reduction::kSum, parts);
      };
      EXPECT_TRUE(at::cat({part(0, cut), part(cut, 3'001 - cut)}).equal(whole));
    }
  }
}

TEST(Combine, MayWriteToASource) {
  const at::Tensor a = at::arange(2'000, at::kInt), b = at::full({2'000}, 5, at::kInt);
  const void* const sources[] = {b.data_ptr(), a.data_ptr()};
  Combine(at::kInt, Reduction::kSum, a.data_ptr(), sources, a.numel());
  EXPECT_TRUE(a.equal(at::arange(5, 2'005, at::kInt)));
}

TEST(Combine, MaximumKeepsNan) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const at::Tensor max =
      CombineTensors(Reduction::kMax, {at::tensor({1.0F, kNan, -3.0F}), at::tensor({kNan, 2.0F, -2.0F})});
  EXPECT_TRUE(max[0].isnan().item<bool>());
  EXPECT_TRUE(max[1].isnan().item<bool>());
  EXPECT_EQ(max[2].item<float>(), -2);
}

TEST(Combine, SumsOfIntegersWrap) {
  const at::Tensor most = at::full({1}, std::numeric_limits<std::int64_t>::max(), at::kLong);
  EXPECT_EQ(CombineTensors(Reduction::kSum, {most, at::ones({1}, at::kLong)}).item<std::int64_t>(),
            std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(CombineTensors(Reduction::kSum, {at::full({1}, 200, at::kByte), at::full({1}, 100, at::kByte)}).item<int>(),
            44);
}

}  // namespace
}  // namespace millrace::engine
