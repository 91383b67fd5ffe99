// Takes connections and lets in those that prove the ranks' key.
#pragma once

#include <poll.h>

#include <array>
#include <cstddef>
#include <functional>
#include <list>
#include <optional>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/files/files.h"
#include "millrace/base/result.h"
#include "millrace/collectives/tcp/handshake.h"
#include "millrace/collectives/tcp/socket_address.h"

namespace millrace::collectives {

/// A listening socket, and its connections that have not proved the key yet. Such a connection has some hundred bytes
/// and a short time. Their number is bounded, of all and of those from one address; beyond that, the oldest one of the
/// address with the most is ended. So strangers may delay ranks, which try again, but neither stop them nor take
/// memory. For the loop of one thread; nothing blocks.
class RankListener {
 public:
  struct Limits {
    std::size_t connections = 1024;
    std::size_t of_one_address = 512;  ///< a machine has up to 256 ranks, which may all connect at once
    Duration time = std::chrono::seconds(10);
  };
  /// Begins to listen. Errors: kUnavailable, which names the address, if another program has it; those of bind(2).
  static Result<RankListener> Open(const SocketAddress& at, RankKey key, Limits limits, Clock& clock = SystemClock());

  /// Returns the address on which the listener accepts connections.
  const SocketAddress& address() const { return address_; }
  /// Adds what the loop has to wait for.
  void AppendWaits(std::vector<pollfd>& waits) const;
  /// Returns the longest time for poll(2): after it Turn() has something to do without an event. -1: never.
  int MillisecondsToNextTurn() const;
  /// Goes on with every connection as far as it can. Hands those that have proved the key to `admit`.
  void Turn(const std::function<void(UniqueFd, const ConnectionRequest&)>& admit);
  std::size_t unproved() const { return newcomers_.size(); }

 private:
  /// An IPv4 address, or the network of an IPv6 address.
  using AddressKey = std::array<std::byte, 8>;
  struct Newcomer {
    UniqueFd fd;
    AddressKey from;
    ServerHandshake handshake;
    TimePoint deadline;
  };

  RankListener(UniqueFd fd, SocketAddress address, RankKey key, Limits limits, Clock& clock)
      : fd_(std::move(fd)), address_(address), key_(std::move(key)), limits_(limits), clock_(&clock) {}
  void AcceptAll();
  void MakeRoom(const AddressKey& from);
  void EndOldestOfBusiestAddress();
  std::size_t CountOf(const AddressKey& from) const;

  UniqueFd fd_;
  SocketAddress address_;
  RankKey key_;
  Limits limits_;
  Clock* clock_;
  std::list<Newcomer> newcomers_;          ///< the oldest one first
  std::optional<TimePoint> pauses_until_;  ///< there is no descriptor for a connection
};

}  // namespace millrace::collectives
