// A TCP proxy that holds every request back for a while: a server far away, on a machine that has only loopback.
//   delay_proxy LISTEN_PORT SERVER_PORT MILLISECONDS
// What a client sends after a pause is a new request and waits; the rest of it, and all answers, pass at once (spliced,
// so that the proxy costs little of the CPU that it shares with what is measured).
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

/// Two sockets, closed when both directions have ended.
struct Link {
  Link(int c, int s) : client(c), server(s) {}
  ~Link() {
    close(client);
    close(server);
  }
  int client, server;
};

sockaddr_in Loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  return address;
}

bool SendAll(int to, const char* bytes, ssize_t count) {
  while (count > 0) {
    const ssize_t sent = send(to, bytes, static_cast<std::size_t>(count), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes += sent;
    count -= sent;
  }
  return true;
}

void ForwardRequests(const std::shared_ptr<Link>& link, Clock::duration delay) {
  std::vector<char> buffer(64 * 1024);
  Clock::time_point forwarded{};
  while (true) {
    const ssize_t count = recv(link->client, buffer.data(), buffer.size(), 0);
    if (count <= 0) break;
    if (Clock::now() - forwarded > std::chrono::microseconds(200)) std::this_thread::sleep_for(delay);
    if (!SendAll(link->server, buffer.data(), count)) break;
    forwarded = Clock::now();
  }
  shutdown(link->server, SHUT_WR);
}

void ForwardAnswers(const std::shared_ptr<Link>& link) {
  constexpr std::size_t kPipe = 1 << 20;
  int ends[2];
  if (pipe(ends) != 0) return;
  fcntl(ends[1], F_SETPIPE_SZ, kPipe);
  while (true) {
    ssize_t count = splice(link->server, nullptr, ends[1], nullptr, kPipe, SPLICE_F_MOVE);
    if (count <= 0) break;
    while (count > 0) {
      const ssize_t moved = splice(ends[0], nullptr, link->client, nullptr, static_cast<std::size_t>(count), 0);
      if (moved <= 0) break;
      count -= moved;
    }
    if (count > 0) break;
  }
  close(ends[0]);
  close(ends[1]);
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
