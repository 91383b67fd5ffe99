// The store at which the ranks of a job meet, on rank 0.
#pragma once

#include <memory>

#include "millrace/base/result.h"
#include "millrace/collectives/tcp/rank_listener.h"

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

}  // namespace millrace::collectives
