#include "millrace/base/process/subprocess.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "millrace/base/process/program_path.h"
#include "millrace/base/text.h"

extern char** environ;

namespace millrace {
namespace {

constexpr std::int64_t kAskEveryMs = 10;  // an end of a child seen this late delays no user

ExitState FromWaitStatus(int status) {
  if (WIFSIGNALED(status)) return {.exit_code = 0, .signal = WTERMSIG(status)};
  return {.exit_code = WEXITSTATUS(status), .signal = 0};
}

/// All that the child needs, made before fork(). Between fork and exec only async-signal-safe calls are allowed.
struct Prepared {
  std::vector<std::string> environment;
  std::vector<char*> argv, envp;
  std::string program, directory;
  UniqueFd stdin_fd, stdout_fd, stderr_fd;
};

std::vector<std::string> MakeEnvironment(const Subprocess::Options& options) {
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    std::string_view text(*entry);
    std::string name(text.substr(0, text.find('=')));
    bool unset = std::find(options.unset_env.begin(), options.unset_env.end(), name) != options.unset_env.end();
    if (!unset && !options.env.contains(name)) environment.emplace_back(text);
  }
  for (const auto& [name, value] : options.env) environment.push_back(name + "=" + value);
  return environment;
}

Result<Prepared> Prepare(Subprocess::Options& options) {
  Prepared p;
  if (options.argv.empty()) return Fail(Code::kInvalidArgument, "no program to start; name one");
  p.program = MR_TRY(FindProgram(options.argv[0]));
  p.directory = options.working_directory.string();
  p.environment = MakeEnvironment(options);
  for (std::string& argument : options.argv) p.argv.push_back(argument.data());
  for (std::string& entry : p.environment) p.envp.push_back(entry.data());
  p.argv.push_back(nullptr);
  p.envp.push_back(nullptr);
  constexpr int kAppend = O_WRONLY | O_CREAT | O_APPEND;
  if (options.null_stdin && !options.pipe_stdin) p.stdin_fd = MR_TRY(OpenFile("/dev/null", O_RDONLY));
  if (!options.stdout_file.empty()) p.stdout_fd = MR_TRY(OpenFile(options.stdout_file, kAppend));
  if (!options.stderr_file.empty()) p.stderr_fd = MR_TRY(OpenFile(options.stderr_file, kAppend));
  return p;
}

/// Runs in the child. If a call fails, writes errno to `report` and ends the child.
[[noreturn]] void ChildMain(const Prepared& p, const Subprocess::Options& options, pid_t parent, int stdout_pipe,
                            int report) {
  auto fail = [report] {
    int error = errno;
    [[maybe_unused]] ssize_t n = ::write(report, &error, sizeof error);
    _exit(127);
  };
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  signal(SIGPIPE, SIG_DFL);
  if (options.own_process_group) setpgid(0, 0);
  if (options.die_with_parent) {
    prctl(PR_SET_PDEATHSIG, options.death_signal);
    if (getppid() != parent) _exit(127);  // it died before the call above
  }
  if (!p.directory.empty() && chdir(p.directory.c_str()) != 0) fail();
  if (p.stdin_fd && dup2(p.stdin_fd.get(), 0) < 0) fail();
  int out = stdout_pipe >= 0 ? stdout_pipe : p.stdout_fd.get();
  if (out >= 0 && dup2(out, 1) < 0) fail();
  if (p.stderr_fd && dup2(p.stderr_fd.get(), 2) < 0) fail();
  for (const int fd : options.inherited_fds) {
    if (fcntl(fd, F_SETFD, 0) != 0) fail();
  }
  execve(p.program.c_str(), p.argv.data(), p.envp.data());
  fail();
  _exit(127);
}

}  // namespace

