#include "millrace/http/server/server_connection.h"

#include <algorithm>
#include <exception>

#include "millrace/base/text.h"

namespace millrace::http {
namespace {

/// The rest of an unread body is read and dropped up to this size. If more is left, the connection is closed.
constexpr std::uint64_t kDrainLimit = 256 * kKiB;  // more takes longer than a new connection
constexpr std::size_t kMaxChunkLine = 4 * kKiB;    // room for a signature of SigV4 in a chunk extension or trailer
constexpr int kMaxTrailers = 64;                   // bounds the work; S3 sends two

bool HasNoBody(int status) { return status < 200 || status == 204 || status == 304; }

class RequestView final : public ServerRequest {
 public:
  RequestView(const RequestHead& head, BodyReader& body, std::string_view peer, std::stop_token stop)
      : head_(head), body_(body), peer_(peer), stop_(std::move(stop)) {}

  std::string_view method() const override { return head_.method; }
  std::string_view target() const override { return head_.target; }
  std::string_view path() const override { return head_.path(); }
  std::string_view query() const override { return head_.query(); }
  const Headers& headers() const override { return head_.headers; }
  std::string_view peer() const override { return peer_; }
  std::optional<std::uint64_t> content_length() const override {
    if (head_.chunked) return std::nullopt;
    return head_.content_length.value_or(0);
  }
  Result<std::size_t> ReadBody(MutableByteSpan into) override { return body_.Read(into); }
  Result<std::string> ReadAllBody(std::uint64_t max_bytes) override {
    auto too_long = [&] {
      return Fail(Code::kResourceExhausted, "the request's body is longer than {} bytes", max_bytes);
    };
    if (content_length().value_or(0) > max_bytes) return too_long();
    std::string all;
    Buffer piece(64 * kKiB);
    while (std::size_t got = MR_TRY(body_.Read(piece.span()))) {
      if (got > max_bytes - all.size()) return too_long();
      all.append(AsText(piece.span().first(got)));
    }
    return all;
  }
  std::stop_token stop() const override { return stop_; }

 private:
  const RequestHead& head_;
  BodyReader& body_;
  std::string_view peer_;
  std::stop_token stop_;
};

class ResponseWriter final : public ServerResponse {
 public:
  ResponseWriter(Socket& socket, const RequestHead& head, const BodyReader& body, const std::atomic<bool>& draining)
      : socket_(socket), head_(head), body_(body), draining_(draining) {}

  Status Send(int status, Headers headers, ByteSpan body) override {
    std::string head = MR_TRY(Begin(status, std::move(headers), body.size()));
    bool silent = head_.method == "HEAD" || HasNoBody(status);
    if (!silent) sent_ = body.size();
    finished_ = true;
    return Guard(socket_.Send(AsBytes(head), silent ? ByteSpan() : body, false));
  }

  Status Start(int status, Headers headers, std::optional<std::uint64_t> content_length) override {
    std::string head = MR_TRY(Begin(status, std::move(headers), content_length));
    bool more = !silent_ && content_length.value_or(0) > 0;
    return Guard(socket_.Send(AsBytes(head), {}, more));
  }

  Status Write(ByteSpan bytes) override {
    MR_TRY(Account(bytes.size()));
    if (silent_ || bytes.empty()) return {};
    if (!chunked_) return Guard(socket_.Send(bytes, {}, false));
    std::string size = fmt::format("{:x}\r\n", bytes.size());
    MR_TRY(Guard(socket_.Send(AsBytes(size), bytes, true)));
    return Guard(socket_.Send(AsBytes("\r\n"), {}, false));
  }

  Status WriteFile(int fd, std::uint64_t offset, std::uint64_t length) override {
    MR_TRY(Account(length));
    if (silent_ || length == 0) return {};
    if (!chunked_) return Guard(socket_.SendFile(fd, offset, length));
    std::string size = fmt::format("{:x}\r\n", length);
    MR_TRY(Guard(socket_.Send(AsBytes(size), {}, true)));
    MR_TRY(Guard(socket_.SendFile(fd, offset, length)));
    return Guard(socket_.Send(AsBytes("\r\n"), {}, false));
  }

  Status Finish() override {
    if (!started_ || finished_) return Fail(Code::kInternal, "Finish without Start");
    if (announced_ && !silent_ && sent_ != *announced_) {
      Abort(false);
      return Fail(Code::kInternal, "the answer has {} bytes where {} were announced", sent_, *announced_);
    }
    finished_ = true;
    return chunked_ && !silent_ ? Guard(socket_.Send(AsBytes("0\r\n\r\n"), {}, false)) : Status();
  }

