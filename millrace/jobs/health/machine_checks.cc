// The checks of disk, memory, processor and shared memory.
#include <fcntl.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <vector>

#include "millrace/base/files/files.h"
#include "millrace/base/hash/random.h"
#include "millrace/base/text.h"
#include "millrace/jobs/health/node_checks.h"

namespace millrace::jobs {
namespace {

using Level = Finding::Level;

constexpr std::uint64_t kLittleDisk = kGiB, kNoDisk = 64 * kMiB;
constexpr std::size_t kDiskProbe = 16 * kMiB;             // takes a tenth of a second on the slowest disk that is good
constexpr double kSlowDisk = 10e6;                        // bytes a second: a checkpoint of 1 GB would take minutes
constexpr double kLittleMemory = 0.1, kNoMemory = 0.02;   // shares of all
constexpr std::size_t kMemoryProbe = 32 * kMiB;           // more than the caches that a core has for itself
constexpr std::uint64_t kLittleSharedMemory = 64 * kMiB;  // of which NCCL takes some for each pair of ranks

/// The processor time of this thread: what other processes do changes it little.
double ThreadSeconds() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double WallSeconds() { return std::chrono::duration<double>(SystemClock().Now().time_since_epoch()).count(); }

std::optional<std::uint64_t> NumberIn(const std::filesystem::path& file) {
  const auto text = ReadFile(file, kMiB);
  if (!text) return std::nullopt;
  const std::string digits(Trim(*text));
  char* end = nullptr;
  const std::uint64_t number = std::strtoull(digits.c_str(), &end, 10);
  return end == digits.c_str() ? std::nullopt : std::optional(number);
}

/// Returns the number behind a name in a file of lines "name number".
std::optional<std::uint64_t> FieldIn(const std::filesystem::path& file, std::string_view name) {
  const auto text = ReadFile(file, kMiB);
  if (!text) return std::nullopt;
  for (std::string_view line : Split(*text, '\n')) {
    if (line.starts_with(name) && line.substr(name.size()).starts_with(' ')) {
      return std::strtoull(std::string(line.substr(name.size() + 1)).c_str(), nullptr, 10);
    }
  }
  return std::nullopt;
}

/// Where a version of control groups says what a container may use, and uses.
struct ControlGroup {
  const char *limit, *used, *statistics, *cached;
};
constexpr ControlGroup kControlGroups[] = {
    {"memory.max", "memory.current", "memory.stat", "inactive_file"},
    {"memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file"}};

/// Returns the free bytes of a file system.
std::optional<std::uint64_t> FreeBytes(const std::filesystem::path& folder) {
  struct statvfs fs{};
  if (::statvfs(folder.c_str(), &fs) != 0) return std::nullopt;
  return std::uint64_t{fs.f_bavail} * fs.f_frsize;
}

/// Writes bytes to the disk, reads them from there and compares. Returns the slower of both speeds, in bytes a second.
/// Errors: what a call says; kCorrupt if other bytes came back.
Result<double> WriteAndReadBack(const std::filesystem::path& folder) {
  const TempDir made = MR_TRY(TempDir::Create(folder));
  const std::filesystem::path path = made.path() / "probe";
  const UniqueFd file = MR_TRY(OpenFile(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  std::vector<std::byte> written(kDiskProbe), read(kDiskProbe);
  Random random(1);  // disks that compress must not gain by it
  for (std::size_t at = 0; at < written.size(); at += 8) {
    const std::uint64_t word = random.Next();
    std::memcpy(written.data() + at, &word, sizeof word);
  }
  const double begun = WallSeconds();
  MR_TRY(WriteFully(file.get(), written, 0, path.string()));
  if (::fsync(file.get()) != 0) return Fail(ErrnoError(errno, "cannot sync " + path.string()));
  const double synced = WallSeconds();
  ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
  MR_TRY(ReadExactly(file.get(), read, 0, path.string()));
  const double ended = WallSeconds();
  if (read != written) return Fail(Code::kCorrupt, "{} holds other bytes than were written", path.string());
  return static_cast<double>(kDiskProbe) / std::max({synced - begun, ended - synced, 1e-6});
}

/// Returns the bytes that one thread reads and writes in a second; the best of some copies.
double CopySpeed() {
  constexpr int kCopies = 5;
  std::vector<std::byte> from(kMemoryProbe, std::byte{1}), to(kMemoryProbe);
  double best = 0;
  for (int i = 0; i < kCopies; ++i) {
    from[0] = static_cast<std::byte>(i);
    const double begun = ThreadSeconds();
    std::memcpy(to.data(), from.data(), kMemoryProbe);
    const double took = std::max(ThreadSeconds() - begun, 1e-9);
    if (to[0] != from[0]) return 0;  // also keeps the copy from being left out
    best = std::max(best, 2 * static_cast<double>(kMemoryProbe) / took);
  }
  return best;
}

/// Returns millions of steps a second of a fixed computation, of whole numbers and fractions; the best of some rounds.
double ComputeSpeed() {
  constexpr int kRounds = 30, kSteps = 200'000;
  double best = 0;
  for (int round = 0; round < kRounds; ++round) {
    std::uint64_t word = 88172645463325252U + static_cast<std::uint64_t>(round);
    double sums[4] = {1, 2, 3, 4};
    const double begun = ThreadSeconds();
    for (int i = 0; i < kSteps; ++i) {
      word ^= word << 13;  // Marsaglia's xorshift
      word ^= word >> 7;
      word ^= word << 17;
      const double x = static_cast<double>(word >> 40) * 0x1p-24;
      for (double& sum : sums) sum = sum * 0.999 + x;
    }
    const double took = std::max(ThreadSeconds() - begun, 1e-9);
    volatile double kept = sums[0] + sums[1] + sums[2] + sums[3];  // the work must be done
    if (kept > 0) best = std::max(best, kSteps / took / 1e6);
  }
  return best;
}

/// Returns how many errors of memory the kernel saw that could not be corrected (EDAC's counts).
std::uint64_t UncorrectableErrors(const std::filesystem::path& system) {
  std::uint64_t errors = 0;
  std::error_code ignored;
  for (const auto& controller : std::filesystem::directory_iterator(system / "devices/system/edac/mc", ignored)) {
    errors += NumberIn(controller.path() / "ue_count").value_or(0);
  }
  return errors;
}

}  // namespace

Result<MemoryState> ReadMemoryState(const MachinePaths& paths) {
  const std::string text = MR_TRY(ReadFile(paths.proc / "meminfo", kMiB));
  MemoryState memory;
  for (std::string_view line : Split(text, '\n')) {
    for (auto [name, value] : {std::pair("MemTotal:", &memory.total), std::pair("MemAvailable:", &memory.available)}) {
      if (!line.starts_with(name)) continue;
      const std::string kib(Trim(line.substr(std::strlen(name))));
      *value = std::strtoull(kib.c_str(), nullptr, 10) * kKiB;
    }
  }
  if (memory.total == 0) {
    return Fail(Code::kNotFound, "{} has no MemTotal; mount /proc where the checks run",
                (paths.proc / "meminfo").string());
  }
  const std::filesystem::path groups = paths.system / "fs/cgroup";
  for (const ControlGroup& group : kControlGroups) {
    const auto most = NumberIn(groups / group.limit);
    if (!most || *most == 0 || *most >= memory.total) continue;  // without a limit, a huge number or a word
    // Files that were read count as used, but their pages are given back when others want them.
    const std::uint64_t used = NumberIn(groups / group.used).value_or(0);
    const std::uint64_t cached = FieldIn(groups / group.statistics, group.cached).value_or(0);
    memory.total = *most;
    memory.available = std::min(memory.available, *most - std::min(*most, used - std::min(used, cached)));
  }
  return memory;
}

Finding CheckNodeDisk(const std::filesystem::path& folder, bool passive) {
  const std::string limit = "64 MiB free, 10 MB/s";
  const auto free = FreeBytes(folder);
  if (!free) {
    return {Level::kFail, "disk", fmt::format("{} cannot be used ({})", folder.string(), std::strerror(errno)),
            "set TMPDIR to a folder that can be written to", limit};
  }
  std::string what = fmt::format("{} has {} free", folder.string(), FormatBytes(*free));
  if (*free < kNoDisk) return {Level::kFail, "disk", what, "free some, or set TMPDIR to another disk", limit};
  double speed = 0;
  if (!passive) {
    const auto probed = WriteAndReadBack(folder);
    if (!probed) {
      return {Level::kFail, "disk", fmt::format("{}; {}", what, probed.error().ToString()),
              "look at dmesg and at the disk's health (smartctl), or set TMPDIR to another disk", limit};
    }
    speed = *probed;
    what += fmt::format(", and writes and reads {}/s", FormatBytes(static_cast<std::uint64_t>(speed)));
    if (speed < kSlowDisk) {
      return {Level::kWarn, "disk", what, "look at what else uses it (iotop), and at its health (smartctl)", limit};
    }
  }
  if (*free < kLittleDisk) {
    return {Level::kWarn, "disk", what + ": little for caches and local checkpoints", "free some, or set TMPDIR",
            limit};
  }
  return {Level::kOk, "disk", what, "", limit};
}

Finding CheckNodeMemory(const MachinePaths& paths, bool passive) {
  const std::string limit = "2 % available, no uncorrectable error";
  const auto memory = ReadMemoryState(paths);
  if (!memory) return {Level::kWarn, "memory", memory.error().ToString(), "", limit};
  std::string what = fmt::format("{} of {} available", FormatBytes(memory->available), FormatBytes(memory->total));
  if (const std::uint64_t errors = UncorrectableErrors(paths.system); errors > 0) {
    return {Level::kFail, "memory", fmt::format("{}; the kernel counted {} uncorrectable errors", what, errors),
            "take the machine out of use and have its memory replaced", limit};
  }
  const double share = static_cast<double>(memory->available) / static_cast<double>(memory->total);
  if (share < kLittleMemory) {
    return {share < kNoMemory ? Level::kFail : Level::kWarn, "memory", what,
            "end what takes it (ps aux --sort=-rss): processes of an earlier job, perhaps", limit};
  }
  if (passive) return {Level::kOk, "memory", what, "", limit};
  const double speed = CopySpeed() / 1e9;
  return {Level::kOk, "memory", fmt::format("{}; one thread copies {:.1f} GB/s", what, speed), "", limit, speed};
}

Finding CheckNodeCpu() {
  const double speed = ComputeSpeed();
  return {Level::kOk,
          "cpu",
          fmt::format("one thread makes {:.0f} million steps/s of a fixed computation", speed),
          "",
          "half of its peers' speed",
          speed};
}

Finding CheckSharedMemory(const std::filesystem::path& folder) {
  const std::string limit = "64 MiB";
  const auto free = FreeBytes(folder);
  if (!free) {
    return {Level::kFail, "shm", fmt::format("{} cannot be used ({})", folder.string(), std::strerror(errno)),
            "mount a tmpfs there", limit};
  }
  const std::string what = fmt::format("{} has {} free", folder.string(), FormatBytes(*free));
  if (*free >= kLittleSharedMemory) return {Level::kOk, "shm", what, "", limit};
  return {Level::kWarn, "shm", what,
          fmt::format("remove what earlier jobs left there; in a container, start it with --shm-size=1g"), limit};
}

}  // namespace millrace::jobs
