#include "millrace/checkpoint/format/box.h"

#include <gmock/gmock.h>

#include <map>

#include "millrace/base/hash/random.h"
#include "millrace/checkpoint/testing/random_state.h"

namespace millrace::checkpoint {
namespace {

using ::testing::HasSubstr;

using Shape = std::vector<std::int64_t>;

/// For each element of the box, in C order, its place in the tensor.
std::vector<std::uint64_t> Places(const Shape& shape, Box box) {
  if (box.whole()) box = {std::vector<std::uint64_t>(shape.size(), 0), {shape.begin(), shape.end()}};
  std::vector<std::uint64_t> places;
  for (std::uint64_t i = 0; i < ElementsOf(box, shape); ++i) {
    std::uint64_t rest = i, place = 0, stride = 1;
    for (std::size_t d = shape.size(); d-- > 0; rest /= box.lengths[d]) {
      place += (box.offsets[d] + rest % box.lengths[d]) * stride;
      stride *= static_cast<std::uint64_t>(shape[d]);
    }
    places.push_back(place);
  }
  return places;
}

Box RandomBox(const Shape& shape, Random& random) {
  Box box;
  for (std::int64_t length : shape) {
    box.offsets.push_back(random.Below(static_cast<std::uint64_t>(length) + 1));
    box.lengths.push_back(random.Below(static_cast<std::uint64_t>(length) - box.offsets.back() + 1));
  }
  return box;
}

Shape RandomShape(Random& random) {
  Shape shape;
  for (std::uint64_t dimensions = random.Below(5); dimensions > 0; --dimensions)
    shape.push_back(static_cast<std::int64_t>(1 + random.Below(5)));
  return shape;
}

TEST(Box, CommonStretchesAreThoseOfTheDefinition) {
  Random random(1);
  for (int round = 0; round < 3000; ++round) {
    const Shape shape = RandomShape(random);
    const Box a = random.Below(4) ? RandomBox(shape, random) : Box{}, b = RandomBox(shape, random);
    const auto in_a = Places(shape, a), in_b = Places(shape, b);
    const std::uint64_t begin_a = random.Below(in_a.size() + 1), begin_b = random.Below(in_b.size() + 1);
    const BoxRun run_a{a, begin_a, random.Below(in_a.size() - begin_a + 1)};
    const BoxRun run_b{b, begin_b, random.Below(in_b.size() - begin_b + 1)};
    std::map<std::uint64_t, std::uint64_t> expected, found;
    for (std::uint64_t i = begin_a; i < begin_a + run_a.elements; ++i)
      for (std::uint64_t j = begin_b; j < begin_b + run_b.elements; ++j)
        if (in_a[i] == in_b[j]) expected.emplace(i, j);
    ForEachCommon(shape, run_a, run_b, [&](std::uint64_t i, std::uint64_t j, std::uint64_t count) {
      ASSERT_GT(count, 0u);
      for (std::uint64_t k = 0; k < count; ++k) ASSERT_TRUE(found.emplace(i + k, j + k).second);
    });
    ASSERT_EQ(found, expected) << ToString(a) << " and " << ToString(b);
  }
}

TEST(Box, RowsOfAShardAreOneStretch) {
  const Shape shape{1000, 64};
  const Box rows{{100, 0}, {50, 64}};
  int stretches = 0;
  ForEachCommon(shape, {Box{}, 0, 64'000}, {rows, 0, 3200}, [&](auto in_a, auto in_b, auto count) {
    ++stretches;
    EXPECT_EQ(in_a, 6400u);
    EXPECT_EQ(in_b, 0u);
    EXPECT_EQ(count, 3200u);
  });
  EXPECT_EQ(stretches, 1);
}

TEST(Box, EveryTilingHoldsAndEveryOtherFails) {
  Random random(2);
  for (int round = 0; round < 2000; ++round) {
    const Shape shape = RandomShape(random);
    auto boxes = testing::State::Grid(shape, random);
    ASSERT_TRUE(CheckTiling(shape, boxes));
    for (const Box& box : boxes) ASSERT_TRUE(CheckBox(box, shape));
    if (shape.empty()) continue;
    Box& victim = boxes[random.Below(boxes.size())];
    const std::size_t d = random.Below(shape.size());
    if (random.Below(3) == 0) {
      boxes.push_back(victim);
    } else if (victim.lengths[d] > 1) {
      victim.lengths[d] -= 1;
    } else if (victim.offsets[d] > 0) {
      victim.offsets[d] -= 1;
    } else {
      continue;
    }
    ASSERT_FALSE(CheckTiling(shape, boxes));
  }
}

TEST(Box, ATilingThatNoCutSeparatesHoldsToo) {
  // Four blades around a middle.
  std::vector<Box> blades{{{0, 0}, {1, 2}}, {{0, 2}, {2, 1}}, {{2, 1}, {1, 2}}, {{1, 0}, {2, 1}}, {{1, 1}, {1, 1}}};
  EXPECT_TRUE(CheckTiling({3, 3}, blades));
  blades.pop_back();
  EXPECT_THAT(CheckTiling({3, 3}, blades).error().ToString(), HasSubstr("covered by no file"));
  blades.push_back({{1, 0}, {1, 2}});
  EXPECT_THAT(CheckTiling({3, 3}, blades).error().ToString(), HasSubstr("covered twice"));
}

TEST(Box, ThousandsOfShardsAreCheckedInNoTime) {
  for (std::size_t dimension : {0, 1}) {
    std::vector<Box> boxes;
    for (std::uint64_t i = 0; i < 16'384; ++i) {
      Box box{{0, 0}, {16'384, 16'384}};
      box.offsets[dimension] = i;
      box.lengths[dimension] = 1;
      boxes.push_back(box);
    }
    EXPECT_TRUE(CheckTiling({16'384, 16'384}, boxes));
    boxes[77].lengths[1 - dimension] -= 1;
    EXPECT_FALSE(CheckTiling({16'384, 16'384}, boxes));
  }
}

}  // namespace
}  // namespace millrace::checkpoint
