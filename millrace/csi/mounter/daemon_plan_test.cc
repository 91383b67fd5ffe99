#include "millrace/csi/mounter/daemon_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace millrace::csi {
namespace {

TEST(DaemonPlan, IsDecodedAsItWas) {
  DaemonPlan plan{.volume = "v", .target = "/t", .url = "s3://b"};
  plan.process.argv = {"millrace", "mount", "s3://b", "/t"};
  plan.process.env = {{"AWS_ACCESS_KEY_ID", "k=\"é\n"}};
  plan.process.unset_env = {"AWS_PROFILE"};
  plan.process.stdout_file = "/log";
  const auto decoded = DaemonPlan::Decode(plan.Encode());
  ASSERT_TRUE(decoded) << decoded.error().ToString();
  EXPECT_EQ(decoded->volume, "v");
  EXPECT_EQ(decoded->target, "/t");
  EXPECT_EQ(decoded->url, "s3://b");
  EXPECT_EQ(decoded->process.argv, plan.process.argv);
  EXPECT_EQ(decoded->process.env, plan.process.env);
  EXPECT_EQ(decoded->process.unset_env, plan.process.unset_env);
  EXPECT_EQ(decoded->process.stderr_file, "/log");
  EXPECT_FALSE(decoded->process.die_with_parent);
}

TEST(DaemonPlan, RefusesOtherTexts) {
  for (const char* text : {"", "{}", R"({"format": "x"})", R"({"format": "millrace-csi-daemon", "argv": [1]})"}) {
    EXPECT_FALSE(DaemonPlan::Decode(text)) << text;
  }
}

}  // namespace
}  // namespace millrace::csi
