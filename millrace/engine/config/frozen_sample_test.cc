#include "millrace/engine/config/frozen_sample.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace millrace::engine {
namespace {

TEST(FrozenSample, IsOfPlacesInTheWeight) {
  for (const std::uint64_t elements : {1, 2, 1000, 1 << 30}) {
    std::set<std::uint64_t> places;
    for (const SampledElement& element : SampleWeight("model.layers.0.mlp.up_proj.weight", elements)) {
      ASSERT_LT(element.place, elements);
      places.insert(element.place);
    }
    EXPECT_GT(places.size(), std::min<std::uint64_t>(elements, kSampledElements) / 2);
  }
}

/// Checkpoints of adapters have sums of these hashes.
TEST(FrozenSample, NeverChanges) {
  std::uint64_t sum = 0;
  for (const SampledElement& element : SampleWeight("model.norm.weight", 4096)) {
    sum += element.Hash(static_cast<float>(element.place) / 8);
  }
  EXPECT_EQ(sum, 0x7078c619b694ed3e);
}

TEST(FrozenSample, TellsNamesAndValuesApart) {
  const auto one = SampleWeight("a.weight", 1 << 20), other = SampleWeight("b.weight", 1 << 20);
  EXPECT_NE(one.front().place, other.front().place);
  EXPECT_NE(one.front().Hash(1), one.front().Hash(-1));
  EXPECT_NE(one.front().Hash(1), one.back().Hash(1));
}

}  // namespace
}  // namespace millrace::engine
