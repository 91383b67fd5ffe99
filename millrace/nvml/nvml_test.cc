#include "millrace/nvml/nvml.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "millrace/base/files/files.h"

namespace millrace::nvml {
namespace {

class NvmlTest : public testing::Test {
 protected:
  void SetUp() override {
    std::ofstream(folder_.path() / "devices") << "0 0 0 0 18 0\n0 0 0 0 18 0\n";
    ::setenv("FAKE_NVML", (folder_.path() / "devices").c_str(), 1);
  }
  void TearDown() override { ::unsetenv("FAKE_NVML"); }
  const TempDir folder_ = *TempDir::Create();
};

TEST_F(NvmlTest, ReadsTheLoadOfTheDeviceWithAnAddress) {
  const auto meter = GpuMeter::Open(MILLRACE_FAKE_NVML, "0000:00:00.0");
  ASSERT_NE(meter, nullptr);
  const GpuLoad load = meter->Read();
  EXPECT_EQ(load.utilization, 97);
  EXPECT_EQ(load.celsius, 61);
  EXPECT_EQ(load.watts, 412.3);
  const auto second = GpuMeter::Open(MILLRACE_FAKE_NVML, "0000:01:00.0");
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(second->Read().watts, std::nullopt) << "this card does not tell";
}

TEST_F(NvmlTest, WithoutADriverOrTheDeviceThereIsNoMeter) {
  EXPECT_EQ(GpuMeter::Open("libno-such-library.so.1", "0000:00:00.0"), nullptr);
  EXPECT_EQ(GpuMeter::Open(MILLRACE_FAKE_NVML, "0000:07:00.0"), nullptr);
  ::setenv("FAKE_NVML", "", 1);
  EXPECT_EQ(GpuMeter::Open(MILLRACE_FAKE_NVML, "0000:00:00.0"), nullptr) << "the driver does not answer";
}

TEST_F(NvmlTest, ADriverWithoutItsLibraryIsAnErrorAndNotAMachineWithoutGpus) {
  const auto none = ReadGpus("libno-such-library.so.1", "/dev/no-such-device");
  ASSERT_TRUE(none);
  EXPECT_FALSE(none->has_value());
  const auto lost = ReadGpus("libno-such-library.so.1", folder_.path());
  ASSERT_FALSE(lost);
  EXPECT_NE(lost.error().message().find("libno-such-library.so.1 cannot be used"), std::string::npos);
}

TEST_F(NvmlTest, ReadsAllDevices) {
  const auto gpus = ReadGpus(MILLRACE_FAKE_NVML);
  ASSERT_TRUE(gpus && *gpus);
  ASSERT_EQ((*gpus)->size(), 2);
  EXPECT_EQ((**gpus)[0].ToText(), "NVIDIA Fake 100 (79.0 GB free of 80.0 GB), 97 % busy, 61 °C, 412 W");
  EXPECT_EQ((**gpus)[0].links_up, 18);
}

}  // namespace
}  // namespace millrace::nvml
