#include "millrace/collectives/tcp/rank_listener.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <utility>

namespace millrace::collectives {
namespace {

/// How long the listener rests if this process has no descriptor left for a connection.
constexpr Duration kPauseWithoutRoom = std::chrono::milliseconds(100);

}  // namespace

Result<RankListener> RankListener::Open(const SocketAddress& at, RankKey key, Limits limits, Clock& clock) {
  UniqueFd fd(::socket(at.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return Fail(ErrnoError(errno, "a socket to listen on"));
  const int yes = 1;
  // The connections of an attempt before this one may still be ending.
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (::bind(fd.get(), at.data(), at.size()) != 0 || ::listen(fd.get(), SOMAXCONN) != 0) {
    const Error error = ErrnoError(errno, fmt::format("listening on {} port {}", at.host(), at.port()));
    return Fail(errno == EADDRINUSE ? error.WithCode(Code::kUnavailable) : error);
  }
  const SocketAddress bound = MR_TRY(SocketAddress::OfSocket(fd.get()));
  return RankListener(std::move(fd), bound, std::move(key), limits, clock);
}

void RankListener::AppendWaits(std::vector<pollfd>& waits) const {
  const bool has_room = !pauses_until_ || clock_->Now() >= *pauses_until_;
  waits.push_back({.fd = fd_.get(), .events = static_cast<short>(has_room ? POLLIN : 0), .revents = 0});
  for (const Newcomer& newcomer : newcomers_) {
    waits.push_back({.fd = newcomer.fd.get(), .events = POLLIN, .revents = 0});
  }
}

int RankListener::MillisecondsToNextTurn() const {
  TimePoint next = newcomers_.empty() ? TimePoint::max() : newcomers_.front().deadline;
  if (pauses_until_) next = std::min(next, *pauses_until_);
  if (next == TimePoint::max()) return -1;
  const Duration left = std::max(Duration::zero(), next - clock_->Now());
  return static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(left).count()) + 1;
}

void RankListener::Turn(const std::function<void(UniqueFd, const ConnectionRequest&)>& admit) {
  const TimePoint now = clock_->Now();
  for (auto one = newcomers_.begin(); one != newcomers_.end();) {
    const ServerHandshake::State state = one->handshake.Advance(one->fd.get(), key_);
    if (state == ServerHandshake::State::kProved) admit(std::move(one->fd), one->handshake.request());
    const bool stays = state == ServerHandshake::State::kWaits && now < one->deadline;
    one = stays ? std::next(one) : newcomers_.erase(one);
  }
  AcceptAll();
}

void RankListener::AcceptAll() {
  pauses_until_.reset();
  // Bounded, so that a flood leaves time for those who have come.
  for (std::size_t taken = 0; taken < limits_.connections; ++taken) {
    sockaddr_storage peer{};
    socklen_t size = sizeof peer;
    UniqueFd fd(::accept4(fd_.get(), reinterpret_cast<sockaddr*>(&peer), &size, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd) {
      const bool is_full = errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS;
      if (is_full && newcomers_.empty()) pauses_until_ = clock_->Now() + kPauseWithoutRoom;
      if (is_full) EndOldestOfBusiestAddress();
      return;
    }
    AddressKey from{};
    if (peer.ss_family == AF_INET6) {
      std::memcpy(from.data(), &reinterpret_cast<const sockaddr_in6&>(peer).sin6_addr, from.size());
    } else {
      std::memcpy(from.data(), &reinterpret_cast<const sockaddr_in&>(peer).sin_addr, sizeof(in_addr));
    }
    ConfigureConnection(fd.get());
    MakeRoom(from);
    newcomers_.push_back(
        {.fd = std::move(fd), .from = from, .handshake = {}, .deadline = clock_->Now() + limits_.time});
  }
}

void RankListener::MakeRoom(const AddressKey& from) {
  if (CountOf(from) >= limits_.of_one_address) {
    newcomers_.erase(std::ranges::find(newcomers_, from, &Newcomer::from));
  } else if (newcomers_.size() >= limits_.connections) {
    EndOldestOfBusiestAddress();
  }
}

void RankListener::EndOldestOfBusiestAddress() {
  std::map<AddressKey, std::size_t> counts;
  for (const Newcomer& newcomer : newcomers_) ++counts[newcomer.from];
  const auto busiest = std::ranges::max_element(counts, {}, [](const auto& each) { return each.second; });
  if (busiest != counts.end()) newcomers_.erase(std::ranges::find(newcomers_, busiest->first, &Newcomer::from));
}

std::size_t RankListener::CountOf(const AddressKey& from) const {
  return static_cast<std::size_t>(std::ranges::count(newcomers_, from, &Newcomer::from));
}

}  // namespace millrace::collectives
