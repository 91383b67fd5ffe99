// One connection of the server. Reads requests from a socket and gives them to the handler, one after the other.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>

#include "millrace/http/server/request_head.h"
#include "millrace/http/server/server.h"
#include "millrace/http/socket.h"

namespace millrace::http {

/// Bytes received and not yet consumed. Not thread-safe.
class InputBuffer {
 public:
  explicit InputBuffer(Socket& socket) : socket_(socket), bytes_(16 * kKiB) {}

  std::string_view unread() const { return AsText(bytes_.span().subspan(begin_, end_ - begin_)); }
  void Consume(std::size_t count) { begin_ += count; }
  /// Receives more bytes behind the unread ones. False at the end of the stream. The buffer grows up to `limit` bytes.
  /// Blocks until `deadline`; without one, within the socket's limits.
  Result<bool> Fill(std::size_t limit, std::optional<TimePoint> deadline = std::nullopt);
  /// Moves unread bytes to `into`. If there are none, receives straight into it.
  Result<std::size_t> Read(MutableByteSpan into);
  /// The next line without its CRLF. Errors: kInvalidArgument if it is longer than `limit` or ends in another way.
  Result<std::string> ReadLine(std::size_t limit);

 private:
  Socket& socket_;
  Buffer bytes_;
  std::size_t begin_ = 0, end_ = 0;
};

/// Reads the body of one request and removes its framing.
class BodyReader {
 public:
  BodyReader(Socket& socket, InputBuffer& input, const RequestHead& head);

  Result<std::size_t> Read(MutableByteSpan into);
  /// Returns whether the rest of the body is short enough to read and discard, so that the connection can serve another
  /// request.
  bool Drainable() const;
  /// Discards the rest. False if that failed or the rest is too long.
  bool Drain();

 private:
  Result<std::size_t> ReadSome(MutableByteSpan into);
  Status NextChunk();
  Status EndOfChunk();

  Socket& socket_;
  InputBuffer& input_;
  const bool chunked_;
  std::uint64_t left_ = 0;  ///< of the body, or of the current chunk
  bool first_chunk_ = true, done_ = false, broken_ = false;
  bool continue_pending_;
};

/// Serves one client until it leaves, breaks the protocol, or the server stops. Run is called once, on the connection's
/// thread. Any thread may call the other methods.
class ServerConnection {
 public:
  /// `draining` becomes true when the server takes no further requests.
  ServerConnection(UniqueFd fd, const Server::Options& options, const Clock& clock, const Handler& handler,
                   const std::atomic<bool>& draining);

  void ServeRequests();
  void Cut() { socket_.Cut(); }
  /// Ends the connection unless it is handling a request; then returns false.
  bool CutIfWaiting();
  /// Returns the time at which the connection began to wait for a whole request. REQUIRES: !busy().
  TimePoint waiting_since() const { return TimePoint(Duration(waiting_since_.load())); }
  bool busy() const { return state_ == State::kBusy; }
  int fd() const { return socket_.fd(); }
  std::stop_source& stop() { return stop_; }

 private:
  enum class Next { kRequest, kClose, kLinger };
  enum class State { kWaiting, kBusy, kCut };
  Result<std::optional<std::string>> ReadHead();
  Next ServeOne();
  Next Answer(const RequestHead& head);
  void Refuse(const Refusal& refusal);
  void BeginWaiting();

  const Server::Options& options_;
  const Handler& handler_;
  const std::atomic<bool>& draining_;
  Socket socket_;
  InputBuffer input_;
  const std::string peer_;
  std::stop_source stop_;
  std::atomic<State> state_ = State::kWaiting;
  std::atomic<Duration::rep> waiting_since_;  ///< time since the clock's epoch
};

}  // namespace millrace::http
