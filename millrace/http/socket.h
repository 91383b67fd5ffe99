// A connected, non-blocking TCP socket that waits for its peer within bounds.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "millrace/base/bytes.h"
#include "millrace/base/clock.h"
#include "millrace/base/files/files.h"
#include "millrace/base/result.h"

namespace millrace::http {

/// How long a peer may keep a thread waiting.
struct WaitLimits {
  Duration stall = std::chrono::seconds(60);  ///< without any byte
  /// All waits of one request's body together may take `stall`, and a second more for so many bytes that came. The same
  /// holds for its answer. A peer that sends a byte now and then does not keep a thread.
  std::uint64_t min_bytes_per_s = 4 * kKiB;
};

/// One peer of the server. One thread reads and writes; any thread may call Cut, which makes both fail from then on.
class Socket {
 public:
  /// `clock` must outlive the socket.
  Socket(UniqueFd fd, WaitLimits limits, const Clock& clock)
      : fd_(std::move(fd)), limits_(limits), clock_(clock), receive_left_(limits.stall), send_left_(limits.stall) {}

  int fd() const { return fd_.get(); }
  const Clock& clock() const { return clock_; }
  /// A new request begins: the waits of its body and of its answer are counted from zero.
  void StartRequest() { receive_left_ = send_left_ = limits_.stall; }
  /// Some bytes, or 0 when the peer has finished sending. Waits at most until `deadline` (kDeadlineExceeded).
  Result<std::size_t> Receive(MutableByteSpan into, TimePoint deadline);
  /// The same for a body: within the wait limits.
  Result<std::size_t> Receive(MutableByteSpan into);
  /// All bytes of both pieces; `more` tells the kernel that others follow at once.
  Status Send(ByteSpan head, ByteSpan body, bool more);
  Status SendFile(int file, std::uint64_t offset, std::uint64_t length);

  /// Shuts both directions down: whoever waits wakes up.
  void Cut();
  /// Closes with a TCP reset instead of an orderly end.
  void Reset();
  /// Ends an orderly conversation whose last request may not have been read to its end: says goodbye and reads on for a
  /// moment, because closing with unread bytes would reset the connection and could destroy the answer.
  void Linger();

 private:
  Status AwaitWritable();
  Status AwaitReadable(TimePoint deadline);
  Duration Earned(std::uint64_t bytes) const;

  UniqueFd fd_;
  const WaitLimits limits_;
  const Clock& clock_;
  Duration receive_left_, send_left_;
};

/// A listening socket on "host:port" or "[v6]:port".
struct Listener {
  UniqueFd fd;
  std::string host;  ///< as given, for addresses in messages
  int port = 0;
  static Result<Listener> Open(std::string_view listen);
};

/// Who is connected, for counting. Addresses of one IPv6 /64 network are the same: one machine may have all of them.
struct PeerAddress {
  std::array<std::uint8_t, 8> network{};
  bool is_v4 = false, is_loopback = false;
  static PeerAddress Of(int fd);
  bool operator==(const PeerAddress&) const = default;
};

/// "127.0.0.1:40522"
std::string PeerName(int fd);

}  // namespace millrace::http
