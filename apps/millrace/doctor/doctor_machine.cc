#include <fcntl.h>
#include <fmt/ranges.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>

#include "apps/millrace/doctor/doctor.h"
#include "millrace/base/files/files.h"
#include "millrace/base/process/cores.h"
#include "millrace/base/process/cpu.h"
#include "millrace/base/process/subprocess.h"
#include "millrace/base/text.h"
#include "millrace/jobs/health/gpu_checks.h"
#include "millrace/nvml/nvml.h"

namespace millrace::cli {
namespace {

using Level = Finding::Level;

Level Missing(bool needed) { return needed ? Level::kFail : Level::kWarn; }

std::optional<std::string> FindInPath(std::string_view program) {
  const char* path = std::getenv("PATH");
  for (std::string_view folder : Split(path ? path : "/usr/bin:/bin", ':')) {
    std::string candidate = fmt::format("{}/{}", folder, program);
    if (access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  return std::nullopt;
}

}  // namespace

Finding CheckPrograms(const RequiredFeatures& needs) {
  auto folder = ProgramDirectory();
  if (!folder) return {Level::kWarn, "programs", folder.error().ToString(), ""};
  std::vector<std::string> present, missing;
  bool needed = false;
  for (auto [program, wanted] : {std::pair("millrace-train", needs.train), std::pair("millrace-serve", needs.serve)}) {
    bool there = access((*folder / program).c_str(), X_OK) == 0;
    (there ? present : missing).push_back(program);
    needed = needed || (!there && wanted);
  }
  if (missing.empty()) {
    return {Level::kOk, "programs",
            fmt::format("{} are beside millrace in {}", fmt::join(present, " and "), folder->string()), ""};
  }
  return {Missing(needed), "programs",
          fmt::format("{} missing in {}: `millrace train` and `millrace serve` need them", fmt::join(missing, " and "),
                      folder->string()),
          "build with -DMILLRACE_ENGINE=ON (needs libtorch) or install the whole package"};
}

Finding CheckFuse(const RequiredFeatures& needs) {
  const char* device = "/dev/fuse";
  if (access(device, F_OK) != 0) {
    return {Missing(needs.mount), "fuse", "/dev/fuse does not exist: `millrace mount` cannot work, s3:// URLs do",
            "modprobe fuse; in a container, start it with --device /dev/fuse --cap-add SYS_ADMIN"};
  }
  if (auto opened = OpenFile(device, O_RDWR); !opened) {
    return {Missing(needs.mount), "fuse", fmt::format("/dev/fuse cannot be opened ({})", opened.error().message()),
            "in a container, allow the device; as a user, check its mode and group"};
  }
  const bool root = geteuid() == 0;
  auto helper = FindInPath("fusermount3");
  if (!helper && !root) {
    return {Missing(needs.mount), "fuse", "fusermount3 is not installed: only root can mount",
            "install the package fuse3"};
  }
  return {Level::kOk, "fuse",
          fmt::format("/dev/fuse opens; mounts go through {}", helper ? *helper : "mount(2), as root"), ""};
}

Finding CheckDisk() {
  const char* configured = std::getenv("TMPDIR");
  const std::string folder = configured && *configured ? configured : "/tmp";
  auto made = TempDir::Create(folder);
  if (!made) {
    return {Level::kFail, "disk", fmt::format("cannot write to {} ({})", folder, made.error().ToString()),
            "set TMPDIR to a folder that can be written to"};
  }
  struct statvfs fs{};
  if (statvfs(folder.c_str(), &fs) != 0) return {Level::kWarn, "disk", fmt::format("cannot measure {}", folder), ""};
  const std::uint64_t free = std::uint64_t{fs.f_bavail} * fs.f_frsize;
  std::string what = fmt::format("{} has {} free", folder, FormatBytes(free));
  if (free < 1 * kGiB)
    return {Level::kWarn, "disk", what + ": little for caches and staged writes", "free some, or set TMPDIR"};
  return {Level::kOk, "disk", what, ""};
}

Finding CheckMemory(std::uint64_t budget) {
  const auto memory = jobs::ReadMemoryState({});
  if (!memory) return {Level::kWarn, "memory", memory.error().ToString(), ""};
  std::string what = fmt::format("{} of {} available; data in flight takes at most {}", FormatBytes(memory->available),
                                 FormatBytes(memory->total), FormatBytes(budget));
  if (memory->available < 2 * budget)
    return {Level::kWarn, "memory", what, "lower --memory-budget, or give the machine or container more"};
  return {Level::kOk, "memory", what, ""};
}

Finding CheckDescriptors() {
  struct rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  std::string what = fmt::format("{} open files allowed", limit.rlim_cur);
  if (limit.rlim_cur < 1024) return {Level::kWarn, "limits", what + ": few for many connections", "ulimit -n 65536"};
  return {Level::kOk, "limits", what, ""};
}

Finding CheckCpu() {
  CpuInfo cpu = DetectCpu();
  std::string core_type = OpenBlasCoreType(cpu);
  const char* chosen = std::getenv("OPENBLAS_CORETYPE");
  std::string what = fmt::format("{} x {}{}{}{}", UsableCores(), cpu.brand.empty() ? "processor" : cpu.brand,
                                 cpu.avx512     ? ", AVX-512"
                                 : cpu.avx2_fma ? ", AVX2"
                                                : "",
                                 cpu.avx512_bf16 ? ", bf16" : "", cpu.amx_bf16 ? ", AMX" : "");
  if (chosen != nullptr) {
    what += fmt::format("; OPENBLAS_CORETYPE={} is set", chosen);
    if (!core_type.empty() && core_type != chosen)
      return {Level::kWarn, "cpu", what, fmt::format("unset it: Millrace would choose {}", core_type)};
  } else if (!core_type.empty()) {
    what += fmt::format("; train and serve start with OPENBLAS_CORETYPE={}", core_type);
  }
  return {Level::kOk, "cpu", what, ""};
}

Finding CheckGpu(const RequiredFeatures& needs) {
  const auto gpus = nvml::ReadGpus(jobs::MachinePaths().nvml);
  if (!gpus) {
    return {Missing(needs.gpu), "gpu", gpus.error().ToString(),
            "run nvidia-smi; a driver that was updated needs a reboot"};
  }
  if (!*gpus) {
    return {needs.gpu ? Level::kFail : Level::kOk, "gpu", "none (no NVIDIA driver): training and serving use the CPU",
            needs.gpu ? "install the NVIDIA driver; in a container, start it with --gpus all" : ""};
  }
  std::vector<std::string> devices;
  for (const nvml::GpuState& gpu : **gpus) {
    devices.push_back(gpu.ToText());
  }
  if (devices.empty()) return {Missing(needs.gpu), "gpu", "a driver, but no device", "check lspci and dmesg"};
  return {Level::kOk, "gpu", fmt::format("{}", fmt::join(devices, ", ")), ""};
}

}  // namespace millrace::cli
