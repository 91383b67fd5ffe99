#include "millrace/base/hash/random.h"

#include <gtest/gtest.h>

#include <set>

namespace millrace {
namespace {

// Durable formats depend on these values: they may never change.
TEST(Mix64, IsPinned) {
  EXPECT_EQ(Mix64(0), 0u);
  EXPECT_EQ(Mix64(1), 0x5692161d100b05e5u);
  EXPECT_EQ(Mix64(0x9e3779b97f4a7c15u), 0xe220a8397b1dcdafu);  // SplitMix64's first output for seed 0
}

TEST(Random, SameSeedSameNumbersOtherSeedOthers) {
  Random a(7), b(7), c(8);
  for (int i = 0; i < 100; ++i) {
    std::uint64_t x = a.Next();
    EXPECT_EQ(x, b.Next());
    EXPECT_NE(x, c.Next());
  }
}

TEST(Random, BelowIsUniformEnough) {
  Random random(3);
  int counts[6] = {};
  for (int i = 0; i < 60'000; ++i) ++counts[random.Below(6)];
  for (int count : counts) EXPECT_NEAR(count, 10'000, 400);
  for (int i = 0; i < 1000; ++i) {
    double u = random.Uniform();
    EXPECT_GE(u, 0.0);
    EXPECT_LT(u, 1.0);
  }
}

TEST(SecureHex, HasTheLengthAskedForAndDiffers) {
  std::set<std::string> seen;
  for (int i = 0; i < 100; ++i) seen.insert(SecureHex(16));
  EXPECT_EQ(seen.size(), 100u);
  EXPECT_EQ(seen.begin()->size(), 32u);
}

}  // namespace
}  // namespace millrace
