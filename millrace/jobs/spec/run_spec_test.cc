#include "millrace/jobs/spec/run_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "millrace/base/files/files.h"
#include "millrace/jobs/testing/small_job.h"

namespace millrace::jobs {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(RunSpec, AJobHasAsManyNodesAsHosts) {
  auto spec = ParseSmall({"run={launcher: ssh, hosts: [n1, me@n2]}"});
  ASSERT_TRUE(spec) << spec.error().ToString();
  EXPECT_EQ(spec->run.nodes, 2);
  EXPECT_EQ(spec->ranks(), 2);
  EXPECT_EQ(*Spec::Parse(spec->Render(), "job.yaml"), *spec);
  spec = ParseSmall({"run={launcher: ssh, hosts: [n1, n2, n3], nodes: 2}"});
  ASSERT_TRUE(spec) << spec.error().ToString();
  EXPECT_THAT(spec->run.ssh.hosts, ElementsAre("n1", "n2"));
}

TEST(RunSpec, AHostfileSaysTheHostsAndTheirRanks) {
  const TempDir folder = *TempDir::Create();
  const std::string file = (folder.path() / "hostfile").string();
  const auto parse = [&](std::string_view text, const std::string& more = "") {
    EXPECT_TRUE(WriteFileAtomic(file, AsBytes(text)));
    return ParseSmall({fmt::format("run={{launcher: ssh, hostfile: {}{}}}", file, more)});
  };
  auto spec = parse("w-0.llama slots=2\nw-1.llama slots=2\n");
  ASSERT_TRUE(spec) << spec.error().ToString();
  EXPECT_EQ(spec->run.processes_per_node, 2);
  EXPECT_EQ(spec->ranks(), 4);
  // The rendered job goes to machines that have no such file.
  EXPECT_THAT(spec->Render(), HasSubstr("hosts: [\"w-0.llama\", \"w-1.llama\"]"));
  std::filesystem::remove(file);
  EXPECT_EQ(*Spec::Parse(spec->Render(), "job.yaml"), *spec);

  EXPECT_EQ(parse("n1:2\nn2:4\n", ", processes_per_node: 1")->ranks(), 2);
  EXPECT_EQ(parse("n1:2\nn2:4\nn3:4\n", ", hosts: [n3, n2]")->ranks(), 8);
  EXPECT_EQ(parse("n1\nn2\n")->ranks(), 2);
  EXPECT_THAT(parse("n1:2\nn2:4\n").error().ToString(), HasSubstr("n1 has 2 slots and n2 has 4"));
  EXPECT_THAT(parse("n1:2\n", ", hosts: [n9]").error().ToString(), HasSubstr("n9 is not in"));
  EXPECT_THAT(parse("n1 x\n").error().ToString(), HasSubstr("hostfile:1: x is not understood"));
  std::filesystem::remove(file);
  EXPECT_THAT(ParseSmall({fmt::format("run={{launcher: ssh, hostfile: {}}}", file)}).error().ToString(),
              HasSubstr("run.hostfile"));
}

TEST(RunSpec, HealthChecksAreAllNoneOrSome) {
  const auto checks = [](const std::string& value) { return ParseSmall({"run.health_checks=" + value}); };
  EXPECT_EQ(checks("true")->run.health_checks, AllHealthChecks());
  EXPECT_THAT(checks("false")->run.health_checks, IsEmpty());
  EXPECT_THAT(checks("[disk, gpu]")->run.health_checks, ElementsAre("disk", "gpu"));
  for (const char* value : {"true", "false", "[disk, gpu]"}) {
    EXPECT_THAT(checks(value)->Render(), HasSubstr(fmt::format("health_checks: {}\n", value)));
  }
  const auto refused = checks("[disc]");
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().ToString(), HasSubstr("should be one of clock, disk"));
  EXPECT_FALSE(checks("disk"));
}

TEST(RunSpec, ACapNeedsAPrice) {
  const auto refused = ParseSmall({"cost.cap=100"});
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().ToString(), HasSubstr("cost.price_per_hour"));
  EXPECT_EQ(ParseSmall({"cost={price_per_hour: 2.5, cap: 100}"})->cost.cap, 100);
}

TEST(RunSpec, SparesNeedALauncherOfSeveralNodes) {
  const auto refused = ParseSmall({"run.spares=1"});
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().ToString(), HasSubstr("the launcher local has one machine"));
  const auto in_pods = ParseSmall({"run={launcher: kubernetes, image: \"millrace:1\", spares: 1}"});
  ASSERT_FALSE(in_pods);
  EXPECT_THAT(in_pods.error().ToString(), HasSubstr("the cluster makes pods anew"));
}

}  // namespace
}  // namespace millrace::jobs
