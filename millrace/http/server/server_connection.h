// One connection of the server: reads requests off a socket, hands them to the handler, one after the other.
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

/// Bytes received and not yet consumed. One thread.
class InputBuffer {
 public:
  explicit InputBuffer(Socket& socket) : socket_(socket), bytes_(16 * kKiB) {}

  std::string_view unread() const { return AsText(bytes_.span().subspan(begin_, end_ - begin_)); }
  void Consume(std::size_t count) { begin_ += count; }
  /// Receives more behind what is unread, growing up to `limit` bytes; false at the end of the stream.
  /// Waits until `deadline`; without one, within the socket's limits.
  Result<bool> Fill(std::size_t limit, std::optional<TimePoint> deadline = std::nullopt);
  /// Moves unread bytes out, or receives straight into `into` when there are none.
  Result<std::size_t> Read(MutableByteSpan into);
  /// The next line without its CRLF; fails with kInvalidArgument when it is longer than `limit` or ends otherwise.
  Result<std::string> ReadLine(std::size_t limit);

 private:
  Socket& socket_;
  Buffer bytes_;
  std::size_t begin_ = 0, end_ = 0;
};

/// The body of one request: undoes the framing.
class BodyReader {
 public:
  BodyReader(Socket& socket, InputBuffer& input, const RequestHead& head);

  Result<std::size_t> Read(MutableByteSpan into);
  /// Whether what is left can be read to its end cheaply, so that the connection may serve another request.
  bool Drainable() const;
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

/// Serves one client until it leaves, misbehaves or the server stops. Run is called once, on the connection's thread;
/// the other methods by any thread.
class Connection {
 public:
  /// `draining` tells that the server wants no further requests on this connection.
  Connection(UniqueFd fd, const Server::Options& options, const Clock& clock, const Handler& handler,
             const std::atomic<bool>& draining);

  void Run();
  void Cut() { socket_.Cut(); }
  /// Ends the connection unless it is at work on a request; then false. A request that has begun to be handled is never
  /// cut off by this.
  bool CutIfWaiting();
  /// Since when no whole request has been there to work on. Only for a connection that waits.
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
  std::atomic<Duration::rep> waiting_since_;  // of the clock's time line
};

}  // namespace millrace::http
