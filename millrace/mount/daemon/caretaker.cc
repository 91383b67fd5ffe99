#include "millrace/mount/daemon/caretaker.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>

namespace millrace::mount {
namespace {

/// The eventfd of the Caretaker, for the signal handler; -1 while there is no Caretaker.
std::atomic<int> hangup_fd = -1;

void OnHangup(int) {
  const int saved = errno;
  const std::uint64_t one = 1;
  if (const int fd = hangup_fd; fd >= 0) (void)!::write(fd, &one, sizeof one);
  errno = saved;
}

}  // namespace

Caretaker::Caretaker(const ServiceManager& manager, std::string log_file, std::function<bool()> check,
                     std::function<Status()> reload, Logger log)
    : manager_(manager),
      log_file_(std::move(log_file)),
      check_(std::move(check)),
      reload_(std::move(reload)),
      log_(std::move(log)),
      signalled_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  hangup_fd = signalled_.get();
  struct sigaction action{};
  action.sa_handler = &OnHangup;
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGHUP, &action, nullptr);
  thread_ = std::jthread([this](const std::stop_token& stop) { Run(stop); });
}

Caretaker::~Caretaker() {
  ::signal(SIGHUP, SIG_DFL);
  hangup_fd = -1;
  thread_.request_stop();
  const std::uint64_t one = 1;
  (void)!::write(signalled_.get(), &one, sizeof one);
}

void Caretaker::Run(const std::stop_token& stop) {
  using std::chrono::milliseconds;
  const Duration period = manager_.watchdog_period();
  const int timeout =
      period > Duration::zero()
          ? static_cast<int>(std::max<milliseconds::rep>(std::chrono::duration_cast<milliseconds>(period).count(), 1))
          : -1;
  while (!stop.stop_requested()) {
    if (timeout >= 0 && check_()) manager_.Alive();
    pollfd hangup{signalled_.get(), POLLIN, 0};
    if (::poll(&hangup, 1, timeout) <= 0) continue;
    std::uint64_t times = 0;
    (void)!::read(signalled_.get(), &times, sizeof times);
    if (stop.stop_requested()) return;
    ReopenLog();
    Reload();
  }
}

void Caretaker::Reload() const {
  if (Status reloaded = reload_(); !reloaded) {
    log_.Error("credentials cannot be read anew: those at hand serve on", {{"reason", reloaded.error()}});
  } else {
    log_.Info("credentials were read anew");
  }
}

void Caretaker::ReopenLog() const {
  if (log_file_.empty()) return;
  auto file = OpenFile(log_file_, O_WRONLY | O_CREAT | O_APPEND, 0640);
  if (!file)
    return log_.Error("the log file cannot be opened anew: logging goes on to the old one", {{"reason", file.error()}});
  ::dup2(file->get(), STDOUT_FILENO);
  ::dup2(file->get(), STDERR_FILENO);
}

}  // namespace millrace::mount
