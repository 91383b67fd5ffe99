#include "millrace/http/client/event_loop.h"

#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <iterator>

#include "millrace/base/environment.h"

namespace millrace::http {

namespace {

/// "https://host:port" of an absolute URL: requests with the same one share connections.
std::string_view Origin(std::string_view url) {
  std::size_t scheme = url.find("://");
  return scheme == url.npos ? url : url.substr(0, url.find('/', scheme + 3));
}

}  // namespace

Client::EventLoop::EventLoop(Options options)
    : options_(std::move(options)),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      most_active_(options_.max_connections),
      most_uploads_(options_.max_connections),
      context_{.now = clock_.Now(),
               .down = TokenBucket(options_.max_bytes_per_second),
               .up = TokenBucket(options_.max_bytes_per_second),
               .authorities = options_.ca_bundle.empty() ? Authorities::OfSystem(EnvironmentVariable)
                                                         : Authorities{.file = options_.ca_bundle}},
      hedging_(options_.hedged_share) {
  curl_global_init(CURL_GLOBAL_DEFAULT);  // counted and thread-safe
  multi_ = curl_multi_init();
  share_ = curl_share_init();
  curl_share_setopt(share_, CURLSHOPT_SHARE, CURL_LOCK_DATA_SSL_SESSION);
  curl_multi_setopt(multi_, CURLMOPT_SOCKETFUNCTION, OnSocket);
  curl_multi_setopt(multi_, CURLMOPT_SOCKETDATA, this);
  curl_multi_setopt(multi_, CURLMOPT_TIMERFUNCTION, OnTimer);
  curl_multi_setopt(multi_, CURLMOPT_TIMERDATA, this);
  curl_multi_setopt(multi_, CURLMOPT_PIPELINING, static_cast<long>(CURLPIPE_NOTHING));
  curl_multi_setopt(multi_, CURLMOPT_MAXCONNECTS, static_cast<long>(options_.max_connections));
  epoll_event event{.events = EPOLLIN, .data = {.fd = wake_.get()}};
  epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), &event);
  // Signals are for other threads; SIGPIPE in particular, which OpenSSL's writes to a closed connection raise.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { Run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_setname_np(thread_.native_handle(), "http-client");
}

Client::EventLoop::~EventLoop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  Wake();
  thread_.join();
  for (CURL* easy : idle_handles_) curl_easy_cleanup(easy);
  curl_multi_cleanup(multi_);
  curl_share_cleanup(share_);
  curl_global_cleanup();
}

void Client::EventLoop::Send(Request request, BodyTarget target, Call call, Completion done) {
  auto flight = Enqueue(std::make_unique<Flight>(std::move(request), target, std::move(call), std::move(done)));
  if (!flight) return;
  flight->done(Fail(flight->transfer->Failure(Code::kCancelled, "the client is shutting down")));
}

/// Puts the flight into the inbox. Returns it if the loop is stopping already.
std::unique_ptr<Client::EventLoop::Flight> Client::EventLoop::Enqueue(std::unique_ptr<Flight> flight) {
  MutexLock lock(mutex_);
  if (stopping_) return flight;
  flight->id = next_id_++;
  in_flight_.fetch_add(1, std::memory_order_relaxed);
  bool first = arrived_.empty();
  arrived_.push_back(std::move(flight));
  lock.Unlock();
  if (first) Wake();
  return nullptr;
}

void Client::EventLoop::Cancel(Id id) {
  {
    MutexLock lock(mutex_);
    cancelled_.push_back(id);
  }
  Wake();
}

void Client::EventLoop::Wake() {
  std::uint64_t one = 1;
  [[maybe_unused]] ssize_t written = write(wake_.get(), &one, sizeof one);  // if the counter is full, the loop is awake
}

Client::Stats Client::EventLoop::stats() const {
  return {.requests = requests_,
          .connections_opened = connections_,
          .bytes_sent = sent_,
          .bytes_received = received_,
          .hedged = hedged_,
          .in_flight = in_flight_,
          .most_active = most_active_};
}

void Client::EventLoop::Run() {
  bool running = true;
  while (running) {
    WaitForEvents();
    running = DrainInbox();
    RunCurlTimer();
    Reap();
    Expire();
    HedgeLate();
    ResumePaused();
    StartQueued();
    sent_.store(context_.bytes_sent, std::memory_order_relaxed);
    received_.store(context_.bytes_received, std::memory_order_relaxed);
  }
  while (!flights_.empty()) {
    Flight& flight = *flights_.begin()->second;
    Complete(flight.id, Fail(flight.transfer->Failure(Code::kCancelled, "the client is shutting down")));
  }
}

