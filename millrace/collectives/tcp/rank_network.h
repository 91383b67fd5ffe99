// Connections between the ranks of a job.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <set>
#include <stop_token>
#include <string>
#include <thread>

#include "millrace/base/bytes.h"
#include "millrace/base/clock.h"
#include "millrace/base/files/files.h"
#include "millrace/base/result.h"
#include "millrace/base/threads/sync.h"
#include "millrace/collectives/tcp/handshake.h"
#include "millrace/collectives/tcp/rank_listener.h"
#include "millrace/collectives/tcp/socket_address.h"

namespace millrace::collectives {

/// The name of a connection. Both ends give it the same name.
struct ConnectionName {
  std::string group;  ///< unique among the groups of a job
  int from = 0;       ///< the member that connects
  int channel = 0;    ///< one of those between the same members
};

/// Listens for the other ranks of a job, and connects to them. A connection begins with a handshake in which both ends
/// prove the ranks' key (handshake.h): strangers are turned away. What follows is not encrypted. Thread-safe.
class RankNetwork {
 public:
  /// Begins to listen, at ListenAddress(). `is_master`: this is rank 0.
  static Result<std::unique_ptr<RankNetwork>> Open(const std::string& master_host, int master_port, RankKey key,
                                                   bool is_master);
  ~RankNetwork();

  /// Returns the address by which other ranks reach this one: "10.0.0.7 40113".
  std::string Address() const;
  /// Connects to the rank with this Address(). `is_master`: it is rank 0, at `master_host`. Blocks until the connection
  /// is there; the other rank may not have asked for it yet. Errors: those of ConnectProved.
  Result<UniqueFd> Connect(const std::string& address, bool is_master, const ConnectionName& name, TimePoint deadline,
                           std::stop_token stop) const;
  /// Returns the connection that another rank has made, or will make before `deadline`. Errors: as Connect().
  Result<UniqueFd> Accept(const ConnectionName& name, TimePoint deadline, std::stop_token stop) MR_EXCLUDES(mutex_);
  /// Refuses all connections of a group from now on.
  void Close(const std::string& group) MR_EXCLUDES(mutex_);

 private:
  using GroupId = std::array<std::byte, 16>;
  /// A ConnectionName as it travels in the handshake.
  struct Ticket {
    GroupId group;
    std::int32_t from, channel;
    std::int64_t zero = 0;
    bool operator<(const Ticket& other) const;
  };
  static_assert(sizeof(Ticket) == sizeof(ConnectionRequest));

  RankNetwork(const Route& master, RankKey key, RankListener listener, SocketAddress listens, UniqueFd wake);
  static Ticket TicketOf(const ConnectionName& name);
  static GroupId IdOf(const std::string& group);
  void Listen(const std::stop_token& stop);
  void Admit(UniqueFd fd, const ConnectionRequest& request) MR_EXCLUDES(mutex_);

  const Route master_;
  const RankKey key_;
  const SocketAddress listens_;
  const UniqueFd wake_;
  RankListener listener_;  ///< used by the thread alone
  Mutex mutex_;
  CondVar arrived_;
  std::map<Ticket, UniqueFd> waiting_ MR_GUARDED_BY(mutex_);
  std::set<GroupId> closed_ MR_GUARDED_BY(mutex_);
  std::jthread thread_;  ///< the last member: it ends first
};

}  // namespace millrace::collectives
