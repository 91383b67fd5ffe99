#include "millrace/http/client/transfer.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <utility>

#include "millrace/base/text.h"

namespace millrace::http {
namespace {

constexpr long kReceiveBuffer = 256 * kKiB;  // stays in the cache of a core until the bytes are copied
constexpr long kSendBuffer = 256 * kKiB;     // as above
/// The share of one transfer in a turn of the loop: two receive buffers. It keeps many MD5 streams fed, see
/// docs/benchmarks/transfer.md, "Downloads verified by MD5".
constexpr std::size_t kTurnBytes = 512 * kKiB;
constexpr std::size_t kMaxHeaderBytes = 256 * kKiB;  // far above those of S3, a few KiB; bounds the memory
constexpr std::size_t kLeastProgress = 4 * kKiB;     // Timeouts::stall promises it
constexpr std::uint64_t kMaxReserve = kMiB;  // Content-Length may lie: more is allocated only when bytes have come
constexpr std::string_view kNoAuthorities =
    "; this system has no certificates of authorities at a known path: install its package ca-certificates, or name a "
    "PEM file of them with --ca-bundle or SSL_CERT_FILE";

long Milliseconds(Duration duration) {
  return static_cast<long>(std::chrono::ceil<std::chrono::milliseconds>(duration).count());
}

Code CodeOf(CURLcode code) {
  switch (code) {
    case CURLE_URL_MALFORMAT:
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_BAD_FUNCTION_ARGUMENT:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_ISSUER_ERROR:
      return Code::kInvalidArgument;
    case CURLE_OUT_OF_MEMORY:
      return Code::kResourceExhausted;
    default:
      return Code::kUnavailable;
  }
}

std::string_view AdviceFor(CURLcode code, const Authorities& trusted) {
  switch (code) {
    case CURLE_COULDNT_RESOLVE_HOST:
      return "; check the endpoint's name and this machine's resolver";
    case CURLE_COULDNT_RESOLVE_PROXY:
      return "; check the proxy's name in HTTPS_PROXY or HTTP_PROXY; NO_PROXY names hosts that need no proxy";
    case CURLE_SSL_CONNECT_ERROR:
      return "; check that the server speaks https: the URL of one that speaks http begins with http://";
    case CURLE_COULDNT_CONNECT:
      return "; check that the endpoint's address and port are right and that it is running";
    case CURLE_PEER_FAILED_VERIFICATION:
      if (trusted.empty()) return kNoAuthorities;
      return "; if the server's certificate is from a private authority, name it: of a store with --ca-bundle or "
             "AWS_CA_BUNDLE, of a cluster in the kubeconfig";
    case CURLE_SSL_CACERT_BADFILE:
      if (trusted.empty()) return kNoAuthorities;
      return "; check the file given by --ca-bundle, AWS_CA_BUNDLE or SSL_CERT_FILE";
    default:
      return "";
  }
}

}  // namespace

TokenBucket::TokenBucket(std::uint64_t bytes_per_second)
    : rate_(static_cast<double>(bytes_per_second)), burst_(rate_ / 10), level_(burst_) {}

bool TokenBucket::Open(TimePoint now) {
  if (!limited()) return true;
  if (now > filled_) {
    std::chrono::duration<double> since = now - filled_;
    level_ = std::min(burst_, level_ + rate_ * since.count());
    filled_ = now;
  }
  return level_ > 0;
}

TimePoint TokenBucket::OpensAt(TimePoint now) const {
  if (!limited() || level_ > 0) return now;
  return filled_ + std::chrono::ceil<Duration>(std::chrono::duration<double>((1 - level_) / rate_));
}

Transfer::Transfer(Request request, BodyTarget target, Call call)
    : request_(std::move(request)), target_(target), call_(std::move(call)) {}

std::unique_ptr<Transfer> Transfer::MakeHedge() const { return std::make_unique<Transfer>(request_, target_, call_); }

Transfer::~Transfer() {
  curl_slist_free_all(fields_);
  curl_slist_free_all(known_);
}

void Transfer::Prepare(CURL* easy, const Client::Options& options, CURLSH* share, TransferContext& context) {
  easy_ = easy;
  context_ = &context;
  progress_ = context.now;
  curl_easy_setopt(easy, CURLOPT_SHARE, share);
  curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, reason_);
  curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(easy, CURLOPT_URL, request_.url.c_str());
  curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(easy, CURLOPT_PATH_AS_IS, 1L);  // keys may well contain "/../"
  curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  curl_easy_setopt(easy, CURLOPT_HTTP_CONTENT_DECODING, 0L);
  curl_easy_setopt(easy, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
  curl_easy_setopt(easy, CURLOPT_USERAGENT, "millrace");
  curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, Milliseconds(options.timeouts.connect));
  curl_easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
  // Each connection resolves the name again and takes an address at random, so that all addresses of a service are
  // used. libcurl's cache would lead every connection of a minute to the same address.
  curl_easy_setopt(easy, CURLOPT_DNS_SHUFFLE_ADDRESSES, 1L);
  curl_easy_setopt(easy, CURLOPT_DNS_CACHE_TIMEOUT, 0L);
  for (const auto& [name, addresses] : options.addresses) {
    known_ = curl_slist_append(known_, fmt::format("{}:{}", name, fmt::join(addresses, ",")).c_str());
  }
  if (known_) curl_easy_setopt(easy, CURLOPT_RESOLVE, known_);
  curl_easy_setopt(easy, CURLOPT_BUFFERSIZE, kReceiveBuffer);
  curl_easy_setopt(easy, CURLOPT_UPLOAD_BUFFERSIZE, kSendBuffer);
  const Proxies& proxies = options.proxies;
  curl_easy_setopt(easy, CURLOPT_PROXY, (request_.url.starts_with("https:") ? proxies.https : proxies.http).c_str());
  curl_easy_setopt(easy, CURLOPT_NOPROXY, proxies.except.c_str());
  if (const Authorities& trusted = context.authorities; !trusted.empty()) {
    curl_easy_setopt(easy, CURLOPT_CAINFO, trusted.file.empty() ? nullptr : trusted.file.c_str());
    if (!trusted.folder.empty()) curl_easy_setopt(easy, CURLOPT_CAPATH, trusted.folder.c_str());
  }
  if (!options.client_certificate.empty()) {
    curl_easy_setopt(easy, CURLOPT_SSLCERT, options.client_certificate.c_str());
    curl_easy_setopt(easy, CURLOPT_SSLKEY, options.client_key.c_str());
  }
  if (!options.verify_tls) {
    curl_easy_setopt(easy, CURLOPT_SSL_VERIFYPEER, 0L);
    curl_easy_setopt(easy, CURLOPT_SSL_VERIFYHOST, 0L);
  }
  curl_easy_setopt(easy, CURLOPT_PREREQFUNCTION, OnConnected);
  curl_easy_setopt(easy, CURLOPT_PREREQDATA, this);
  curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, OnHeader);
  curl_easy_setopt(easy, CURLOPT_HEADERDATA, this);
  curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, OnBody);
  curl_easy_setopt(easy, CURLOPT_WRITEDATA, this);
  SetMethod();
  for (const auto& [name, value] : request_.headers) {
    // libcurl's spelling of a field without a value is "name;"; "name:" would drop the field.
    fields_ = curl_slist_append(fields_, (value.empty() ? name + ";" : name + ": " + value).c_str());
  }
  for (const char* unwanted : {"Accept", "Expect"}) {  // waiting for 100 Continue costs a round trip
    if (!request_.headers.Has(unwanted)) fields_ = curl_slist_append(fields_, fmt::format("{}:", unwanted).c_str());
  }
  curl_easy_setopt(easy, CURLOPT_HTTPHEADER, fields_);
}