/// Milliseconds until the next timer is due; -1 without a timer.
int Client::EventLoop::WaitTimeout() const {
  TimePoint due = next_sweep_;
  if (curl_timer_) due = std::min(due, *curl_timer_);
  if (!deadlines_.empty()) due = std::min(due, deadlines_.begin()->first);
  if (!hedges_.empty()) due = std::min(due, hedges_.begin()->first);
  for (const TokenBucket* direction : {&context_.down, &context_.up}) {
    if (TimePoint open = direction->OpensAt(context_.now); open > context_.now) due = std::min(due, open);
  }
  if (due == TimePoint::max()) return -1;
  auto left = std::chrono::ceil<std::chrono::milliseconds>(due - clock_.Now()).count();
  return static_cast<int>(std::clamp<long>(left, 0, 60'000));
}

void Client::EventLoop::WaitForEvents() {
  std::array<epoll_event, 64> events;
  int count = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), WaitTimeout());
  context_.now = clock_.Now();
  // First, as what follows may close sockets.
  for (int i = 0; i < count; ++i) {
    const int fd = events[i].data.fd;
    if (fd != wake_.get() && !watched_.contains(fd)) epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  }
  for (int i = 0; i < count; ++i) {
    int fd = events[i].data.fd;
    if (fd == wake_.get()) {
      std::uint64_t wakes;
      [[maybe_unused]] ssize_t taken = read(wake_.get(), &wakes, sizeof wakes);
      continue;
    }
    if (!watched_.contains(fd)) continue;
    int what = (events[i].events & EPOLLIN ? CURL_CSELECT_IN : 0) |
               (events[i].events & EPOLLOUT ? CURL_CSELECT_OUT : 0) |
               (events[i].events & (EPOLLERR | EPOLLHUP) ? CURL_CSELECT_ERR : 0);
    int running;
    curl_multi_socket_action(multi_, fd, what, &running);
  }
}

/// Admits the requests and cancellations in the inbox. False if the client is to stop.
bool Client::EventLoop::DrainInbox() {
  std::vector<std::unique_ptr<Flight>> arrived;
  std::vector<Id> cancelled;
  bool running;
  {
    MutexLock lock(mutex_);
    arrived.swap(arrived_);
    cancelled.swap(cancelled_);
    running = !stopping_;
  }
  for (auto& flight : arrived) Admit(std::move(flight));
  for (Id id : cancelled) {
    auto found = flights_.find(id);
    if (found == flights_.end()) continue;
    Complete(id, Fail(found->second->transfer->Failure(Code::kCancelled, "cancelled")));
  }
  return running;
}

void Client::EventLoop::Admit(std::unique_ptr<Flight> flight) {
  std::string_view origin = Origin(flight->transfer->url());
  auto host = hosts_.find(origin);
  if (host == hosts_.end()) host = hosts_.emplace(std::string(origin), Host{}).first;
  flight->host = &host->second;
  (flight->transfer->upload() ? host->second.uploads : host->second.queue).push_back(flight->id);
  const Call& call = flight->call;
  if (!call.deadline.infinite()) deadlines_.emplace(call.deadline.at(), flight->id);
  Flight& admitted = *flight;
  flights_.emplace(flight->id, std::move(flight));
  requests_.fetch_add(1, std::memory_order_relaxed);
  // Last: if the token has fired already, the constructor cancels.
  if (call.stop.stop_possible()) admitted.canceller.emplace(call.stop, Canceller{this, admitted.id});
}

/// The queue with the oldest request that may go to the host now; null if there is none.
std::deque<Client::EventLoop::Id>* Client::EventLoop::Next(Host& host) {
  for (std::deque<Id>* queue : {&host.queue, &host.uploads}) {
    while (!queue->empty() && !flights_.contains(queue->front())) queue->pop_front();
  }
  const bool upload = !host.uploads.empty() && uploads_ < most_uploads_.load(std::memory_order_relaxed);
  if (host.queue.empty()) return upload ? &host.uploads : nullptr;
  return upload && host.uploads.front() < host.queue.front() ? &host.uploads : &host.queue;
}

