// Checks whether the GPUs of a machine are fit for ranks, by NVIDIA's management library (NVML) and the kernel's log.
#pragma once

#include <string>
#include <vector>

#include "millrace/jobs/health/finding.h"
#include "millrace/jobs/health/node_checks.h"
#include "millrace/nvml/nvml.h"

namespace millrace::jobs {

/// An error that the driver wrote to the kernel's log.
struct XidError {
  int number = 0;
  std::string line;
};
/// Returns the Xids of the last day that mean the hardware, not a program. None if the log cannot be read.
std::vector<XidError> HardwareXids(const std::filesystem::path& kernel_log);

/// Returns a finding for each GPU, one for the Xids if there are any, or one that says that there is no GPU. `wanted`:
/// by how many ranks. If there are fewer GPUs, a finding warns, or fails if there is none.
Findings CheckNodeGpus(const MachinePaths& paths, int wanted = 0);

}  // namespace millrace::jobs
