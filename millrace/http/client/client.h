// The HTTP client that every request to a store goes through: one event loop, pooled keep-alive connections.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/base/clock.h"
#include "millrace/base/log.h"
#include "millrace/base/result.h"

namespace millrace::http {

/// Header fields in order; names compare without case.
class Headers {
 public:
  void Set(std::string_view name, std::string value);  ///< replaces
  void Add(std::string_view name, std::string value);
  /// The first value, or "" when absent.
  std::string_view Get(std::string_view name) const;
  bool Has(std::string_view name) const;
  void Remove(std::string_view name);
  auto begin() const { return fields_.begin(); }
  auto end() const { return fields_.end(); }
  std::size_t size() const { return fields_.size(); }

 private:
  std::vector<std::pair<std::string, std::string>> fields_;
};

/// A body that is not in memory. Read runs on an event-loop thread: nothing else of that loop moves meanwhile.
class BodySource {
 public:
  virtual ~BodySource() = default;
  virtual std::uint64_t size() const = 0;
  /// Fills `into` with the bytes from `offset` on. An error ends the request with it.
  virtual Status Read(std::uint64_t offset, MutableByteSpan into) = 0;
};

struct Request {
  std::string method = "GET";
  std::string url;  ///< absolute, percent-encoded
  Headers headers;
  /// Borrowed until the completion has run, as is `source`, which goes before it.
  ByteSpan body;
  BodySource* source = nullptr;
  std::uint64_t body_size() const { return source ? source->size() : body.size(); }
  /// When the answer is much later than usual, send the request once more on another connection and take the answer
  /// that begins first. For requests without a body and without effect; see Options::hedged_share.
  bool hedge = false;
  bool upload = false;  ///< counts for LimitUploads
};

/// Takes a body as it arrives, on an event-loop thread: nothing else of that loop moves meanwhile.
class BodySink {
 public:
  virtual ~BodySink() = default;
  /// The headers of the answer whose body follows. Once before the first Take of each attempt.
  virtual void Begin(const Headers& headers) { (void)headers; }
  /// The body's bytes from `offset` on, without gaps. An error ends the request with it.
  virtual Status Take(std::uint64_t offset, ByteSpan bytes) = 0;
};

/// Where a successful (2xx) body goes: to the sink if there is one; else the first `into.size()` bytes land there
/// without another copy. A body longer than `into` or `sink_limit` fails with kCorrupt. With neither, the body is
/// collected in Response::body, up to `max_collected`. Bodies of other statuses are always collected.
struct BodyTarget {
  MutableByteSpan into;      ///< borrowed until the completion has run
  BodySink* sink = nullptr;  ///< likewise
  std::uint64_t sink_limit = 0;
  std::uint64_t max_collected = 64 * kMiB;
};

struct Response {
  int status = 0;
  Headers headers;
  std::string body;            ///< what was collected
  std::uint64_t received = 0;  ///< bytes of body, wherever they went
};

/// What a request may cost. A request that goes over fails with kDeadlineExceeded or kUnavailable.
struct Timeouts {
  Duration connect = std::chrono::seconds(5);
  Duration first_byte = std::chrono::seconds(30);  ///< from the request's last byte to the status line
  /// Fewer than 4 KiB moved in either direction in such a time: a server that drips is as good as one that hangs.
  Duration stall = std::chrono::seconds(20);
};

/// Who waits, and until when. A cancelled call completes soon with kCancelled; its buffers are then no longer touched.
struct Call {
  std::stop_token stop;
  Deadline deadline;
};

/// Any status is a Response; an Error means there was none (connection, time-out, cancelled, body cut short).
using Completion = std::move_only_function<void(Result<Response>)>;

/// Which proxies requests go through. Empty: none.
struct Proxies {
  std::string http, https;  ///< URLs ("http://host:port"), by the scheme of the request
  std::string except;       ///< hosts, domains and networks that are reached without, separated by commas; "*": all
  /// From HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY, or their spellings in lower case, which go first.
  static Proxies FromEnvironment(const std::function<std::optional<std::string>(const char*)>& getenv);
};

/// Thread-safe. Completions run on one of the client's event-loop threads: they must not block. Destruction cancels
/// what is in flight, runs the completions and joins the loops.
class Client {
 public:
  struct Options {
    int max_connections = 128;  ///< beyond: requests queue in order
    int max_connections_per_host = 128;
    /// Event-loop threads, among which requests and connections are divided. 0: as many as there are cores, but 4 at
    /// most, and each with 8 connections at least. One when the bandwidth is limited.
    int loops = 0;
    Timeouts timeouts;
    std::string ca_bundle;  ///< path; empty: the system's
    bool verify_tls = true;
    Proxies proxies;  ///< the environment's are not looked at
    /// Of "host:port": addresses to use instead of the resolver's. A new connection takes one of a name's addresses at
    /// random, and another one when nobody answers there.
    std::map<std::string, std::vector<std::string>> addresses;
    std::string user_agent = "millrace";
    double hedged_share = 0.05;              ///< of the requests that allow it, at most so many are sent a second time
    std::uint64_t max_bytes_per_second = 0;  ///< over all requests, each way; 0: no limit
    Logger log;
  };
  explicit Client(Options options);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  void Send(Request request, BodyTarget target, Call call, Completion done);
  /// Blocking form; not for the event-loop thread.
  Result<Response> Send(Request request, BodyTarget target = {}, Call call = {});

  /// From now on at most so many requests are under way (and never more than Options::max_connections, nor fewer than
  /// one for each loop): what is under way goes on, what comes waits. Any thread.
  void LimitActive(int most);
  /// Likewise of uploads; others pass those that wait.
  void LimitUploads(int most);

  struct Stats {
    std::uint64_t requests = 0, connections_opened = 0, bytes_sent = 0, bytes_received = 0;
    std::uint64_t hedged = 0;  ///< requests sent a second time
    int in_flight = 0;
    int most_active = 0;  ///< see LimitActive
  };
  Stats stats() const;

 private:
  class Loop;
  Loop& Idlest() const;
  std::vector<std::unique_ptr<Loop>> loops_;
};

}  // namespace millrace::http