/// Starts the oldest requests whose servers have a free connection.
void Client::EventLoop::StartQueued() {
  while (RoomForMore()) {
    std::deque<Id>* oldest = nullptr;
    for (auto& [origin, host] : hosts_) {
      if (host.active >= options_.max_connections_per_host) continue;
      std::deque<Id>* next = Next(host);
      if (next && (!oldest || next->front() < oldest->front())) oldest = next;
    }
    if (!oldest) return;
    Flight& flight = *flights_.at(oldest->front());
    oldest->pop_front();
    Start(flight);
  }
}

void Client::EventLoop::Start(Flight& flight) {
  flight.active = true;
  ++flight.host->active;
  active_.insert(flight.id);
  uploads_ += flight.transfer->upload();
  if (flight.transfer->hedge()) {
    if (auto patience = hedging_.Began()) {
      flight.hedge_at = context_.now + *patience;
      hedges_.emplace(flight.hedge_at, flight.id);
    }
  }
  Begin(flight, *flight.transfer);
}

void Client::EventLoop::Begin(Flight& flight, Transfer& transfer) {
  CURL* easy = nullptr;
  if (idle_handles_.empty()) {
    easy = curl_easy_init();
  } else {
    easy = idle_handles_.back();
    idle_handles_.pop_back();
  }
  transfer.Prepare(easy, options_, share_, context_);
  transfer.owner = &flight;
  curl_easy_setopt(easy, CURLOPT_PRIVATE, &transfer);
  next_sweep_ = std::min(next_sweep_, context_.now + std::min(options_.timeouts.first_byte, options_.timeouts.stall));
  curl_multi_add_handle(multi_, easy);
}

/// Sends a request a second time if its response is late.
void Client::EventLoop::HedgeLate() {
  while (!hedges_.empty() && hedges_.begin()->first <= context_.now) {
    Flight& flight = *flights_.at(hedges_.begin()->second);
    hedges_.erase(hedges_.begin());
    flight.hedge_at = TimePoint::max();
    bool room = RoomForMore() && flight.host->active < options_.max_connections_per_host;
    if (flight.transfer->answered() || !room || !hedging_.Spend()) continue;
    ++doubled_;
    ++flight.host->active;
    flight.second = flight.transfer->MakeHedge();
    flight.transfer->Join(&flight.winner);
    flight.second->Join(&flight.winner);
    hedged_.fetch_add(1, std::memory_order_relaxed);
    Begin(flight, *flight.second);
  }
}

/// Ends one of a flight's two transfers. The other one continues.
void Client::EventLoop::Drop(Flight& flight, Transfer& transfer) {
  curl_multi_remove_handle(multi_, transfer.easy());
  idle_handles_.push_back(transfer.Release());
  if (&transfer == flight.transfer.get()) flight.transfer.swap(flight.second);
  flight.second.reset();
  --doubled_;
  --flight.host->active;
}

void Client::EventLoop::RunCurlTimer() {
  if (!curl_timer_ || *curl_timer_ > context_.now) return;
  curl_timer_.reset();
  int running;
  curl_multi_socket_action(multi_, CURL_SOCKET_TIMEOUT, 0, &running);
}

/// Completes the transfers that libcurl has finished.
void Client::EventLoop::Reap() {
  int left;
  while (CURLMsg* message = curl_multi_info_read(multi_, &left)) {
    if (message->msg != CURLMSG_DONE) continue;
    CURLcode code = message->data.result;
    CURL* easy = message->easy_handle;
    Transfer* transfer = nullptr;
    long opened = 0;
    curl_easy_getinfo(easy, CURLINFO_PRIVATE, &transfer);
    curl_easy_getinfo(easy, CURLINFO_NUM_CONNECTS, &opened);
    connections_.fetch_add(static_cast<std::uint64_t>(opened), std::memory_order_relaxed);
    Flight& flight = *static_cast<Flight*>(transfer->owner);
    // Of two transfers, the loser does not count, nor one that fails while the other may still win.
    bool discarded = flight.second && flight.winner != transfer && (flight.winner || code != CURLE_OK);
    if (discarded) {
      Drop(flight, *transfer);
    } else {
      Complete(flight.id, transfer->Finish(code));
    }
  }
}

