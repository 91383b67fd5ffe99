#include "millrace/http/server/server.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <list>
#include <system_error>
#include <thread>

#include "millrace/base/text.h"
#include "millrace/base/threads/sync.h"
#include "millrace/http/server/server_connection.h"

namespace millrace::http {
namespace {

/// A server's threads take no signals: the program handles its signals, and sendfile's SIGPIPE must end nothing.
void BlockSignals() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
}

constexpr std::string_view kBusyAnswer =
    "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nRetry-After: 1\r\nConnection: close\r\n\r\n";

/// Answers 503 to a client beyond the limit, without waiting for it.
void TurnAway(int fd) {
  [[maybe_unused]] ssize_t sent = send(fd, kBusyAnswer.data(), kBusyAnswer.size(), MSG_NOSIGNAL);
  shutdown(fd, SHUT_WR);
  char scratch[4096];
  while (recv(fd, scratch, sizeof scratch, 0) > 0) {  // unread bytes would turn the goodbye into a reset
  }
}

}  // namespace

/// The accept loop is one thread over epoll. It accepts connections, starts and joins their threads, and fires the stop
/// tokens of clients that leave while a handler works.
struct Server::Rep {
  struct Worker {
    std::unique_ptr<ServerConnection> connection;  ///< null after the thread has finished with it
    std::thread thread;
    PeerAddress peer;
    bool is_cut = false;  ///< closed to make room for another; its thread is about to end
  };
  using Workers = std::list<Worker>;

  Rep(Options opts, Handler h, Listener l)
      : options(std::move(opts)),
        clock(options.clock ? *options.clock : SystemClock()),
        handler(std::move(h)),
        listener(std::move(l)),
        poll(epoll_create1(EPOLL_CLOEXEC)),
        wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

  void AcceptLoop();
  void Accept();
  bool MakeRoom(const PeerAddress& peer) MR_REQUIRES(mutex);
  bool CutLongestWaiting(const PeerAddress* of) MR_REQUIRES(mutex);
  void Serve(Workers::iterator worker);
  void Unwatch(Worker& worker);
  void ClientGone(Worker& worker);
  void Reap();
  void Wake() {
    std::uint64_t one = 1;
    [[maybe_unused]] ssize_t written = write(wake.get(), &one, sizeof one);
  }
  void Stop(Duration grace);

  const Options options;
  const Clock& clock;
  const Handler handler;
  Listener listener;
  UniqueFd poll, wake;
  std::atomic<bool> draining = false;
  std::thread acceptor;

  Mutex mutex;
  CondVar finished_one;
  Workers running MR_GUARDED_BY(mutex);
  Workers finished MR_GUARDED_BY(mutex);
};

Result<std::unique_ptr<Server>> Server::Start(Options options, Handler handler) {
  Listener listener = MR_TRY(Listener::Open(options.listen));
  auto rep = std::make_unique<Rep>(std::move(options), std::move(handler), std::move(listener));
  if (!rep->poll || !rep->wake) return Fail(ErrnoError(errno, "starting a server"));
  for (UniqueFd* fd : {&rep->listener.fd, &rep->wake}) {
    epoll_event event{.events = EPOLLIN, .data = {.ptr = fd}};
    if (epoll_ctl(rep->poll.get(), EPOLL_CTL_ADD, fd->get(), &event) != 0) {
      return Fail(ErrnoError(errno, "starting a server"));
    }
  }
  rep->acceptor = std::thread([rep = rep.get()] {
    BlockSignals();
    pthread_setname_np(pthread_self(), "http-accept");
    rep->AcceptLoop();
  });
  return std::unique_ptr<Server>(new Server(std::move(rep)));
}

Server::Server(std::unique_ptr<Rep> rep) : rep_(std::move(rep)) {}
Server::~Server() { Stop(Duration::zero()); }
int Server::port() const { return rep_->listener.port; }
std::string Server::address() const { return fmt::format("{}:{}", rep_->listener.host, rep_->listener.port); }
void Server::Stop(Duration grace) { rep_->Stop(grace); }

