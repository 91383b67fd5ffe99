#include "millrace/collectives/rendezvous/local_secret.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <stop_token>
#include <thread>
#include <utility>

#include "millrace/base/files/files.h"
#include "millrace/collectives/tcp/handshake.h"

namespace millrace::collectives {
namespace {

constexpr std::size_t kSecretBytes = 32;
constexpr Duration kPause = std::chrono::milliseconds(20);  // between two looks whether rank 0 is there

/// An address that is no file: its first byte is zero (unix(7)).
struct AbstractAddress {
  explicit AbstractAddress(int port) {
    const std::string name = fmt::format("millrace-ranks/{}/{}", ::geteuid(), port);
    address.sun_family = AF_UNIX;
    std::ranges::copy(name, address.sun_path + 1);
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  }
  const sockaddr* data() const { return reinterpret_cast<const sockaddr*>(&address); }
  sockaddr_un address{};
  socklen_t size = 0;
};

bool IsOfThisUser(int fd) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == ::geteuid();
}

}  // namespace

class LocalSecret::Server {
 public:
  Server(UniqueFd listener, UniqueFd wake, SecretBytes secret)
      : listener_(std::move(listener)),
        wake_(std::move(wake)),
        secret_(std::move(secret)),
        thread_([this](const std::stop_token& stop) { Run(stop); }) {}
  ~Server() {
    thread_.request_stop();
    (void)::eventfd_write(wake_.get(), 1);
  }
  const SecretBytes& secret() const { return secret_; }

 private:
  void Run(const std::stop_token& stop) {
    ::pthread_setname_np(::pthread_self(), "rank-secret");
    while (!stop.stop_requested()) {
      pollfd waits[] = {{.fd = wake_.get(), .events = POLLIN, .revents = 0},
                        {.fd = listener_.get(), .events = POLLIN, .revents = 0}};
      if (::poll(waits, std::size(waits), -1) < 0 && errno != EINTR) return;
      const UniqueFd peer(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      // A new connection has room for these few bytes.
      if (peer && IsOfThisUser(peer.get())) {
        (void)::send(peer.get(), secret_.span().data(), kSecretBytes, MSG_NOSIGNAL | MSG_DONTWAIT);
      }
      if (!peer && errno != EAGAIN) SystemClock().SleepFor(kPause, stop);  // as without a free descriptor
    }
  }

  const UniqueFd listener_, wake_;
  const SecretBytes secret_;
  std::jthread thread_;  ///< the last member: it ends first
};

LocalSecret::LocalSecret(std::unique_ptr<Server> server) : server_(std::move(server)) {}
LocalSecret::~LocalSecret() = default;
const SecretBytes& LocalSecret::secret() const { return server_->secret(); }

Result<std::unique_ptr<LocalSecret>> LocalSecret::Serve(int port) {
  UniqueFd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!listener || !wake) return Fail(ErrnoError(errno, "a socket to listen on"));
  const AbstractAddress at(port);
  if (::bind(listener.get(), at.data(), at.size) != 0 || ::listen(listener.get(), SOMAXCONN) != 0) {
    return Fail(ErrnoError(errno, fmt::format("the meeting of this machine's ranks at port {}", port))
                    .WithCode(Code::kUnavailable));
  }
  std::array<std::byte, kSecretBytes> drawn;
  if (::getrandom(drawn.data(), drawn.size(), 0) != static_cast<ssize_t>(drawn.size())) std::abort();
  SecretBytes secret(drawn);
  ::explicit_bzero(drawn.data(), drawn.size());
  return std::unique_ptr<LocalSecret>(
      new LocalSecret(std::make_unique<Server>(std::move(listener), std::move(wake), std::move(secret))));
}

Result<SecretBytes> LocalSecret::Fetch(int port, TimePoint deadline) {
  const AbstractAddress at(port);
  while (true) {
    const UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd) return Fail(ErrnoError(errno, "a socket"));
    if (::connect(fd.get(), at.data(), at.size) == 0) {
      if (!IsOfThisUser(fd.get())) {
        return Fail(Code::kPermissionDenied, "another user's process is where this machine's ranks meet at port {}",
                    port);
      }
      std::array<std::byte, kSecretBytes> read;
      if (ReceiveAll(fd.get(), read, deadline, {})) {
        SecretBytes secret(read);
        ::explicit_bzero(read.data(), read.size());
        return secret;
      }
    }
    if (SystemClock().Now() + kPause > deadline) {
      return Fail(Code::kUnavailable, "rank 0 has not come to the meeting of this machine's ranks at port {}", port);
    }
    SystemClock().SleepFor(kPause);
  }
}

}  // namespace millrace::collectives
