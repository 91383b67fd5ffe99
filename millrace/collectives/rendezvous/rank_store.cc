#include "millrace/collectives/rendezvous/rank_store.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <list>
#include <map>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include "millrace/collectives/rendezvous/store_protocol.h"

namespace millrace::collectives {
namespace {

constexpr std::string_view kLost = "the store of rank 0";

/// A rank's connection. It has one order at a time: what a rank sends behind a kGet waits in the kernel.
class StoreClient {
 public:
  explicit StoreClient(UniqueFd fd) : fd_(std::move(fd)) {}

  pollfd Wait() const {
    // A rank that waits for a key is heard of when it ends, too.
    const int events = sent_ < answer_.size() ? POLLOUT : awaited_ ? POLLRDHUP : POLLIN;
    return {.fd = fd_.get(), .events = static_cast<short>(events), .revents = 0};
  }
  const std::optional<StoreKey>& awaited() const { return awaited_; }

  void Answer(const std::string& text) {
    const auto size = static_cast<std::uint16_t>(text.size());
    answer_.assign(reinterpret_cast<const char*>(&size), sizeof size);
    answer_ += text;
    sent_ = 0;
    awaited_.reset();
  }
  void Await(const StoreKey& key) { awaited_ = key; }

  /// Sends what is left of the answer. Returns false if the rank is gone.
  bool Send() {
    while (sent_ < answer_.size()) {
      const ssize_t sent =
          ::send(fd_.get(), answer_.data() + sent_, answer_.size() - sent_, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0) return errno == EAGAIN || errno == EINTR;
      sent_ += static_cast<std::size_t>(sent);
    }
    answer_.clear();
    sent_ = 0;
    return true;
  }

  /// Reads the next order, if all of it is there. Sets `ended` if the rank is gone or breaks the protocol.
  std::optional<StoreHead> NextOrder(std::string& text, bool& ended) {
    if (awaited_ || !answer_.empty()) return {};
    while (true) {
      StoreHead head{};
      std::size_t wanted = sizeof head;
      if (bytes_ >= sizeof head) {
        std::memcpy(&head, order_.data(), sizeof head);
        ended = head.size > kMaxStoreText || (head.order == StoreOrder::kGet && head.size > 0) ||
                (head.order != StoreOrder::kSet && head.order != StoreOrder::kGet);
        if (ended) return {};
        wanted += head.size;
        if (bytes_ == wanted) {
          text.assign(reinterpret_cast<const char*>(order_.data()) + sizeof head, head.size);
          bytes_ = 0;
          return head;
        }
      }
      const ssize_t got = ::recv(fd_.get(), order_.data() + bytes_, wanted - bytes_, MSG_DONTWAIT);
      if (got <= 0) {
        ended = got == 0 || (errno != EAGAIN && errno != EINTR);
        return {};
      }
      bytes_ += static_cast<std::size_t>(got);
    }
  }

 private:
  UniqueFd fd_;
  std::array<std::byte, sizeof(StoreHead) + kMaxStoreText> order_{};
  std::size_t bytes_ = 0;  ///< of the order, so far
  std::optional<StoreKey> awaited_;
  std::string answer_;
  std::size_t sent_ = 0;
};

}  // namespace

class StoreServer::Loop {
 public:
  Loop(RankListener listener, UniqueFd wake, const Limits& limits)
      : limits_(limits),
        address_(listener.address()),
        wake_(std::move(wake)),
        listener_(std::move(listener)),
        thread_([this](const std::stop_token& stop) { Run(stop); }) {}
  ~Loop() {
    thread_.request_stop();
    (void)::eventfd_write(wake_.get(), 1);
  }
  const SocketAddress& address() const { return address_; }

 private:
  void Run(const std::stop_token& stop) {
    ::pthread_setname_np(::pthread_self(), "rank-store");
    std::vector<pollfd> waits;
    while (!stop.stop_requested()) {
      waits.assign(1, {.fd = wake_.get(), .events = POLLIN, .revents = 0});
      for (const StoreClient& client : clients_) waits.push_back(client.Wait());
      listener_.AppendWaits(waits);
      if (::poll(waits.data(), waits.size(), listener_.MillisecondsToNextTurn()) < 0 && errno != EINTR) return;
      std::size_t at = 1;
      for (auto client = clients_.begin(); client != clients_.end();) {
        const short events = waits[at++].revents;
        client = events == 0 || Serve(*client, events) ? std::next(client) : clients_.erase(client);
      }
      listener_.Turn([this](UniqueFd fd, const ConnectionRequest& request) {
        if (request == kStoreRequest && clients_.size() < limits_.connections) clients_.emplace_back(std::move(fd));
      });
    }
  }

