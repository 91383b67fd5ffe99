#include "millrace/jobs/health/gpu_checks.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <optional>

#include "millrace/base/files/files.h"
#include "millrace/base/text.h"

namespace millrace::jobs {
namespace {

using Level = Finding::Level;

// Values of NVML's documented, versioned interface.
constexpr int kUncorrected = 1, kSinceLoaded = 0;  // NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC
constexpr unsigned kMostLinks = 18;                // NVML_NVLINK_MAX_LINKS
constexpr std::pair<unsigned long long, const char*> kSlowdowns[] = {
    {0x08, "the hardware"}, {0x20, "heat (the driver)"}, {0x40, "heat (the hardware)"}, {0x80, "a power brake"}};

/// Xids that mean the hardware, from NVIDIA's "XID Errors": ECC errors, rows without a spare, NVLink, a device that
/// has fallen off the bus, errors that were not contained, and firmware that does not answer.
constexpr int kHardwareXids[] = {48, 64, 74, 79, 95, 119, 120, 140};

/// One loaded NVML. Names and layouts follow its documented interface.
class Nvml {
 public:
  static std::unique_ptr<Nvml> Load(const std::string& library) {
    void* handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) return nullptr;
    std::unique_ptr<Nvml> nvml(new Nvml(handle));
    const bool whole = nvml->init_ && nvml->shutdown_ && nvml->count_ && nvml->handle_ && nvml->name_ && nvml->memory_;
    return whole ? std::move(nvml) : nullptr;
  }
  ~Nvml() {
    if (ready_) shutdown_();
    ::dlclose(library_);
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  Result<std::vector<GpuState>> Read() {
    if (const int status = init_(); status != 0) {
      return Fail(Code::kUnavailable, "the NVIDIA driver answers with error {}", status);
    }
    ready_ = true;
    unsigned count = 0;
    if (const int status = count_(&count); status != 0) return Fail(Code::kUnavailable, "NVML error {}", status);
    std::vector<GpuState> gpus;
    for (unsigned i = 0; i < count; ++i) {
      void* device = nullptr;
      char name[96] = "";
      Memory memory{};
      if (handle_(i, &device) != 0 || name_(device, name, sizeof name) != 0 || memory_(device, &memory) != 0) {
        return Fail(Code::kUnavailable, "device {} does not answer", i);
      }
      GpuState gpu{.name = name, .total = memory.total, .free = memory.free};
      AddHealth(device, gpu);
      gpus.push_back(std::move(gpu));
    }
    return gpus;
  }

 private:
  struct Memory {
    unsigned long long total, free, used;
  };

  explicit Nvml(void* library) : library_(library) {
    Find(init_, "nvmlInit_v2");
    Find(shutdown_, "nvmlShutdown");
    Find(count_, "nvmlDeviceGetCount_v2");
    Find(handle_, "nvmlDeviceGetHandleByIndex_v2");
    Find(name_, "nvmlDeviceGetName");
    Find(memory_, "nvmlDeviceGetMemoryInfo");
    Find(ecc_, "nvmlDeviceGetTotalEccErrors");
    Find(remapped_, "nvmlDeviceGetRemappedRows");
    Find(slowdowns_, "nvmlDeviceGetCurrentClocksThrottleReasons");
    Find(link_, "nvmlDeviceGetNvLinkState");
  }
  template <class Function>
  void Find(Function*& function, const char* name) {
    function = reinterpret_cast<Function*>(::dlsym(library_, name));
  }

  /// Old libraries lack some of the functions, and small devices some of the parts.
  void AddHealth(void* device, GpuState& gpu) {
    unsigned long long errors = 0, reasons = 0;
    if (ecc_ && ecc_(device, kUncorrected, kSinceLoaded, &errors) == 0) gpu.uncorrectable_errors = errors;
    unsigned corrected = 0, uncorrected = 0, pending = 0, failed = 0;
    if (remapped_ && remapped_(device, &corrected, &uncorrected, &pending, &failed) == 0) {
      gpu.remap_pending = pending != 0;
      gpu.remap_failed = failed != 0;
    }
    if (slowdowns_ && slowdowns_(device, &reasons) == 0) {
      for (const auto& [bit, reason] : kSlowdowns) {
        if ((reasons & bit) != 0) gpu.slowdowns.emplace_back(reason);
      }
    }
    for (unsigned link = 0; link_ && link < kMostLinks; ++link) {
      unsigned active = 0;
      if (link_(device, link, &active) != 0) continue;
      ++(active != 0 ? gpu.links_up : gpu.links_down);
    }
  }

  void* library_;
  bool ready_ = false;
  int (*init_)() = nullptr;
  int (*shutdown_)() = nullptr;
  int (*count_)(unsigned*) = nullptr;
  int (*handle_)(unsigned, void**) = nullptr;
  int (*name_)(void*, char*, unsigned) = nullptr;
  int (*memory_)(void*, Memory*) = nullptr;
  int (*ecc_)(void*, int, int, unsigned long long*) = nullptr;
  int (*remapped_)(void*, unsigned*, unsigned*, unsigned*, unsigned*) = nullptr;
  int (*slowdowns_)(void*, unsigned long long*) = nullptr;
  int (*link_)(void*, unsigned, unsigned*) = nullptr;
};

Finding CheckGpuState(std::size_t index, const GpuState& gpu) {
  const std::string what =
      fmt::format("{}: {} ({} free of {})", index, gpu.name, FormatBytes(gpu.free), FormatBytes(gpu.total));
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

Result<std::optional<std::vector<GpuState>>> ReadGpus(const std::string& library) {
  const std::unique_ptr<Nvml> nvml = Nvml::Load(library);
  if (!nvml) return std::optional<std::vector<GpuState>>();
  return std::optional(MR_TRY(nvml->Read()));
}

std::vector<XidError> HardwareXids(const std::filesystem::path& kernel_log) {
  // A record of /dev/kmsg: "PRIORITY,NUMBER,MICROSECONDS,FLAGS;TEXT"; each read() returns one.
  const auto file = OpenFile(kernel_log, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (!file) return {};
  constexpr std::size_t kMostBytes = 16 * kMiB;
  std::string text;
  char record[8192];
  while (text.size() < kMostBytes) {
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

Findings CheckNodeGpus(const MachinePaths& paths) {
  const auto gpus = ReadGpus(paths.nvml);
  if (!gpus) {
    return {{Level::kFail, "gpu", gpus.error().ToString(), "run nvidia-smi; a driver that was updated needs a reboot",
             "the driver answers"}};
  }
  if (!*gpus) return {{Level::kOk, "gpu", "none (no NVIDIA driver)", ""}};
  Findings findings;
  for (const GpuState& gpu : **gpus) findings.push_back(CheckGpuState(findings.size(), gpu));
  if (findings.empty()) findings.push_back({Level::kWarn, "gpu", "a driver, but no device", "check lspci and dmesg"});
  const std::vector<XidError> xids = HardwareXids(paths.kernel_log);
  if (!xids.empty()) {
    findings.push_back({Level::kFail, "gpu", fmt::format("the driver reported {}", xids.back().line),
                        "restart the machine; if it happens again, have the device replaced",
                        "no Xid of the hardware in the last day"});
  }
  return findings;
}

}  // namespace millrace::jobs
