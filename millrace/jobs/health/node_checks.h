// Checks whether a machine is fit to run ranks: its clock, disk, memory, network, processor, shared memory and GPUs.
#pragma once

#include <filesystem>
#include <stop_token>
#include <string>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/json.h"
#include "millrace/jobs/health/finding.h"
#include "millrace/jobs/health/health_checks.h"
#include "millrace/nvml/nvml.h"

namespace millrace::jobs {

/// The checks to make, and their arguments. Plain data, which is sent to other machines as JSON.
struct HealthOptions {
  std::vector<std::string> checks = AllHealthChecks();
  std::string folder;     ///< the folder whose disk is checked; empty: $TMPDIR or /tmp
  std::string store;      ///< URL of the store's endpoint; empty: no store is checked
  std::string ca_bundle;  ///< a path; empty: the system's certificates
  std::string spot;       ///< URL of EC2's metadata service, which announces that a spot machine ends; empty: not asked
  int gpus = 0;          ///< the number of GPUs that the machine's ranks need; 0: they need none, or take what is there
  bool passive = false;  ///< leaves out checks that use the processor, the disk or the store for a time

  Json ToJson() const;
  /// Errors: kInvalidArgument.
  static Result<HealthOptions> FromJson(const Json& json);
};

/// The places from which the checks read the machine's state. The defaults are those of Linux and NVIDIA.
struct MachinePaths {
  std::filesystem::path proc = "/proc", system = "/sys", shared_memory = "/dev/shm", kernel_log = "/dev/kmsg";
  std::string nvml = millrace::nvml::kLibrary, gpu_control = millrace::nvml::kControlDevice;
};

/// Makes the checks of `options` on this machine. Blocks for about a second, and longer if the store does not answer.
/// One thread.
Findings CheckNode(const HealthOptions& options, const MachinePaths& paths, Clock& clock, std::stop_token stop);

// One function for each check; CheckNode() calls them.
Finding CheckNodeDisk(const std::filesystem::path& folder, bool passive);
Finding CheckNodeMemory(const MachinePaths& paths, bool passive);
Finding CheckNodeCpu();
Finding CheckSharedMemory(const std::filesystem::path& folder);

/// The memory of a machine, in bytes. If the process is in a control group with a limit, the memory of the group.
struct MemoryState {
  std::uint64_t total = 0, available = 0;
};
/// Reads proc/meminfo and the control group. Errors: kNotFound if proc/meminfo lacks the values.
Result<MemoryState> ReadMemoryState(const MachinePaths& paths);

}  // namespace millrace::jobs