Result<std::string> FindProgram(const std::string& name) {
  if (name.find('/') != std::string::npos) return name;
  const char* path = std::getenv("PATH");
  for (std::string_view folder : Split(path ? path : "/usr/bin:/bin", ':')) {
    std::string candidate = fmt::format("{}/{}", folder.empty() ? "." : folder, name);
    if (::access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  return Fail(Code::kNotFound, "program \"{}\" is not in PATH; install it, or add its folder to PATH", name);
}

std::string ExitState::ToString() const {
  if (signal != 0) return fmt::format("killed by signal {} ({})", signal, strsignal(signal));
  return fmt::format("exit status {}", exit_code);
}

Result<Subprocess> Subprocess::Start(Options options) {
  Prepared prepared = MR_TRY(Prepare(options));
  int report[2], in[2] = {-1, -1}, out[2] = {-1, -1};
  if (::pipe2(report, O_CLOEXEC) != 0) return Fail(ErrnoError(errno, "cannot make a pipe"));
  UniqueFd report_read(report[0]), report_write(report[1]);
  if (options.capture_stdout && ::pipe2(out, O_CLOEXEC) != 0) return Fail(ErrnoError(errno, "cannot make a pipe"));
  UniqueFd out_read(out[0]), out_write(out[1]);
  if (options.pipe_stdin) {
    if (::pipe2(in, O_CLOEXEC) != 0) return Fail(ErrnoError(errno, "cannot make a pipe"));
    prepared.stdin_fd = UniqueFd(in[0]);
  }
  UniqueFd in_write(in[1]);

  pid_t parent = getpid(), pid = ::fork();
  if (pid < 0) return Fail(ErrnoError(errno, fmt::format("cannot start {}", prepared.program)));
  if (pid == 0) ChildMain(prepared, options, parent, out_write.get(), report_write.get());

  Subprocess child;
  child.pid_ = pid;
  child.group_ = options.own_process_group;
  if (child.group_) setpgid(pid, pid);  // also here, so that Signal reaches the group however soon it comes
  child.pidfd_ = UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  child.stdin_ = std::move(in_write);
  child.stdout_ = std::move(out_read);
  report_write.Reset();
  int error = 0;
  ssize_t n;
  do n = ::read(report_read.get(), &error, sizeof error);
  while (n < 0 && errno == EINTR);
  if (n == static_cast<ssize_t>(sizeof error)) {
    child.Wait();
    return Fail(ErrnoError(error, fmt::format("cannot run {}", prepared.program)));
  }
  return child;
}

Result<Subprocess::Output> Subprocess::Run(Options options) {
  options.capture_stdout = true;
  Subprocess child = MR_TRY(Start(std::move(options)));
  std::string text = MR_TRY(child.ReadStdout(64 * kMiB));
  return Output{*child.Wait(), std::move(text)};
}

Subprocess::Subprocess(Subprocess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      group_(other.group_),
      pidfd_(std::move(other.pidfd_)),
      stdin_(std::move(other.stdin_)),
      stdout_(std::move(other.stdout_)),
      state_(other.state_) {}

Subprocess& Subprocess::operator=(Subprocess&& other) noexcept {
  std::swap(pid_, other.pid_);
  std::swap(group_, other.group_);
  std::swap(pidfd_, other.pidfd_);
  std::swap(stdin_, other.stdin_);
  std::swap(stdout_, other.stdout_);
  std::swap(state_, other.state_);
  return *this;
}

Subprocess::~Subprocess() {
  if (pid_ > 0 && !Poll()) {
    Signal(SIGKILL);
    Wait();
  }
}

std::optional<ExitState> Subprocess::Poll() {
  if (!state_ && pid_ > 0) {
    int status = 0;
    if (::waitpid(pid_, &status, WNOHANG) == pid_) state_ = FromWaitStatus(status);
  }
  return state_;
}

std::optional<ExitState> Subprocess::Wait(std::optional<Duration> timeout) {
  if (state_ || pid_ <= 0) return state_;
  if (timeout) {
    pollfd ended{.fd = pidfd_.get(), .events = POLLIN, .revents = 0};
    // Sandboxes and kernels before 5.3 lack pidfd_open. poll(2) passes over the invalid descriptor.
    const std::int64_t longest = pidfd_ ? 1 << 30 : kAskEveryMs;
    TimePoint until = SystemClock().Now() + *timeout;
    for (;;) {
      auto left = std::chrono::ceil<std::chrono::milliseconds>(until - SystemClock().Now()).count();
      int n = ::poll(&ended, 1, static_cast<int>(std::clamp<std::int64_t>(left, 0, longest)));
      if (n > 0) break;
      if (n == 0 && (left <= 0 || (!pidfd_ && Poll()))) return Poll();
    }
  }
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  state_ = FromWaitStatus(status);
  return state_;
}

void Subprocess::Signal(int signal_number) {
  if (pid_ <= 0 || state_) return;
  // No other process can have this pid: the kernel keeps it until the child is reaped.
  if (group_)
    ::kill(-pid_, signal_number);
  else
    ::kill(pid_, signal_number);
}

ExitState Subprocess::Stop(Duration grace) {
  Signal(SIGTERM);
  if (auto state = Wait(grace)) return *state;
  Signal(SIGKILL);
  return *Wait();
}

Result<std::string> Subprocess::ReadStdout(std::size_t max_bytes) {
  std::string text;
  char chunk[64 * kKiB];
  for (;;) {
    ssize_t n = ::read(stdout_.get(), chunk, sizeof chunk);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Fail(ErrnoError(errno, "cannot read a child's output"));
    if (n == 0) return text;
    if (text.size() + static_cast<std::size_t>(n) > max_bytes)
      return Fail(Code::kResourceExhausted, "a child printed more than {} bytes", max_bytes);
    text.append(chunk, static_cast<std::size_t>(n));
  }
}

Result<std::filesystem::path> ProgramDirectory() { return MR_TRY(ProgramPath()).parent_path(); }

}  // namespace millrace
