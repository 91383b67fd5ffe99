#include "millrace/collectives/combine.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "millrace/base/hash/random.h"

namespace millrace::collectives {
namespace {

template <class T>
std::vector<T> CombineAll(Reduction reduction, const std::vector<std::vector<T>>& inputs) {
  std::vector<T> out(inputs[0].size());
  std::vector<const void*> sources;
  for (const std::vector<T>& input : inputs) sources.push_back(input.data());
  Combine(kTypeOf<T>, reduction, out.data(), sources, static_cast<std::int64_t>(out.size()));
  return out;
}

std::vector<Bf16> Bf16s(std::size_t count, float value) { return std::vector<Bf16>(count, FromFloat<Bf16>(value)); }

TEST(Combine, RoundsSumsOfBfloat16Once) {
  // In bfloat16, 256 + 1 is 256 again.
  EXPECT_EQ(ToFloat(CombineAll<Bf16>(Reduction::kSum, {Bf16s(3, 256), Bf16s(3, 1), Bf16s(3, 1)})[1]), 258);
}

TEST(Combine, RoundsMeansOfBfloat16Once) {
  // The sum 261 is no bfloat16: rounded to 260 before the division, it would give 43.25.
  const auto large = Bf16s(3, 256), one = Bf16s(3, 1);
  EXPECT_EQ(ToFloat(CombineAll<Bf16>(Reduction::kMean, {large, one, one, one, one, one})[1]), 43.5F);
}

template <class T, class Make>
void ExpectTheSameInParts(Make make) {
  std::vector<std::vector<T>> inputs(5);
  Random random(7);
  for (std::vector<T>& input : inputs) {
    for (int i = 0; i < 3'001; ++i) input.push_back(make(random.Uniform() * 6 - 3));
  }
  const std::vector<T> whole = CombineAll(Reduction::kSum, inputs);
  for (const std::ptrdiff_t cut : {1, 17, 1'024, 3'000}) {
    std::vector<T> joined;
    for (const auto& [begin, end] : {std::pair{std::ptrdiff_t{0}, cut}, std::pair{cut, std::ptrdiff_t{3'001}}}) {
      std::vector<std::vector<T>> parts;
      for (const std::vector<T>& input : inputs) parts.emplace_back(input.begin() + begin, input.begin() + end);
      const std::vector<T> part = CombineAll(Reduction::kSum, parts);
      joined.insert(joined.end(), part.begin(), part.end());
    }
    EXPECT_EQ(joined, whole);
  }
}

TEST(Combine, DoesNotDependOnHowElementsAreCut) {
  ExpectTheSameInParts<float>([](double value) { return static_cast<float>(value); });
  ExpectTheSameInParts<Bf16>([](double value) { return FromFloat<Bf16>(static_cast<float>(value)); });
  ExpectTheSameInParts<double>([](double value) { return value; });
}

TEST(Combine, MayWriteToASource) {
  std::vector<std::int32_t> a(2'000), expected(2'000);
  std::iota(a.begin(), a.end(), 0);
  std::iota(expected.begin(), expected.end(), 5);
  const std::vector<std::int32_t> b(2'000, 5);
  const void* const sources[] = {b.data(), a.data()};
  Combine(ElementType::kInt32, Reduction::kSum, a.data(), sources, 2'000);
  EXPECT_EQ(a, expected);
}

TEST(Combine, MaximumKeepsNan) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const auto max = CombineAll<float>(Reduction::kMax, {{1, kNan, -3}, {kNan, 2, -2}});
  EXPECT_TRUE(std::isnan(max[0]));
  EXPECT_TRUE(std::isnan(max[1]));
  EXPECT_EQ(max[2], -2);
}

TEST(Combine, SumsOfIntegersWrap) {
  using Limits = std::numeric_limits<std::int64_t>;
  EXPECT_EQ(CombineAll<std::int64_t>(Reduction::kSum, {{Limits::max()}, {1}})[0], Limits::min());
  EXPECT_EQ(CombineAll<std::uint8_t>(Reduction::kSum, {{200}, {100}})[0], 44);
}

}  // namespace
}  // namespace millrace::collectives
