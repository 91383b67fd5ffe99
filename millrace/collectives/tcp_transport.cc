#include "millrace/collectives/tcp_transport.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <map>
#include <optional>
#include <stop_token>
#include <utility>

#include "millrace/base/files/files.h"
#include "millrace/base/threads/sync.h"
#include "millrace/collectives/direct_exchange.h"

namespace millrace::collectives {
namespace {

/// Bytes that pass in one system call: so all connections of an operation move on together.
constexpr std::size_t kMaxAtOnce = 1 << 20;
/// How long a message may still be on its way after its sender's other connection has ended.
constexpr Duration kParting = std::chrono::milliseconds(200);
constexpr Duration kPartingLook = std::chrono::milliseconds(50);

enum Channel : int { kOperations, kMessages };

/// What links have in common with the transport that they are of.
struct LinkContext {
  const GroupMembers& members;
  const Duration timeout;
  const int stop_fd;  ///< readable when all waits shall end

  Error Lost(int peer, std::string why) const {
    return Error(Code::kUnavailable, fmt::format("rank {} is gone or does not answer: {}",
                                                 members.in_job[static_cast<std::size_t>(peer)], why));
  }
};

/// PeerLink over one connection to each peer, or to some of them. It does not own them.
class TcpLink final : public PeerLink {
 public:
  TcpLink(const LinkContext& context, const std::map<int, int>& connections) : context_(context) {
    for (const auto& [peer, fd] : connections) {
      connections_.push_back({.peer = peer, .fd = fd, .sends = {}, .receives = {}});
    }
  }
  int rank() const override { return context_.members.rank; }
  int size() const override { return context_.members.size(); }
  int NameOf(int peer) const override { return context_.members.in_job[static_cast<std::size_t>(peer)]; }

  Result<std::unique_ptr<Transfer>> StartSend(ByteSpan bytes, int to) override {
    // Only read: one type of span serves both directions.
    return Start(&Connection::sends, {const_cast<std::byte*>(bytes.data()), bytes.size()}, to);
  }
  Result<std::unique_ptr<Transfer>> StartReceive(MutableByteSpan into, int from) override {
    return Start(&Connection::receives, into, from);
  }

 private:
  /// The rest of a message. Its address stays until it is done or taken out.
  struct Piece {
    std::byte* data;
    std::size_t left;
  };
  struct Connection {
    int peer, fd;
    std::deque<Piece*> sends, receives;  ///< in order; only the first of each moves
  };

  class TcpTransfer final : public Transfer {
   public:
    TcpTransfer(TcpLink& link, Connection& connection, MutableByteSpan bytes)
        : link_(link), connection_(connection), piece_{bytes.data(), bytes.size()} {}
    ~TcpTransfer() override {
      if (piece_.left == 0) return;
      // Half a message may have passed: nothing makes sense after it.
      if (!link_.failure_) link_.failure_ = link_.context_.Lost(connection_.peer, "a message was given up");
      ::shutdown(connection_.fd, SHUT_RDWR);
      std::erase(connection_.sends, &piece_);
      std::erase(connection_.receives, &piece_);
    }
    Status Wait() override { return link_.Wait(piece_, connection_.peer); }
    Piece* piece() { return &piece_; }

   private:
    TcpLink& link_;
    Connection& connection_;
    Piece piece_;
  };

  Result<std::unique_ptr<Transfer>> Start(std::deque<Piece*> Connection::* queue, MutableByteSpan bytes, int peer) {
    if (failure_) return Fail(*failure_);
    Connection& connection = *std::ranges::find(connections_, peer, &Connection::peer);
    auto transfer = std::make_unique<TcpTransfer>(*this, connection, bytes);
    (connection.*queue).push_back(transfer->piece());
    Move(connection);
    return transfer;
  }

  Status Wait(const Piece& piece, int peer) {
    TimePoint since = SystemClock().Now();
    while (piece.left > 0) {
      bool moved = false;
      for (Connection& connection : connections_) moved = Move(connection) || moved;
      if (piece.left == 0) break;
      if (failure_) return Fail(*failure_);
      const TimePoint now = SystemClock().Now();
      if (moved) since = now;
      const Duration left = since + context_.timeout - now;
      if (left <= Duration::zero()) {
        failure_ = context_.Lost(
            peer, fmt::format("no byte for {} ms",
                              std::chrono::duration_cast<std::chrono::milliseconds>(context_.timeout).count()));
        return Fail(*failure_);
      }
      if (!moved && !AwaitReady(left)) {
        failure_ = Error(Code::kUnavailable, "the group has failed");
        return Fail(*failure_);
      }
    }
    return {};
  }

