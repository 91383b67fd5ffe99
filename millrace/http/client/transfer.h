// One request on its way through libcurl. Internal to the client. Only the event-loop thread uses it.
#pragma once

#include <curl/curl.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "millrace/http/client/authorities.h"
#include "millrace/http/client/client.h"

namespace millrace::http {

/// A token bucket that limits the bytes of one direction. Bytes are taken after they have moved, so one chunk may bring
/// the level below zero. Then nothing moves until it is positive again.
class TokenBucket {
 public:
  /// 0: no limit.
  explicit TokenBucket(std::uint64_t bytes_per_second);

  bool limited() const { return rate_ > 0; }
  /// Returns whether bytes may move at `now`.
  bool Open(TimePoint now);
  void Take(std::size_t bytes) { level_ -= static_cast<double>(bytes); }
  /// Returns the time at which bytes may move again.
  TimePoint OpensAt(TimePoint now) const;

 private:
  const double rate_;   ///< bytes per second
  const double burst_;  ///< the highest level, bytes
  double level_;        ///< bytes that may move now
  TimePoint filled_{};
};

/// The state that the transfers of one loop share with it.
struct TransferContext {
  TimePoint now;           ///< when the current turn of the loop began; exact enough for callbacks
  std::uint64_t turn = 0;  ///< number of the current turn
  bool gave_way = false;   ///< whether some transfer gave way in this turn
  TokenBucket down, up;
  Authorities authorities;  ///< those that transfers trust
  std::uint64_t bytes_sent = 0, bytes_received = 0;
};

/// The state of one request. libcurl has its address, so it never moves.
class Transfer {
 public:
  Transfer(Request request, BodyTarget target, Call call);
  ~Transfer();
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  /// Sets `easy` up for this request. The transfer keeps the handle until Release().
  void Prepare(CURL* easy, const Client::Options& options, CURLSH* share, TransferContext& context);
  CURL* Release();
  CURL* easy() const { return easy_; }

  /// A second transfer of the same request, for hedging.
  std::unique_ptr<Transfer> MakeHedge() const;
  /// Of the transfers that share `race`, the first to receive a response wins and is written to it. The others end when
  /// their responses begin.
  void Join(Transfer** race) { race_ = race; }
  /// Returns whether the response has begun.
  bool answered() const { return phase_ == Phase::kReceiving; }
  bool upload() const { return request_.upload; }
  bool hedge() const { return request_.hedge && request_.body_size() == 0; }
  /// The time from the request's last byte to the response's first.
  Duration first_byte_after() const { return first_byte_ - waiting_since_; }
  void* owner = nullptr;  ///< the loop's own state for this transfer

  const Call& call() const { return call_; }
  const std::string& url() const { return request_.url; }

  /// Returns the time at which the transfer will have been idle for too long. Returns no value while it connects
  /// (libcurl limits that) or waits for bandwidth (not the server's fault).
  std::optional<TimePoint> IdleLimit(const Timeouts& timeouts) const;
  /// The error of a transfer whose IdleLimit has passed.
  Error IdleError(const Timeouts& timeouts) const;
  /// The bucket whose tokens ran out under this transfer; null while bytes may move.
  TokenBucket* waits_for() const { return waits_for_; }
  /// Returns whether the transfer has received its share of this turn and paused. Without shares, libcurl would read
  /// one connection as long as bytes come, up to 25 MB, while the others wait.
  bool gave_way() const { return gave_way_; }
  /// Ends the pause.
  CURLcode Resume();

  /// The outcome of the request when libcurl ended the transfer with `code`.
  Result<Response> Finish(CURLcode code);
  /// An error whose message names this request, without the URL's query.
  Error Failure(Code code, std::string_view what) const;

 private:
  bool MayExpectTls(CURLcode code) const;

  enum class Phase { kConnecting, kSending, kWaiting, kReceiving };

  static int OnConnected(void* self, char*, char*, int, int);
  static std::size_t OnSend(char* into, std::size_t size, std::size_t count, void* self);
  static int OnRewind(void* self, curl_off_t offset, int origin);
  static std::size_t OnHeader(char* line, std::size_t size, std::size_t count, void* self);
  static std::size_t OnBody(char* bytes, std::size_t size, std::size_t count, void* self);
  std::size_t ReceiveHeader(std::string_view line);
  std::size_t ReceiveBody(std::string_view bytes);
  void SetMethod();
  void Moved(std::size_t bytes);
  Duration Patience(const Timeouts& timeouts) const;

  Request request_;
  const BodyTarget target_;
  const Call call_;

  TransferContext* context_ = nullptr;
  CURL* easy_ = nullptr;
  curl_slist* fields_ = nullptr;
  curl_slist* known_ = nullptr;  ///< Client::Options::addresses for libcurl
  Phase phase_ = Phase::kConnecting;
  Transfer** race_ = nullptr;
  TimePoint waiting_since_{}, first_byte_{};
  TimePoint progress_{};            ///< when the last 4 KiB had moved
  std::size_t since_progress_ = 0;  ///< bytes since then
  TokenBucket* waits_for_ = nullptr;
  std::uint64_t turn_ = 0;      ///< the turn in which bytes last came
  std::size_t turn_bytes_ = 0;  ///< the bytes of that turn
  bool gave_way_ = false;
  std::size_t sent_ = 0, header_bytes_ = 0;
  Response response_;
  std::optional<Error> refusal_;  ///< the error with which a callback stopped the transfer
  char reason_[CURL_ERROR_SIZE] = "";
};

}  // namespace millrace::http
