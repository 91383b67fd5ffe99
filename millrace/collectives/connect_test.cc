#include "millrace/collectives/connect.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace millrace::engine {
namespace {

TEST(RankInfo, ReadsWhatTorchrunSets) {
  ::setenv("WORLD_SIZE", "4", 1);
  ::setenv("RANK", "3", 1);
  ::setenv("MASTER_PORT", "29500", 1);
  const auto info = RankInfo::FromEnvironment();
  ASSERT_TRUE(info);
  EXPECT_EQ(info->rank, 3);
  EXPECT_EQ(info->size, 4);
  ::setenv("RANK", "4", 1);
  EXPECT_FALSE(RankInfo::FromEnvironment());
  ::setenv("RANK", "x", 1);
  EXPECT_FALSE(RankInfo::FromEnvironment());
  for (const char* name : {"WORLD_SIZE", "RANK", "MASTER_PORT"}) ::unsetenv(name);
  EXPECT_EQ(RankInfo::FromEnvironment()->size, 1);
}

}  // namespace
}  // namespace millrace::engine
