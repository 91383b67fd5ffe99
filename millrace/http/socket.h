// A connected, non-blocking TCP socket, perhaps with TLS, that waits for its peer within bounds.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/base/clock.h"
#include "millrace/base/files/files.h"
#include "millrace/base/result.h"
#include "millrace/http/tls.h"

namespace millrace::http {

/// The time that a thread waits for a peer.
struct WaitLimits {
  Duration stall = std::chrono::seconds(60);  ///< without any byte
  /// The least rate of a body. All waits for one request's body together may take `stall` plus one second for every
  /// min_bytes_per_s bytes that came; the same holds for its response. So a peer cannot occupy a thread by sending a
  /// byte now and then. 4 KiB: slower than any usable link.
  std::uint64_t min_bytes_per_s = 4 * kKiB;
};

/// The connection to one peer of the server. One thread reads and writes. Any thread may call Cut.
class Socket {
 public:
  /// `clock` must outlive the socket.
  Socket(UniqueFd fd, WaitLimits limits, const Clock& clock)
      : fd_(std::move(fd)), limits_(limits), clock_(clock), receive_left_(limits.stall), send_left_(limits.stall) {}

  int fd() const { return fd_.get(); }
  const Clock& clock() const { return clock_; }
  /// Begins TLS as its server. Blocks until the peer has agreed or `deadline`. Call it before all other traffic.
  /// Errors: kDeadlineExceeded; kUnavailable if the peer does not agree; those of TlsIdentity::NewSession.
  Status StartTls(const TlsIdentity& identity, TimePoint deadline);
  /// Marks the start of a request: the waits for its body and for its response are counted from zero.
  void StartRequest() { receive_left_ = send_left_ = limits_.stall; }
  /// Receives some bytes; 0 if the peer has finished sending. Blocks until `deadline`. Errors: kDeadlineExceeded.
  Result<std::size_t> Receive(MutableByteSpan into, TimePoint deadline);
  /// Receives bytes of a body, within the wait limits.
  Result<std::size_t> Receive(MutableByteSpan into);
  /// Sends all bytes of both spans. `more`: other bytes follow at once, so small pieces are sent together.
  Status Send(ByteSpan head, ByteSpan body, bool more);
  Status SendFile(int file, std::uint64_t offset, std::uint64_t length);

  /// Announces the end of the stream to the peer. Does nothing without TLS. Does not block.
  void EndTls();
  /// Shuts down both directions: reads and writes fail from then on, and a thread that waits wakes up.
  void Cut();
  /// Makes the destruction of the socket send a TCP reset instead of an orderly end.
  void Reset();
  /// Ends the connection in order although the last request may not have been read to its end. Shuts down writing, then
  /// reads and discards for a moment: closing with unread bytes would reset the connection, and the peer could lose the
  /// response.
  void Linger();

 private:
  Status AwaitWritable();
  Status AwaitReadable(TimePoint deadline);
  /// Waits for what OpenSSL wants after an operation that returned `result`.
  Status AwaitTls(int result, TimePoint deadline);
  Result<std::size_t> ReceiveTls(MutableByteSpan into, TimePoint deadline);
  Status SendTls(ByteSpan head, ByteSpan body, bool more);
  Status SendRecords(ByteSpan bytes);
  Status SendFileTls(int file, std::uint64_t offset, std::uint64_t length);
  Duration Earned(std::uint64_t bytes) const;

  UniqueFd fd_;
  SslSession tls_;                     ///< null: none
  std::vector<std::byte> for_record_;  ///< what the next record begins with
  const WaitLimits limits_;
  const Clock& clock_;
  Duration receive_left_, send_left_;
};

/// A listening socket on "host:port" or "[v6]:port".
struct Listener {
  UniqueFd fd;
  std::string host;  ///< as given, for messages
  int port = 0;      ///< the actual port, if 0 was given
  static Result<Listener> Open(std::string_view listen);
};

/// A peer's address, for counting connections. All addresses of an IPv6 /64 network are equal, because one machine may
/// have all of them.
struct PeerAddress {
  std::array<std::uint8_t, 8> network{};
  bool is_v4 = false, is_loopback = false;
  static PeerAddress Of(int fd);
  bool operator==(const PeerAddress&) const = default;
};

/// "127.0.0.1:40522"
std::string PeerName(int fd);

}  // namespace millrace::http
