#include "millrace/tracking/sidecar/sidecar.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <utility>

#include "millrace/base/bytes.h"

namespace millrace::tracking {
namespace {

constexpr std::size_t kMaxAnswerLine = 64 * kKiB;  // of one line: warnings have some hundred bytes

/// Blocks SIGPIPE in this thread: a pipe whose reader is gone must not end this process. Threads inherit the mask.
class PipeSignalBlocked {
 public:
  PipeSignalBlocked() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~PipeSignalBlocked() {
    const timespec now{};
    sigtimedwait(&pipe_, nullptr, &now);  // the signal of a write meanwhile
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  PipeSignalBlocked(const PipeSignalBlocked&) = delete;
  PipeSignalBlocked& operator=(const PipeSignalBlocked&) = delete;

 private:
  sigset_t pipe_{}, before_{};
};

bool WriteAll(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    text.remove_prefix(static_cast<std::size_t>(n));
  }
  return true;
}

/// Returns the next line of `fd`, without its newline. Nothing at the end of the input, or at `until`.
std::optional<std::string> ReadLine(int fd, std::string& unread, std::optional<TimePoint> until = std::nullopt) {
  for (;;) {
    if (const std::size_t end = unread.find('\n'); end != std::string::npos) {
      std::string line = unread.substr(0, end);
      unread.erase(0, end + 1);
      return line;
    }
    if (unread.size() > kMaxAnswerLine) unread.clear();  // no answer of ours
    if (until) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(*until - SystemClock().Now()).count();
      pollfd readable{.fd = fd, .events = POLLIN, .revents = 0};
      const int n = ::poll(&readable, 1, static_cast<int>(std::clamp<std::int64_t>(left, 0, 1 << 30)));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return std::nullopt;
    }
    std::array<char, 4096> chunk;
    const ssize_t n = ::read(fd, chunk.data(), chunk.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return std::nullopt;
    unread.append(chunk.data(), static_cast<std::size_t>(n));
  }
}

}  // namespace

Sidecar::Sidecar(Options options, Subprocess process, Logger log)
    : options_(std::move(options)), log_(std::move(log)), process_(std::move(process)), queue_(options_.queued) {}

Result<std::unique_ptr<Sidecar>> Sidecar::Start(Options options, const Json& hello, Logger log) {
  const PipeSignalBlocked blocked;
  // A process group of its own: Ctrl-C in a terminal reaches this process, which then tells the program how it ends.
  auto process = Subprocess::Start({.argv = options.argv,
                                    .env = options.env,
                                    .unset_env = {"MILLRACE_RANK_SECRET", "MILLRACE_LIFELINE"},
                                    .capture_stdout = true,
                                    .pipe_stdin = true,
                                    .own_process_group = true,
                                    .die_with_parent = false});
  if (!process) {
    return Fail(Code::kInvalidArgument, "{}: {}; install Python 3, or set log.python", options.name,
                process.error().message());
  }
  std::unique_ptr<Sidecar> sidecar(new Sidecar(std::move(options), *std::move(process), std::move(log)));
  MR_TRY(sidecar->Greet(hello));
  sidecar->threads_.Spawn("sidecar-write", [self = sidecar.get()](std::stop_token) { self->Write(); });
  sidecar->threads_.Spawn("sidecar-read", [self = sidecar.get()](std::stop_token) { self->Read(); });
  return sidecar;
}

/// Waits until the program is ready.
Status Sidecar::Greet(const Json& hello) {
  const TimePoint until = SystemClock().Now() + options_.start_patience;
  if (!WriteAll(process_.stdin_fd(), DumpJson(hello) + "\n")) gone_ = true;  // its answer says why
  while (const auto line = ReadLine(process_.stdout_fd(), unread_, until)) {
    const auto answer = ParseJson(*line, options_.name);
    if (!answer) continue;
    if (const Json* ready = JsonFind(*answer, "ready")) {
      ready_ = *ready;
      return {};
    }
    if (const auto error = JsonString(*answer, "error")) {
      return Fail(Code::kInvalidArgument, "{}: {}", options_.name, *error);
    }
    Take(*line);
  }
  if (const auto state = process_.Poll()) {
    return Fail(Code::kUnavailable, "{}: {} ended with {} before it was ready", options_.name, options_.argv.front(),
                state->ToString());
  }
  return Fail(Code::kUnavailable, "{}: {} was not ready in time", options_.name, options_.argv.front());
}

Sidecar::~Sidecar() {
  queue_.Close();
  process_.Signal(SIGKILL);  // frees a writer that waits for it
  process_.Wait();
  threads_.Join();
}

void Sidecar::Send(const Json& event) {
  std::string line = DumpJson(event) + "\n";
  if (!gone_ && queue_.TryPush(line)) return;
  if (dropped_++ == 0 && !gone_)
    log_.Warning("events come faster than they are taken; some are dropped", {{"by", options_.name}});
}

void Sidecar::End(const Json& last) {
  const TimePoint until = SystemClock().Now() + options_.end_patience;
  ending_ = true;
  std::string line = DumpJson(last) + "\n";
  // The queue may be full. Its thread makes room as long as the program reads.
  std::stop_source late;
  std::jthread watch([&](std::stop_token stop) {
    if (!SystemClock().SleepUntil(until, std::move(stop))) return;
    late.request_stop();
  });
  if (!gone_) queue_.Push(std::move(line), late.get_token());
  queue_.Close();
  watch.request_stop();
  watch.join();
  if (!process_.Wait(std::max<Duration>(until - SystemClock().Now(), Duration::zero()))) {
    log_.Warning("a tracker did not end in time; what it had not sent is lost", {{"tracker", options_.name}});
    process_.Signal(SIGKILL);
    process_.Wait();
  }
  threads_.Join();
  if (dropped_ > 0) log_.Warning("a tracker misses events", {{"tracker", options_.name}, {"dropped", dropped_.load()}});
}

/// Hands on what is queued, then closes the program's input.
void Sidecar::Write() {
  while (const auto line = queue_.Pop()) {
    if (!gone_ && !WriteAll(process_.stdin_fd(), *line)) gone_ = true;
    if (gone_) ++dropped_;
  }
  process_.CloseStdin();
}

void Sidecar::Read() {
  while (const auto line = ReadLine(process_.stdout_fd(), unread_)) Take(*line);
  if (gone_.exchange(true) || ending_) return;
  log_.Warning("a tracker's program ended; the run goes on without it", {{"tracker", options_.name}});
}

/// Takes an answer that the program was not asked for.
void Sidecar::Take(const std::string& line) {
  const auto answer = ParseJson(line, options_.name);
  if (!answer) return;
  if (const auto warning = JsonString(*answer, "warning")) {
    log_.Warning(*warning, {{"tracker", options_.name}});
  } else if (const auto info = JsonString(*answer, "info")) {
    log_.Info(*info, {{"tracker", options_.name}});
  }
}

}  // namespace millrace::tracking
