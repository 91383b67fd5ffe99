#include "millrace/s3d/fault.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace millrace::s3d {
namespace {

using namespace std::chrono_literals;

TEST(FaultPlan, ReadsItsGrammar) {
  auto plan = FaultPlan::Parse(
      "seed=3; latency=1ms..5ms,op=GetObject|HeadObject ; error=503,key=data%2C1/;reset=answer,bucket=b");
  ASSERT_TRUE(plan) << plan.error().ToString();
  Fault get = (*plan)->Decide("GetObject", "b", "x");
  EXPECT_GE(get.latency, 1ms);
  EXPECT_LE(get.latency, 5ms);
  EXPECT_EQ(get.disconnect, Fault::Disconnect::kBeforeAnswer);
  EXPECT_FALSE(get.error);
  Fault put = (*plan)->Decide("PutObject", "c", "data,1/x");
  EXPECT_EQ(put.latency, 0ms);
  ASSERT_TRUE(put.error);
  EXPECT_EQ(put.error->code, "SlowDown");
  EXPECT_EQ(put.error->status, 503);
  EXPECT_EQ(put.disconnect, Fault::Disconnect::kNone);
}

TEST(FaultPlan, SaysWhatItDoesNotUnderstand) {
  for (std::string_view text :
       {"latncy=5ms", "latency=fast", "latency=5ms..1ms", "error=200", "error=x", "rate=5%", "op=Get",
        "error=500,rate=200%", "error=500,truncate", "reset=soon", "bandwidth=0", "error=500,count=x"}) {
    auto plan = FaultPlan::Parse(text);
    ASSERT_FALSE(plan) << text;
    EXPECT_EQ(plan.error().code(), Code::kInvalidArgument);
  }
  EXPECT_NE(FaultPlan::Parse("latncy=5ms").error().ToString().find("did you mean \"latency\""), std::string::npos);
}

TEST(FaultPlan, CountsAndSkips) {
  auto plan = FaultPlan::Parse("error=500,skip=2,count=3");
  ASSERT_TRUE(plan);
  std::string fates;
  for (int i = 0; i < 8; ++i) fates += (*plan)->Decide("GetObject", "b", "k").error ? 'x' : '.';
  EXPECT_EQ(fates, "..xxx...");
}

TEST(FaultPlan, TheSameSeedMeansTheSameFates) {
  auto fates = [](std::string_view spec) {
    auto plan = FaultPlan::Parse(spec);
    std::string text;
    for (int i = 0; i < 2000; ++i) text += (*plan)->Decide("GetObject", "b", "k").error ? 'x' : '.';
    return text;
  };
  std::string first = fates("seed=7;error=500,rate=10%");
  EXPECT_EQ(first, fates("error=500,rate=10%;seed=7"));
  EXPECT_NE(first, fates("seed=8;error=500,rate=10%"));
  auto hits = std::ranges::count(first, 'x');
  EXPECT_GT(hits, 140);
  EXPECT_LT(hits, 260);
}

}  // namespace
}  // namespace millrace::s3d
