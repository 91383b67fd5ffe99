#include "millrace/collectives/tcp/handshake.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "millrace/base/hash/constant_time.h"
#include "millrace/base/hash/digest.h"

namespace millrace::collectives {
namespace {

constexpr std::size_t kNonceBytes = 32;
constexpr std::string_view kMagic = "MRRANK1\n";
constexpr std::string_view kClient = "millrace rank, the end that connects\n";
constexpr std::string_view kServer = "millrace rank, the end that listens\n";
constexpr std::byte kAccepted{'y'}, kRefused{'n'};

/// How long a thread waits before it looks whether it is told to stop.
constexpr Duration kStopLook = std::chrono::milliseconds(50);
/// Between two tries to connect.
constexpr Duration kFirstPause = std::chrono::milliseconds(2), kLongestPause = std::chrono::milliseconds(200);
/// The other end answers at once. One that does not is no rank, or stands still.
constexpr Duration kAnswerTime = std::chrono::seconds(20);

using Greeting = std::array<std::byte, kMagic.size() + kNonceBytes>;
using Proof = std::array<std::byte, 32>;
using RequestAndProof = std::array<std::byte, std::tuple_size_v<ConnectionRequest> + std::tuple_size_v<Proof>>;
using Verdict = std::array<std::byte, 1 + std::tuple_size_v<Proof>>;
using Nonces = std::array<std::byte, 2 * kNonceBytes>;
static_assert(sizeof(Greeting) <= 64 && sizeof(RequestAndProof) <= 64);

int Milliseconds(Duration time) {
  return static_cast<int>(
      std::max<std::int64_t>(0, std::chrono::duration_cast<std::chrono::milliseconds>(time).count()));
}

void FillWithRandom(MutableByteSpan bytes) {
  // Never short for so few bytes (getrandom(2)).
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) std::abort();
}

Proof ProofOf(const RankKey& key, std::string_view role, const Nonces& nonces, const ConnectionRequest& request) {
  std::array<std::byte, sizeof nonces + sizeof request> message;
  std::ranges::copy(request, std::ranges::copy(nonces, message.begin()).out);
  return key.Prove(role, message);
}

bool IsEqual(ByteSpan a, ByteSpan b) {
  const auto text = [](ByteSpan bytes) {
    return std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  };
  return ConstantTimeEqual(text(a), text(b));
}

/// Sends a message of the handshake, for which a new connection has room.
bool SendNow(int fd, ByteSpan bytes) {
  return ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) == static_cast<ssize_t>(bytes.size());
}

Error Unavailable(const SocketAddress& to, const Error& why) {
  return why.Context(fmt::format("connecting to {} port {}", to.host(), to.port()))
      .WithCode(why.code() == Code::kCancelled ? Code::kCancelled : Code::kUnavailable);
}

Result<UniqueFd> Connect(const SocketAddress& to, TimePoint deadline, const std::stop_token& stop) {
  UniqueFd fd(::socket(to.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return Fail(ErrnoError(errno, "a socket"));
  ConfigureConnection(fd.get());
  if (::connect(fd.get(), to.data(), to.size()) != 0) {
    if (errno != EINPROGRESS) return Fail(ErrnoError(errno, "connect"));
    if (!MR_TRY(AwaitEvents(fd.get(), POLLOUT, deadline, stop))) return Fail(ErrnoError(ETIMEDOUT, "connect"));
    int error = 0;
    socklen_t size = sizeof error;
    ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) return Fail(ErrnoError(error, "connect"));
  }
  return fd;
}

/// Errors: kPermissionDenied: the other end is no rank of this start; kUnavailable: it ended the connection.
Status ProveAsClient(int fd, const RankKey& key, const ConnectionRequest& request, TimePoint deadline,
                     const std::stop_token& stop) {
  Nonces nonces;
  const MutableByteSpan mine(nonces.data(), kNonceBytes), theirs(nonces.data() + kNonceBytes, kNonceBytes);
  FillWithRandom(mine);
  Greeting greeting;
  std::ranges::copy(mine, std::ranges::copy(AsBytes(kMagic), greeting.begin()).out);
  MR_TRY(SendAll(fd, greeting, deadline, stop));
  MR_TRY(ReceiveAll(fd, theirs, deadline, stop));
  RequestAndProof message;
  std::ranges::copy(ProofOf(key, kClient, nonces, request), std::ranges::copy(request, message.begin()).out);
  MR_TRY(SendAll(fd, message, deadline, stop));
  Verdict verdict;
  MR_TRY(ReceiveAll(fd, verdict, deadline, stop));
  const Proof expected = ProofOf(key, kServer, nonces, request);
  if (verdict[0] != kAccepted || !IsEqual(expected, ByteSpan(verdict).subspan(1))) {
    return Fail(
        Code::kPermissionDenied,
        "the other end does not belong to this start of the job: its secret (MILLRACE_RANK_SECRET), its attempt "
        "or its number of ranks differs");
  }
  return {};
}

}  // namespace

RankKey RankKey::Derive(const SecretBytes& secret, std::string_view start) {
  const Sha256Digest derived = HmacSha256(secret.span(), AsBytes(start));
  return RankKey(SecretBytes(derived));
}

