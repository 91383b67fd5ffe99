#include "millrace/base/process/cores.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/types.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "millrace/base/files/files.h"
#include "millrace/base/files/mount_table.h"
#include "millrace/base/text.h"

namespace millrace {
namespace {

std::optional<std::int64_t> NumberAtFront(std::string_view text) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end == text.data()) return std::nullopt;
  return number;
}

/// Returns the cores of the affinity mask of a process; 0 if it cannot be read. glibc's mask has room for 1,024 cores:
/// on a larger machine the call fails.
int CoresOfMask(pid_t process) {
  cpu_set_t mask;
  if (::sched_getaffinity(process, sizeof mask, &mask) == 0) return CPU_COUNT(&mask);
  return process == 0 ? static_cast<int>(std::thread::hardware_concurrency()) : 0;
}

int WithinQuota(int cores) {
  const int quota = CoresOfQuota();
  return std::max(1, quota > 0 ? std::min(cores, quota) : cores);
}

/// A cgroup hierarchy that has the CPU controller.
struct CpuHierarchy {
  bool is_v2 = false;
  std::string cgroup;  ///< of this process: "/system.slice/docker-….scope"
};

/// Reads a line of /proc/self/cgroup, "4:cpu,cpuacct:/docker/…" or "0::/…". Nothing: it is another controller's.
std::optional<CpuHierarchy> ParseCgroupLine(std::string_view line) {
  const std::size_t first = line.find(':'), second = line.find(':', first + 1);
  if (first == line.npos || second == line.npos) return std::nullopt;
  const std::string controllers = fmt::format(",{},", line.substr(first + 1, second - first - 1));
  const bool is_v2 = line.starts_with("0::");
  if (!is_v2 && controllers.find(",cpu,") == controllers.npos) return std::nullopt;
  return CpuHierarchy{is_v2, std::string(line.substr(second + 1))};
}

/// Returns the cores whose time a cgroup may use; nothing: as many as those above it.
std::optional<double> QuotaOf(const std::filesystem::path& cgroup, bool is_v2) {
  const auto text = ReadFile(cgroup / (is_v2 ? "cpu.max" : "cpu.cfs_quota_us"), kKiB);  // "max 100000", "150000 100000"
  if (!text) return std::nullopt;
  const auto quota = NumberAtFront(*text);
  if (!quota || *quota <= 0) return std::nullopt;
  std::optional<std::int64_t> period;
  if (is_v2) {
    period = NumberAtFront(std::string_view(*text).substr(std::min(text->find(' '), text->size() - 1) + 1));
  } else if (const auto other = ReadFile(cgroup / "cpu.cfs_period_us", kKiB)) {
    period = NumberAtFront(*other);
  }
  if (!period || *period <= 0) return std::nullopt;
  return static_cast<double>(*quota) / static_cast<double>(*period);
}

}  // namespace

int UsableCores() { return WithinQuota(CoresOfMask(0)); }

int ComputeThreads(int ranks) {
  const char* variable = std::getenv("OMP_NUM_THREADS");
  const auto wanted = NumberAtFront(variable != nullptr ? variable : "");
  const bool by_torchrun = wanted == 1 && std::getenv("TORCHELASTIC_RUN_ID") != nullptr;
  if (wanted && *wanted > 0 && !by_torchrun) return static_cast<int>(std::min<std::int64_t>(*wanted, 1024));
  // The first process has the cores of the machine, or of the container.
  const int all = WithinQuota(std::max(CoresOfMask(1), CoresOfMask(0)));
  return std::clamp(all / std::max(1, ranks), 1, UsableCores());
}

int CoresOfQuota(const std::filesystem::path& root) {
  const auto cgroups = ReadFile(root / "proc/self/cgroup");
  const auto mounts = ReadFile(root / "proc/self/mountinfo");
  if (!cgroups || !mounts) return 0;
  std::optional<double> least;
  for (const std::string_view line : Split(*cgroups, '\n')) {
    const auto hierarchy = ParseCgroupLine(line);
    if (!hierarchy) continue;
    for (const MountEntry& mount : ParseMountTable(*mounts)) {
      if (mount.type != (hierarchy->is_v2 ? "cgroup2" : "cgroup")) continue;
      // A container may see its own cgroup as the root of the mount, and its path as the host does.
      const std::filesystem::path below = std::filesystem::path(hierarchy->cgroup).lexically_relative(mount.root);
      const std::filesystem::path point = root / std::filesystem::path(mount.point).relative_path();
      std::filesystem::path cgroup = point;
      if (!below.empty() && *below.begin() != ".." && below != ".") cgroup /= below;
      while (true) {
        const auto quota = QuotaOf(cgroup, hierarchy->is_v2);
        if (quota) least = std::min(least.value_or(*quota), *quota);
        if (cgroup == point) break;
        cgroup = cgroup.parent_path();
      }
    }
  }
  return least ? std::max(1, static_cast<int>(*least)) : 0;
}

}  // namespace millrace
