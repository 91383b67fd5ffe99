#include "millrace/collectives/tcp/rank_network.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <string_view>
#include <tuple>
#include <utility>

#include "millrace/base/hash/constant_time.h"
#include "millrace/base/hash/digest.h"

namespace millrace::engine {
namespace {

/// A newcomer says its hello at once; a port scanner does not. Both bound what strangers may occupy.
constexpr Duration kHelloTime = std::chrono::seconds(20);
constexpr std::size_t kMostNewcomers = 4096;
/// How long a thread waits before it looks whether it is told to stop.
constexpr Duration kStopLook = std::chrono::milliseconds(50);

int Milliseconds(Duration time) {
  return static_cast<int>(
      std::max<std::int64_t>(0, std::chrono::duration_cast<std::chrono::milliseconds>(time).count()));
}

/// What every connection has: small messages leave at once, and a machine that is gone is noticed.
void Configure(int fd) {
  const auto set = [fd](int level, int option, int value) { ::setsockopt(fd, level, option, &value, sizeof value); };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set(IPPROTO_TCP, TCP_KEEPCNT, 4);
}

bool IsThisMachine(std::string_view host) { return host == "127.0.0.1" || host == "localhost" || host == "::1"; }

/// Waits for `events`. Returns false at `deadline`. Errors: kCancelled.
Result<bool> AwaitEvents(int fd, short events, TimePoint deadline, const std::stop_token& stop) {
  while (true) {
    if (stop.stop_requested()) return Fail(Code::kCancelled, "stopped");
    const Duration left = deadline - SystemClock().Now();
    if (left <= Duration::zero()) return false;
    pollfd waits{.fd = fd, .events = events, .revents = 0};
    if (::poll(&waits, 1, Milliseconds(std::min(left, kStopLook)) + 1) > 0) return true;
  }
}

}  // namespace

bool RankNetwork::Hello::operator<(const Hello& other) const {
  return std::tie(group, from, channel) < std::tie(other.group, other.from, other.channel);
}

Result<std::unique_ptr<RankNetwork>> RankNetwork::Open(const std::string& master_host, int master_port,
                                                       std::string key) {
  if (key.size() != kKeyDigits) return Fail(Code::kInvalidArgument, "a key of {} digits", key.size());
  Route route = MR_TRY(Route::To(master_host, master_port));
  UniqueFd listener(::socket(route.local.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!listener || !wake) return Fail(ErrnoError(errno, "a socket to listen on"));
  const SocketAddress at = IsThisMachine(master_host) ? route.local : SocketAddress::Any(route.local);
  if (::bind(listener.get(), at.data(), at.size()) != 0 || ::listen(listener.get(), SOMAXCONN) != 0) {
    return Fail(ErrnoError(errno, fmt::format("listening on {}", at.host())));
  }
  const SocketAddress bound = MR_TRY(SocketAddress::OfSocket(listener.get()));
  const SocketAddress listens = route.local.WithPort(bound.port());
  return std::unique_ptr<RankNetwork>(
      new RankNetwork(std::move(route), std::move(key), std::move(listener), listens, std::move(wake)));
}

RankNetwork::RankNetwork(Route master, std::string key, UniqueFd listener, SocketAddress listens, UniqueFd wake)
    : master_(std::move(master)),
      key_(std::move(key)),
      listener_(std::move(listener)),
      listens_(listens),
      wake_(std::move(wake)),
      thread_([this](std::stop_token stop) { Listen(std::move(stop)); }) {}

RankNetwork::~RankNetwork() {
  thread_.request_stop();
  (void)::eventfd_write(wake_.get(), 1);
}

std::string RankNetwork::Address() const { return fmt::format("{} {}", listens_.host(), listens_.port()); }

Result<UniqueFd> RankNetwork::Connect(const std::string& address, bool is_master, const ConnectionName& name,
                                      TimePoint deadline, std::stop_token stop) const {
  const std::size_t space = address.find(' ');
  int port = 0;
  if (space != std::string::npos) std::from_chars(address.data() + space + 1, address.data() + address.size(), port);
  SocketAddress to = MR_TRY(SocketAddress::Parse(address.substr(0, space), port));
  // A rank that reaches the master through loopback is on the master's machine, which this rank reaches its own way.
  if (is_master || to.is_loopback()) to = master_.remote.WithPort(port);

  UniqueFd fd(::socket(to.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return Fail(ErrnoError(errno, "a socket"));
  Configure(fd.get());
  const auto failed = [&](int error) {
    return Fail(
        ErrnoError(error, fmt::format("connecting to {} port {}", to.host(), port)).WithCode(Code::kUnavailable));
  };
  if (::connect(fd.get(), to.data(), to.size()) != 0) {
    if (errno != EINPROGRESS) return failed(errno);
    if (!MR_TRY(AwaitEvents(fd.get(), POLLOUT, deadline, stop))) return failed(ETIMEDOUT);
    int error = 0;
    socklen_t size = sizeof error;
    ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) return failed(error);
  }
  const Hello hello = HelloOf(name);
  // A new connection has room for these few bytes.
  if (::send(fd.get(), &hello, sizeof hello, MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof hello)) return failed(errno);
  return fd;
}

Result<UniqueFd> RankNetwork::Accept(const ConnectionName& name, TimePoint deadline, std::stop_token stop) {
  const Hello hello = HelloOf(name);
  MutexLock lock(mutex_);
  const bool is_there =
      arrived_.WaitUntil(mutex_, deadline, stop, [&]() MR_REQUIRES(mutex_) { return waiting_.contains(hello); });
  if (!is_there) {
    return stop.stop_requested() ? Fail(Code::kCancelled, "stopped") : Fail(Code::kUnavailable, "no connection came");
  }
  return std::move(waiting_.extract(hello).mapped());
}

void RankNetwork::Close(const std::string& group) {
  const GroupId id = IdOf(group);
  MutexLock lock(mutex_);
  closed_.insert(id);
  std::erase_if(waiting_, [&](const auto& waits) { return waits.first.group == id; });
}

RankNetwork::GroupId RankNetwork::IdOf(const std::string& group) {
  const Sha256Digest digest = Sha256(AsBytes(group));
  GroupId id;
  std::copy_n(digest.begin(), id.size(), id.begin());
  return id;
}

RankNetwork::Hello RankNetwork::HelloOf(const ConnectionName& name) const {
  Hello hello{.key = {}, .group = IdOf(name.group), .from = name.from, .channel = name.channel};
  std::ranges::copy(key_, hello.key.begin());
  return hello;
}

void RankNetwork::Listen(std::stop_token stop) {
  std::vector<Newcomer> newcomers;
  bool has_room = true;
  while (!stop.stop_requested()) {
    std::vector<pollfd> waits{
        {.fd = wake_.get(), .events = POLLIN, .revents = 0},
        {.fd = listener_.get(), .events = static_cast<short>(has_room ? POLLIN : 0), .revents = 0}};
    for (const Newcomer& newcomer : newcomers) {
      waits.push_back({.fd = newcomer.fd.get(), .events = POLLIN, .revents = 0});
    }
    const int longest = newcomers.empty() && has_room ? -1 : 1'000;  // to see who is late, or whether there is room
    if (::poll(waits.data(), waits.size(), longest) < 0 && errno != EINTR) return;
    std::erase_if(newcomers, [this](Newcomer& newcomer) { return !Hear(newcomer); });
    has_room = AcceptNewcomers(newcomers);
  }
}

bool RankNetwork::AcceptNewcomers(std::vector<Newcomer>& newcomers) const {
  while (true) {
    if (newcomers.size() == kMostNewcomers) return false;
    UniqueFd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd) return errno != EMFILE && errno != ENFILE && errno != ENOMEM && errno != ENOBUFS;
    Configure(fd.get());
    newcomers.push_back({.fd = std::move(fd), .said = 0, .hello = {}, .deadline = SystemClock().Now() + kHelloTime});
  }
}

bool RankNetwork::Hear(Newcomer& newcomer) {
  std::byte* const hello = reinterpret_cast<std::byte*>(&newcomer.hello);
  const ssize_t got = ::recv(newcomer.fd.get(), hello + newcomer.said, sizeof newcomer.hello - newcomer.said, 0);
  if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return false;
  if (got > 0) newcomer.said += static_cast<std::size_t>(got);
  if (newcomer.said < sizeof newcomer.hello) return SystemClock().Now() < newcomer.deadline;
  const std::string_view key(newcomer.hello.key.data(), newcomer.hello.key.size());
  if (!ConstantTimeEqual(key, key_)) return false;
  MutexLock lock(mutex_);
  if (closed_.contains(newcomer.hello.group)) return false;
  waiting_.insert_or_assign(newcomer.hello, std::move(newcomer.fd));
  arrived_.NotifyAll();
  return false;
}

}  // namespace millrace::engine