void Transfer::SetMethod() {
  const std::string& method = request_.method;
  if (method == "HEAD") {
    curl_easy_setopt(easy_, CURLOPT_NOBODY, 1L);
  } else if (request_.body_size() > 0 || method == "PUT" || method == "POST") {
    curl_easy_setopt(easy_, CURLOPT_UPLOAD, 1L);
    curl_easy_setopt(easy_, CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(request_.body_size()));
    curl_easy_setopt(easy_, CURLOPT_READFUNCTION, OnSend);
    curl_easy_setopt(easy_, CURLOPT_READDATA, this);
    curl_easy_setopt(easy_, CURLOPT_SEEKFUNCTION, OnRewind);
    curl_easy_setopt(easy_, CURLOPT_SEEKDATA, this);
    curl_easy_setopt(easy_, CURLOPT_CUSTOMREQUEST, method.c_str());
  } else {
    curl_easy_setopt(easy_, CURLOPT_HTTPGET, 1L);
    if (method != "GET") curl_easy_setopt(easy_, CURLOPT_CUSTOMREQUEST, method.c_str());
  }
}

CURL* Transfer::Release() {
  curl_easy_reset(easy_);
  return std::exchange(easy_, nullptr);
}

std::optional<TimePoint> Transfer::IdleLimit(const Timeouts& timeouts) const {
  if (waits_for_ || phase_ == Phase::kConnecting) return std::nullopt;
  return progress_ + Patience(timeouts);
}

