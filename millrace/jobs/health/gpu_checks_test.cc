#include "millrace/jobs/health/gpu_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "millrace/base/files/files.h"

namespace millrace::jobs {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Level = Finding::Level;

class GpuChecksTest : public testing::Test {
 protected:
  void SetUp() override { ::unsetenv("FAKE_NVML"); }
  void TearDown() override { ::unsetenv("FAKE_NVML"); }
  /// Each device: ECC errors, remapping pending, failed, bits of slowdowns, NVLinks up, down.
  Findings Check(const std::string& devices, const std::string& kernel_log = "", int wanted = 0) {
    std::ofstream(folder_.path() / "devices") << devices;
    std::ofstream(folder_.path() / "kmsg") << kernel_log;
    ::setenv("FAKE_NVML", (folder_.path() / "devices").c_str(), 1);
    return CheckNodeGpus({.kernel_log = folder_.path() / "kmsg", .nvml = MILLRACE_FAKE_NVML}, wanted);
  }
  /// A record of the kernel's log, `ago_s` seconds ago.
  static std::string Record(std::int64_t ago_s, const std::string& text) {
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    return fmt::format("3,2041,{},-;{}\n", (now.tv_sec - ago_s) * 1'000'000, text);
  }
  const TempDir folder_ = *TempDir::Create();
};

TEST_F(GpuChecksTest, WithoutADriverThereIsNoGpu) {
  const Findings findings = CheckNodeGpus({.nvml = "libno-such-library.so.1", .gpu_control = "/dev/no-such-device"});
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].level, Level::kOk);
  EXPECT_EQ(findings[0].what, "none (no NVIDIA driver)");
}

TEST_F(GpuChecksTest, EachRankWantsAGpu) {
  const Findings none = CheckNodeGpus({.nvml = "libno-such-library.so.1", .gpu_control = "/dev/no-such-device"}, 2);
  ASSERT_EQ(none.size(), 1u);
  EXPECT_EQ(none[0].level, Level::kFail);
  EXPECT_THAT(none[0].what, HasSubstr("train.device is cuda"));
  EXPECT_EQ(Check("", "", 1)[0].level, Level::kFail);
  const std::string two = "0 0 0 0 0 0\n0 0 0 0 0 0\n";
  EXPECT_EQ(Check(two, "", 2).size(), 2u);
  const Findings shared = Check(two, "", 4);
  ASSERT_EQ(shared.size(), 3u);
  EXPECT_EQ(shared[2].level, Level::kWarn);
  EXPECT_EQ(shared[2].what, "2 for 4 ranks, which share them");
  EXPECT_NE(shared[2].limit, "");
}

TEST_F(GpuChecksTest, ADriverThatDoesNotAnswerFails) {
  const Findings findings = CheckNodeGpus({.nvml = MILLRACE_FAKE_NVML});
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].level, Level::kFail);
  EXPECT_THAT(findings[0].what, HasSubstr("the NVIDIA driver answers with error 9"));
}

TEST_F(GpuChecksTest, EachDeviceHasALine) {
  const Findings findings = Check("0 0 0 0 18 0\n0 0 0 0 0 18\n");
  ASSERT_EQ(findings.size(), 2u);
  EXPECT_EQ(findings[0].what, "0: NVIDIA Fake 100 (79.0 GB free of 80.0 GB), 97 % busy, 61 °C, 412 W");
  EXPECT_EQ(findings[1].what, "1: NVIDIA Fake 100 (79.0 GB free of 80.0 GB), 97 % busy, 61 °C");
  for (const Finding& finding : findings) EXPECT_EQ(finding.level, Level::kOk) << finding.what;
}

TEST_F(GpuChecksTest, FaultsAreNamedWithTheirCure) {
  const auto expect = [&](const std::string& device, Level level, const std::string& what, const std::string& cure) {
    const Findings findings = Check(device);
    ASSERT_EQ(findings.size(), 1u) << device;
    EXPECT_EQ(findings[0].level, level) << device;
    EXPECT_THAT(findings[0].what, HasSubstr(what));
    EXPECT_THAT(findings[0].advice, HasSubstr(cure));
    EXPECT_NE(findings[0].limit, "");
  };
  expect("3 0 0 0 0 0", Level::kFail, "with 3 uncorrectable errors", "--gpu-reset");
  expect("0 1 1 0 0 0", Level::kFail, "no spare rows", "replaced");
  expect("0 1 0 0 0 0", Level::kWarn, "at the next reset", "--gpu-reset");
  expect("0 0 0 200 0 0", Level::kWarn, "slowed down by the hardware and heat (the hardware) and a power brake",
         "cooling");
  expect("0 0 0 0 16 2", Level::kFail, "2 of whose 18 NVLinks are down", "nvlink");
}

TEST_F(GpuChecksTest, IdleClocksAreNoSlowdown) { EXPECT_EQ(Check("0 0 0 1 0 0")[0].level, Level::kOk); }

TEST_F(GpuChecksTest, XidsOfTheHardwareFail) {
  const std::string xid = "NVRM: Xid (PCI:0000:3b:00): 79, pid=812, GPU has fallen off the bus.";
  const Findings findings = Check("0 0 0 0 0 0", Record(60, "eth0: link up") + Record(5, xid));
  ASSERT_EQ(findings.size(), 2u);
  EXPECT_EQ(findings[1].level, Level::kFail);
  EXPECT_EQ(findings[1].what, "the driver reported " + xid);
}

TEST_F(GpuChecksTest, XidsOfProgramsAndOldOnesDoNot) {
  std::ofstream(folder_.path() / "kmsg") << Record(5, "NVRM: Xid (PCI:0000:3b:00): 31, pid=812, MMU Fault")
                                         << Record(25 * 3600, "NVRM: Xid (PCI:0000:3b:00): 48, pid=812, DBE")
                                         << "NVRM: Xid (no record\n"
                                         << Record(5, "NVRM: Xid (PCI:0000:3b:00)");
  EXPECT_THAT(HardwareXids(folder_.path() / "kmsg"), IsEmpty());
  EXPECT_THAT(HardwareXids(folder_.path() / "nothing"), IsEmpty());
}

}  // namespace
}  // namespace millrace::jobs
