// A connected, non-blocking TCP socket with a stall time-out on each wait.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "millrace/base/bytes.h"
#include "millrace/base/clock.h"
#include "millrace/base/files.h"
#include "millrace/base/result.h"

namespace millrace::http {

/// One peer of the server. One thread reads and writes; any thread may call Cut, which makes both fail from then on.
class Socket {
 public:
  Socket(UniqueFd fd, Duration stall_timeout) : fd_(std::move(fd)), stall_(stall_timeout) {}

  int fd() const { return fd_.get(); }
  /// Some bytes, or 0 when the peer has finished sending. Waits at most until `deadline` (kDeadlineExceeded).
  Result<std::size_t> Receive(MutableByteSpan into, TimePoint deadline);
  Result<std::size_t> Receive(MutableByteSpan into);  ///< within the stall time-out
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

  UniqueFd fd_;
  Duration stall_;
};

/// A listening socket on "host:port" or "[v6]:port".
struct Listener {
  UniqueFd fd;
  std::string host;  ///< as given, for addresses in messages
  int port = 0;
  static Result<Listener> Open(std::string_view listen);
};

/// "127.0.0.1:40522"
std::string PeerName(int fd);

}  // namespace millrace::http