void Server::Rep::AcceptLoop() {
  std::array<epoll_event, 64> events;
  while (!draining) {
    int count = epoll_wait(poll.get(), events.data(), events.size(), -1);
    for (int i = 0; i < count; ++i) {
      void* source = events[i].data.ptr;
      if (source == &listener.fd) {
        Accept();
      } else if (source == &wake) {
        std::uint64_t value;
        [[maybe_unused]] ssize_t got = read(wake.get(), &value, sizeof value);
      } else {
        ClientGone(*static_cast<Worker*>(source));
      }
    }
    // Only here: an event of this round may still name a worker that has finished.
    Reap();
  }
}

void Server::Rep::Accept() {
  for (;;) {
    UniqueFd fd(accept4(listener.fd.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd) {
      if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
        options.log.Error("cannot take a connection", {{"error", ErrnoError(errno, "accept")}});
        pollfd woken{wake.get(), POLLIN, 0};
        ::poll(&woken, 1, 50);  // other connections must release something first
      }
      return;
    }
    int on = 1;
    setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    const PeerAddress peer = PeerAddress::Of(fd.get());
    MutexLock lock(mutex);
    if (!MakeRoom(peer)) {
      lock.Unlock();
      if (!options.tls) TurnAway(fd.get());
      continue;
    }
    auto worker = running.emplace(running.end());
    worker->peer = peer;
    worker->connection = std::make_unique<ServerConnection>(std::move(fd), options, clock, handler, draining);
    epoll_event event{.events = EPOLLRDHUP | EPOLLET, .data = {.ptr = &*worker}};
    epoll_ctl(poll.get(), EPOLL_CTL_ADD, worker->connection->fd(), &event);
    try {
      worker->thread = std::thread([this, worker] { Serve(worker); });
    } catch (const std::system_error& error) {
      options.log.Error("cannot serve a connection", {{"error", error.what()}});
      Unwatch(*worker);
      running.erase(worker);
    }
  }
}

/// Whether the server may serve one more connection. At a limit, closes the connection that has waited longest.
bool Server::Rep::MakeRoom(const PeerAddress& peer) {
  const auto most = static_cast<std::size_t>(options.max_connections);
  if (running.size() >= 2 * most) return false;  // the closed ones are still ending
  const bool is_exempt = options.max_per_address == 0 && peer.is_loopback;
  const int per_address =
      options.max_per_address > 0 ? options.max_per_address : std::max(1, options.max_connections / 2);
  const auto same =
      std::ranges::count_if(running, [&peer](const Worker& worker) { return !worker.is_cut && worker.peer == peer; });
  if (!is_exempt && same >= per_address) return CutLongestWaiting(&peer);
  const auto all = std::ranges::count_if(running, [](const Worker& worker) { return !worker.is_cut; });
  return static_cast<std::size_t>(all) < most || CutLongestWaiting(nullptr);
}

/// Ends one connection that waits for a request, of one address or of all. False if every connection handles one.
bool Server::Rep::CutLongestWaiting(const PeerAddress* of) {
  for (;;) {
    Worker* longest = nullptr;
    for (Worker& worker : running) {
      if (worker.is_cut || worker.connection->busy() || (of != nullptr && worker.peer != *of)) continue;
      if (longest == nullptr || worker.connection->waiting_since() < longest->connection->waiting_since()) {
        longest = &worker;
      }
    }
    if (longest == nullptr) return false;
    if (!longest->connection->CutIfWaiting()) continue;  // its request has come meanwhile
    longest->is_cut = true;
    return true;
  }
}

void Server::Rep::Serve(Workers::iterator worker) {
  BlockSignals();
  pthread_setname_np(pthread_self(), "http-serve");
  worker->connection->ServeRequests();
  MutexLock lock(mutex);
  Unwatch(*worker);
  worker->connection.reset();
  finished.splice(finished.end(), running, worker);
  // Under the lock: after its release, Stop may return and this object may be destroyed.
  finished_one.NotifyAll();
  Wake();
}

