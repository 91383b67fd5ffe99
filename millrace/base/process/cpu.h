// What the processor is, and what the math libraries must be told about it before a process starts.
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

/// The OPENBLAS_CORETYPE that makes OpenBLAS use this processor's vector units, or "" where its own choice is right.
/// OpenBLAS knows processors by model number and runs generic code on models newer than itself (0.3.21 on Intel family
/// 6 model 207: a fifth of the speed); naming a core by its instruction set avoids that.
std::string OpenBlasCoreType(const CpuInfo& cpu);

/// Variables that a compute program must be started with on this processor and that `environment` does not set already.
/// The launchers add them when they start millrace-train and millrace-serve.
std::map<std::string, std::string> MissingMathEnvironment(const CpuInfo& cpu);

/// For main() of a compute program: runs it again with MissingMathEnvironment, in place, if there is any. Returns when
/// there is nothing to add. `argv` ends with a null pointer.
Status EnsureMathEnvironment(char** argv);

}  // namespace millrace