void Client::EventLoop::Expire() {
  while (!deadlines_.empty() && deadlines_.begin()->first <= context_.now) {
    Id id = deadlines_.begin()->second;
    Complete(id, Fail(flights_.at(id)->transfer->Failure(Code::kDeadlineExceeded, "the deadline has passed")));
  }
  if (context_.now < next_sweep_) return;
  std::vector<Id> idle;
  // A transfer's limit may come nearer in its next phase. The next sweep comes before that can matter.
  TimePoint next = context_.now + std::min(options_.timeouts.first_byte, options_.timeouts.stall);
  for (Id id : active_) {
    auto limit = flights_.at(id)->leading().IdleLimit(options_.timeouts);
    if (!limit) continue;
    if (*limit <= context_.now) {
      idle.push_back(id);
    } else {
      next = std::min(next, *limit);
    }
  }
  for (Id id : idle) Complete(id, Fail(flights_.at(id)->leading().IdleError(options_.timeouts)));
  next_sweep_ = active_.empty() ? TimePoint::max() : next;
}

/// Begins the next turn. Resumes the transfers that paused because the bandwidth or their share of the last turn was
/// used up. Starts behind the transfer that was resumed last, so that all get their turn.
void Client::EventLoop::ResumePaused() {
  ++context_.turn;
  if (!std::exchange(context_.gave_way, false) && !context_.down.limited()) return;
  std::vector<Id> paused;
  auto turn = active_.upper_bound(last_resumed_);
  std::copy(turn, active_.end(), std::back_inserter(paused));
  std::copy(active_.begin(), turn, std::back_inserter(paused));
  for (Id id : paused) {
    Transfer& transfer = flights_.at(id)->leading();
    TokenBucket* direction = transfer.waits_for();
    if (!transfer.gave_way() && !(direction && direction->Open(context_.now))) continue;
    last_resumed_ = id;
    // libcurl delivers at once what it received meanwhile. The sink may refuse it.
    if (CURLcode code = transfer.Resume(); code != CURLE_OK) Complete(id, transfer.Finish(code));
  }
}

void Client::EventLoop::Complete(Id id, Result<Response> result) {
  auto found = flights_.find(id);
  std::unique_ptr<Flight> flight = std::move(found->second);
  flights_.erase(found);
  if (flight->active) {
    Transfer& leading = flight->leading();
    if (leading.answered() && leading.hedge()) hedging_.Answered(leading.first_byte_after());
    for (Transfer* transfer : {flight->transfer.get(), flight->second.get()}) {
      if (!transfer) continue;
      curl_multi_remove_handle(multi_, transfer->easy());
      idle_handles_.push_back(transfer->Release());
    }
    if (flight->second) --doubled_;
    flight->host->active -= flight->second ? 2 : 1;
    active_.erase(id);
    uploads_ -= flight->transfer->upload();
    hedges_.erase({flight->hedge_at, id});
  }
  const Call& call = flight->call;
  if (!call.deadline.infinite()) deadlines_.erase({call.deadline.at(), id});
  flight->canceller.reset();
  in_flight_.fetch_sub(1, std::memory_order_relaxed);
  Completion done = std::move(flight->done);
  flight.reset();
  done(std::move(result));
}

// libcurl 7.88 closes a socket that was still connecting, and asks for its removal afterwards. Another thread may have
// its number by then. So nothing is done with the number of a removed socket. The kernel forgets the closed ones by
// itself; WaitForEvents() takes out an open one when it has an event.
int Client::EventLoop::OnSocket(CURL*, curl_socket_t socket, int what, void* self, void*) {
  auto& loop = *static_cast<EventLoop*>(self);
  if (what == CURL_POLL_REMOVE) {
    loop.watched_.erase(socket);
    return 0;
  }
  epoll_event event{.events = (what & CURL_POLL_IN ? EPOLLIN : 0u) | (what & CURL_POLL_OUT ? EPOLLOUT : 0u),
                    .data = {.fd = socket}};
  loop.watched_.insert(socket);
  // The kernel may still have it from an earlier request, and may have forgotten it with a socket of the same number.
  if (epoll_ctl(loop.epoll_.get(), EPOLL_CTL_MOD, socket, &event) != 0 && errno == ENOENT) {
    epoll_ctl(loop.epoll_.get(), EPOLL_CTL_ADD, socket, &event);
  }
  return 0;
}

int Client::EventLoop::OnTimer(CURLM*, long milliseconds, void* self) {
  auto& loop = *static_cast<EventLoop*>(self);
  if (milliseconds < 0) {
    loop.curl_timer_.reset();
  } else {
    loop.curl_timer_ = loop.clock_.Now() + std::chrono::milliseconds(milliseconds);
  }
  return 0;
}

}  // namespace millrace::http
