// The processor's identity and vector instructions, and the environment variables that programs that compute need.
#pragma once

#include <map>
#include <string>

#include "millrace/base/result.h"

namespace millrace {

/// The processor's identity and the vector instructions that both it and the system support.
struct CpuInfo {
  std::string vendor;  ///< "GenuineIntel", "AuthenticAMD"; "" off x86
  std::string brand;   ///< "AMD EPYC 9654 96-Core Processor"
  int family = 0, model = 0;
  bool avx2_fma = false;
  bool avx512 = false;  ///< F, CD, BW, DQ and VL: what compilers call x86-64-v4
  bool avx512_bf16 = false, amx_bf16 = false;
};
CpuInfo DetectCpu();

/// Returns the OPENBLAS_CORETYPE that makes OpenBLAS use this processor's vector units, or "" if its own choice is
/// right. OpenBLAS knows processors by model number. On models newer than itself it runs generic code (0.3.21 on Intel
/// family 6 model 207: a fifth of the speed). The core type names a core by its instruction set.
std::string OpenBlasCoreType(const CpuInfo& cpu);

/// Returns the variables that a compute program needs on this processor and that the environment does not set yet:
/// OpenBlasCoreType(), what makes malloc ask for huge pages (glibc's "Memory Allocation Tunables"), and how long a
/// thread of libgomp spins before it sleeps. The launchers add them when they start ranks and servers. Libraries read
/// them when they are loaded, so a process cannot set them for itself.
std::map<std::string, std::string> MissingComputeEnvironment(const CpuInfo& cpu);

/// Replaces this process by the same program with MissingComputeEnvironment() set (exec). Returns OK if nothing is
/// missing. Call it first in main() of a compute program. REQUIRES: `argv` ends with a null pointer.
Status EnsureComputeEnvironment(char** argv);

}  // namespace millrace
