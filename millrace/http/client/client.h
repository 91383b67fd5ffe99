// The HTTP client that sends every request to a store: event loops over libcurl with pooled keep-alive connections.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/log.h"
#include "millrace/base/result.h"
#include "millrace/http/client/request.h"

namespace millrace::http {

/// Empty: no proxies.
struct Proxies {
  std::string http, https;  ///< URLs ("http://host:port"), by the scheme of the request
  std::string except;       ///< hosts, domains and networks reached without a proxy, separated by commas; "*": all
  /// Reads HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY. The spellings in lower case take precedence.
  static Proxies FromEnvironment(const std::function<std::optional<std::string>(const char*)>& getenv);
};

/// Limits on the phases of a request. A request that exceeds one fails with kUnavailable.
struct Timeouts {
  Duration connect = std::chrono::seconds(5);
  Duration first_byte = std::chrono::seconds(30);  ///< from the request's last byte to the status line
  /// The longest time in which fewer than 4 KiB move in either direction. A server that drips bytes is no better than
  /// one that hangs.
  Duration stall = std::chrono::seconds(20);
};

/// Sends HTTP/1.1 requests. Thread-safe. Completions run on an event-loop thread of the client and must not block.
/// Destruction cancels the requests in flight, runs their completions and joins the threads.
class Client {
 public:
  struct Options {
    int max_connections = 128;  ///< further requests wait in order
    int max_connections_per_host = 128;
    /// Event-loop threads, which share the requests and connections. 0: one for each core, but at most 4, and at most
    /// one for every 8 connections. A limited bandwidth has one thread.
    int loops = 0;
    Timeouts timeouts;
    std::string ca_bundle;  ///< a path; empty: Authorities::OfSystem() of the process's environment
    bool verify_tls = true;
    std::string client_certificate, client_key;  ///< paths of PEM files of the client's identity; empty: none
    Proxies proxies;                             ///< the client does not read the environment
    /// Replaces the resolver for these "host:port". A new connection takes one of a name's addresses at random, and
    /// another one if nobody answers there.
    std::map<std::string, std::vector<std::string>> addresses;
    /// The largest share of the requests with Request::hedge that are sent a second time. 0.05: the additional load
    /// that "The Tail at Scale" (Dean and Barroso, 2013) allows, which is 5 %.
    double hedged_share = 0.05;
    std::uint64_t max_bytes_per_second = 0;  ///< of all requests together, in each direction; 0: no limit
    Logger log;
  };
  explicit Client(Options options);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  /// Returns at once. `done` runs once, on an event-loop thread.
  void Send(Request request, BodyTarget target, Call call, Completion done);
  /// Blocks until the request is complete. Never call it on an event-loop thread.
  Result<Response> Send(Request request, BodyTarget target = {}, Call call = {});

  /// Limits the requests under way from now on, within one for each loop and Options::max_connections. Requests that
  /// are under way continue; later ones wait.
  void LimitActive(int most);
  /// Limits the uploads under way in the same manner. Other requests overtake the uploads that wait.
  void LimitUploads(int most);

  struct Stats {
    std::uint64_t requests = 0, connections_opened = 0, bytes_sent = 0, bytes_received = 0;
    std::uint64_t hedged = 0;  ///< requests sent a second time
    int in_flight = 0;
    int most_active = 0;  ///< see LimitActive
  };
  Stats stats() const;

 private:
  class EventLoop;
  EventLoop& Idlest() const;
  std::vector<std::unique_ptr<EventLoop>> loops_;
};

}  // namespace millrace::http
