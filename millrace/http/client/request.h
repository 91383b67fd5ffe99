// A request of the client, where its response's body goes, and the response.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>

#include "millrace/base/bytes.h"
#include "millrace/base/clock.h"
#include "millrace/base/result.h"
#include "millrace/http/headers.h"

namespace millrace::http {

/// A request body that is not in memory.
class BodySource {
 public:
  virtual ~BodySource() = default;
  virtual std::uint64_t size() const = 0;
  /// Fills `into` with the bytes from `offset` on. Runs on an event-loop thread, whose other transfers wait meanwhile.
  /// An error ends the request with that error.
  virtual Status Read(std::uint64_t offset, MutableByteSpan into) = 0;
  /// Called on the event-loop thread when the connection has taken the first `end` bytes. Starts over after a retry.
  virtual void OnSent(std::uint64_t end) { (void)end; }
};

struct Request {
  std::string method = "GET";
  std::string url;  ///< absolute, percent-encoded
  Headers headers;
  /// The body. Borrowed until the completion has run.
  ByteSpan body;
  /// Replaces `body` unless null. Borrowed until the completion has run.
  BodySource* source = nullptr;
  std::uint64_t body_size() const { return source ? source->size() : body.size(); }
  /// If the response is much later than usual, sends the request once more on another connection and takes the response
  /// that begins first. Only for requests without a body and without effect. Client::Options::hedged_share limits it.
  bool hedge = false;
  bool upload = false;  ///< counts towards Client::LimitUploads
  /// Replaces Timeouts::first_byte and Timeouts::stall, for a server that works before it answers. Each byte ends the
  /// silence.
  std::optional<Duration> longest_silence;
};

/// Receives a response body as it arrives, on an event-loop thread, whose other transfers wait meanwhile.
class BodySink {
 public:
  virtual ~BodySink() = default;
  /// The headers of the response. Called once for each response with a body, before its first Take.
  virtual void Begin(const Headers& headers) { (void)headers; }
  /// The body's bytes from `offset` on, without gaps. An error ends the request with that error.
  virtual Status Take(std::uint64_t offset, ByteSpan bytes) = 0;
};

/// The destination of the body of a successful (2xx) response. With a sink: to the sink. Else with a non-empty `into`:
/// straight into it. A body longer than `sink_limit` or `into` fails with kCorrupt. With neither: into Response::body,
/// up to `max_collected`, as the bodies of all other responses.
struct BodyTarget {
  MutableByteSpan into;      ///< borrowed until the completion has run
  BodySink* sink = nullptr;  ///< borrowed until the completion has run
  std::uint64_t sink_limit = 0;
  std::uint64_t max_collected = 64 * kMiB;  ///< far above a page of a listing (1,000 keys of at most 1 KiB)
};

struct Response {
  int status = 0;
  Headers headers;
  std::string body;            ///< the collected body, see BodyTarget
  std::uint64_t received = 0;  ///< bytes of body, wherever they went
};

/// The limits of a call: a stop token and a deadline. A cancelled request completes soon with kCancelled; the client no
/// longer touches its buffers then.
struct Call {
  std::stop_token stop;
  Deadline deadline;
};

/// Receives the outcome of a request, once. Any status is a Response. An Error means that there was no whole response
/// (connection, time-out, cancelled, body cut short).
using Completion = std::move_only_function<void(Result<Response>)>;

}  // namespace millrace::http
