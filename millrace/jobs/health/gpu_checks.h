// The GPUs of a machine, seen through NVIDIA's management library (NVML), which is loaded at run time: the driver
// installs it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/jobs/health/finding.h"
#include "millrace/jobs/health/node_checks.h"

namespace millrace::jobs {

/// A GPU as the driver shows it. What a device does not have, it does not report as an error.
struct GpuState {
  std::string name;
  std::uint64_t total = 0, free = 0;       ///< bytes of its memory
  std::uint64_t uncorrectable_errors = 0;  ///< of ECC, since the driver was loaded
  bool remap_pending = false;              ///< rows of its memory are replaced at the next reset
  bool remap_failed = false;               ///< there are no spare rows
  std::vector<std::string> slowdowns;      ///< "heat", "power brake", "the hardware"
  int links_up = 0, links_down = 0;        ///< NVLinks
};

/// Returns the state of all devices. Nothing if there is no driver. Blocks for up to some seconds.
/// Errors: kUnavailable if the driver or a device does not answer.
Result<std::optional<std::vector<GpuState>>> ReadGpus(const std::string& library);

/// An error that the driver wrote to the kernel's log.
struct XidError {
  int number = 0;
  std::string line;
};
/// Returns the Xids of the last day that mean the hardware, not a program. None if the log cannot be read.
std::vector<XidError> HardwareXids(const std::filesystem::path& kernel_log);

/// Returns a finding for each GPU, one for the Xids if there are any, or one that says that there is no GPU.
Findings CheckNodeGpus(const MachinePaths& paths);

}  // namespace millrace::jobs
