#include "millrace/csi/mounter/daemon_start.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string>
#include <string_view>

#include "millrace/base/text.h"

namespace millrace::csi {
namespace {

constexpr std::uint64_t kMostLogBytes = 4 * kMiB;
constexpr Duration kEndTimeout = std::chrono::seconds(5);  // between the closing of its report and its end

/// The last line that the daemon logged after the first `offset` bytes, without the program's name.
std::string LastLine(const std::filesystem::path& log, std::uint64_t offset) {
  const std::string text = ReadFile(log, kMostLogBytes).value_or("");
  std::string_view rest = Trim(std::string_view(text).substr(std::min<std::size_t>(offset, text.size())));
  rest = rest.substr(rest.rfind('\n') + 1);
  constexpr std::string_view kProgram = "millrace: ";
  if (rest.starts_with(kProgram)) rest.remove_prefix(kProgram.size());
  return std::string(rest);
}

/// The inverse of ToExitStatus, as far as it has one.
Code CodeOf(const ExitState& state) {
  if (state.signal != 0) return Code::kUnavailable;
  switch (state.exit_code) {
    case 2:
      return Code::kInvalidArgument;
    case 4:
      return Code::kNotFound;
    case 5:
      return Code::kPermissionDenied;
    default:
      return Code::kUnavailable;
  }
}

/// Waits for the word that BecomeDaemon writes. Returns false at the end of the pipe: the daemon ended.
Result<bool> AwaitLive(int fd, Duration timeout, const std::stop_token& stop) {
  const Deadline deadline = Deadline::After(SystemClock(), timeout);
  while (!deadline.Passed(SystemClock())) {
    constexpr int kPollMs = 100;  // bounds how late deadline and stop are noticed
    const bool stopped = stop.stop_requested();
    pollfd readable{fd, POLLIN, 0};
    if (::poll(&readable, 1, stopped ? 0 : kPollMs) <= 0) {
      // One that is live already is kept.
      if (stopped) return Fail(Code::kCancelled, "the start of the mount was cancelled");
      continue;
    }
    std::array<char, 16> word{};
    const ssize_t n = ::read(fd, word.data(), word.size());
    if (n < 0 && errno == EINTR) continue;
    return n > 0;
  }
  return Fail(Code::kDeadlineExceeded, "the mount was not there within {}", FormatDuration(timeout));
}

}  // namespace

Result<Subprocess> StartMountDaemon(Subprocess::Options options, const std::filesystem::path& log, Duration timeout,
                                    const std::stop_token& stop) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return Fail(ErrnoError(errno, "cannot make a pipe"));
  UniqueFd from_daemon(ends[0]), to_parent(ends[1]);
  options.argv.push_back(fmt::format("--status-fd={}", to_parent.get()));
  options.inherited_fds.push_back(to_parent.get());
  std::error_code error;
  const std::uint64_t before = std::filesystem::exists(log, error) ? std::filesystem::file_size(log, error) : 0;
  Subprocess daemon = MR_TRY(Subprocess::Start(std::move(options)));
  to_parent.Reset();
  if (MR_TRY(AwaitLive(from_daemon.get(), timeout, stop))) return daemon;
  const auto state = daemon.Wait(kEndTimeout);
  const std::string said = LastLine(log, before);
  if (!state) return Fail(Code::kInternal, "the mount's daemon closed its report and goes on");
  return Fail(CodeOf(*state), "{}", said.empty() ? "the mount's daemon ended: " + state->ToString() : said);
}

}  // namespace millrace::csi
