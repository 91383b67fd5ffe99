// The handshake in which the two ends of a connection prove to each other that they belong to the same start of a job.
//
//   client                                server
//   greeting: magic, nonce  ────────▶
//                           ◀────────  nonce
//   request, proof          ────────▶
//                           ◀────────  verdict, proof
//
// A proof is the HMAC-SHA256, with the ranks' key, of the role, both nonces and the request. So the key never travels,
// recorded messages cannot be used again, and neither end sends anything else before the other has proved the key. All
// messages have fixed sizes. What follows on the connection is neither encrypted nor signed.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <stop_token>
#include <string_view>

#include "millrace/base/bytes.h"
#include "millrace/base/clock.h"
#include "millrace/base/files/files.h"
#include "millrace/base/result.h"
#include "millrace/collectives/tcp/secret_bytes.h"
#include "millrace/collectives/tcp/socket_address.h"

namespace millrace::collectives {

/// The secret that the ranks of one start of a job share, and nobody else has.
class RankKey {
 public:
  /// `start` tells starts with the same secret apart: ranks of different ones do not meet.
  static RankKey Derive(const SecretBytes& secret, std::string_view start);

  /// Returns the proof of one end. `message`: the nonces and the request.
  std::array<std::byte, 32> Prove(std::string_view role, ByteSpan message) const;

 private:
  explicit RankKey(SecretBytes key) : key_(std::move(key)) {}
  SecretBytes key_;
};

/// The purpose of a connection. Each listener gives it a meaning.
using ConnectionRequest = std::array<std::byte, 32>;

/// The listening end of a connection, which has just come. Reads no more than the handshake, and waits for nothing.
class ServerHandshake {
 public:
  enum class State { kWaits, kProved, kFailed };
  /// Goes on with what has arrived on `fd`, which does not block.
  State Advance(int fd, const RankKey& key);
  const ConnectionRequest& request() const { return request_; }  ///< REQUIRES: kProved

 private:
  bool Receive(int fd, MutableByteSpan into);
  State Judge(int fd, const RankKey& key);

  std::array<std::byte, 64> received_{};  ///< of the message under way
  std::size_t bytes_ = 0;
  bool greeted_ = false;
  std::array<std::byte, 64> nonces_{};  ///< the client's, then this end's
  ConnectionRequest request_{};
};

/// The behaviour of a connect while nobody listens at the address.
enum class NobodyListens { kFails, kIsAwaited };

/// Connects to a listener of another rank, and proves the key. A listener may have too many connections and end this
/// one early; then it is tried again. Blocks until the other end has proved the key, too.
/// Errors: kUnavailable; kPermissionDenied if the other end has another key; kCancelled if `stop` fires.
Result<UniqueFd> ConnectProved(const SocketAddress& to, const RankKey& key, const ConnectionRequest& request,
                               NobodyListens nobody, TimePoint deadline, const std::stop_token& stop);

/// Configures a connection: small messages leave at once, and the loss of the other machine is noticed.
void ConfigureConnection(int fd);

/// Waits for `events`. Returns false at `deadline`. Errors: kCancelled.
Result<bool> AwaitEvents(int fd, short events, TimePoint deadline, const std::stop_token& stop);

/// Receives exactly `into.size()` bytes from a socket that does not block. Errors: kUnavailable at its end and at
/// `deadline`; kCancelled.
Status ReceiveAll(int fd, MutableByteSpan into, TimePoint deadline, const std::stop_token& stop);
/// Sends all bytes. Errors: as above.
Status SendAll(int fd, ByteSpan bytes, TimePoint deadline, const std::stop_token& stop);

}  // namespace millrace::collectives
