#include "millrace/collectives/tcp/rank_network.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <tuple>
#include <utility>
#include <vector>

#include "millrace/base/hash/digest.h"

namespace millrace::collectives {

bool RankNetwork::Ticket::operator<(const Ticket& other) const {
  return std::tie(group, from, channel) < std::tie(other.group, other.from, other.channel);
}

Result<std::unique_ptr<RankNetwork>> RankNetwork::Open(const std::string& master_host, int master_port, RankKey key,
                                                       bool is_master) {
  Route route = MR_TRY(Route::To(master_host, master_port));
  RankListener listener = MR_TRY(RankListener::Open(ListenAddress(master_host, route, is_master), key, {}));
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake) return Fail(ErrnoError(errno, "an eventfd"));
  const SocketAddress listens = route.local.WithPort(listener.address().port());
  return std::unique_ptr<RankNetwork>(
      new RankNetwork(route, std::move(key), std::move(listener), listens, std::move(wake)));
}

RankNetwork::RankNetwork(const Route& master, RankKey key, RankListener listener, SocketAddress listens, UniqueFd wake)
    : master_(master),
      key_(std::move(key)),
      listens_(listens),
      wake_(std::move(wake)),
      listener_(std::move(listener)),
      thread_([this](const std::stop_token& stop) { Listen(stop); }) {}

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

  return ConnectProved(to, key_, std::bit_cast<ConnectionRequest>(TicketOf(name)), NobodyListens::kFails, deadline,
                       stop);
}

Result<UniqueFd> RankNetwork::Accept(const ConnectionName& name, TimePoint deadline, std::stop_token stop) {
  const Ticket ticket = TicketOf(name);
  MutexLock lock(mutex_);
  const bool is_there =
      arrived_.WaitUntil(mutex_, deadline, stop, [&]() MR_REQUIRES(mutex_) { return waiting_.contains(ticket); });
  if (!is_there) {
    return stop.stop_requested() ? Fail(Code::kCancelled, "stopped") : Fail(Code::kUnavailable, "no connection came");
  }
  return std::move(waiting_.extract(ticket).mapped());
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

RankNetwork::Ticket RankNetwork::TicketOf(const ConnectionName& name) {
  return {.group = IdOf(name.group), .from = name.from, .channel = name.channel};
}

void RankNetwork::Listen(const std::stop_token& stop) {
  std::vector<pollfd> waits;
  while (!stop.stop_requested()) {
    waits.assign(1, {.fd = wake_.get(), .events = POLLIN, .revents = 0});
    listener_.AppendWaits(waits);
    if (::poll(waits.data(), waits.size(), listener_.MillisecondsToNextTurn()) < 0 && errno != EINTR) return;
    listener_.Turn([this](UniqueFd fd, const ConnectionRequest& request) { Admit(std::move(fd), request); });
  }
}

void RankNetwork::Admit(UniqueFd fd, const ConnectionRequest& request) {
  const auto ticket = std::bit_cast<Ticket>(request);
  MutexLock lock(mutex_);
  if (closed_.contains(ticket.group)) return;
  waiting_.insert_or_assign(ticket, std::move(fd));
  arrived_.NotifyAll();
}

}  // namespace millrace::collectives
