// Whether a machine is fit to run ranks: its clock, disk, memory, network, processor, shared memory and GPUs.
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

/// What to check. Plain data; it travels to other machines as JSON.
struct HealthOptions {
  std::vector<std::string> checks = AllHealthChecks();
  std::string folder;     ///< whose disk is checked; empty: $TMPDIR or /tmp
  std::string store;      ///< URL of the store's endpoint; empty: there is none
  std::string ca_bundle;  ///< a path; empty: the system's certificates
  std::string spot;       ///< URL of EC2's metadata service, to be asked for notices; empty: it is not
  int gpus = 0;           ///< that the ranks of the machine want; 0: none, or what there is
  bool passive = false;   ///< takes no time of the processor, the disk or the store

  Json ToJson() const;
  /// Errors: kInvalidArgument.
  static Result<HealthOptions> FromJson(const Json& json);
};

/// Where the machine shows its state. The defaults are Linux's and NVIDIA's.
struct MachinePaths {
  std::filesystem::path proc = "/proc", system = "/sys", shared_memory = "/dev/shm", kernel_log = "/dev/kmsg";
  std::string nvml = millrace::nvml::kLibrary;
};

/// Checks this machine. Blocks for about a second, and for some more if the store does not answer. One thread.
Findings CheckNode(const HealthOptions& options, const MachinePaths& paths, Clock& clock, std::stop_token stop);

// The single checks.
Finding CheckNodeDisk(const std::filesystem::path& folder, bool passive);
Finding CheckNodeMemory(const MachinePaths& paths, bool passive);
Finding CheckNodeCpu();
Finding CheckSharedMemory(const std::filesystem::path& folder);

/// What a machine has of memory. In a control group with a limit, what the group has.
struct MemoryState {
  std::uint64_t total = 0, available = 0;
};
/// Errors: kNotFound if proc/meminfo has no such values.
Result<MemoryState> ReadMemoryState(const MachinePaths& paths);

}  // namespace millrace::jobs
