#include "apps/common/lifeline.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <cstdlib>
#include <string_view>

namespace millrace::cli {
namespace {

/// Returns the descriptor in $MILLRACE_LIFELINE, if it is a pipe.
UniqueFd FromEnvironment() {
  const char* variable = std::getenv("MILLRACE_LIFELINE");
  const std::string_view text = variable != nullptr ? variable : "";
  int fd = -1;
  if (text.empty() || std::from_chars(text.data(), text.data() + text.size(), fd).ptr != text.data() + text.size())
    return {};
  struct stat status{};
  if (fd <= STDERR_FILENO || ::fstat(fd, &status) != 0 || !S_ISFIFO(status.st_mode)) return {};
  ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  return UniqueFd(fd);
}

}  // namespace

SupervisorWatch::SupervisorWatch() : pipe_(FromEnvironment()) {
  if (!pipe_) return;
  wake_ = UniqueFd(::eventfd(0, EFD_CLOEXEC));
  thread_ = std::thread([this] {
    std::array<pollfd, 2> watched = {
        {{.fd = pipe_.get(), .events = 0, .revents = 0}, {.fd = wake_.get(), .events = POLLIN, .revents = 0}}};
    while (watched[1].revents == 0) {
      const int ready = ::poll(watched.data(), watched.size(), -1);
      if (ready > 0 && (watched[0].revents & POLLHUP) != 0) ::_exit(1);
    }
  });
}

SupervisorWatch::~SupervisorWatch() {
  if (!thread_.joinable()) return;
  ::eventfd_write(wake_.get(), 1);
  thread_.join();
}

}  // namespace millrace::cli
