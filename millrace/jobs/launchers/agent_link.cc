#include "millrace/jobs/launchers/agent_link.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <list>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "millrace/base/bytes.h"
#include "millrace/base/files/files.h"
#include "millrace/http/socket.h"
#include "millrace/jobs/launchers/node_agent.h"

namespace millrace::jobs {
namespace {

constexpr Duration kHandshakeTime = std::chrono::seconds(10);
constexpr Duration kSilence = std::chrono::seconds(20);  ///< as a supervisor's (RemoteLauncher::Options::silence)
/// Handshakes under way, of all and of one address. For one more, the oldest ends: silent connections that came before
/// a supervisor do not keep it waiting.
constexpr std::size_t kMaxHandshakes = 64, kMaxOfAddress = 8;
constexpr std::size_t kChunk = 64 * kKiB;
constexpr char kIdentity[] = "millrace";

/// Bytes that wait for a slow reader. When there are more, the other side is not read.
constexpr std::size_t kMaxPending = 256 * kKiB;

struct FreeSsl {
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  void operator()(SSL* ssl) const { SSL_free(ssl); }
};
using SslContext = std::unique_ptr<SSL_CTX, FreeSsl>;
using Ssl = std::unique_ptr<SSL, FreeSsl>;

const std::string* KeyOf(SSL* ssl) { return static_cast<const std::string*>(SSL_get_app_data(ssl)); }

unsigned CopyKey(const std::string& key, unsigned char* into, unsigned most) {
  if (key.size() > most) return 0;
  std::ranges::copy(key, into);
  return static_cast<unsigned>(key.size());
}

unsigned ClientKey(SSL* ssl, const char*, char* identity, unsigned most_identity, unsigned char* into, unsigned most) {
  if (sizeof kIdentity > most_identity) return 0;
  std::memcpy(identity, kIdentity, sizeof kIdentity);
  return CopyKey(*KeyOf(ssl), into, most);
}

unsigned ServerKey(SSL* ssl, const char* identity, unsigned char* into, unsigned most) {
  return identity != nullptr && std::string_view(identity) == kIdentity ? CopyKey(*KeyOf(ssl), into, most) : 0;
}

/// Without a certificate, the key is the only way to agree: a peer that lacks it fails in the handshake.
Result<SslContext> MakeContext() {
  SslContext context(SSL_CTX_new(TLS_method()));
  if (!context || SSL_CTX_set_min_proto_version(context.get(), TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_ciphersuites(context.get(), "TLS_AES_128_GCM_SHA256") != 1) {  // OpenSSL's keys are for SHA-256
    return Fail(Code::kInternal, "OpenSSL cannot do TLS 1.3");
  }
  SSL_CTX_set_num_tickets(context.get(), 0);  // nothing is resumed
  SSL_CTX_set_psk_client_callback(context.get(), ClientKey);
  SSL_CTX_set_psk_server_callback(context.get(), ServerKey);
  SSL_CTX_set_mode(context.get(), SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  return context;
}

/// One end of an encrypted connection, over a non-blocking socket. `key` must outlive it.
class TlsLink {
 public:
  enum class Progress { kDone, kWaits, kFailed };

  TlsLink(SSL_CTX* context, UniqueFd socket, const std::string& key, bool serves)
      : socket_(std::move(socket)), ssl_(SSL_new(context)), serves_(serves) {
    if (!ssl_) return;
    int on = 1;
    ::setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    // Agents speak every 2 s, so that one soon notices that its supervisor's machine is gone.
    const unsigned patience = static_cast<unsigned>(kSilence / std::chrono::milliseconds(1));
    ::setsockopt(socket_.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &patience, sizeof patience);
    SSL_set_app_data(ssl_.get(), const_cast<std::string*>(&key));
    SSL_set_fd(ssl_.get(), socket_.get());
    if (!serves_) SSL_set_verify(ssl_.get(), SSL_VERIFY_PEER, nullptr);  // no certificate is good enough
  }

  int fd() const { return socket_.get(); }
  short events() const { return events_; }  ///< what the last call that waits waits for

  /// Makes progress with the handshake.
  Progress Handshake() {
    if (!ssl_) return Progress::kFailed;
    const Progress progress = ProgressOf(serves_ ? SSL_accept(ssl_.get()) : SSL_connect(ssl_.get()));
    // A session that is "reused" is one that the key made.
    if (progress == Progress::kDone && SSL_session_reused(ssl_.get()) != 1) return Progress::kFailed;
    return progress;
  }
  /// Reads what is there; `*n` is 0 at the end.
  Progress Read(MutableByteSpan into, std::size_t* n) {
    *n = 0;
    const int got = SSL_read(ssl_.get(), into.data(), static_cast<int>(into.size()));
    if (got > 0) {
      *n = static_cast<std::size_t>(got);
      return Progress::kDone;
    }
    return SSL_get_error(ssl_.get(), got) == SSL_ERROR_ZERO_RETURN ? Progress::kDone : ProgressOf(got);
  }
  Progress Write(std::string_view bytes, std::size_t* n) {
    *n = 0;
    const int wrote = SSL_write(ssl_.get(), bytes.data(), static_cast<int>(bytes.size()));
    if (wrote > 0) *n = static_cast<std::size_t>(wrote);
    return ProgressOf(wrote);
  }
  bool HasBuffered() const { return SSL_pending(ssl_.get()) > 0; }
  /// Says that no more will be written.
  void Finish() { SSL_shutdown(ssl_.get()); }

 private:
  Progress ProgressOf(int returned) {
    if (returned > 0) return Progress::kDone;
    const int error = SSL_get_error(ssl_.get(), returned);
    ERR_clear_error();
    events_ = error == SSL_ERROR_WANT_WRITE ? POLLOUT : POLLIN;
    return error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE ? Progress::kWaits : Progress::kFailed;
  }

  UniqueFd socket_;
  Ssl ssl_;
  const bool serves_;
  short events_ = POLLIN;
};

/// Bytes that were read and not yet written.
class SendBuffer {
 public:
  std::string_view bytes() const { return std::string_view(bytes_).substr(begin_); }
  bool empty() const { return begin_ == bytes_.size(); }
  bool full() const { return bytes().size() >= kMaxPending; }
  void Add(std::string_view more) { bytes_ += more; }
  void Drop(std::size_t n) {
    begin_ += n;
    if (!empty()) return;
    bytes_.clear();
    begin_ = 0;
  }

 private:
  std::string bytes_;
  std::size_t begin_ = 0;
};

/// Moves bytes between a link and two descriptors until one side has ended.
class Relay {
 public:
  Relay(TlsLink& link, int in, int out) : link_(link), in_(in), out_(out) {
    for (const int fd : {in, out}) ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
  }

  /// `on_wake` runs when `wake` is readable, at most once.
  void Run(int wake, const std::function<void(Relay&)>& on_wake) {
    std::array<std::byte, kChunk> chunk;
    for (;;) {
      if (!Exchange(chunk)) return;
      if (link_ended_ || (in_ended_ && to_link_.empty())) break;
      std::array<pollfd, 4> watched = {{{link_.fd(), LinkEvents(), 0},
                                        {!in_ended_ && !to_link_.full() ? in_ : -1, POLLIN, 0},
                                        {!to_local_.empty() ? out_ : -1, POLLOUT, 0},
                                        {wake, POLLIN, 0}}};
      ::poll(watched.data(), watched.size(), link_.HasBuffered() && !to_local_.full() ? 0 : -1);
      if (watched[3].revents != 0) {
        on_wake(*this);
        wake = -1;
      }
    }
    if (!link_ended_) link_.Finish();
    // The last words of the other side.
    if (link_ended_) WriteLocal(/*blocks=*/true);
  }

  /// After the line that is under way, `out` gets this one and nothing else.
  void SendLastLine(std::string line) {
    last_line_ = std::move(line);
    if (at_line_start_) ReceiveOrders("");
  }

 private:
  short LinkEvents() const {
    short events = to_local_.full() ? 0 : POLLIN;
    if (!to_link_.empty()) events = static_cast<short>(events | POLLOUT);
    return events;
  }

  /// Reads and writes as much as is possible at once. Returns false if one side is gone.
  bool Exchange(MutableByteSpan chunk) {
    std::size_t n = 0;
    while (!to_local_.full()) {
      const auto progress = link_.Read(chunk, &n);
      if (progress == TlsLink::Progress::kFailed) return false;
      link_ended_ = progress == TlsLink::Progress::kDone && n == 0;
      if (n == 0) break;
      ReceiveOrders({reinterpret_cast<const char*>(chunk.data()), n});
    }
    while (!in_ended_ && !to_link_.full()) {
      const ssize_t got = ::read(in_, chunk.data(), chunk.size());
      if (got < 0 && (errno == EAGAIN || errno == EINTR)) break;
      in_ended_ = got <= 0;
      if (got > 0) to_link_.Add({reinterpret_cast<const char*>(chunk.data()), static_cast<std::size_t>(got)});
    }
    while (!to_link_.empty()) {
      if (link_.Write(to_link_.bytes(), &n) == TlsLink::Progress::kFailed) return false;
      if (n == 0) break;
      to_link_.Drop(n);
    }
    return WriteLocal(/*blocks=*/false);
  }

  void ReceiveOrders(std::string_view bytes) {
    if (input_closed_) return;
    if (!last_line_.empty()) {
      const std::size_t end = at_line_start_ ? 0 : bytes.find('\n');
      if (end != std::string_view::npos) {
        to_local_.Add(bytes.substr(0, at_line_start_ ? 0 : end + 1));
        to_local_.Add(last_line_);
        input_closed_ = true;
        return;
      }
    }
    to_local_.Add(bytes);
    if (!bytes.empty()) at_line_start_ = bytes.back() == '\n';
  }

  bool WriteLocal(bool blocks) {
    while (!to_local_.empty()) {
      const ssize_t put = ::write(out_, to_local_.bytes().data(), to_local_.bytes().size());
      if (put > 0) {
        to_local_.Drop(static_cast<std::size_t>(put));
      } else if (errno == EAGAIN && blocks) {
        pollfd room{.fd = out_, .events = POLLOUT, .revents = 0};
        ::poll(&room, 1, -1);
      } else if (errno != EINTR) {
        return errno == EAGAIN;
      }
    }
    return true;
  }

  TlsLink& link_;
  const int in_, out_;
  SendBuffer to_link_, to_local_;
  std::string last_line_;
  bool link_ended_ = false, in_ended_ = false, at_line_start_ = true, input_closed_ = false;
};

/// A connection that has not proved the key yet.
struct PendingHandshake {
  TlsLink link;
  TimePoint until;
  http::PeerAddress peer;
};

/// Takes connections until one has proved the key.
class HandshakeAcceptor {
 public:
  HandshakeAcceptor(SSL_CTX* context, const http::Listener& listener, const std::string& key)
      : context_(context), listener_(listener), key_(key) {}

  /// Returns nothing when `wake` is readable.
  std::optional<TlsLink> AcceptLink(int wake) {
    for (;;) {
      std::vector<pollfd> watched = {{wake, POLLIN, 0}, {listener_.fd.get(), POLLIN, 0}};
      TimePoint next = TimePoint::max();
      for (const PendingHandshake& each : candidates_) {
        watched.push_back({each.link.fd(), each.link.events(), 0});
        next = std::min(next, each.until);
      }
      const Duration wait = candidates_.empty() ? kHandshakeTime : std::max(Duration(0), next - SystemClock().Now());
      ::poll(watched.data(), watched.size(),
             static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(wait).count()));
      if (watched[0].revents != 0) return std::nullopt;
      const TimePoint now = SystemClock().Now();
      for (auto each = candidates_.begin(); each != candidates_.end();) {
        const auto progress = each->link.Handshake();
        if (progress == TlsLink::Progress::kDone) {
          TlsLink admitted = std::move(each->link);
          candidates_.erase(each);
          return admitted;
        }
        each = progress == TlsLink::Progress::kFailed || now >= each->until ? candidates_.erase(each) : std::next(each);
      }
      if (UniqueFd socket(::accept4(listener_.fd.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)); socket) {
        const http::PeerAddress peer = http::PeerAddress::Of(socket.get());
        MakeRoom(peer);
        candidates_.push_back(
            {TlsLink(context_, std::move(socket), key_, /*serves=*/true), now + kHandshakeTime, peer});
      }
    }
  }

 private:
  /// Ends the oldest handshake of the address, or of all, if it has as many as it may.
  void MakeRoom(const http::PeerAddress& peer) {
    const auto of_peer = [&](const PendingHandshake& each) { return each.peer == peer; };
    if (std::ranges::count_if(candidates_, of_peer) >= static_cast<std::ptrdiff_t>(kMaxOfAddress)) {
      candidates_.erase(std::ranges::find_if(candidates_, of_peer));
    } else if (candidates_.size() >= kMaxHandshakes) {
      candidates_.pop_front();
    }
  }

  SSL_CTX* const context_;
  const http::Listener& listener_;
  const std::string& key_;
  std::list<PendingHandshake> candidates_;  ///< the oldest first
};

/// Runs a node agent in a thread of its own: its ranks die with that thread.
void ServeOne(TlsLink& link, int wake) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return;
  const UniqueFd here(ends[0]), agent(ends[1]);
  std::jthread runs([&] {
    RunNodeAgent(agent.get(), agent.get());
    ::shutdown(agent.get(), SHUT_RDWR);
  });
  Relay(link, here.get(), here.get()).Run(wake, [](Relay& relay) { relay.SendLastLine("{\"leave\": true}\n"); });
  ::shutdown(here.get(), SHUT_RDWR);
}

/// Connects to one of the addresses of a name.
Result<UniqueFd> Dial(std::string_view address, TimePoint until) {
  const std::size_t colon = address.rfind(':');
  if (colon == std::string_view::npos || colon == 0) {
    return Fail(Code::kInvalidArgument, "{} should be host:port", address);
  }
  const std::string host(address.substr(0, colon)), port(address.substr(colon + 1));
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  if (const int error = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &found); error != 0) {
    return Fail(Code::kUnavailable, "cannot find {}: {}", host, ::gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owned(found, &::freeaddrinfo);
  int error = 0;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    UniqueFd socket(::socket(each->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (::connect(socket.get(), each->ai_addr, each->ai_addrlen) == 0) return socket;
    error = errno;
    if (error != EINPROGRESS) continue;
    pollfd connected{.fd = socket.get(), .events = POLLOUT, .revents = 0};
    const Duration left = std::max(Duration(0), until - SystemClock().Now());
    error = ETIMEDOUT;
    socklen_t size = sizeof error;
    if (::poll(&connected, 1, static_cast<int>(left / std::chrono::milliseconds(1))) > 0) {
      ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    }
    if (error == 0) return socket;
  }
  return Fail(Code::kUnavailable, "nobody answers at {}: {}", address, std::generic_category().message(error));
}

}  // namespace

Result<std::string> ReadAgentKey(const std::filesystem::path& file) {
  constexpr std::size_t kLeast = 16, kMax = 256;  // OpenSSL's limit is PSK_MAX_PSK_LEN
  std::string key = MR_TRY(ReadFile(file, kMax + 1));
  if (key.ends_with('\n')) key.pop_back();
  if (key.size() < kLeast || key.size() > kMax) {
    return Fail(Code::kInvalidArgument, "{}: a key must have {} to {} bytes", file.string(), kLeast, kMax);
  }
  return key;
}

Status ListenAsAgent(std::string_view listen, const std::string& key, const std::function<void(int port)>& listening,
                     std::stop_token stop) {
  ::signal(SIGPIPE, SIG_IGN);
  const SslContext context = MR_TRY(MakeContext());
  const http::Listener listener = MR_TRY(http::Listener::Open(listen));
  const UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  const std::stop_callback wakes(stop, [&] { ::eventfd_write(wake.get(), 1); });
  listening(listener.port);
  HandshakeAcceptor door(context.get(), listener, key);
  while (auto link = door.AcceptLink(wake.get())) {
    ServeOne(*link, wake.get());
    if (stop.stop_requested()) break;
  }
  return Fail(Code::kCancelled, "the agent was asked to leave");
}

Status ConnectToAgent(std::string_view address, const std::string& key, int in, int out, Duration timeout) {
  ::signal(SIGPIPE, SIG_IGN);
  const TimePoint until = SystemClock().Now() + timeout;
  const SslContext context = MR_TRY(MakeContext());
  UniqueFd socket = MR_TRY(Dial(address, until));
  TlsLink link(context.get(), std::move(socket), key, /*serves=*/false);
  for (;;) {
    const auto progress = link.Handshake();
    if (progress == TlsLink::Progress::kDone) break;
    if (progress == TlsLink::Progress::kFailed) {
      return Fail(Code::kPermissionDenied,
                  "the agent at {} does not have the same key, or is leaving; start both with one key file", address);
    }
    pollfd ready{.fd = link.fd(), .events = link.events(), .revents = 0};
    const Duration left = until - SystemClock().Now();
    if (left <= Duration(0)) return Fail(Code::kUnavailable, "the agent at {} does not answer", address);
    ::poll(&ready, 1, static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(left).count()));
  }
  Relay(link, in, out).Run(-1, [](Relay&) {});
  return {};
}

}  // namespace millrace::jobs