  /// Sends and receives what passes without waiting. Returns whether something did.
  bool Move(Connection& connection) {
    const bool sent = Pass(connection, connection.sends, [&](Piece& piece, std::size_t bytes) {
      return ::send(connection.fd, piece.data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    });
    const bool received = Pass(connection, connection.receives, [&](Piece& piece, std::size_t bytes) {
      return ::recv(connection.fd, piece.data, bytes, MSG_DONTWAIT);
    });
    return sent || received;
  }

  template <class Call>
  bool Pass(const Connection& connection, std::deque<Piece*>& queue, Call call) {
    bool moved = false;
    for (std::size_t most = kMaxAtOnce; !queue.empty() && most > 0;) {
      Piece& piece = *queue.front();
      const ssize_t passed = call(piece, std::min(piece.left, most));
      if (passed < 0 && errno == EINTR) continue;
      if (passed < 0 && errno == EAGAIN) break;
      if (passed <= 0) {
        const Error error = passed == 0 ? context_.Lost(connection.peer, "it has ended the connection")
                                        : context_.Lost(connection.peer, ErrnoError(errno, "tcp").ToString());
        if (!failure_) failure_ = error;
        break;
      }
      const auto bytes = static_cast<std::size_t>(passed);
      moved = true;
      most -= bytes;
      piece.data += bytes;
      piece.left -= bytes;
      if (piece.left > 0) break;  // the kernel has no more now
      queue.pop_front();
    }
    return moved;
  }

  /// Sleeps until a connection can go on. Returns false if the wait shall end.
  bool AwaitReady(Duration most) {
    polled_.assign(1, {.fd = context_.stop_fd, .events = POLLIN, .revents = 0});
    for (const Connection& connection : connections_) {
      const int events = (connection.sends.empty() ? 0 : POLLOUT) | (connection.receives.empty() ? 0 : POLLIN);
      if (events != 0) {
        polled_.push_back({.fd = connection.fd, .events = static_cast<short>(events), .revents = 0});
      }
    }
    const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(most).count() + 1;
    (void)::poll(polled_.data(), polled_.size(), static_cast<int>(std::min<std::int64_t>(milliseconds, 60'000)));
    return polled_.front().revents == 0;
  }

  const LinkContext& context_;
  std::vector<Connection> connections_;
  std::vector<pollfd> polled_;
  std::optional<Error> failure_;
};

class TcpTransport final : public Transport {
 public:
  TcpTransport(std::shared_ptr<RankNetwork> network, std::string group, std::vector<std::string> addresses,
               GroupMembers members, Duration timeout, GroupSplitter splitter)
      : network_(std::move(network)),
        group_(std::move(group)),
        addresses_(std::move(addresses)),
        members_(std::move(members)),
        splitter_(std::move(splitter)),
        stop_fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        context_{.members = members_, .timeout = timeout, .stop_fd = stop_fd_.get()} {}
  ~TcpTransport() override { network_->Close(group_); }

  /// Connects to every other member. Call it once, first.
  Status Connect() {
    const TimePoint deadline = SystemClock().Now() + context_.timeout;
    std::map<int, int> connections;
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank()) continue;
      // The higher rank connects to the lower one.
      const ConnectionName name{.group = group_, .from = std::max(peer, rank()), .channel = kOperations};
      auto made = peer < rank() ? Dial(peer, name, deadline) : network_->Accept(name, deadline, stop_.get_token());
      if (!made) return Fail(context_.Lost(peer, made.error().ToString()));
      connections[peer] = made->get();
      MutexLock lock(mutex_);
      fds_.push_back(*std::move(made));
    }
    operation_fds_ = connections;
    operations_.emplace(context_, connections);
    return {};
  }

  int rank() const override { return members_.rank; }
  int size() const override { return members_.size(); }

  Status AllReduce(const Elements& elements, Reduction reduction) override {
    return DirectAllReduce(*operations_, elements, reduction);
  }
  Status AllGather(const Elements& all, const Elements& mine) override {
    return DirectAllGather(*operations_, all, mine);
  }
  Status ReduceScatter(const Elements& mine, const Elements& all, Reduction reduction) override {
    return DirectReduceScatter(*operations_, mine, all, reduction);
  }
  Status Broadcast(const Elements& elements, int root) override {
    return DirectBroadcast(*operations_, elements, root);
  }
  Status Send(const Elements& elements, int to) override {
    TcpLink& link = *MR_TRY(MessageLink(to, /*sends=*/true));
    return DirectSend(link, elements, to);
  }
  Status Receive(const Elements& elements, int from) override {
    TcpLink& link = *MR_TRY(MessageLink(from, /*sends=*/false));
    return DirectReceive(link, elements, from);
  }

  /// Ends all connections, so that the peers notice.
  void Abort(const Error&) override {
    stop_.request_stop();
    (void)::eventfd_write(stop_fd_.get(), 1);
    network_->Close(group_);
    MutexLock lock(mutex_);
    for (const UniqueFd& fd : fds_) ::shutdown(fd.get(), SHUT_RDWR);
  }

  Result<std::unique_ptr<Collective>> Split(const std::string& name, std::span<const int> members) override {
    return splitter_(name, members);
  }

 private:
  Result<UniqueFd> Dial(int peer, const ConnectionName& name, TimePoint deadline) {
    const bool is_master = members_.in_job[static_cast<std::size_t>(peer)] == 0;
    return network_->Connect(addresses_[static_cast<std::size_t>(peer)], is_master, name, deadline, stop_.get_token());
  }

  /// Returns the link for messages to or from a peer, which only this thread uses. Makes it if there is none yet.
  Result<TcpLink*> MessageLink(int peer, bool sends) MR_EXCLUDES(mutex_) {
    const std::pair key{peer, sends};
    {
      MutexLock lock(mutex_);
      if (const auto found = messages_.find(key); found != messages_.end()) return &found->second;
    }
    auto made = MessageConnection(peer, sends);
    if (!made) return Fail(context_.Lost(peer, made.error().ToString()));
    MutexLock lock(mutex_);
    if (stop_.stop_requested()) return Fail(Code::kUnavailable, "the group has failed");
    const std::map<int, int> connection{{peer, made->get()}};
    fds_.push_back(*std::move(made));
    return &messages_.try_emplace(key, context_, connection).first->second;
  }
  Result<UniqueFd> MessageConnection(int peer, bool sends) {
    const TimePoint deadline = SystemClock().Now() + context_.timeout;
    const ConnectionName name{.group = group_, .from = sends ? rank() : peer, .channel = kMessages};
    if (sends) return Dial(peer, name, deadline);
    // A peer that is gone makes no connection: the one for operations tells.
    std::optional<TimePoint> parted;
    while (true) {
      const TimePoint now = SystemClock().Now();
      if (parted && now > *parted + kParting) return Fail(Code::kUnavailable, "the peer has ended the connection");
      if (!parted && HasParted(peer)) parted = now;
      const TimePoint until = std::min(deadline, now + kPartingLook);
      auto arrived = network_->Accept(name, until, stop_.get_token());
      if (arrived || stop_.stop_requested() || until == deadline) return arrived;
    }
  }
  bool HasParted(int peer) const {
    pollfd connection{.fd = operation_fds_.at(peer), .events = POLLRDHUP, .revents = 0};
    return ::poll(&connection, 1, 0) > 0;
  }

  const std::shared_ptr<RankNetwork> network_;
  const std::string group_;
  const std::vector<std::string> addresses_;
  const GroupMembers members_;
  const GroupSplitter splitter_;
  const UniqueFd stop_fd_;
  const LinkContext context_;
  std::stop_source stop_;
  std::map<int, int> operation_fds_;   ///< by peer
  std::optional<TcpLink> operations_;  ///< used only by the lane of collective operations
  Mutex mutex_;
  std::vector<UniqueFd> fds_ MR_GUARDED_BY(mutex_);  ///< all connections
  std::map<std::pair<int, bool>, TcpLink> messages_ MR_GUARDED_BY(mutex_);
};

}  // namespace

Result<std::unique_ptr<Transport>> ConnectTcpTransport(std::shared_ptr<RankNetwork> network, std::string group,
                                                       std::vector<std::string> addresses, GroupMembers members,
                                                       Duration timeout, GroupSplitter splitter) {
  auto transport = std::make_unique<TcpTransport>(std::move(network), std::move(group), std::move(addresses),
                                                  std::move(members), timeout, std::move(splitter));
  MR_TRY(transport->Connect());
  return transport;
}

}  // namespace millrace::collectives
