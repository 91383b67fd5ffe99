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
  const char* before = std::getenv("OPENBLAS_CORETYPE");
  const std::string saved = before ? before : "";
  ::setenv("OPENBLAS_CORETYPE", "Haswell", 1);
  EXPECT_TRUE(MissingMathEnvironment(intel).empty());
  ::unsetenv("OPENBLAS_CORETYPE");
  EXPECT_EQ(MissingMathEnvironment(intel).at("OPENBLAS_CORETYPE"), "SkylakeX");
  if (before) ::setenv("OPENBLAS_CORETYPE", saved.c_str(), 1);
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
