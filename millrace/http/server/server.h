// A small HTTP/1.1 server: the embedded S3 endpoint and the inference server stand on it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/base/log.h"
#include "millrace/base/result.h"
#include "millrace/http/client/client.h"  // Headers
#include "millrace/http/socket.h"

namespace millrace::http {

/// One request as the handler sees it. Valid during the handler call only; the handler's thread owns it.
class ServerRequest {
 public:
  virtual ~ServerRequest() = default;
  virtual std::string_view method() const = 0;
  virtual std::string_view target() const = 0;  ///< as sent: path and query, still percent-encoded
  virtual std::string_view path() const = 0;    ///< the part of target before '?', still percent-encoded
  virtual std::string_view query() const = 0;   ///< the part after '?', still percent-encoded
  virtual const Headers& headers() const = 0;
  virtual std::string_view peer() const = 0;  ///< "127.0.0.1:40522"
  /// Length given by Content-Length; nothing for chunked bodies.
  virtual std::optional<std::uint64_t> content_length() const = 0;
  /// Reads the next bytes of the body (chunked coding undone); 0 at its end. Answers `Expect: 100-continue` first.
  virtual Result<std::size_t> ReadBody(MutableByteSpan into) = 0;
  /// The whole body; kResourceExhausted beyond `max_bytes`.
  virtual Result<std::string> ReadAllBody(std::uint64_t max_bytes) = 0;
  /// Fires when the client has gone (or sends no more), and when the server stops and its grace has passed.
  virtual std::stop_token stop() const = 0;
};

/// The answer. Either Send once, or Start, Write…, Finish. Writes block while the client is slow and fail once it is
/// gone.
class ServerResponse {
 public:
  virtual ~ServerResponse() = default;
  virtual Status Send(int status, Headers headers, ByteSpan body) = 0;
  /// With `content_length` the body must have exactly that many bytes; without it goes out chunked.
  virtual Status Start(int status, Headers headers, std::optional<std::uint64_t> content_length) = 0;
  virtual Status Write(ByteSpan bytes) = 0;
  /// Sends `length` bytes of a file without copying them through user space where the system can.
  virtual Status WriteFile(int fd, std::uint64_t offset, std::uint64_t length) = 0;
  virtual Status Finish() = 0;
  /// Closes the connection at once, with a TCP reset if `reset`: for fault injection and for hopeless clients.
  virtual void Abort(bool reset) = 0;
  virtual bool started() const = 0;
};

/// Called on a worker thread, one call per request; an answer must have been given when it returns.
using Handler = std::function<void(ServerRequest&, ServerResponse&)>;

/// Bounded in connections, header bytes and in how long a client may keep a thread. At the limit of connections, the
/// one that has waited longest for a whole request gives way to a new one. Destruction (or Stop) closes the listener,
/// lets handlers see their stop token, and joins every thread.
class Server {
 public:
  struct Options {
    std::string listen = "127.0.0.1:0";  ///< host:port or [v6]:port; port 0 takes a free one
    /// One thread each. Beyond, the connection that waited longest is closed; if all are at work: 503 and close.
    int max_connections = 512;
    /// Of one peer address (IPv6: of one /64 network), with the same consequences. 0: half of max_connections, and
    /// loopback addresses are exempt: behind them may be a proxy, or every program of this machine.
    int max_per_address = 0;
    std::uint64_t max_header_bytes = 64 * kKiB;
    Duration idle_timeout = std::chrono::seconds(75);
    Duration header_timeout = std::chrono::seconds(20);  ///< for a whole request head, from its first byte
    WaitLimits wait;                                     ///< for a body and for an answer
    const Clock* clock = nullptr;                        ///< of all these times; nullptr: the system's
    Logger log;
  };
  static Result<std::unique_ptr<Server>> Start(Options options, Handler handler);
  ~Server();

  int port() const;
  std::string address() const;  ///< "127.0.0.1:39121"
  /// Stops accepting; waits up to `grace` for running handlers, then cuts their connections. Idempotent.
  void Stop(Duration grace);

 private:
  struct Rep;
  explicit Server(std::unique_ptr<Rep> rep);
  std::unique_ptr<Rep> rep_;
};

/// `a=1&b=x%20y`, decoded, in order; a name without '=' has an empty value.
Result<std::vector<std::pair<std::string, std::string>>> ParseQuery(std::string_view query);
std::string_view ReasonPhrase(int status);

}  // namespace millrace::http