Duration Transfer::Patience(const Timeouts& timeouts) const {
  if (phase_ != Phase::kSending && request_.longest_silence) return *request_.longest_silence;
  return phase_ == Phase::kWaiting ? timeouts.first_byte : timeouts.stall;
}

Error Transfer::IdleError(const Timeouts& timeouts) const {
  const char* what = phase_ == Phase::kWaiting ? "no answer within {}" : "next to no byte moved for {}";
  return Failure(Code::kUnavailable, fmt::format(fmt::runtime(what), FormatDuration(Patience(timeouts))));
}

void Transfer::Moved(std::size_t bytes) {
  since_progress_ += bytes;
  if (since_progress_ < (request_.longest_silence ? 1 : kLeastProgress)) return;
  since_progress_ = 0;
  progress_ = context_->now;
}

CURLcode Transfer::Resume() {
  waits_for_ = nullptr;
  gave_way_ = false;
  progress_ = context_->now;
  return curl_easy_pause(easy_, CURLPAUSE_CONT);
}

Error Transfer::Failure(Code code, std::string_view what) const {
  // The query of a presigned URL is a secret.
  std::string_view url = std::string_view(request_.url).substr(0, request_.url.find('?'));
  return Error(code, fmt::format("{} {}: {}", request_.method, url, what));
}

Result<Response> Transfer::Finish(CURLcode code) {
  if (refusal_) return Fail(*refusal_);
  if (code == CURLE_OK) return std::move(response_);
  std::string_view reason = reason_[0] ? reason_ : curl_easy_strerror(code);
  // After connecting, an error is the other side's (a response that is not HTTP, say). A retry may succeed.
  bool connected = phase_ != Phase::kConnecting && code != CURLE_OUT_OF_MEMORY;
  // A server of http waits for the rest of what it takes for a request, so the handshake ends by a timeout.
  const bool in_handshake = !connected && code == CURLE_OPERATION_TIMEDOUT && reason.contains("SSL");
  const std::string_view advice =
      MayExpectTls(code) ? "; check that the server speaks http: the URL of one that speaks https begins with https://"
                         : AdviceFor(in_handshake ? CURLE_SSL_CONNECT_ERROR : code, context_->authorities);
  return Fail(Failure(connected ? Code::kUnavailable : CodeOf(code), fmt::format("{}{}", reason, advice)));
}

/// Returns whether the server ended a new connection of http as servers of https do: with a reset, without an answer,
/// or with a record of TLS.
bool Transfer::MayExpectTls(CURLcode code) const {
  long connects = 0;
  curl_easy_getinfo(easy_, CURLINFO_NUM_CONNECTS, &connects);
  const bool no_answer = code == CURLE_RECV_ERROR || code == CURLE_GOT_NOTHING || code == CURLE_UNSUPPORTED_PROTOCOL ||
                         code == CURLE_WEIRD_SERVER_REPLY;
  return no_answer && connects > 0 && response_.status == 0 && request_.url.starts_with("http://");
}

int Transfer::OnConnected(void* self, char*, char*, int, int) {
  auto& transfer = *static_cast<Transfer*>(self);
  transfer.phase_ = transfer.request_.body_size() == 0 ? Phase::kWaiting : Phase::kSending;
  transfer.progress_ = transfer.waiting_since_ = transfer.context_->now;
  return CURL_PREREQFUNC_OK;
}

std::size_t Transfer::OnSend(char* into, std::size_t size, std::size_t count, void* self) {
  auto& transfer = *static_cast<Transfer*>(self);
  TransferContext& context = *transfer.context_;
  const Request& request = transfer.request_;
  std::uint64_t left = request.body_size() - transfer.sent_;
  if (left > 0 && !context.up.Open(context.now)) {
    transfer.waits_for_ = &context.up;
    return CURL_READFUNC_PAUSE;
  }
  std::size_t bytes = std::min<std::uint64_t>(size * count, left);
  if (bytes > 0 && !request.source) std::memcpy(into, request.body.data() + transfer.sent_, bytes);
  if (bytes > 0 && request.source) {
    if (Status read = request.source->Read(transfer.sent_, AsWritableBytes({into, bytes})); !read) {
      transfer.refusal_ = read.error();
      return CURL_READFUNC_ABORT;
    }
  }
  transfer.sent_ += bytes;
  if (bytes > 0 && request.source) request.source->OnSent(transfer.sent_);
  transfer.Moved(bytes);
  context.up.Take(bytes);
  context.bytes_sent += bytes;
  if (bytes == left && transfer.phase_ == Phase::kSending) {
    transfer.phase_ = Phase::kWaiting;
    transfer.progress_ = context.now;
  }
  return bytes;
}

