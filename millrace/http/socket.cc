#include "millrace/http/socket.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <utility>

namespace millrace::http {
namespace {

constexpr Duration kLingerFor = std::chrono::seconds(3);  // a few round trips of the slowest link
constexpr std::uint64_t kMaxSendfile = 1 * kGiB;          // sendfile(2) moves at most 2 GiB in a call

/// Waits for `events` until `deadline`. Returns false if the deadline has passed.
Result<bool> Await(int fd, short events, TimePoint deadline, const Clock& clock) {
  for (;;) {
    auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - clock.Now()).count();
    if (left <= 0) return false;
    pollfd waiting{fd, events, 0};
    int ready = poll(&waiting, 1, static_cast<int>(std::clamp<std::int64_t>(left, 0, 1 << 30)));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return Fail(ErrnoError(errno, "waiting for a socket"));
  }
}

}  // namespace

Status Socket::AwaitWritable() {
  const TimePoint begun = clock_.Now();
  const bool writable = MR_TRY(Await(fd_.get(), POLLOUT, begun + std::min(limits_.stall, send_left_), clock_));
  send_left_ -= clock_.Now() - begun;
  if (!writable) return Fail(Code::kDeadlineExceeded, "the client takes too few bytes, or none");
  return {};
}

Duration Socket::Earned(std::uint64_t bytes) const {
  const std::chrono::duration<double> earned(static_cast<double>(bytes) / static_cast<double>(limits_.min_bytes_per_s));
  return std::chrono::duration_cast<Duration>(earned);
}

Status Socket::AwaitReadable(TimePoint deadline) {
  if (!MR_TRY(Await(fd_.get(), POLLIN, deadline, clock_))) {
    return Fail(Code::kDeadlineExceeded, "the client sends no more bytes");
  }
  return {};
}

Result<std::size_t> Socket::Receive(MutableByteSpan into) {
  const TimePoint begun = clock_.Now();
  const std::size_t got = MR_TRY(Receive(into, begun + std::min(limits_.stall, receive_left_)));
  receive_left_ += Earned(got) - (clock_.Now() - begun);
  return got;
}

Status Socket::AwaitTls(int result, TimePoint deadline) {
  const int wanted = SSL_get_error(tls_.get(), result);
  ERR_clear_error();
  if (wanted == SSL_ERROR_WANT_READ) return AwaitReadable(deadline);
  if (wanted == SSL_ERROR_WANT_WRITE) return AwaitWritable();
  return Fail(Error(Code::kUnavailable, "the client is gone"));
}

Status Socket::StartTls(const TlsIdentity& identity, TimePoint deadline) {
  tls_ = MR_TRY(identity.NewSession(fd_.get()));
  for (;;) {
    ERR_clear_error();  // SSL_get_error() would take what other calls of this thread left for this one's failure
    const int result = SSL_accept(tls_.get());
    if (result == 1) return {};
    MR_TRY(AwaitTls(result, deadline));
  }
}

Result<std::size_t> Socket::ReceiveTls(MutableByteSpan into, TimePoint deadline) {
  for (;;) {
    std::size_t got = 0;
    ERR_clear_error();
    const int result = SSL_read_ex(tls_.get(), into.data(), into.size(), &got);
    if (result == 1) return got;
    if (SSL_get_error(tls_.get(), result) == SSL_ERROR_ZERO_RETURN) return std::size_t{0};
    MR_TRY(AwaitTls(result, deadline));
  }
}

/// Joins pieces that fit into a record: each record costs a header, a tag and a packet of its own.
Status Socket::SendTls(ByteSpan head, ByteSpan body, bool more) {
  const auto append = [this](ByteSpan bytes) { for_record_.insert(for_record_.end(), bytes.begin(), bytes.end()); };
  if (for_record_.size() + head.size() + body.size() <= SSL3_RT_MAX_PLAIN_LENGTH) {
    append(head);
    append(body);
    if (more) return {};
    head = body = {};
  }
  const std::vector<std::byte> joined = std::exchange(for_record_, {});
  MR_TRY(SendRecords(joined));
  MR_TRY(SendRecords(head));
  return SendRecords(body);
}