  void Abort(bool reset) override {
    started_ = failed_ = true;
    if (reset) socket_.Reset();
  }

  bool started() const override { return started_; }
  bool finished() const { return finished_; }
  bool failed() const { return failed_; }
  bool keep_alive() const { return keep_alive_; }

 private:
  /// Returns the text of the head. Drops framing fields from `headers`, because this class alone does the framing.
  Result<std::string> Begin(int status, Headers headers, std::optional<std::uint64_t> length) {
    if (started_) return Fail(Code::kInternal, "the request was answered before");
    started_ = true;
    announced_ = length;
    silent_ = head_.method == "HEAD" || HasNoBody(status);
    chunked_ = !length && head_.minor_version == 1;
    keep_alive_ = head_.keep_alive && !draining_ && body_.Drainable() && (length || chunked_ || silent_) &&
                  ToLower(headers.Get("Connection")) != "close";

    std::string text = fmt::format("HTTP/1.1 {} {}\r\n", status, ReasonPhrase(status));
    for (std::string_view framing : {"Connection", "Content-Length", "Transfer-Encoding"}) headers.Remove(framing);
    if (!headers.Has("Date")) headers.Set("Date", FormatHttpDate(SystemClock().Wall()));
    for (const auto& [name, value] : headers) {
      text.append(name).append(": ");
      for (char c : value) text += static_cast<unsigned char>(c) < 0x20 && c != '\t' ? ' ' : c;  // no field of its own
      text.append("\r\n");
    }
    if (length && !HasNoBody(status)) {
      text += fmt::format("Content-Length: {}\r\n", *length);
    } else if (chunked_ && !HasNoBody(status)) {
      text += "Transfer-Encoding: chunked\r\n";
    }
    if (!keep_alive_) {
      text += "Connection: close\r\n";
    } else if (head_.minor_version == 0) {
      text += "Connection: keep-alive\r\n";
    }
    return text + "\r\n";
  }

  Status Account(std::uint64_t bytes) {
    if (!started_ || finished_ || failed_) return Fail(Code::kInternal, "Write without Start");
    if (announced_ && !silent_ && bytes > *announced_ - sent_) {
      return Fail(Code::kInternal, "the answer is longer than the {} bytes announced", *announced_);
    }
    sent_ += bytes;
    return {};
  }

  Status Guard(Status status) {
    if (!status) failed_ = true;
    return status;
  }

