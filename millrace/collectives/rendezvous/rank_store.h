// A rank's end of the store at which the ranks of a job meet.
#pragma once

#include <string>
#include <string_view>

#include "millrace/base/clock.h"
#include "millrace/base/files/files.h"
#include "millrace/base/result.h"
#include "millrace/collectives/tcp/handshake.h"
#include "millrace/collectives/tcp/socket_address.h"

namespace millrace::collectives {

/// Texts that ranks leave for each other under keys: a connection to rank 0's StoreServer. One thread at a time.
class RankStore {
 public:
  /// Connects. Waits for rank 0 until `deadline`. Errors: those of ConnectProved.
  static Result<RankStore> Connect(const SocketAddress& at, const RankKey& key, TimePoint deadline);

  /// Leaves a text of at most kMostStoreText bytes. Errors: kInvalidArgument if it is longer; kUnavailable if rank 0 is
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