  /// Returns whether the connection goes on.
  bool Serve(StoreClient& client, short events) {
    if (client.awaited()) return (events & (POLLRDHUP | POLLHUP | POLLERR)) == 0;
    if (!client.Send()) return false;
    std::string text;
    bool ended = false;
    while (const auto head = client.NextOrder(text, ended)) {
      if (head->order == StoreOrder::kSet) {
        if (!Set(head->key, text)) return false;
      } else if (const auto found = entries_.find(head->key); found != entries_.end()) {
        client.Answer(found->second);
        if (!client.Send()) return false;
      } else {
        client.Await(head->key);
      }
    }
    return !ended;
  }

  bool Set(const StoreKey& key, const std::string& text) {
    if (entries_.size() >= limits_.entries && !entries_.contains(key)) return false;
    entries_[key] = text;
    for (StoreClient& client : clients_) {
      if (client.awaited() != key) continue;
      client.Answer(text);
      (void)client.Send();  // an error is seen at the next turn
    }
    return true;
  }

  const Limits limits_;
  const SocketAddress address_;
  const UniqueFd wake_;
  // Used by the thread alone.
  RankListener listener_;
  std::list<StoreClient> clients_;
  std::map<StoreKey, std::string> entries_;
  std::jthread thread_;  ///< the last member: it ends first
};

StoreServer::StoreServer(std::unique_ptr<Loop> loop) : loop_(std::move(loop)) {}
StoreServer::~StoreServer() = default;
const SocketAddress& StoreServer::address() const { return loop_->address(); }

Result<std::unique_ptr<StoreServer>> StoreServer::Open(const SocketAddress& at, RankKey key, const Limits& limits) {
  RankListener listener = MR_TRY(RankListener::Open(at, std::move(key), limits.strangers));
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake) return Fail(ErrnoError(errno, "an eventfd"));
  auto loop = std::make_unique<Loop>(std::move(listener), std::move(wake), limits);
  return std::unique_ptr<StoreServer>(new StoreServer(std::move(loop)));
}

Result<RankStore> RankStore::Connect(const SocketAddress& at, const RankKey& key, TimePoint deadline) {
  auto fd = ConnectProved(at, key, kStoreRequest, NobodyListens::kIsAwaited, deadline, {});
  if (!fd) return Fail(fd.error().Context(std::string(kLost)));
  return RankStore(*std::move(fd));
}

Status RankStore::Set(std::string_view key, std::string_view text, TimePoint deadline) {
  if (text.size() > kMaxStoreText) {
    return Fail(Code::kInvalidArgument, "{}: a text of {} bytes; at most {} are stored", kLost, text.size(),
                kMaxStoreText);
  }
  const StoreHead head{
      .order = StoreOrder::kSet, .size = static_cast<std::uint16_t>(text.size()), .key = Sha256(AsBytes(key))};
  std::string message(reinterpret_cast<const char*>(&head), sizeof head);
  message += text;
  const Status sent = SendAll(fd_.get(), AsBytes(message), deadline, {});
  if (!sent) return Fail(sent.error().Context(std::string(kLost)));
  return {};
}

Result<std::string> RankStore::Get(std::string_view key, TimePoint deadline) {
  const StoreHead head{.order = StoreOrder::kGet, .key = Sha256(AsBytes(key))};
  std::uint16_t size = 0;
  std::string text;
  const auto exchange = [&]() -> Status {
    MR_TRY(SendAll(fd_.get(), std::as_bytes(std::span(&head, 1)), deadline, {}));
    MR_TRY(ReceiveAll(fd_.get(), std::as_writable_bytes(std::span(&size, 1)), deadline, {}));
    if (size > kMaxStoreText) return Fail(Code::kInternal, "the store of the ranks answers with {} bytes", size);
    text.resize(size);
    return ReceiveAll(fd_.get(), AsWritableBytes(text), deadline, {});
  };
  const Status done = exchange();
  if (!done) return Fail(done.error().Context(std::string(kLost)));
  return text;
}

}  // namespace millrace::collectives
