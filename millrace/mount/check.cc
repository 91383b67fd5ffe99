#include "millrace/mount/check.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>

#include "millrace/base/files/files.h"
#include "millrace/base/text.h"
#include "millrace/mount/point/control.h"
#include "millrace/mount/point/mount_point.h"

namespace millrace::mount {
namespace {

/// Asks the daemon, and the store if `parts` says so. May block for as long as the daemon does.
Status Ask(const std::string& given, CheckedParts parts) {
  const std::string path = MR_TRY(ResolveMountPoint(given));
  auto mounted = MR_TRY(FindMount(path));
  if (!mounted) return Fail(Code::kNotFound, "nothing is mounted on {}; mount it with `millrace mount`", path);
  MR_TRY(QueryDaemon(path));
  if (parts == CheckedParts::kDaemon) return {};
  std::error_code error;
  if (std::filesystem::directory_iterator listing(path, error); error) {
    return Fail(Code::kUnavailable, "{} cannot be listed: {}", path, error.message());
  }
  return {};
}

/// Writes an answer: a byte, 0 or 1 + the code of the error, and the error's text. A child that dies leaves no byte.
void WriteAnswer(int out, const Status& asked) {
  std::string text(1, asked ? '\0' : static_cast<char>(1 + static_cast<int>(asked.error().code())));
  if (!asked) text += asked.error().ToString();
  for (std::string_view rest = text; !rest.empty();) {
    const ssize_t wrote = ::write(out, rest.data(), rest.size());
    if (wrote < 0 && errno != EINTR) return;
    if (wrote > 0) rest.remove_prefix(static_cast<std::size_t>(wrote));
  }
}

/// Returns what the child has written until it closed its end; nothing if that takes longer than `timeout`.
std::optional<std::string> ReadAnswer(int in, Duration timeout) {
  std::string text;
  const TimePoint deadline = SystemClock().Now() + timeout;
  while (true) {
    const Duration left = std::max(deadline - SystemClock().Now(), Duration(0));
    pollfd readable{.fd = in, .events = POLLIN, .revents = 0};
    const auto wait = std::min<Duration>(left, std::chrono::hours(1));
    const int ready =
        ::poll(&readable, 1, static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(wait).count()));
    if (ready == 0 && left == Duration(0)) return std::nullopt;
    if (ready <= 0) continue;
    std::array<char, 4096> chunk;
    const ssize_t got = ::read(in, chunk.data(), chunk.size());
    if (got == 0) return text;
    if (got > 0) text.append(chunk.data(), static_cast<std::size_t>(got));
  }
}

}  // namespace

Status CheckMount(const std::string& given, Duration timeout, CheckedParts parts) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return Fail(ErrnoError(errno, "pipe"));
  UniqueFd in(ends[0]), out(ends[1]);
  // A thread would not do: while the kernel holds it in a request that the daemon has read, this process cannot end.
  const pid_t child = ::fork();
  if (child < 0) return Fail(ErrnoError(errno, "fork"));
  if (child == 0) {
    // Who reads the output of this program must not wait for a child that hangs.
    if (const UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC)); null) {
      for (const int standard : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) (void)::dup2(null.get(), standard);
    }
    WriteAnswer(out.get(), Ask(given, parts));
    ::_exit(0);
  }
  out.Reset();
  const auto answer = ReadAnswer(in.get(), timeout);
  if (!answer) {
    ::kill(child, SIGKILL);
    return Fail(Code::kDeadlineExceeded, "the mount on {} has not answered for {}", given, FormatDuration(timeout));
  }
  while (::waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
  if (answer->empty()) return Fail(Code::kInternal, "the process that checks {} has died", given);
  if (answer->front() != '\0') return Fail(Error(static_cast<Code>(answer->front() - 1), answer->substr(1)));
  return {};
}

}  // namespace millrace::mount