std::array<std::byte, 32> RankKey::Prove(std::string_view role, ByteSpan message) const {
  std::array<std::byte, 256> text;
  const auto end = std::ranges::copy(message, std::ranges::copy(AsBytes(role), text.begin()).out).out;
  return HmacSha256(key_.span(), ByteSpan(text.begin(), end));
}

bool ServerHandshake::Receive(int fd, MutableByteSpan into) {
  const ssize_t got = ::recv(fd, into.data() + bytes_, into.size() - bytes_, MSG_DONTWAIT);
  if (got > 0) bytes_ += static_cast<std::size_t>(got);
  return got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR));
}

ServerHandshake::State ServerHandshake::Advance(int fd, const RankKey& key) {
  const std::size_t wanted = greeted_ ? sizeof(RequestAndProof) : sizeof(Greeting);
  if (!Receive(fd, MutableByteSpan(received_).first(wanted))) return State::kFailed;
  if (bytes_ < wanted) return State::kWaits;
  if (std::exchange(greeted_, true)) return Judge(fd, key);
  bytes_ = 0;
  if (!std::ranges::equal(ByteSpan(received_).first(kMagic.size()), AsBytes(kMagic))) return State::kFailed;
  std::copy_n(received_.begin() + kMagic.size(), kNonceBytes, nonces_.begin());
  const MutableByteSpan mine = MutableByteSpan(nonces_).subspan(kNonceBytes);
  FillWithRandom(mine);
  return SendNow(fd, mine) ? State::kWaits : State::kFailed;
}

ServerHandshake::State ServerHandshake::Judge(int fd, const RankKey& key) {
  std::copy_n(received_.begin(), request_.size(), request_.begin());
  const Proof expected = ProofOf(key, kClient, nonces_, request_);
  Verdict verdict{};
  if (!IsEqual(expected, ByteSpan(received_).subspan(request_.size()))) {
    verdict[0] = kRefused;
    (void)SendNow(fd, verdict);
    return State::kFailed;
  }
  verdict[0] = kAccepted;
  std::ranges::copy(ProofOf(key, kServer, nonces_, request_), verdict.begin() + 1);
  return SendNow(fd, verdict) ? State::kProved : State::kFailed;
}

Result<UniqueFd> ConnectProved(const SocketAddress& to, const RankKey& key, const ConnectionRequest& request,
                               NobodyListens nobody, TimePoint deadline, const std::stop_token& stop) {
  Duration pause = kFirstPause;
  while (true) {
    auto connected = Connect(to, deadline, stop);
    if (!connected && (nobody == NobodyListens::kFails || connected.error().code() == Code::kCancelled)) {
      return Fail(Unavailable(to, connected.error()));
    }
    std::optional<Error> failed;
    if (!connected) failed = connected.error();
    if (connected) {
      const TimePoint answered = std::min(deadline, SystemClock().Now() + kAnswerTime);
      const Status proved = ProveAsClient(connected->get(), key, request, answered, stop);
      if (proved) return connected;
      if (proved.error().code() == Code::kPermissionDenied) {
        return Fail(proved.error().Context(fmt::format("{} port {}", to.host(), to.port())));
      }
      failed = proved.error();
    }
    if (failed->code() == Code::kCancelled || SystemClock().Now() + pause > deadline) {
      return Fail(Unavailable(to, *failed));
    }
    SystemClock().SleepFor(pause, stop);
    pause = std::min(2 * pause, kLongestPause);
  }
}

void ConfigureConnection(int fd) {
  const auto set = [fd](int level, int option, int value) { ::setsockopt(fd, level, option, &value, sizeof value); };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set(IPPROTO_TCP, TCP_KEEPCNT, 4);
}

Result<bool> AwaitEvents(int fd, short events, TimePoint deadline, const std::stop_token& stop) {
  while (true) {
    if (stop.stop_requested()) return Fail(Code::kCancelled, "stopped");
    const Duration left = deadline - SystemClock().Now();
    if (left <= Duration::zero()) return false;
    pollfd waits{.fd = fd, .events = events, .revents = 0};
    if (::poll(&waits, 1, Milliseconds(std::min(left, kStopLook)) + 1) > 0) return true;
  }
}

Status ReceiveAll(int fd, MutableByteSpan into, TimePoint deadline, const std::stop_token& stop) {
  while (!into.empty()) {
    const ssize_t got = ::recv(fd, into.data(), into.size(), MSG_DONTWAIT);
    if (got == 0) return Fail(Code::kUnavailable, "the other end has ended the connection");
    if (got > 0) {
      into = into.subspan(static_cast<std::size_t>(got));
    } else if (errno == EAGAIN) {
      if (!MR_TRY(AwaitEvents(fd, POLLIN, deadline, stop))) return Fail(Code::kUnavailable, "no answer in time");
    } else if (errno != EINTR) {
      return Fail(ErrnoError(errno, "receiving").WithCode(Code::kUnavailable));
    }
  }
  return {};
}

Status SendAll(int fd, ByteSpan bytes, TimePoint deadline, const std::stop_token& stop) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN) {
      if (!MR_TRY(AwaitEvents(fd, POLLOUT, deadline, stop))) return Fail(Code::kUnavailable, "nothing is read in time");
    } else if (errno != EINTR) {
      return Fail(ErrnoError(errno, "sending").WithCode(Code::kUnavailable));
    }
  }
  return {};
}

}  // namespace millrace::collectives