int Transfer::OnRewind(void* self, curl_off_t offset, int origin) {
  auto& transfer = *static_cast<Transfer*>(self);
  if (origin != SEEK_SET || offset < 0 || static_cast<std::uint64_t>(offset) > transfer.request_.body_size()) {
    return CURL_SEEKFUNC_CANTSEEK;
  }
  transfer.sent_ = static_cast<std::size_t>(offset);
  return CURL_SEEKFUNC_OK;
}

std::size_t Transfer::OnHeader(char* line, std::size_t size, std::size_t count, void* self) {
  return static_cast<Transfer*>(self)->ReceiveHeader({line, size * count});
}

std::size_t Transfer::ReceiveHeader(std::string_view line) {
  if (race_ && !*race_) *race_ = this;
  if (race_ && *race_ != this) return 0;  // another transfer has won
  if (std::exchange(phase_, Phase::kReceiving) != Phase::kReceiving) progress_ = first_byte_ = context_->now;
  Moved(line.size());
  header_bytes_ += line.size();
  if (header_bytes_ > kMaxHeaderBytes) {
    refusal_ = Failure(Code::kCorrupt, "the answer's header is longer than any sane one");
    return 0;
  }
  if (line.starts_with("HTTP/")) {  // the final response after an interim one
    response_ = {};
    std::size_t space = line.find(' ');
    if (space != line.npos) std::from_chars(line.data() + space + 1, line.data() + line.size(), response_.status);
    return line.size();
  }
  if (std::size_t colon = line.find(':'); colon != line.npos) {
    response_.headers.Add(Trim(line.substr(0, colon)), std::string(Trim(line.substr(colon + 1))));
  }
  return line.size();
}

std::size_t Transfer::OnBody(char* bytes, std::size_t size, std::size_t count, void* self) {
  return static_cast<Transfer*>(self)->ReceiveBody({bytes, size * count});
}

std::size_t Transfer::ReceiveBody(std::string_view bytes) {
  if (!context_->down.Open(context_->now)) {
    waits_for_ = &context_->down;
    return CURL_WRITEFUNC_PAUSE;
  }
  if (std::exchange(turn_, context_->turn) != context_->turn) turn_bytes_ = 0;
  if (turn_bytes_ >= kTurnBytes) {
    gave_way_ = context_->gave_way = true;
    return CURL_WRITEFUNC_PAUSE;
  }
  bool success = response_.status >= 200 && response_.status < 300;
  if (success && (target_.sink || !target_.into.empty())) {
    std::uint64_t limit = target_.sink ? target_.sink_limit : target_.into.size();
    if (bytes.size() > limit - response_.received) {
      refusal_ = Failure(Code::kCorrupt, fmt::format("the answer is longer than the {} bytes asked for", limit));
      return CURL_WRITEFUNC_ERROR;
    }
    if (target_.sink && response_.received == 0) target_.sink->Begin(response_.headers);
    if (!target_.sink) {
      std::memcpy(target_.into.data() + response_.received, bytes.data(), bytes.size());
    } else if (Status taken = target_.sink->Take(response_.received, AsBytes(bytes)); !taken) {
      refusal_ = taken.error();
      return CURL_WRITEFUNC_ERROR;
    }
  } else {
    if (bytes.size() > target_.max_collected - response_.body.size()) {
      refusal_ = Failure(Code::kResourceExhausted,
                         fmt::format("the answer is longer than the {} bytes allowed for it", target_.max_collected));
      return CURL_WRITEFUNC_ERROR;
    }
    if (response_.body.empty()) {
      curl_off_t length = -1;
      curl_easy_getinfo(easy_, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &length);
      if (length > 0) response_.body.reserve(std::min(static_cast<std::uint64_t>(length), kMaxReserve));
    }
    response_.body.append(bytes);
  }
  response_.received += bytes.size();
  turn_bytes_ += bytes.size();
  Moved(bytes.size());
  context_->down.Take(bytes.size());
  context_->bytes_received += bytes.size();
  return bytes.size();
}

}  // namespace millrace::http