/// Removes the connection from epoll. Closing its descriptor is not enough: while a forked child has a copy, epoll
/// still reports its events (epoll(7)), and they name a worker that Reap has freed.
void Server::Rep::Unwatch(Worker& worker) { epoll_ctl(poll.get(), EPOLL_CTL_DEL, worker.connection->fd(), nullptr); }

void Server::Rep::ClientGone(Worker& worker) {
  MutexLock lock(mutex);
  if (!worker.connection) return;
  std::stop_source stop = worker.connection->stop();
  lock.Unlock();
  stop.request_stop();
}

void Server::Rep::Reap() {
  Workers done;
  {
    MutexLock lock(mutex);
    done.swap(finished);
  }
  for (Worker& worker : done) worker.thread.join();
}

void Server::Rep::Stop(Duration grace) {
  if (!acceptor.joinable()) return;
  draining = true;
  Wake();
  acceptor.join();
  listener.fd.Reset();

  auto none_runs = [this]() MR_NO_THREAD_SAFETY_ANALYSIS { return running.empty(); };
  std::vector<std::stop_source> hurried;
  {
    MutexLock lock(mutex);
    for (Worker& worker : running) {
      if (!worker.connection->busy()) worker.connection->Cut();
    }
    finished_one.WaitUntil(mutex, SystemClock().Now() + grace, {}, none_runs);
    for (Worker& worker : running) hurried.push_back(worker.connection->stop());
  }
  for (std::stop_source& stop : hurried) stop.request_stop();
  {
    MutexLock lock(mutex);
    for (Worker& worker : running) worker.connection->Cut();
    finished_one.Wait(mutex, {}, none_runs);
  }
  Reap();
}

std::string_view ReasonPhrase(int status) {
  static constexpr std::pair<int, std::string_view> kPhrases[] = {
      {100, "Continue"},
      {200, "OK"},
      {201, "Created"},
      {202, "Accepted"},
      {204, "No Content"},
      {206, "Partial Content"},
      {301, "Moved Permanently"},
      {302, "Found"},
      {303, "See Other"},
      {304, "Not Modified"},
      {307, "Temporary Redirect"},
      {308, "Permanent Redirect"},
      {400, "Bad Request"},
      {401, "Unauthorized"},
      {403, "Forbidden"},
      {404, "Not Found"},
      {405, "Method Not Allowed"},
      {406, "Not Acceptable"},
      {408, "Request Timeout"},
      {409, "Conflict"},
      {410, "Gone"},
      {411, "Length Required"},
      {412, "Precondition Failed"},
      {413, "Content Too Large"},
      {414, "URI Too Long"},
      {415, "Unsupported Media Type"},
      {416, "Range Not Satisfiable"},
      {417, "Expectation Failed"},
      {422, "Unprocessable Content"},
      {429, "Too Many Requests"},
      {431, "Request Header Fields Too Large"},
      {499, "Client Closed Request"},
      {500, "Internal Server Error"},
      {501, "Not Implemented"},
      {502, "Bad Gateway"},
      {503, "Service Unavailable"},
      {504, "Gateway Timeout"},
      {505, "HTTP Version Not Supported"},
      {507, "Insufficient Storage"},
  };
  for (const auto& [code, phrase] : kPhrases) {
    if (code == status) return phrase;
  }
  return "Unknown";
}

Result<std::vector<std::pair<std::string, std::string>>> ParseQuery(std::string_view query) {
  std::vector<std::pair<std::string, std::string>> parameters;
  if (query.empty()) return parameters;
  for (std::string_view field : Split(query, '&')) {
    if (field.empty()) continue;
    std::size_t equals = std::min(field.find('='), field.size());
    std::string name = MR_TRY(PercentDecode(field.substr(0, equals), true));
    std::string value = equals == field.size() ? "" : MR_TRY(PercentDecode(field.substr(equals + 1), true));
    parameters.emplace_back(std::move(name), std::move(value));
  }
  return parameters;
}

}  // namespace millrace::http
