#include "millrace/jobs/health/node_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "millrace/base/files/files.h"
#include "millrace/http/testing/scripted_server.h"
#include "millrace/jobs/health/store_checks.h"

namespace millrace::jobs {
namespace {

using http::testing::Answer;
using http::testing::ScriptedServer;
using std::chrono::minutes;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Level = Finding::Level;

class NodeChecksTest : public testing::Test {
 protected:
  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories((folder_.path() / path).parent_path());
    std::ofstream(folder_.path() / path) << text;
  }
  MachinePaths Machine() {
    return {.proc = folder_.path() / "proc",
            .system = folder_.path() / "sys",
            .shared_memory = folder_.path(),
            .nvml = "libno-such-library.so.1",
            .gpu_control = "/dev/no-such-device"};
  }
  std::vector<std::string> Names(const HealthOptions& options) {
    std::vector<std::string> names;
    for (const Finding& finding : CheckNode(options, Machine(), clock_, {})) names.push_back(finding.check);
    return names;
  }
  const TempDir folder_ = *TempDir::Create();
  FakeClock clock_;
};

TEST_F(NodeChecksTest, ThisMachineIsFit) {
  for (const Finding& finding :
       CheckNode({}, {.nvml = "libno-such-library.so.1", .gpu_control = "/dev/no-such-device"}, SystemClock(), {})) {
    EXPECT_NE(finding.level, Level::kFail) << finding.check << ": " << finding.what;
    EXPECT_NE(finding.what, "");
    if (finding.level == Level::kWarn) EXPECT_NE(finding.advice, "") << finding.check;
  }
}

TEST_F(NodeChecksTest, DoesTheChecksThatAreAskedFor) {
  EXPECT_THAT(Names({}), ElementsAre("clock", "disk", "memory", "network", "cpu", "shm", "gpu"));
  EXPECT_THAT(Names({.checks = {"cpu", "clock"}}), ElementsAre("clock", "cpu"));
  EXPECT_THAT(Names({.passive = true}), ElementsAre("disk", "memory", "shm", "gpu"));
}

TEST_F(NodeChecksTest, SpeedsAreMeasured) {
  for (const Finding& finding : CheckNode({.checks = {"cpu", "memory"}}, {}, clock_, {})) {
    EXPECT_GT(finding.speed, 0) << finding.what;
  }
}

TEST_F(NodeChecksTest, MemoryIsThatOfTheControlGroup) {
  Write("proc/meminfo", "MemTotal: 1000000 kB\nMemFree: 1 kB\nMemAvailable: 800000 kB\n");
  EXPECT_EQ(ReadMemoryState(Machine())->total, 1'000'000u * 1024);
  EXPECT_EQ(CheckNodeMemory(Machine(), true).level, Level::kOk);
  Write("sys/fs/cgroup/memory.max", "max\n");
  EXPECT_EQ(ReadMemoryState(Machine())->total, 1'000'000u * 1024);
  Write("sys/fs/cgroup/memory.max", "100000000\n");
  Write("sys/fs/cgroup/memory.current", "95000000\n");
  EXPECT_EQ(ReadMemoryState(Machine())->available, 5'000'000u);
  const Finding little = CheckNodeMemory(Machine(), true);
  EXPECT_EQ(little.level, Level::kWarn);
  EXPECT_THAT(little.what, HasSubstr("5.0 MB of 100.0 MB available"));
  Write("sys/fs/cgroup/memory.current", "99000000\n");
  EXPECT_EQ(CheckNodeMemory(Machine(), true).level, Level::kFail);
  Write("sys/fs/cgroup/memory.stat", "anon 9000000\ninactive_file_x 1\ninactive_file 90000000\n");
  EXPECT_EQ(ReadMemoryState(Machine())->available, 91'000'000u) << "pages of files can be had";
  EXPECT_EQ(CheckNodeMemory(Machine(), true).level, Level::kOk);
}

TEST_F(NodeChecksTest, UncorrectableErrorsOfMemoryFail) {
  Write("proc/meminfo", "MemTotal: 1000000 kB\nMemAvailable: 800000 kB\n");
  Write("sys/devices/system/edac/mc/mc0/ue_count", "0\n");
  EXPECT_EQ(CheckNodeMemory(Machine(), true).level, Level::kOk);
  Write("sys/devices/system/edac/mc/mc1/ue_count", "2\n");
  const Finding finding = CheckNodeMemory(Machine(), true);
  EXPECT_EQ(finding.level, Level::kFail);
  EXPECT_THAT(finding.what, HasSubstr("the kernel counted 2 uncorrectable errors"));
}

TEST_F(NodeChecksTest, AFolderThatIsNotThereFails) {
  for (const bool passive : {false, true}) {
    const Finding finding = CheckNodeDisk(folder_.path() / "nothing", passive);
    EXPECT_EQ(finding.level, Level::kFail);
    EXPECT_THAT(finding.advice, HasSubstr("TMPDIR"));
  }
  EXPECT_EQ(CheckSharedMemory(folder_.path() / "nothing").level, Level::kFail);
}

TEST_F(NodeChecksTest, TheDiskCheckLeavesNothing) {
  EXPECT_THAT(CheckNodeDisk(folder_.path(), false).what, HasSubstr("writes and reads"));
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

TEST_F(NodeChecksTest, TheClockIsComparedWithTheStores) {
  const WallTime now = clock_.Wall();
  const auto check = [&](Duration behind) {
    return CheckClock(now, FormatHttpDate(now + std::chrono::duration_cast<WallTime::duration>(behind)));
  };
  EXPECT_EQ(check(seconds(0)).what, "agrees with the store's");
  EXPECT_EQ(check(seconds(-30)).level, Level::kOk);
  EXPECT_EQ(check(minutes(2)).level, Level::kWarn);
  EXPECT_THAT(check(minutes(2)).what, HasSubstr("is 2m00s behind the store's"));
  EXPECT_EQ(check(minutes(-20)).level, Level::kFail);
  EXPECT_THAT(check(minutes(-20)).what, HasSubstr("ahead of"));
  EXPECT_EQ(CheckClock(now, "").level, Level::kWarn);
}

TEST_F(NodeChecksTest, AnyAnswerOfTheStoreCounts) {
  ScriptedServer server([&](const ScriptedServer::Seen&) {
    const std::string date = "Date: " + FormatHttpDate(clock_.Wall() - minutes(5)) + "\r\n";
    return ScriptedServer::Reply{"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n" + date + "\r\n"};
  });
  const StoreFindings found = CheckStoreEndpoint({.url = server.url()}, clock_, {});
  EXPECT_EQ(found.network.level, Level::kOk) << found.network.what;
  EXPECT_THAT(found.network.what, HasSubstr(server.url() + " answers in"));
  EXPECT_EQ(found.clock.level, Level::kWarn);
  EXPECT_THAT(found.clock.what, HasSubstr("ahead of"));
}

TEST_F(NodeChecksTest, AStoreThatDoesNotAnswerFails) {
  const StoreFindings found = CheckStoreEndpoint({.url = "http://127.0.0.1:1"}, clock_, {});
  EXPECT_EQ(found.network.level, Level::kFail);
  EXPECT_THAT(found.network.what, HasSubstr("http://127.0.0.1:1 does not answer"));
  EXPECT_NE(found.network.advice, "");
}

TEST_F(NodeChecksTest, OptionsAndFindingsTravelAsJson) {
  const HealthOptions options{.checks = {"gpu"},
                              .folder = "/scratch",
                              .store = "https://s3",
                              .ca_bundle = "/ca",
                              .spot = "http://x",
                              .gpus = 3};
  const auto read = HealthOptions::FromJson(options.ToJson());
  ASSERT_TRUE(read);
  EXPECT_EQ(read->ToJson(), options.ToJson());
  EXPECT_FALSE(HealthOptions::FromJson(Json::object()));
  EXPECT_FALSE(HealthOptions::FromJson(
      {{"checks", {1}}, {"folder", ""}, {"store", ""}, {"ca_bundle", ""}, {"spot", ""}, {"gpus", 0}}));
  const Finding finding{Level::kWarn, "cpu", "slow", "look", "half", 12.5};
  EXPECT_EQ(*FindingFromJson(ToJson(finding)), finding);
  EXPECT_FALSE(FindingFromJson({{"check", "cpu"}, {"level", "bad"}, {"what", ""}, {"advice", ""}}));
}

}  // namespace
}  // namespace millrace::jobs
