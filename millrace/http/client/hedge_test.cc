#include "millrace/http/client/hedge.h"

#include <gtest/gtest.h>

namespace millrace::http {
namespace {

using std::chrono::milliseconds;

TEST(HedgePolicy, KnowsNothingAtFirst) {
  HedgePolicy policy(0.05);
  for (int i = 0; i < 19; ++i) {
    EXPECT_FALSE(policy.Began());
    policy.Answered(milliseconds(10));
  }
  policy.Answered(milliseconds(10));
  EXPECT_TRUE(policy.Began());
}

TEST(HedgePolicy, WaitsFarLongerThanUsual) {
  HedgePolicy policy(0.05);
  for (int i = 0; i < 500; ++i) policy.Answered(milliseconds(i % 2 ? 80 : 120));
  auto wait = policy.Began();
  ASSERT_TRUE(wait);
  EXPECT_GT(*wait, milliseconds(180));
  EXPECT_LT(*wait, milliseconds(280));
  for (int i = 0; i < 500; ++i) policy.Answered(milliseconds(1));
  EXPECT_EQ(*policy.Began(), milliseconds(50)) << "nothing is gained by chasing moments";
}

TEST(HedgePolicy, SpendsItsShareAndNoMore) {
  HedgePolicy policy(0.05);
  int spent = 0;
  for (int i = 0; i < 1000; ++i) {
    policy.Began();
    spent += policy.Spend();
  }
  EXPECT_NEAR(spent, 50, 2);
  for (int i = 0; i < 1000; ++i) policy.Began();
  for (spent = 0; policy.Spend();) ++spent;
  EXPECT_LE(spent, 4) << "what was not used is not saved up";
  EXPECT_FALSE(HedgePolicy(0).Spend());
}

}  // namespace
}  // namespace millrace::http
