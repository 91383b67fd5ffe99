#include "millrace/jobs/health/gpu_checks.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "millrace/base/files/files.h"
#include "millrace/base/text.h"

namespace millrace::jobs {
namespace {

using Level = Finding::Level;

/// Xids that mean the hardware, from NVIDIA's "XID Errors": ECC errors, rows without a spare, NVLink, a device that
/// has fallen off the bus, errors that were not contained, and firmware that does not answer.
constexpr int kHardwareXids[] = {48, 64, 74, 79, 95, 119, 120, 140};

Finding CheckGpuState(std::size_t index, const nvml::GpuState& gpu) {
  const std::string what = fmt::format("{}: {}", index, gpu.ToText());
  const std::string limit = "no uncorrectable error, no failed row, all NVLinks up";
  const auto finding = [&](Level level, std::string_view trouble, std::string advice) {
    return Finding{level, "gpu", fmt::format("{}{}", what, trouble), std::move(advice), limit};
  };
  if (gpu.remap_failed) {
    return finding(Level::kFail, ", which has no spare rows of memory left", "have the device replaced");
  }
  if (gpu.uncorrectable_errors > 0) {
    return finding(Level::kFail, fmt::format(", with {} uncorrectable errors of memory", gpu.uncorrectable_errors),
                   "reset the device (nvidia-smi --gpu-reset) or restart the machine");
  }
  // A machine with one GPU has links that lead nowhere.
  if (gpu.links_down > 0 && gpu.links_up > 0) {
    return finding(Level::kFail,
                   fmt::format(", {} of whose {} NVLinks are down", gpu.links_down, gpu.links_down + gpu.links_up),
                   "restart the machine; look at nvidia-smi nvlink --status and the fabric manager");
  }
  if (gpu.remap_pending) {
    return finding(Level::kWarn, ", which replaces rows of its memory at the next reset",
                   "reset the device (nvidia-smi --gpu-reset) when it is idle");
  }
  if (!gpu.slowdowns.empty()) {
    return finding(Level::kWarn, fmt::format(", slowed down by {}", fmt::join(gpu.slowdowns, " and ")),
                   "look at cooling and power (nvidia-smi --query --display=PERFORMANCE,TEMPERATURE)");
  }
  return finding(Level::kOk, "", "");
}

}  // namespace

std::vector<XidError> HardwareXids(const std::filesystem::path& kernel_log) {
  // A record of /dev/kmsg: "PRIORITY,NUMBER,MICROSECONDS,FLAGS;TEXT"; each read() returns one.
  const auto file = OpenFile(kernel_log, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (!file) return {};
  constexpr std::size_t kMaxBytes = 16 * kMiB;
  std::string text;
  char record[8192];
  while (text.size() < kMaxBytes) {
    const ssize_t n = ::read(file->get(), record, sizeof record);
    if (n < 0 && errno == EPIPE) continue;  // a record was overwritten before it was read
    if (n <= 0) break;
    text.append(record, static_cast<std::size_t>(n));
  }
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  constexpr std::int64_t kDay = 24 * 3600;
  std::vector<XidError> found;
  for (std::string_view line : Split(text, '\n')) {
    const std::size_t at = line.find("NVRM: Xid ("), colon = line.find("): ", at);
    const std::vector<std::string_view> head = Split(line.substr(0, line.find(';')), ',');
    if (at == line.npos || colon == line.npos || head.size() < 3) continue;
    const std::int64_t seconds = std::atoll(std::string(head[2]).c_str()) / 1'000'000;
    const int number = std::atoi(std::string(line.substr(colon + 3)).c_str());
    if (now.tv_sec - seconds > kDay || std::ranges::find(kHardwareXids, number) == std::end(kHardwareXids)) continue;
    found.push_back({number, std::string(line.substr(at))});
  }
  return found;
}

Findings CheckNodeGpus(const MachinePaths& paths, int wanted) {
  const auto gpus = nvml::ReadGpus(paths.nvml, paths.gpu_control);
  if (!gpus) {
    return {{Level::kFail, "gpu", gpus.error().ToString(), "run nvidia-smi; a driver that was updated needs a reboot",
             "the driver answers"}};
  }
  const std::string limit = fmt::format("a GPU for each of {} ranks", wanted);
  if (!*gpus && wanted > 0) {
    return {{Level::kFail, "gpu", "none (no NVIDIA driver), and train.device is cuda",
             "install the driver; in a container, start it with --gpus all", limit}};
  }
  if (!*gpus) return {{Level::kOk, "gpu", "none (no NVIDIA driver)", ""}};
  Findings findings;
  for (const nvml::GpuState& gpu : **gpus) findings.push_back(CheckGpuState(findings.size(), gpu));
  if (findings.empty()) {
    findings.push_back({wanted > 0 ? Level::kFail : Level::kWarn, "gpu", "a driver, but no device",
                        "check lspci and dmesg", wanted > 0 ? limit : ""});
  } else if (const auto count = static_cast<int>(findings.size()); count < wanted) {
    findings.push_back({Level::kWarn, "gpu", fmt::format("{} for {} ranks, which share them", count, wanted),
                        "set run.processes_per_node to their number; if there were more before, check lspci and dmesg",
                        limit});
  }
  const std::vector<XidError> xids = HardwareXids(paths.kernel_log);
  if (!xids.empty()) {
    findings.push_back({Level::kFail, "gpu", fmt::format("the driver reported {}", xids.back().line),
                        "restart the machine; if it happens again, have the device replaced",
                        "no Xid of the hardware in the last day"});
  }
  return findings;
}

}  // namespace millrace::jobs
