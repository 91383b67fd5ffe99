// Properties over random parameters and numbers of ranks: flat tensors that are cut up as DeepSpeed does it, by a
// second implementation of its rules, give every element of every parameter back, once.
#include "millrace/checkpoint/convert/deepspeed/zero_layout.h"

#include <gmock/gmock.h>

#include "millrace/base/hash/random.h"

namespace millrace::checkpoint {
namespace {

/// An element of a flat tensor: a number of its own, or padding.
using Flat = std::vector<std::int64_t>;
constexpr std::int64_t kPadding = -1;

struct ZeroModel {
  std::vector<ZeroGroup> groups;
  std::vector<std::vector<Flat>> values;  ///< of the parameters, as groups
};

ZeroModel RandomModel(Random& random) {
  ZeroModel model;
  std::int64_t next = 0;
  for (std::uint64_t g = 0, groups = 1 + random.Below(3); g < groups; ++g) {
    model.groups.emplace_back();
    model.values.emplace_back();
    for (std::uint64_t i = 0, count = 1 + random.Below(6); i < count; ++i) {
      const std::uint64_t elements = random.Below(4) == 0 ? random.Below(3) : random.Below(60);
      model.groups[g].push_back({fmt::format("{}.{}", g, i), {static_cast<std::int64_t>(elements)}, elements});
      Flat& values = model.values[g].emplace_back();
      for (std::uint64_t e = 0; e < elements; ++e) values.push_back(next++);
    }
  }
  return model;
}

FlatSizes SizesOf(const std::vector<std::vector<Flat>>& flats) {
  FlatSizes sizes;
  for (const auto& of_rank : flats) {
    sizes.emplace_back();
    for (const Flat& flat : of_rank) sizes.back().push_back(flat.size());
  }
  return sizes;
}

void ExpectAllBack(const ZeroModel& model, const std::vector<std::vector<Flat>>& flats,
                   const Result<std::vector<ZeroRun>>& runs) {
  ASSERT_TRUE(runs) << runs.error().ToString();
  std::vector<std::vector<Flat>> back;
  for (const auto& group : model.values) {
    back.emplace_back();
    for (const Flat& values : group) back.back().emplace_back(values.size(), kPadding);
  }
  for (const ZeroRun& run : *runs) {
    EXPECT_GT(run.elements, 0u);
    for (std::uint64_t i = 0; i < run.elements; ++i) {
      std::int64_t& to = back.at(run.group).at(run.parameter).at(run.begin + i);
      EXPECT_EQ(to, kPadding) << "twice";
      to = flats.at(run.rank).at(run.flat).at(run.offset + i);
    }
  }
  EXPECT_EQ(back, model.values);
}

TEST(ZeroLayout, Stage2GivesEveryElementBack) {
  Random random(1);
  for (int i = 0; i < 300; ++i) {
    const ZeroModel model = RandomModel(random);
    const std::uint64_t ranks = 1 + random.Below(5);
    const bool stripped = random.Below(2) == 0;  // weights are saved without padding, moments with it
    std::vector<std::vector<Flat>> flats(ranks);
    for (const auto& group : model.values) {
      Flat all;
      for (const Flat& values : group) all.insert(all.end(), values.begin(), values.end());
      const std::uint64_t real = all.size();
      while (all.size() % (2 * ranks) != 0) all.push_back(kPadding);
      const std::uint64_t share = all.size() / ranks;
      for (std::uint64_t rank = 0; rank < ranks; ++rank) {
        const std::uint64_t begin = rank * share, end = begin + share;
        const std::uint64_t last = stripped ? std::max(begin, std::min(end, real)) : end;
        flats[rank].emplace_back(all.begin() + static_cast<std::ptrdiff_t>(begin),
                                 all.begin() + static_cast<std::ptrdiff_t>(last));
      }
    }
    FlatSizes sizes = SizesOf(flats);
    ExpectAllBack(model, flats, RunsOfStage2(model.groups, sizes));
    sizes.back().back() += 2 * ranks;
    EXPECT_EQ(RunsOfStage2(model.groups, sizes).error().code(), Code::kCorrupt) << "too much padding";
    sizes.front().pop_back();
    EXPECT_EQ(RunsOfStage2(model.groups, sizes).error().code(), Code::kCorrupt) << "a group is missing";
  }
}

TEST(ZeroLayout, Stage3GivesEveryElementBack) {
  Random random(2);
  for (int i = 0; i < 300; ++i) {
    const ZeroModel model = RandomModel(random);
    const std::uint64_t ranks = 1 + random.Below(5);
    std::vector<std::vector<Flat>> flats(ranks);
    for (std::uint64_t rank = 0; rank < ranks; ++rank) {
      Flat all;
      for (const auto& group : model.values) {
        for (const Flat& values : group) {
          const std::uint64_t share = (values.size() + ranks - 1) / ranks;
          for (std::uint64_t e = rank * share; e < (rank + 1) * share; ++e)
            all.push_back(e < values.size() ? values[e] : kPadding);
        }
      }
      // Flat tensors that end anywhere, also in the middle of a share.
      const std::uint64_t cut = all.empty() ? 0 : (i * 7) % all.size();
      const auto middle = all.begin() + static_cast<std::ptrdiff_t>(cut);
      flats[rank] = {Flat(all.begin(), middle), Flat(), Flat(middle, all.end())};
    }
    FlatSizes sizes = SizesOf(flats);
    ExpectAllBack(model, flats, RunsOfStage3(model.groups, sizes));
    ++sizes.back().back();
    EXPECT_EQ(RunsOfStage3(model.groups, sizes).error().code(), Code::kCorrupt);
  }
}

}  // namespace
}  // namespace millrace::checkpoint