  Socket& socket_;
  const RequestHead& head_;
  const BodyReader& body_;
  const std::atomic<bool>& draining_;
  bool started_ = false, finished_ = false, failed_ = false, keep_alive_ = false;
  bool silent_ = false;  ///< the answer has no body on the wire
  bool chunked_ = false;
  std::optional<std::uint64_t> announced_;
  std::uint64_t sent_ = 0;
};

}  // namespace

Result<bool> InputBuffer::Fill(std::size_t limit, std::optional<TimePoint> deadline) {
  if (begin_ == end_) begin_ = end_ = 0;
  if (end_ == bytes_.size() && begin_ > 0) {
    std::memmove(bytes_.data(), bytes_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  if (end_ == bytes_.size()) {
    if (bytes_.size() >= limit) return Fail(Code::kResourceExhausted, "longer than {} bytes", limit);
    Buffer larger(std::min(limit, bytes_.size() * 2));
    std::memcpy(larger.data(), bytes_.data(), end_);
    bytes_ = std::move(larger);
  }
  const MutableByteSpan free = bytes_.span().subspan(end_);
  std::size_t got = MR_TRY(deadline ? socket_.Receive(free, *deadline) : socket_.Receive(free));
  end_ += got;
  return got > 0;
}

Result<std::size_t> InputBuffer::Read(MutableByteSpan into) {
  if (begin_ == end_) return socket_.Receive(into);
  std::size_t count = std::min(into.size(), end_ - begin_);
  std::memcpy(into.data(), bytes_.data() + begin_, count);
  begin_ += count;
  return count;
}

Result<std::string> InputBuffer::ReadLine(std::size_t limit) {
  for (;;) {
    std::string_view waiting = unread();
    std::size_t end = waiting.find_first_of("\r\n");
    if (end != std::string_view::npos && waiting[end] == '\n') end = std::string_view::npos - 1;  // a bare LF
    if (end == std::string_view::npos - 1 ||
        (end < waiting.size() && end + 1 < waiting.size() && waiting[end + 1] != '\n')) {
      return Fail(Code::kInvalidArgument, "lines must end with CRLF");
    }
    if (end < waiting.size() && end + 1 < waiting.size()) {
      std::string line(waiting.substr(0, end));
      Consume(end + 2);
      return line;
    }
    if (waiting.size() > limit) {
      return Fail(Code::kInvalidArgument,
                  "a line of the chunked coding is too long; expected a size or a field of a trailer");
    }
    if (!MR_TRY(Fill(std::max<std::size_t>(limit * 2, 16 * kKiB)))) {
      return Fail(Code::kUnavailable, "the client is gone");
    }
  }
}

BodyReader::BodyReader(Socket& socket, InputBuffer& input, const RequestHead& head)
    : socket_(socket),
      input_(input),
      chunked_(head.chunked),
      left_(head.content_length.value_or(0)),
      continue_pending_(head.expect_continue) {
  done_ = !chunked_ && left_ == 0;
}

Result<std::size_t> BodyReader::Read(MutableByteSpan into) {
  if (broken_)
    return Fail(Code::kInvalidArgument, "the request's body is broken; repeat the request on a new connection");
  if (done_ || into.empty()) return std::size_t{0};
  if (continue_pending_) {
    continue_pending_ = false;
    if (input_.unread().empty()) MR_TRY(socket_.Send(AsBytes("HTTP/1.1 100 Continue\r\n\r\n"), {}, false));
  }
  auto got = ReadSome(into);
  if (!got) broken_ = true;
  return got;
}

Result<std::size_t> BodyReader::ReadSome(MutableByteSpan into) {
  if (chunked_ && left_ == 0) {
    MR_TRY(NextChunk());
    if (done_) return std::size_t{0};
  }
  std::size_t got = MR_TRY(input_.Read(into.first(std::min<std::uint64_t>(into.size(), left_))));
  if (got == 0) return Fail(Code::kUnavailable, "the client left in the middle of a body");
  left_ -= got;
  if (left_ == 0) {
    if (chunked_) {
      MR_TRY(EndOfChunk());
    } else {
      done_ = true;
    }
  }
  return got;
}

Status BodyReader::NextChunk() {
  std::string line = MR_TRY(input_.ReadLine(kMaxChunkLine));
  auto size = ParseChunkSize(line);
  if (!size) return Fail(Code::kInvalidArgument, "malformed chunk size; expected hexadecimal digits");
  first_chunk_ = false;
  left_ = *size;
  if (left_ > 0) return {};
  for (int trailers = 0; trailers <= kMaxTrailers; ++trailers) {
    std::string trailer = MR_TRY(input_.ReadLine(kMaxChunkLine));
    if (trailer.empty()) {
      done_ = true;
      return {};
    }
    if (!IsFieldLine(trailer))
      return Fail(Code::kInvalidArgument, "malformed trailer field; expected a name, a colon and a value");
  }
  return Fail(Code::kInvalidArgument, "too many trailer fields; at most {} are allowed", kMaxTrailers);
}

Status BodyReader::EndOfChunk() {
  std::string empty = MR_TRY(input_.ReadLine(kMaxChunkLine));
  if (!empty.empty())
    return Fail(Code::kInvalidArgument, "a chunk is longer than its size; expected the end of the line behind it");
  return {};
}

bool BodyReader::Drainable() const {
  if (done_) return true;
  return !broken_ && !continue_pending_ && (chunked_ || left_ <= kDrainLimit);
}

bool BodyReader::Drain() {
  if (!Drainable()) return false;
  Buffer scratch(done_ ? 0 : 32 * kKiB);
  for (std::uint64_t read = 0; !done_ && read <= kDrainLimit;) {
    auto got = Read(scratch.span());
    if (!got) return false;
    read += *got;
  }
  return done_;
}

ServerConnection::ServerConnection(UniqueFd fd, const Server::Options& options, const Clock& clock,
                                   const Handler& handler, const std::atomic<bool>& draining)
    : options_(options),
      handler_(handler),
      draining_(draining),
      socket_(std::move(fd), options.wait, clock),
      input_(socket_),
      peer_(PeerName(socket_.fd())),
      waiting_since_(clock.Now().time_since_epoch().count()) {}

void ServerConnection::ServeRequests() {
  if (options_.tls) {
    // The handshake counts as a part of the first head.
    auto started = socket_.StartTls(*options_.tls, socket_.clock().Now() + options_.header_timeout);
    if (!started) {
      options_.log.Debug("no TLS with a client", {{"peer", peer_}, {"error", started.error()}});
      return;
    }
  }
  Next next = Next::kRequest;
  while (next == Next::kRequest && !draining_) next = ServeOne();
  if (next == Next::kLinger && !stop_.stop_requested()) return socket_.Linger();
  socket_.EndTls();
}

bool ServerConnection::CutIfWaiting() {
  State expected = State::kWaiting;
  if (!state_.compare_exchange_strong(expected, State::kCut)) return false;
  Cut();
  return true;
}

void ServerConnection::BeginWaiting() {
  waiting_since_ = socket_.clock().Now().time_since_epoch().count();
  state_ = State::kWaiting;
}

/// The text of the next head; no value if the client leaves between requests.
Result<std::optional<std::string>> ServerConnection::ReadHead() {
  TimePoint deadline = socket_.clock().Now() + options_.idle_timeout;
  bool begun = false;
  for (std::size_t searched = 0;;) {
    while (input_.unread().starts_with("\r\n")) input_.Consume(2);
    std::string_view waiting = input_.unread();
    if (!waiting.empty() && !begun) {
      begun = true;
      deadline = socket_.clock().Now() + options_.header_timeout;
    }
    // A client that begins a TLS handshake waits for an answer in TLS. The end of the connection tells it at once.
    constexpr char kTlsHandshake = 0x16;
    if (waiting.starts_with(kTlsHandshake))
      return Fail(Code::kInvalidArgument, "the client speaks TLS; use a URL that begins with http://");
    std::size_t end = waiting.find("\r\n\r\n", searched);
    if (end != std::string_view::npos) {
      std::string head(waiting.substr(0, end + 4));
      input_.Consume(head.size());
      return head;
    }
    searched = waiting.size() < 3 ? 0 : waiting.size() - 3;
    if (waiting.size() >= options_.max_header_bytes) {
      return Fail(Code::kResourceExhausted, "the request's head is longer than {} bytes", options_.max_header_bytes);
    }
    auto filled = input_.Fill(options_.max_header_bytes, deadline);
    if (!begun && (!filled || !*filled) && input_.unread().empty()) return std::nullopt;
    if (!filled) return Fail(filled.error());
    if (!*filled) return Fail(Code::kUnavailable, "the client is gone");
  }
}

ServerConnection::Next ServerConnection::ServeOne() {
  auto text = ReadHead();
  if (!text) {
    if (text.error().code() == Code::kResourceExhausted) Refuse({431, "the request's head is too long"});
    if (text.error().code() == Code::kDeadlineExceeded) Refuse({408, "the request's head took too long"});
    return Next::kLinger;
  }
  if (!*text) return Next::kClose;
  State expected = State::kWaiting;
  if (!state_.compare_exchange_strong(expected, State::kBusy)) return Next::kClose;
  socket_.StartRequest();
  auto head = ParseRequestHead(**text);
  if (!head) {
    options_.log.Debug("request refused", {{"peer", peer_}, {"reason", head.error().reason}});
    Refuse(head.error());
    return Next::kLinger;
  }
  return Answer(*head);
}

ServerConnection::Next ServerConnection::Answer(const RequestHead& head) {
  BodyReader body(socket_, input_, head);
  RequestView request(head, body, peer_, stop_.get_token());
  ResponseWriter response(socket_, head, body, draining_);
  try {
    handler_(request, response);
  } catch (const std::exception& error) {
    options_.log.Error("a request handler failed", {{"target", head.target}, {"error", error.what()}});
  }
  if (!response.started()) (void)response.Send(500, {}, AsBytes("internal error\n"));
  BeginWaiting();
  if (response.failed() || !response.finished()) return Next::kClose;
  if (!response.keep_alive()) return Next::kLinger;
  return body.Drain() ? Next::kRequest : Next::kLinger;
}

void ServerConnection::Refuse(const Refusal& refusal) {
  std::string body = refusal.reason + "\n";
  std::string answer = fmt::format(
      "HTTP/1.1 {} {}\r\nDate: {}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{}",
      refusal.status, ReasonPhrase(refusal.status), FormatHttpDate(SystemClock().Wall()), body.size(), body);
  (void)socket_.Send(AsBytes(answer), {}, false);
}

}  // namespace millrace::http
