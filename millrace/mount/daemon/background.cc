#include "millrace/mount/daemon/background.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <syslog.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>

namespace millrace::mount {
namespace {

constexpr std::string_view kLive = "live";

class SystemLog final : public LogSink {
 public:
  SystemLog() { ::openlog("millrace", LOG_PID, LOG_DAEMON); }
  ~SystemLog() override { ::closelog(); }
  void Write(std::string_view line) override {
    ::syslog(LOG_WARNING, "%.*s", static_cast<int>(line.size()), line.data());
  }
};

/// Runs in the child between fork and exec, so it makes only async-signal-safe calls.
[[noreturn]] void ExecDaemon(char* const* argv) {
  ::setsid();
  int null = ::open("/dev/null", O_RDWR);
  ::dup2(null, STDIN_FILENO);
  sigset_t none;
  sigemptyset(&none);
  ::pthread_sigmask(SIG_SETMASK, &none, nullptr);
  ::execv("/proc/self/exe", argv);
  ::_exit(127);
}

}  // namespace

Result<int> StartDaemon(const std::vector<std::string>& arguments, std::stop_token stop) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return Fail(ErrnoError(errno, "cannot make a pipe"));
  UniqueFd from_daemon(ends[0]), to_parent(::dup(ends[1]));  // dup: inherited across exec
  ::close(ends[1]);
  std::vector<std::string> words = {"millrace"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  words.insert(words.end(), {"--status-fd", std::to_string(to_parent.get())});
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const pid_t daemon = ::fork();
  if (daemon < 0) return Fail(ErrnoError(errno, "cannot start the daemon"));
  if (daemon == 0) ExecDaemon(argv.data());
  to_parent.Reset();

  std::string said;
  char buffer[256];
  while (said != kLive) {
    pollfd readable{from_daemon.get(), POLLIN, 0};
    if (stop.stop_requested()) ::kill(daemon, SIGTERM);
    if (::poll(&readable, 1, 100) <= 0) continue;
    ssize_t n = ::read(from_daemon.get(), buffer, sizeof buffer);
    if (n <= 0) break;  // it ended, and has printed the reason
    said.append(buffer, static_cast<std::size_t>(n));
  }
  if (said == kLive) return 0;
  int state = 0;
  while (::waitpid(daemon, &state, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(state) && WEXITSTATUS(state) != 0) return WEXITSTATUS(state);
  return Fail(Code::kInternal, "the mount's daemon ended before the mount was live");
}

Status BecomeDaemon(UniqueFd status, const std::string& log_file) {
  UniqueFd output = MR_TRY(log_file.empty() ? OpenFile("/dev/null", O_RDWR)
                                            : OpenFile(log_file, O_WRONLY | O_CREAT | O_APPEND, 0640));
  ::dup2(output.get(), STDOUT_FILENO);
  ::dup2(output.get(), STDERR_FILENO);
  if (::chdir("/") != 0) return Fail(ErrnoError(errno, "cannot leave the working directory"));
  if (::write(status.get(), kLive.data(), kLive.size()) != static_cast<ssize_t>(kLive.size())) {
    return Fail(ErrnoError(errno, "the command that started this mount is gone"));
  }
  return {};
}

std::shared_ptr<LogSink> MakeSystemLog() { return std::make_shared<SystemLog>(); }

}  // namespace millrace::mount
