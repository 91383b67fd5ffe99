// A TCP proxy that delays every request: simulates a distant server over loopback.
//   delay_proxy LISTEN_PORT SERVER_PORT MILLISECONDS
// A request begins with the first bytes of a connection, or with the first bytes after an answer; these bytes are
// delayed. Later bytes and all answers pass at once. splice(2) keeps the proxy's CPU time low, because the measured
// programs share the CPU. Connecting is not delayed.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>

namespace {

/// Two sockets, closed when both directions have ended.
struct Link {
  Link(int c, int s) : client(c), server(s) {}
  ~Link() {
    close(client);
    close(server);
  }
  int client, server;
  std::atomic<bool> answered{true};  ///< the next bytes of the client begin a request
};

sockaddr_in Loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  return address;
}

/// Forwards bytes until the end of the stream. Calls `before` before each piece.
template <class Before>
void Pass(int from, int to, Before before) {
  constexpr std::size_t kPipe = 1 << 20;
  int ends[2];
  if (pipe(ends) != 0) return;
  fcntl(ends[1], F_SETPIPE_SZ, kPipe);
  ssize_t count = 0;
  while (count == 0 && (count = splice(from, nullptr, ends[1], nullptr, kPipe, SPLICE_F_MOVE)) > 0) {
    before();
    while (count > 0) {
      const ssize_t moved = splice(ends[0], nullptr, to, nullptr, static_cast<std::size_t>(count), 0);
      if (moved <= 0) break;
      count -= moved;
    }
  }
  close(ends[0]);
  close(ends[1]);
}

void ForwardRequests(const std::shared_ptr<Link>& link, std::chrono::milliseconds delay) {
  Pass(link->client, link->server, [&] {
    if (link->answered.exchange(false)) std::this_thread::sleep_for(delay);
  });
  shutdown(link->server, SHUT_WR);
}

void ForwardAnswers(const std::shared_ptr<Link>& link) {
  Pass(link->server, link->client, [&] { link->answered = true; });
  shutdown(link->client, SHUT_RDWR);
  shutdown(link->server, SHUT_RDWR);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: delay_proxy LISTEN_PORT SERVER_PORT MILLISECONDS\n");
    return 2;
  }
  signal(SIGPIPE, SIG_IGN);  // splice has no MSG_NOSIGNAL
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const sockaddr_in here = Loopback(std::atoi(argv[1])), there = Loopback(std::atoi(argv[2]));
  const auto delay = std::chrono::milliseconds(std::atoi(argv[3]));
  if (bind(listener, reinterpret_cast<const sockaddr*>(&here), sizeof here) != 0 || listen(listener, 256) != 0) {
    std::perror("delay_proxy");
    return 1;
  }
  while (true) {
    const int client = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (client < 0) continue;
    const int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(server, reinterpret_cast<const sockaddr*>(&there), sizeof there) != 0) {
      close(client);
      close(server);
      continue;
    }
    for (int side : {client, server}) setsockopt(side, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    auto link = std::make_shared<Link>(client, server);
    std::thread(ForwardRequests, link, delay).detach();
    std::thread(ForwardAnswers, link).detach();
  }
}
