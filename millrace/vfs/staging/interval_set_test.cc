#include "millrace/vfs/staging/interval_set.h"

#include <gtest/gtest.h>

#include <bitset>

#include "millrace/base/hash/random.h"

namespace millrace::vfs {
namespace {

constexpr std::uint64_t kBytes = 64;
using Model = std::bitset<kBytes>;

std::vector<Interval> Runs(const Model& model, std::uint64_t begin, std::uint64_t end, bool of) {
  std::vector<Interval> runs;
  for (std::uint64_t at = begin; at < end; ++at) {
    if (model[at] != of) continue;
    if (!runs.empty() && runs.back().end == at) {
      ++runs.back().end;
    } else {
      runs.push_back({at, at + 1});
    }
  }
  return runs;
}

TEST(IntervalSetTest, IsASetOfBytes) {
  Random random(1);
  IntervalSet set;
  Model model;
  for (int step = 0; step < 20'000; ++step) {
    const std::uint64_t begin = random.Below(kBytes), end = begin + random.Below(kBytes - begin + 1);
    switch (random.Below(8)) {
      case 0:
      case 1:
        set.Add(begin, end);
        for (std::uint64_t at = begin; at < end; ++at) model[at] = true;
        break;
      case 2:
      case 3:
        set.Remove(begin, end);
        for (std::uint64_t at = begin; at < end; ++at) model[at] = false;
        break;
      default: {
        const auto has = Runs(model, begin, end, true);
        EXPECT_EQ(set.In(begin, end), has);
        EXPECT_EQ(set.Gaps(begin, end), Runs(model, begin, end, false));
        EXPECT_EQ(set.Intersects(begin, end), !has.empty());
        EXPECT_EQ(set.Covers(begin, end), begin == end || (has.size() == 1 && has[0] == Interval{begin, end}));
        std::uint64_t bytes = 0;
        for (const Interval& run : has) bytes += run.size();
        EXPECT_EQ(set.BytesIn(begin, end), bytes);
      }
    }
    ASSERT_EQ(set.bytes(), model.count());
    ASSERT_EQ(set.All(), Runs(model, 0, kBytes, true)) << "disjoint, and merged where they touch";
  }
}

}  // namespace
}  // namespace millrace::vfs
