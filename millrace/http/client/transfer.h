// One request on its way through libcurl. Internal to the client: everything here belongs to its event-loop thread.
#pragma once

#include <curl/curl.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "millrace/http/client/client.h"

namespace millrace::http {

/// A token bucket for one direction. Bytes are taken when they have moved, so the level may fall below zero by one
/// chunk; nothing moves until it is positive again.
class Bandwidth {
 public:
  explicit Bandwidth(std::uint64_t bytes_per_second);

  bool limited() const { return rate_ > 0; }
  /// May bytes move at `now`?
  bool Open(TimePoint now);
  void Take(std::size_t bytes) { level_ -= static_cast<double>(bytes); }
  /// When bytes may move again.
  TimePoint OpensAt(TimePoint now) const;

 private:
  const double rate_, burst_;  // bytes a second, bytes
  double level_;
  TimePoint filled_{};
};

/// What transfers share with the loop that runs them.
struct TransferContext {
  TimePoint now;           ///< of the present turn of the loop: callbacks need no better one
  std::uint64_t turn = 0;  ///< its number
  bool gave_way = false;   ///< some transfer gave way in this turn
  Bandwidth down, up;
  std::uint64_t bytes_sent = 0, bytes_received = 0;
};

/// The state of one request. Its address is known to libcurl: it never moves.
class Transfer {
 public:
  Transfer(Request request, BodyTarget target, Call call);
  ~Transfer();
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  /// Sets `easy` up for this request. The handle is lent until Release().
  void Prepare(CURL* easy, const Client::Options& options, CURLSH* share, TransferContext& context);
  CURL* Release();
  CURL* easy() const { return easy_; }

  /// A second one for the same request, without the completion.
  std::unique_ptr<Transfer> Twin() const;
  /// Of transfers that share `race` the one whose answer begins first goes on; another ends when its answer begins.
  void Join(Transfer** race) { race_ = race; }
  /// Has the answer begun?
  bool answered() const { return phase_ == Phase::kReceiving; }
  bool upload() const { return request_.upload; }
  bool hedge() const { return request_.hedge && request_.body_size() == 0; }
  /// From the request's last byte to the answer's first.
  Duration first_byte_after() const { return first_byte_ - waiting_since_; }
  void* owner = nullptr;  ///< whatever the loop finds it by

  const Call& call() const { return call_; }
  const std::string& url() const { return request_.url; }

  /// When the transfer has been idle for too long; nothing while that is not for the loop to judge (libcurl limits
  /// connecting; waiting for bandwidth is no fault of the other side).
  std::optional<TimePoint> IdleLimit(const Timeouts& timeouts) const;
  /// The error to give when IdleLimit has passed.
  Error IdleError(const Timeouts& timeouts) const;
  /// The bandwidth that ran out under the transfer, or nullptr while bytes may move.
  Bandwidth* waits_for() const { return waits_for_; }
  /// True if the transfer has received its share of a turn and left the rest to the next one. libcurl by itself reads
  /// one connection for as long as bytes keep coming, 25 MB at most, while the others wait.
  bool gave_way() const { return gave_way_; }
  /// Lets bytes move again.
  CURLcode Resume();

  /// What libcurl's verdict means.
  Result<Response> Finish(CURLcode code);
  /// An error about this request.
  Error Failure(Code code, std::string_view what) const;

 private:
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

  Request request_;
  const BodyTarget target_;
  const Call call_;

  TransferContext* context_ = nullptr;
  CURL* easy_ = nullptr;
  curl_slist* fields_ = nullptr;
  curl_slist* known_ = nullptr;  ///< addresses of names
  Phase phase_ = Phase::kConnecting;
  Transfer** race_ = nullptr;
  TimePoint waiting_since_{}, first_byte_{};
  TimePoint progress_{};            ///< when enough bytes to count had last moved
  std::size_t since_progress_ = 0;  ///< bytes that have moved since then
  Bandwidth* waits_for_ = nullptr;
  std::uint64_t turn_ = 0;      ///< the turn of the loop that bytes last came in
  std::size_t turn_bytes_ = 0;  ///< how many
  bool gave_way_ = false;
  std::size_t sent_ = 0, header_bytes_ = 0;
  Response response_;
  std::optional<Error> refusal_;  ///< why a callback stopped the transfer
  char reason_[CURL_ERROR_SIZE] = "";
};

}  // namespace millrace::http
