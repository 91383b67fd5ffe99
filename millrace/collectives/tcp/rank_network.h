// Connections between the ranks of a job.
#pragma once

#include <sys/socket.h>

#include <array>
#include <map>
#include <memory>
#include <set>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/base/clock.h"
#include "millrace/base/files/files.h"
#include "millrace/base/result.h"
#include "millrace/base/threads/sync.h"
#include "millrace/collectives/tcp/socket_address.h"

namespace millrace::engine {

/// Which connection it is. Both ends give it the same name.
struct ConnectionName {
  std::string group;  ///< unique among the groups of a job
  int from = 0;       ///< the member that connects
  int channel = 0;    ///< one of those between the same members
};

/// Listens for the other ranks of a job, and connects to them. A connection begins with its name and with the job's
/// key: strangers that find the port are turned away. Nothing is encrypted. Thread-safe.
class RankNetwork {
 public:
  /// The length of a job's key, in hexadecimal digits.
  static constexpr int kKeyDigits = 32;

  /// Begins to listen: on the loopback interface if `master_host`, as it is written, is this machine alone, otherwise
  /// on all interfaces. `key` has kKeyDigits.
  static Result<std::unique_ptr<RankNetwork>> Open(const std::string& master_host, int master_port, std::string key);
  ~RankNetwork();

  /// What other ranks need to reach this one: "10.0.0.7 40113".
  std::string Address() const;
  /// Connects to the rank with this Address(). `is_master`: it is rank 0, at `master_host`. Blocks until the connection
  /// is there; the other rank may not have asked for it yet. Errors: kUnavailable; kCancelled if `stop` fires.
  Result<UniqueFd> Connect(const std::string& address, bool is_master, const ConnectionName& name, TimePoint deadline,
                           std::stop_token stop) const;
  /// Returns the connection that another rank has made, or will make before `deadline`. Errors: as Connect().
  Result<UniqueFd> Accept(const ConnectionName& name, TimePoint deadline, std::stop_token stop) MR_EXCLUDES(mutex_);
  /// Refuses all connections of a group from now on.
  void Close(const std::string& group) MR_EXCLUDES(mutex_);

 private:
  using GroupId = std::array<std::byte, 16>;
  /// What a connection begins with, as its bytes.
  struct Hello {
    std::array<char, kKeyDigits> key;
    GroupId group;
    std::int32_t from, channel;
    bool operator<(const Hello& other) const;
  };
  /// A connection that has not said all of its hello.
  struct Newcomer {
    UniqueFd fd;
    std::size_t said = 0;
    Hello hello{};
    TimePoint deadline;
  };

  RankNetwork(Route master, std::string key, UniqueFd listener, SocketAddress listens, UniqueFd wake);
  Hello HelloOf(const ConnectionName& name) const;
  static GroupId IdOf(const std::string& group);
  void Listen(std::stop_token stop) MR_EXCLUDES(mutex_);
  /// Takes up the connections that wait at the listener. Returns whether there is room for more.
  bool AcceptNewcomers(std::vector<Newcomer>& newcomers) const;
  /// Reads what a newcomer says. Returns whether it may stay in the list.
  bool Hear(Newcomer& newcomer) MR_EXCLUDES(mutex_);

  const Route master_;
  const std::string key_;
  const UniqueFd listener_;
  const SocketAddress listens_;
  const UniqueFd wake_;
  Mutex mutex_;
  CondVar arrived_;
  std::map<Hello, UniqueFd> waiting_ MR_GUARDED_BY(mutex_);
  std::set<GroupId> closed_ MR_GUARDED_BY(mutex_);
  std::jthread thread_;  ///< the last member: it ends first
};

}  // namespace millrace::engine
