#include "millrace/base/process/cpu.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "millrace/base/process/program_path.h"

namespace millrace {
namespace {

#if defined(__x86_64__)

struct Registers {
  unsigned a = 0, b = 0, c = 0, d = 0;
};

Registers Cpuid(unsigned leaf, unsigned subleaf = 0) {
  Registers r;
  __get_cpuid_count(leaf, subleaf, &r.a, &r.b, &r.c, &r.d);
  return r;
}

void ReadIdentity(CpuInfo& cpu) {
  const Registers vendor = Cpuid(0);
  char name[12];
  std::memcpy(name, &vendor.b, 4);
  std::memcpy(name + 4, &vendor.d, 4);
  std::memcpy(name + 8, &vendor.c, 4);
  cpu.vendor.assign(name, 12);

  const unsigned signature = Cpuid(1).a;
  cpu.family = (signature >> 8) & 0xf;
  cpu.model = (signature >> 4) & 0xf;
  if (cpu.family == 6 || cpu.family == 15) cpu.model += ((signature >> 16) & 0xf) << 4;
  if (cpu.family == 15) cpu.family += (signature >> 20) & 0xff;

  if (Cpuid(0x80000000).a < 0x80000004) return;
  char brand[49] = {};
  for (unsigned i = 0; i < 3; ++i) {
    const Registers r = Cpuid(0x80000002 + i);
    std::memcpy(brand + 16 * i, &r, 16);
  }
  cpu.brand = brand;
  while (!cpu.brand.empty() && cpu.brand.back() == ' ') cpu.brand.pop_back();
}

#endif

}  // namespace

CpuInfo DetectCpu() {
  CpuInfo cpu;
#if defined(__x86_64__)
  ReadIdentity(cpu);
  __builtin_cpu_init();  // __builtin_cpu_supports also asks whether the system saves the wide registers
  cpu.avx2_fma = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  cpu.avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512cd") &&
               __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512vl");
  cpu.avx512_bf16 = cpu.avx512 && (Cpuid(7, 1).a >> 5 & 1);
  cpu.amx_bf16 = cpu.avx512 && (Cpuid(7).d >> 22 & 1);
#endif
  return cpu;
}

std::string OpenBlasCoreType(const CpuInfo& cpu) {
  // OpenBLAS 0.3.21 recognises AMD's families up to Zen 4 (25) and picks well there.
  const bool known = cpu.vendor == "AuthenticAMD" && cpu.family <= 25;
  if (known || cpu.vendor.empty()) return "";
  if (cpu.avx512) return "SkylakeX";
  if (cpu.avx2_fma) return "Haswell";
  return "";
}

std::map<std::string, std::string> MissingComputeEnvironment(const CpuInfo& cpu) {
  std::map<std::string, std::string> missing;
  const std::string core_type = OpenBlasCoreType(cpu);
  if (!core_type.empty() && std::getenv("OPENBLAS_CORETYPE") == nullptr) missing["OPENBLAS_CORETYPE"] = core_type;
#if defined(__GLIBC__)
  // Tensors come from malloc. A training step of GPT-2 takes 2 to 3 % less CPU time with them in pages of 2 MiB.
  if (std::getenv("GLIBC_TUNABLES") == nullptr) missing["GLIBC_TUNABLES"] = "glibc.malloc.hugetlb=1";
#endif
  // A thread of OpenMP that waits for another spins, with libgomp's default for milliseconds. Where another process has
  // the other thread's core, the spinning one uses up its share of the time and both wait. 1,000 rounds are tens of
  // microseconds: more than threads differ by where nothing else runs (benchmarks/busy).
  if (std::getenv("OMP_WAIT_POLICY") == nullptr && std::getenv("GOMP_SPINCOUNT") == nullptr) {
    missing["GOMP_SPINCOUNT"] = "1000";
  }
  return missing;
}

Status EnsureComputeEnvironment(char** argv) {
  const auto missing = MissingComputeEnvironment(DetectCpu());
  if (missing.empty()) return {};
  for (const auto& [name, value] : missing) {
    if (::setenv(name.c_str(), value.c_str(), 1) != 0) return Fail(ErrnoError(errno, "setting " + name));
  }
  ::execv(MR_TRY(ProgramPath()).c_str(), argv);
  const int error = errno;
  std::string variables;
  for (const auto& [name, value] : missing) variables += fmt::format(" {}={}", name, value);
  return Fail(
      ErrnoError(error, "running this program again with variables set; set them by hand instead:" + variables));
}

}  // namespace millrace
