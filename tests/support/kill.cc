#include "tests/support/kill.h"

#include <signal.h>

#include <filesystem>
#include <iterator>
#include <thread>

#include "millrace/base/files/files.h"
#include "millrace/base/text.h"

namespace millrace::testing_support {
namespace {

bool HoldsDescriptors(pid_t process) {
  constexpr std::uint64_t kMaxStat = 4 * kKiB;
  const auto stat = ReadFile(fmt::format("/proc/{}/stat", process), kMaxStat);
  if (!stat) return false;
  // The first thread may be dead while others still hold the descriptors.
  std::error_code error;
  const std::filesystem::directory_iterator threads(fmt::format("/proc/{}/task", process), error);
  return !stat->contains(") Z ") || std::distance(begin(threads), end(threads)) > 1;
}

}  // namespace

void KillAndAwaitEnd(pid_t process) {
  ::kill(process, SIGKILL);
  while (HoldsDescriptors(process)) std::this_thread::yield();
}

}  // namespace millrace::testing_support