Status Socket::SendRecords(ByteSpan bytes) {
  while (!bytes.empty()) {
    std::size_t sent = 0;
    ERR_clear_error();
    const int result = SSL_write_ex(tls_.get(), bytes.data(), bytes.size(), &sent);
    if (result != 1) {
      MR_TRY(AwaitTls(result, clock_.Now() + std::min(limits_.stall, send_left_)));
      continue;
    }
    send_left_ += Earned(sent);
    bytes = bytes.subspan(sent);
  }
  return {};
}

Status Socket::SendFileTls(int file, std::uint64_t offset, std::uint64_t length) {
  Buffer piece(static_cast<std::size_t>(std::min<std::uint64_t>(length, 256 * kKiB)));
  while (length > 0) {
    const std::size_t wanted = static_cast<std::size_t>(std::min<std::uint64_t>(length, piece.span().size()));
    const ssize_t got = pread(file, piece.span().data(), wanted, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Fail(ErrnoError(errno, "sending a file"));
    if (got == 0) return Fail(Code::kIo, "the file is shorter than the answer announced");
    MR_TRY(SendTls({}, piece.span().first(static_cast<std::size_t>(got)), false));
    offset += static_cast<std::uint64_t>(got);
    length -= static_cast<std::uint64_t>(got);
  }
  return {};
}

Result<std::size_t> Socket::Receive(MutableByteSpan into, TimePoint deadline) {
  if (tls_) return ReceiveTls(into, deadline);
  for (;;) {
    ssize_t got = recv(fd_.get(), into.data(), into.size(), 0);
    if (got >= 0) return static_cast<std::size_t>(got);
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
      MR_TRY(AwaitReadable(deadline));
    } else if (errno != EINTR) {
      return Fail(Error(Code::kUnavailable, "the client is gone"));
    }
  }
}

Status Socket::Send(ByteSpan head, ByteSpan body, bool more) {
  if (tls_) return SendTls(head, body, more);
  while (!head.empty() || !body.empty()) {
    iovec pieces[2] = {{const_cast<std::byte*>(head.data()), head.size()},
                       {const_cast<std::byte*>(body.data()), body.size()}};
    msghdr message{};
    message.msg_iov = head.empty() ? pieces + 1 : pieces;
    message.msg_iovlen = head.empty() ? 1 : 2;
    ssize_t sent = sendmsg(fd_.get(), &message, MSG_NOSIGNAL | (more ? MSG_MORE : 0));
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK) return Fail(Error(Code::kUnavailable, "the client is gone"));
      MR_TRY(AwaitWritable());
      continue;
    }
    send_left_ += Earned(static_cast<std::uint64_t>(sent));
    std::size_t of_head = std::min<std::size_t>(sent, head.size());
    head = head.subspan(of_head);
    body = body.subspan(sent - of_head);
  }
  return {};
}

Status Socket::SendFile(int file, std::uint64_t offset, std::uint64_t length) {
  if (tls_) return SendFileTls(file, offset, length);
  auto position = static_cast<off_t>(offset);
  while (length > 0) {
    ssize_t sent = sendfile(fd_.get(), file, &position, std::min(length, kMaxSendfile));
    if (sent == 0) return Fail(Code::kIo, "the file is shorter than the answer announced");
    if (sent > 0) {
      length -= sent;
      send_left_ += Earned(static_cast<std::uint64_t>(sent));
    } else if (errno == EAGAIN) {
      MR_TRY(AwaitWritable());
    } else if (errno == EPIPE || errno == ECONNRESET) {
      return Fail(Error(Code::kUnavailable, "the client is gone"));
    } else if (errno != EINTR) {
      return Fail(ErrnoError(errno, "sending a file"));
    }
  }
  return {};
}

void Socket::Cut() { shutdown(fd_.get(), SHUT_RDWR); }

