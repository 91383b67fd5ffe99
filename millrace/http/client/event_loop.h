// One event loop of the client. Internal to the client.
#pragma once

#include <curl/curl.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "millrace/base/files/files.h"
#include "millrace/base/threads/sync.h"
#include "millrace/http/client/client.h"
#include "millrace/http/client/hedge.h"
#include "millrace/http/client/transfer.h"

namespace millrace::http {

/// A thread that runs requests over libcurl's multi interface. Callers' threads reach it through the inbox only. All
/// other state belongs to the loop's thread.
///
///     Send ──▶ inbox ──▶ host queue ──▶ libcurl ──▶ completion
///     stop token ──▶ inbox ──────────▲ (cancels the request in any of these places)
class Client::EventLoop {
 public:
  explicit EventLoop(Options options);
  ~EventLoop();

  void Send(Request request, BodyTarget target, Call call, Completion done) MR_EXCLUDES(mutex_);
  Stats stats() const;
  int in_flight() const { return in_flight_.load(std::memory_order_relaxed); }
  /// Returns whether the caller is a completion on this loop's thread. Nothing moves here until it returns.
  bool is_own_thread() const { return thread_.get_id() == std::this_thread::get_id(); }
  void LimitActive(int most) {
    most_active_.store(std::clamp(most, 1, options_.max_connections), std::memory_order_relaxed);
    Wake();
  }
  void LimitUploads(int most) {
    most_uploads_.store(std::max(most, 1), std::memory_order_relaxed);
    Wake();
  }

 private:
  using Id = std::uint64_t;
  struct Canceller {
    EventLoop* loop;
    Id id;
    void operator()() const noexcept { loop->Cancel(id); }
  };
  /// The requests to one server that wait, in order.
  struct Host {
    std::deque<Id> queue, uploads;  ///< may contain flights that were cancelled meanwhile
    int active = 0;
  };
  /// A request from Send to completion.
  struct Flight {
    Flight(Request request, BodyTarget target, Call call, Completion done)
        : call(call),
          done(std::move(done)),
          transfer(std::make_unique<Transfer>(std::move(request), target, std::move(call))) {}
    /// The transfer whose response is taken; before any response, the first transfer.
    Transfer& leading() { return winner ? *winner : *transfer; }
    Id id = 0;
    const Call call;
    Completion done;
    std::unique_ptr<Transfer> transfer;
    std::unique_ptr<Transfer> second;  ///< the hedge, while both transfers may win
    Transfer* winner = nullptr;        ///< the transfer whose response began first
    TimePoint hedge_at = TimePoint::max();
    Host* host = nullptr;
    bool active = false;  ///< libcurl has its transfer
    std::optional<std::stop_callback<Canceller>> canceller;
  };

  std::unique_ptr<Flight> Enqueue(std::unique_ptr<Flight> flight) MR_EXCLUDES(mutex_);
  void Cancel(Id id) MR_EXCLUDES(mutex_);
  void Wake();

  void Run();
  int WaitTimeout() const;
  void WaitForEvents();
  bool DrainInbox() MR_EXCLUDES(mutex_);
  void Admit(std::unique_ptr<Flight> flight);
  std::deque<Id>* Next(Host& host);
  bool RoomForMore() const {
    return static_cast<int>(active_.size()) + doubled_ < most_active_.load(std::memory_order_relaxed);
  }
  void StartQueued();
  void Start(Flight& flight);
  void Begin(Flight& flight, Transfer& transfer);
  void Drop(Flight& flight, Transfer& transfer);
  void HedgeLate();
  void RunCurlTimer();
  void Reap();
  void Expire();
  void ResumePaused();
  void Complete(Id id, Result<Response> result);

  static int OnSocket(CURL*, curl_socket_t socket, int what, void* self, void* known);
  static int OnTimer(CURLM*, long milliseconds, void* self);

  // Constant after construction.
  const Options options_;
  UniqueFd epoll_, wake_;
  CURLM* multi_;
  CURLSH* share_;
  Clock& clock_ = SystemClock();

  // The inbox, guarded by mutex_.
  mutable Mutex mutex_;
  std::vector<std::unique_ptr<Flight>> arrived_ MR_GUARDED_BY(mutex_);
  std::vector<Id> cancelled_ MR_GUARDED_BY(mutex_);
  bool stopping_ MR_GUARDED_BY(mutex_) = false;
  Id next_id_ MR_GUARDED_BY(mutex_) = 1;

  std::atomic<std::uint64_t> requests_{0}, connections_{0}, sent_{0}, received_{0}, hedged_{0};
  std::atomic<int> in_flight_{0};
  std::atomic<int> most_active_, most_uploads_;

  // Used by the loop's thread only.
  TransferContext context_;
  std::unordered_map<Id, std::unique_ptr<Flight>> flights_;
  std::map<std::string, Host, std::less<>> hosts_;
  std::set<std::pair<TimePoint, Id>> deadlines_;
  HedgePolicy hedging_;
  std::set<std::pair<TimePoint, Id>> hedges_;  ///< when a flight counts as late
  int doubled_ = 0;                            ///< flights with a second transfer, which has a connection of its own
  int uploads_ = 0;                            ///< active flights that are uploads
  std::set<Id> active_;
  Id last_resumed_ = 0;
  std::vector<CURL*> idle_handles_;
  std::unordered_set<curl_socket_t> watched_;  ///< sockets whose events libcurl wants
  std::optional<TimePoint> curl_timer_;
  TimePoint next_sweep_ = TimePoint::max();  ///< when to search for stalled transfers again
  std::thread thread_;
};

}  // namespace millrace::http
