#include "millrace/plan/machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/base/files/files.h"

namespace millrace::plan {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

constexpr std::string_view kMachine = R"(name: small
memory: 8
cores: 4
f32: 50
bf16: 100
memory_bandwidth: 20
process_memory: 0.2
operation: 2
overlap: 0.5
link: {bandwidth: 5, latency: 10}
network: {bandwidth: 1, latency: 50}
)";

TEST(Machine, ReadsUnits) {
  const Machine machine = Machine::Parse(kMachine, "small.yaml").value();
  EXPECT_EQ(machine.memory, 8e9);
  EXPECT_EQ(machine.link.bandwidth, 5e9);
  EXPECT_DOUBLE_EQ(machine.network.latency, 50e-6);
  // Four cores that two ranks share; an accelerator is a rank's own.
  EXPECT_EQ(machine.RankRate(true, 2), 2 * 100e9);
  EXPECT_EQ(machine.RankMemory(2), 4e9);
  EXPECT_EQ(machine.RankBandwidth(4), 5e9);
  EXPECT_FALSE(machine.copies_bf16);
  EXPECT_TRUE(Machine::Find("cpu-avx2")->copies_bf16);
  const Machine gpus = Machine::Find("p5.48xlarge").value();
  EXPECT_EQ(gpus.RankMemory(8), gpus.memory);
}

TEST(Machine, AWrittenDescriptionIsReadBack) {
  for (const std::string_view name : MachineNames()) {
    const Machine machine = Machine::Find(std::string(name)).value();
    const Machine again = Machine::Parse(machine.ToYaml("of a test"), "written.yaml").value();
    EXPECT_EQ(again.name, machine.name);
    EXPECT_EQ(again.accelerators, machine.accelerators);
    EXPECT_EQ(again.cores, machine.cores);
    EXPECT_EQ(again.copies_bf16, machine.copies_bf16);
    for (double Machine::* figure :
         {&Machine::memory, &Machine::f32_rate, &Machine::bf16_rate, &Machine::memory_bandwidth,
          &Machine::host_bandwidth, &Machine::process_memory, &Machine::operation, &Machine::overlap}) {
      EXPECT_NEAR(again.*figure, machine.*figure, 1e-3 * machine.*figure) << name;
    }
    EXPECT_NEAR(again.network.bandwidth, machine.network.bandwidth, 1e-3 * machine.network.bandwidth);
    EXPECT_NEAR(again.link.latency, machine.link.latency, 1e-3 * machine.link.latency);
  }
}

TEST(Machine, ProcessorsHaveDescriptions) {
  const auto of = [](std::string vendor, int family, bool avx512) {
    return Machine::DescriptionOf({.vendor = std::move(vendor), .family = family, .avx512 = avx512});
  };
  EXPECT_EQ(of("AuthenticAMD", 26, true), "cpu-zen5");
  EXPECT_EQ(of("AuthenticAMD", 25, true), "cpu");
  EXPECT_EQ(of("AuthenticAMD", 25, false), "cpu-avx2");
  EXPECT_EQ(of("GenuineIntel", 6, true), "cpu");
}

TEST(GpuPeaks, AreThoseOfTheCardsName) {
  EXPECT_EQ(PeaksOf("NVIDIA H100 80GB HBM3")->bf16, 989.5e12);
  EXPECT_EQ(PeaksOf("NVIDIA H100 PCIe")->bf16, 756.5e12);
  EXPECT_EQ(PeaksOf("NVIDIA H200")->tf32, 494.5e12);
  EXPECT_EQ(PeaksOf("NVIDIA H200")->fp8, 1979e12);
  EXPECT_EQ(PeaksOf("NVIDIA H200 NVL")->f32, 60e12);
  EXPECT_EQ(PeaksOf("NVIDIA A100-SXM4-40GB")->bf16, 312e12);
  EXPECT_EQ(PeaksOf("NVIDIA B200")->bf16, 2250e12);
  EXPECT_EQ(PeaksOf("NVIDIA GH200 480GB")->f32, 67e12);
  for (const char* other : {"", "NVIDIA GB200", "NVIDIA GeForce RTX 4090", "NVIDIA A10"}) EXPECT_FALSE(PeaksOf(other));
}

TEST(Machine, RefusesWithThePlace) {
  const auto says = [](std::string text, std::string_view from, std::string_view to, std::string_view what) {
    text.replace(text.find(from), from.size(), to);
    const auto machine = Machine::Parse(text, "small.yaml");
    ASSERT_FALSE(machine) << text;
    EXPECT_THAT(machine.error().ToString(), HasSubstr(what));
  };
  says(std::string(kMachine), "f32: 50", "f23: 50", "did you mean \"f32\"");
  says(std::string(kMachine), "bf16: 100\n", "", "bf16: is required");
  says(std::string(kMachine), "overlap: 0.5", "overlap: 2", "from 0 to 1");
  says(std::string(kMachine), "latency: 10", "latency: -1", "link.latency");
}

TEST(Machine, AllDescriptionsAreBuiltIn) {
  const auto names = MachineNames();
  for (const char* name : {"cpu", "cpu-avx2", "cpu-zen5", "p4d.24xlarge", "p5.48xlarge", "p5en.48xlarge"})
    EXPECT_THAT(names, Contains(name));
  for (const std::string_view name : names) {
    const auto machine = Machine::Find(std::string(name));
    ASSERT_TRUE(machine) << machine.error().ToString();
    EXPECT_EQ(machine->name, name);
    EXPECT_GE(machine->bf16_rate, machine->f32_rate);
  }
  const auto none = Machine::Find("p6.48xlarge");
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code(), Code::kNotFound);
  EXPECT_THAT(none.error().ToString(), HasSubstr("p5.48xlarge"));
  EXPECT_GT(Machine::ThisMachine().memory, 1e8);
}

}  // namespace
}  // namespace millrace::plan
