// A small HTTP/1.1 server. The embedded S3 endpoint, the inference server and the metrics endpoint use it.
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
#include "millrace/http/headers.h"
#include "millrace/http/socket.h"
#include "millrace/http/tls.h"

namespace millrace::http {

/// A request, as a handler sees it. Valid until the handler returns. Only the handler's thread may use it.
class ServerRequest {
 public:
  virtual ~ServerRequest() = default;
  virtual std::string_view method() const = 0;
  virtual std::string_view target() const = 0;  ///< as sent: path and query, still percent-encoded
  virtual std::string_view path() const = 0;    ///< the part of target before '?', still percent-encoded
  virtual std::string_view query() const = 0;   ///< the part after '?', still percent-encoded
  virtual const Headers& headers() const = 0;
  virtual std::string_view peer() const = 0;  ///< "127.0.0.1:40522"
  /// The value of Content-Length, 0 without a body; no value for chunked bodies.
  virtual std::optional<std::uint64_t> content_length() const = 0;
  /// Reads the next bytes of the body without its framing. Returns 0 at the end. Answers `Expect: 100-continue` first.
  virtual Result<std::size_t> ReadBody(MutableByteSpan into) = 0;
  /// The whole body. Errors: kResourceExhausted if it is longer than `max_bytes`.
  virtual Result<std::string> ReadAllBody(std::uint64_t max_bytes) = 0;
  /// Fires if the client leaves (or sends no more), and when the server stops and its grace period is over.
  virtual std::stop_token stop() const = 0;
};

/// The response. A handler calls either Send once, or Start, then Write any number of times, then Finish. The calls
/// block while the client is slow and fail if it is gone.
class ServerResponse {
 public:
  virtual ~ServerResponse() = default;
  virtual Status Send(int status, Headers headers, ByteSpan body) = 0;
  /// With `content_length`, the body must have exactly that many bytes. Without, it is sent chunked.
  virtual Status Start(int status, Headers headers, std::optional<std::uint64_t> content_length) = 0;
  virtual Status Write(ByteSpan bytes) = 0;
  /// Sends `length` bytes of a file with sendfile(2), without copying them through user space.
  virtual Status WriteFile(int fd, std::uint64_t offset, std::uint64_t length) = 0;
  virtual Status Finish() = 0;
  /// Closes the connection at once, with a TCP reset if `reset`: for fault injection and for responses that cannot be
  /// completed.
  virtual void Abort(bool reset) = 0;
  virtual bool started() const = 0;
};

/// Runs on the connection's thread, once for each request. Gives a response before it returns.
using Handler = std::function<void(ServerRequest&, ServerResponse&)>;

/// Listens on an address and serves each connection on a thread. Limits the connections, the header bytes and the time
/// that a client may occupy a thread. At the limit of connections, a new one replaces the one that has waited longest
/// for a whole request. Thread-safe. Destruction (or Stop) closes the listener, fires the stop tokens of running
/// handlers and joins every thread.
class Server {
 public:
  struct Options {
    std::string listen = "127.0.0.1:0";  ///< host:port or [v6]:port; port 0 takes a free one
    /// Each has a thread. For one more, the server closes the connection that has waited longest; if none waits, it
    /// answers 503 to the new one.
    int max_connections = 512;
    /// The same limit for the connections of one peer address (IPv6: of one /64 network). 0: half of max_connections.
    /// Loopback addresses then have no limit, because a proxy or many programs of this machine may use them.
    int max_per_address = 0;
    std::uint64_t max_header_bytes = 64 * kKiB;
    Duration idle_timeout = std::chrono::seconds(75);    ///< the default of nginx
    Duration header_timeout = std::chrono::seconds(20);  ///< for a whole request head, from its first byte
    WaitLimits wait;                                     ///< for bodies of requests and for responses
    std::shared_ptr<const TlsIdentity> tls = {};         ///< encrypts all connections; null: none
    const Clock* clock = nullptr;                        ///< for all these times; null: the system clock
    Logger log;
  };
  /// Errors: kInvalidArgument if `listen` is no address; others if the system refuses it.
  static Result<std::unique_ptr<Server>> Start(Options options, Handler handler);
  ~Server();

  int port() const;
  std::string address() const;  ///< "127.0.0.1:39121"
  /// Accepts no more connections, waits up to `grace` for running handlers, then fires their stop tokens and closes
  /// their connections. Blocks until every thread has ended. Idempotent.
  void Stop(Duration grace);

 private:
  struct Rep;
  explicit Server(std::unique_ptr<Rep> rep);
  std::unique_ptr<Rep> rep_;
};

/// Parses and decodes `a=1&b=x%20y`, in order. A name without '=' has an empty value.
Result<std::vector<std::pair<std::string, std::string>>> ParseQuery(std::string_view query);
std::string_view ReasonPhrase(int status);

}  // namespace millrace::http
