#include "millrace/base/process/cpu.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace millrace {
namespace {

CpuInfo Cpu(std::string vendor, int family, bool avx2_fma, bool avx512) {
  return {.vendor = std::move(vendor), .family = family, .avx2_fma = avx2_fma, .avx512 = avx512};
}

TEST(Cpu, CoreTypeFollowsTheInstructionSet) {
  EXPECT_EQ(OpenBlasCoreType(Cpu("GenuineIntel", 6, true, true)), "SkylakeX");
  EXPECT_EQ(OpenBlasCoreType(Cpu("GenuineIntel", 6, true, false)), "Haswell");
  EXPECT_EQ(OpenBlasCoreType(Cpu("GenuineIntel", 6, false, false)), "");
  EXPECT_EQ(OpenBlasCoreType(Cpu("AuthenticAMD", 25, true, true)), "");
  EXPECT_EQ(OpenBlasCoreType(Cpu("AuthenticAMD", 26, true, true)), "SkylakeX");
  EXPECT_EQ(OpenBlasCoreType(CpuInfo{}), "");
}

TEST(Cpu, WhatTheUserSetStays) {
  const CpuInfo intel = Cpu("GenuineIntel", 6, true, true);
  for (const auto& [name, value] :
       {std::pair("OPENBLAS_CORETYPE", "SkylakeX"), std::pair("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"),
        std::pair("GOMP_SPINCOUNT", "1000")}) {
    const char* before = std::getenv(name);
    const std::string saved = before ? before : "";
    ::setenv(name, "mine", 1);
    EXPECT_FALSE(MissingComputeEnvironment(intel).contains(name));
    ::unsetenv(name);
    EXPECT_EQ(MissingComputeEnvironment(intel).at(name), value);
    if (before) ::setenv(name, saved.c_str(), 1);
  }
}

TEST(Cpu, HowThreadsWaitIsTheUsersToSay) {
  const char* before = std::getenv("OMP_WAIT_POLICY");
  const std::string saved = before ? before : "";
  ::unsetenv("GOMP_SPINCOUNT");
  ::setenv("OMP_WAIT_POLICY", "active", 1);
  EXPECT_FALSE(MissingComputeEnvironment(CpuInfo{}).contains("GOMP_SPINCOUNT"));
  ::unsetenv("OMP_WAIT_POLICY");
  EXPECT_TRUE(MissingComputeEnvironment(CpuInfo{}).contains("GOMP_SPINCOUNT"));
  if (before) ::setenv("OMP_WAIT_POLICY", saved.c_str(), 1);
}

TEST(Cpu, ThisMachineHasAName) {
  const CpuInfo cpu = DetectCpu();
#if defined(__x86_64__)
  EXPECT_EQ(cpu.vendor.size(), 12u);
  EXPECT_GT(cpu.family, 0);
#endif
  if (cpu.avx512) EXPECT_TRUE(cpu.avx2_fma);
}

}  // namespace
}  // namespace millrace