void Socket::Reset() {
  linger at_once{1, 0};
  setsockopt(fd_.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
}

void Socket::EndTls() {
  if (!tls_) return;
  SSL_shutdown(tls_.get());
  ERR_clear_error();
  tls_.reset();
}

void Socket::Linger() {
  EndTls();  // what the peer still sends is dropped as it comes, encrypted
  shutdown(fd_.get(), SHUT_WR);
  Buffer scratch(64 * kKiB);
  TimePoint deadline = clock_.Now() + kLingerFor;
  while (clock_.Now() < deadline) {
    auto got = Receive(scratch.span(), deadline);
    if (!got || *got == 0) return;
  }
}

Result<Listener> Listener::Open(std::string_view listen) {
  std::size_t colon = listen.rfind(':');
  int port = -1;
  if (colon != std::string_view::npos) {
    auto [end, error] = std::from_chars(listen.data() + colon + 1, listen.data() + listen.size(), port);
    if (error != std::errc() || end != listen.data() + listen.size()) port = -1;
  }
  std::string host(listen.substr(0, colon == std::string_view::npos ? 0 : colon));
  if (port < 0 || port > 65535 || host.empty()) {
    return Fail(Code::kInvalidArgument, "cannot listen on \"{}\": write it as host:port, such as 127.0.0.1:9000",
                listen);
  }
  std::string bare = host.front() == '[' && host.back() == ']' ? host.substr(1, host.size() - 2) : host;

  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  if (int error = getaddrinfo(bare.c_str(), std::to_string(port).c_str(), &hints, &found); error != 0) {
    return Fail(Code::kInvalidArgument,
                "cannot listen on \"{}\": {}; expected an address of this machine, such as 127.0.0.1:8080", listen,
                gai_strerror(error));
  }
  std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owned(found, &freeaddrinfo);
  UniqueFd fd(socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return Fail(ErrnoError(errno, "making a listening socket"));
  int on = 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(fd.get(), found->ai_addr, found->ai_addrlen) != 0 || ::listen(fd.get(), 1024) != 0) {
    return Fail(ErrnoError(errno, fmt::format("cannot listen on {}", listen)));
  }
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound), &size);
  int actual = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                                                 : reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
  return Listener{std::move(fd), std::move(host), actual};
}

PeerAddress PeerAddress::Of(int fd) {
  PeerAddress address;
  sockaddr_storage peer{};
  socklen_t size = sizeof peer;
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0) return address;
  const void* v4 = nullptr;
  if (peer.ss_family == AF_INET) v4 = &reinterpret_cast<const sockaddr_in*>(&peer)->sin_addr;
  if (peer.ss_family == AF_INET6) {
    constexpr std::size_t kMappedOffset = 12;  // ::ffff:a.b.c.d
    const in6_addr& v6 = reinterpret_cast<const sockaddr_in6*>(&peer)->sin6_addr;
    std::memcpy(address.network.data(), v6.s6_addr, address.network.size());
    address.is_loopback = IN6_IS_ADDR_LOOPBACK(&v6);
    if (IN6_IS_ADDR_V4MAPPED(&v6)) v4 = v6.s6_addr + kMappedOffset;
  }
  if (v4 != nullptr) {
    address.is_v4 = true;
    std::memcpy(address.network.data(), v4, sizeof(in_addr));
    address.is_loopback = address.network[0] == 127;
  }
  return address;
}

std::string PeerName(int fd) {
  sockaddr_storage peer{};
  socklen_t size = sizeof peer;
  char text[INET6_ADDRSTRLEN] = "";
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0) return "unknown";
  if (peer.ss_family == AF_INET6) {
    auto* v6 = reinterpret_cast<sockaddr_in6*>(&peer);
    inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof text);
    return fmt::format("[{}]:{}", text, ntohs(v6->sin6_port));
  }
  auto* v4 = reinterpret_cast<sockaddr_in*>(&peer);
  inet_ntop(AF_INET, &v4->sin_addr, text, sizeof text);
  return fmt::format("{}:{}", text, ntohs(v4->sin_port));
}

}  // namespace millrace::http
