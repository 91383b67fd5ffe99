#include "millrace/base/process/process_name.h"

#include <sys/stat.h>

#include <algorithm>
#include <charconv>

#include "millrace/base/files/files.h"
#include "millrace/base/text.h"

namespace millrace {
namespace {

constexpr std::string_view kGone = "gone", kUnknown = "unknown";

/// Returns the kernel's boot id, which changes with every start of the machine.
std::string BootId() { return std::string(Trim(ReadFile("/proc/sys/kernel/random/boot_id", 64).value_or("unknown"))); }

/// Returns device and inode of this process's PID namespace, which identify it. A number means another process in
/// another namespace.
std::string PidNamespace() {
  struct stat info{};
  if (::stat("/proc/self/ns/pid", &info) != 0) return std::string(kUnknown);
  return fmt::format("{:x}.{:x}", info.st_dev, info.st_ino);
}

/// Returns the name of the process in the folder /proc/`process`.
std::string NameOf(std::string_view process) {
  const std::string stat = ReadFile(fmt::format("/proc/{}/stat", process), 4 * kKiB).value_or("");
  // proc(5): the 22nd field is the start time. The second one, in parentheses, may contain any characters.
  const auto rest = stat.rfind(')');
  const auto fields = Split(std::string_view(stat).substr(std::min(stat.size(), rest + 1)), ' ');
  const bool there = fields.size() > 20 && fields[1] != "Z" && fields[1] != "X";  // a zombie counts as gone
  return fmt::format("{}:{}:{}:{}", BootId(), PidNamespace(), stat.substr(0, stat.find(' ')),
                     there ? fields[20] : kGone);
}

}  // namespace

std::string ProcessName() { return NameOf("self"); }

std::optional<bool> IsProcessAlive(std::string_view name) {
  constexpr std::size_t kParts = 4;  // as NameOf() writes
  const auto parts = Split(name, ':');
  if (parts.size() != kParts || parts[0] == kUnknown || parts[0] != BootId()) return std::nullopt;
  if (parts[1] == kUnknown || parts[1] != PidNamespace() || parts[3] == kGone) return std::nullopt;
  int pid = 0;
  if (std::from_chars(parts[2].data(), parts[2].data() + parts[2].size(), pid).ec != std::errc()) return std::nullopt;
  return NameOf(std::to_string(pid)) == name;
}

}  // namespace millrace
