// The store at which the ranks of a job meet: rank 0 keeps it, and each rank has a connection.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "millrace/base/clock.h"
#include "millrace/base/files/files.h"
#include "millrace/base/result.h"
#include "millrace/collectives/tcp/handshake.h"
#include "millrace/collectives/tcp/rank_listener.h"
#include "millrace/collectives/tcp/socket_address.h"

namespace millrace::collectives {

/// Keeps texts under keys for the ranks that have the key of this start. Listens from construction to destruction, on a
/// thread of its own. Entries and connections are bounded; a connection that breaks the protocol is ended.
class StoreServer {
 public:
  struct Limits {
    RankListener::Limits strangers = {};
    std::size_t connections = 1 << 16;
    std::size_t entries = 1 << 20;
  };
  /// Errors: those of RankListener::Open.
  static Result<std::unique_ptr<StoreServer>> Open(const SocketAddress& at, RankKey key) {
    return Open(at, std::move(key), Limits());
  }
  static Result<std::unique_ptr<StoreServer>> Open(const SocketAddress& at, RankKey key, const Limits& limits);
  ~StoreServer();

  const SocketAddress& address() const;

 private:
  class Loop;
  explicit StoreServer(std::unique_ptr<Loop> loop);
  const std::unique_ptr<Loop> loop_;
};

/// Texts that ranks leave for each other under keys: a connection to rank 0's StoreServer. One thread at a time.
class RankStore {
 public:
  /// Connects. Waits for rank 0 until `deadline`. Errors: those of ConnectProved.
  static Result<RankStore> Connect(const SocketAddress& at, const RankKey& key, TimePoint deadline);

  /// Leaves a text of at most kMaxStoreText bytes. Errors: kInvalidArgument if it is longer; kUnavailable if rank 0 is
  /// lost.
  Status Set(std::string_view key, std::string_view text, TimePoint deadline);
  /// Returns the text under a key as soon as it is there. Errors: kUnavailable if it does not come by `deadline`, or if
  /// rank 0 is lost.
  Result<std::string> Get(std::string_view key, TimePoint deadline);

 private:
  explicit RankStore(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

}  // namespace millrace::collectives
