#include "millrace/collectives/connect.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "millrace/collectives/testing/run_ranks.h"

namespace millrace::collectives {
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

TEST(RankInfo, TakesTheSecretOutOfTheEnvironment) {
  ::setenv("MILLRACE_RANK_SECRET", "a secret of tests", 1);
  ::setenv("MILLRACE_ATTEMPT", "3", 1);
  const char* const place = std::getenv("MILLRACE_RANK_SECRET");
  const auto info = RankInfo::FromEnvironment();
  ASSERT_TRUE(info) << info.error().ToString();
  EXPECT_EQ(AsText(info->secret.span()), "a secret of tests");
  EXPECT_EQ(info->attempt, 3);
  EXPECT_EQ(std::getenv("MILLRACE_RANK_SECRET"), nullptr) << "no child inherits it";
  EXPECT_EQ(std::string_view(place), "") << "nor is it in a core file";
  ::unsetenv("MILLRACE_ATTEMPT");
  ::setenv("MILLRACE_RANK_SECRET", "too short", 1);
  const auto refused = RankInfo::FromEnvironment();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().ToString().find("too short"), std::string::npos) << "errors show no secret";
  ::unsetenv("MILLRACE_RANK_SECRET");
}

constexpr Duration kTimeout = std::chrono::seconds(30);

/// Connects two ranks, which may differ, and returns their errors; "" for those that are connected.
std::vector<std::string> Connect(RankInfo first, RankInfo second) {
  first.size = second.size = 2;
  first.rank = 0;
  second.rank = 1;
  first.master_port = second.master_port = FreePort();
  std::vector<std::string> errors(2);
  std::vector<std::jthread> threads;
  for (const RankInfo* info : {&first, &second}) {
    threads.emplace_back([&errors, info] {
      const auto group = ConnectTcp(*info, info->rank == 0 ? std::chrono::seconds(2) : kTimeout);
      if (!group) {
        errors[static_cast<std::size_t>(info->rank)] = group.error().ToString();
        return;
      }
      EXPECT_TRUE((*group)->Barrier());
    });
  }
  threads.clear();
  return errors;
}

SecretBytes Secret(std::string_view text) { return SecretBytes(AsBytes(text)); }

TEST(ConnectRanks, RanksWithTheSameSecretMeet) {
  const RankInfo info{.secret = Secret("a secret of tests")};
  EXPECT_THAT(Connect(info, info), testing::Each(""));
}

TEST(ConnectRanks, RanksWithDifferentSecretsDoNotMeet) {
  const auto errors = Connect({.secret = Secret("a secret of tests")}, {.secret = Secret("another secret")});
  EXPECT_THAT(errors[0], testing::HasSubstr("rank 1"));
  EXPECT_THAT(errors[1], testing::HasSubstr("MILLRACE_RANK_SECRET"));
}

TEST(ConnectRanks, RanksOfDifferentAttemptsDoNotMeet) {
  const SecretBytes secret = Secret("a secret of tests");
  const auto errors = Connect({.attempt = 2, .secret = secret}, {.attempt = 1, .secret = secret});
  EXPECT_THAT(errors, testing::Each(testing::Not("")));
}

TEST(ConnectRanks, NoSecretIsRefusedWhereOtherMachinesReachIt) {
  const auto group = ConnectRanks({.size = 2, .master_address = "192.0.2.7", .master_port = 29'500}, kTimeout);
  ASSERT_FALSE(group);
  EXPECT_EQ(group.error().code(), Code::kInvalidArgument);
  EXPECT_THAT(group.error().ToString(), testing::HasSubstr("MILLRACE_RANK_SECRET"));
  EXPECT_THAT(group.error().ToString(), testing::HasSubstr("openssl rand -hex 32"));
}

TEST(ConnectRanks, ARankThatDoesNotComeIsNamed) {
  const auto group = ConnectRanks({.size = 2, .master_port = FreePort()}, std::chrono::milliseconds(50));
  ASSERT_FALSE(group);
  EXPECT_EQ(group.error().code(), Code::kUnavailable);
  EXPECT_THAT(group.error().ToString(), testing::HasSubstr("waiting for rank 1 of the job"));
}

}  // namespace
}  // namespace millrace::collectives
