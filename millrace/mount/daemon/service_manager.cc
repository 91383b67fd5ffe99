#include "millrace/mount/daemon/service_manager.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "millrace/base/files/files.h"

namespace millrace::mount {
namespace {

/// Returns half of the watchdog's period; zero without a watchdog.
Duration WatchdogPeriod() {
  const char* microseconds = std::getenv("WATCHDOG_USEC");
  const char* process = std::getenv("WATCHDOG_PID");
  if (microseconds == nullptr || (process != nullptr && std::strtol(process, nullptr, 10) != ::getpid())) return {};
  std::int64_t count = 0;
  std::from_chars(microseconds, microseconds + std::strlen(microseconds), count);
  return std::chrono::microseconds(std::max<std::int64_t>(count, 0)) / 2;
}

}  // namespace

ServiceManager::ServiceManager() : watchdog_period_(WatchdogPeriod()) {
  if (const char* address = std::getenv("NOTIFY_SOCKET")) address_ = address;
}

void ServiceManager::Send(const std::string& state) const {
  sockaddr_un to{};
  to.sun_family = AF_UNIX;
  if (address_.empty() || address_.size() >= sizeof to.sun_path) return;
  std::memcpy(to.sun_path, address_.data(), address_.size());
  if (to.sun_path[0] == '@') to.sun_path[0] = '\0';  // the abstract namespace
  UniqueFd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + address_.size());
  // A manager that does not listen is no reason to stop serving.
  if (socket)
    (void)!::sendto(socket.get(), state.data(), state.size(), MSG_NOSIGNAL, reinterpret_cast<sockaddr*>(&to), length);
}

}  // namespace millrace::mount
