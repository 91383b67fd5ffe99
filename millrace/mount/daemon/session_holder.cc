#include "millrace/mount/daemon/session_holder.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <optional>
#include <thread>
#include <vector>

namespace millrace::mount {
namespace {

constexpr std::size_t kMaxName = 128,
                      kMaxText = 200'000;  // a list of kMaxHeldSessions names; the kernel sends 212,992 bytes
constexpr std::size_t kMaxRequestBytes = 256;
/// Connections beside those of daemons: of calls of the mounter.
constexpr std::size_t kStarterConnections = 64;
/// How long a keeper that cannot accept connections waits until it tries again.
constexpr int kPauseMs = 1000;

/// Returns how many names a process with this limit of descriptors can have.
std::size_t FittingSessions() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return kMaxHeldSessions;
  const std::size_t left = limit.rlim_cur > kHolderDescriptors ? limit.rlim_cur - kHolderDescriptors : 0;
  return std::clamp<std::size_t>(left / 3, 1, kMaxHeldSessions);
}

timeval ToTimeval(Duration duration) {
  const auto us = std::chrono::duration_cast<std::chrono::microseconds>(duration).count();
  return {.tv_sec = us / 1'000'000, .tv_usec = us % 1'000'000};
}

Result<sockaddr_un> AddressOf(const std::filesystem::path& socket) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = socket.string();
  if (path.empty() || path.size() >= sizeof address.sun_path) {
    return Fail(Code::kInvalidArgument, "the path of a socket has at most {} bytes: {}", sizeof address.sun_path - 1,
                path);
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

Result<UniqueFd> MakeSocket(int flags) {
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | flags, 0));
  if (!socket) return Fail(ErrnoError(errno, "cannot make a socket"));
  return socket;
}

Error Silent() {
  return {Code::kDeadlineExceeded, "the keeper of this node's mounts does not answer; is its process stopped?"};
}

bool IsName(std::string_view name) {
  return !name.empty() && name.size() <= kMaxName && std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '.' ||
           c == '_';
  });
}

/// The mount that the keeper has under a name.
struct HeldSession {
  UniqueFd device, plan;
  int holder = -1;  ///< the connection of the process that serves it
};

/// Whether the other end of a connection is closed, and no message of it is left.
bool HasEnded(int connection) {
  char byte = 0;
  return ::recv(connection, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

class SessionHolderThread final : public SessionHolder {
 public:
  SessionHolderThread(UniqueFd listener, std::filesystem::path socket, UniqueFd end, UniqueFd spare, Logger log)
      : listener_(std::move(listener)),
        socket_(std::move(socket)),
        end_(std::move(end)),
        max_sessions_(FittingSessions()),
        log_(std::move(log)),
        spare_(std::move(spare)) {
    if (max_sessions_ < kMaxHeldSessions) {
      log_.Warning("the keeper has room for fewer mounts than it could keep: raise its limit of open files",
                   {{"mounts", max_sessions_}, {"needed_limit", 3 * kMaxHeldSessions + kHolderDescriptors}});
    }
    thread_ = std::jthread([this](const std::stop_token& stop) { Run(stop); });
  }
  ~SessionHolderThread() override {
    thread_.request_stop();
    const std::uint64_t one = 1;
    (void)!::write(end_.get(), &one, sizeof one);
    thread_.join();
    ::unlink(socket_.c_str());
  }

 private:
  struct Answer {
    std::string text = "ok";
    int descriptor = -1;  ///< of this keeper
  };

  void Run(const std::stop_token& stop);
  void Pause() const;
  void Accept();
  void Refuse(const Error& reason);
  void Admit(UniqueFd connection);
  bool Serve(int connection, bool is_gone);
  Answer Full();
  Answer Execute(int connection, SessionHolderMessage message);
  Answer Hold(int connection, std::string_view name);
  std::string List() const;
  void Release(int connection);
  void Close(int connection);
  HeldSession* HeldBy(int connection);

  const UniqueFd listener_;
  const std::filesystem::path socket_;
  const UniqueFd end_;
  const std::size_t max_sessions_;
  const Logger log_;
  // The thread's own.
  UniqueFd spare_;          ///< given up for a moment to answer who cannot be connected for lack of descriptors
  bool is_full_ = false;    ///< the log says already that names are refused
  bool refuses_ = false;    ///< the log says already that connections are refused
  bool is_paused_ = false;  ///< not even the spare descriptor is left: the listener waits
  std::map<int, UniqueFd> connections_;
  std::map<std::string, HeldSession, std::less<>> kept_;
  std::jthread thread_;
};

void SessionHolderThread::Run(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    // A listener that cannot be served stays readable: polled all the time, it would keep a processor busy.
    const auto accepting = static_cast<short>(is_paused_ ? 0 : POLLIN);
    std::vector<pollfd> sockets = {{end_.get(), POLLIN, 0}, {listener_.get(), accepting, 0}};
    for (const auto& [fd, connection] : connections_) sockets.push_back({fd, POLLIN, 0});
    const int ready = ::poll(sockets.data(), sockets.size(), is_paused_ ? kPauseMs : -1);
    if (ready < 0 && errno == EINTR) continue;
    if (ready < 0) {
      log_.Error("the keeper cannot wait for its connections; it tries again in a second",
                 {{"reason", ErrnoError(errno, "poll")}, {"connections", connections_.size()}});
      Pause();
      continue;
    }
    const bool try_again = std::exchange(is_paused_, false);
    for (std::size_t i = 2; i < sockets.size(); ++i) {
      const bool is_gone = (sockets[i].revents & (POLLHUP | POLLERR)) != 0;
      if (sockets[i].revents != 0 && !Serve(sockets[i].fd, is_gone)) Close(sockets[i].fd);
    }
    if (sockets[1].revents != 0 && !try_again) Accept();
  }
}

void SessionHolderThread::Pause() const {
  pollfd end{end_.get(), POLLIN, 0};
  ::poll(&end, 1, kPauseMs);
}

void SessionHolderThread::Accept() {
  UniqueFd connection(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (connection && connections_.size() < max_sessions_ + kStarterConnections) return Admit(std::move(connection));
  if (connection) {
    (void)SendHolderMessage(connection.get(), "full of connections", -1);
    return Refuse(Error(Code::kResourceExhausted, fmt::format("{} connections", connections_.size())));
  }
  // The peer took its connection back, or a signal came.
  if (errno == ECONNABORTED || errno == EINTR || errno == EAGAIN) return;
  Refuse(ErrnoError(errno, "accept"));
  spare_.Reset();
  connection = UniqueFd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (connection) (void)SendHolderMessage(connection.get(), "full of open files", -1);
  is_paused_ = !connection;
  connection.Reset();
  spare_ = UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
}

/// Logs once, until a connection is accepted again.
void SessionHolderThread::Refuse(const Error& reason) {
  if (std::exchange(refuses_, true)) return;
  log_.Error("the keeper refuses connections: new mounts fail until others end, or its limit of open files is raised",
             {{"reason", reason}, {"mounts", kept_.size()}});
}

void SessionHolderThread::Admit(UniqueFd connection) {
  refuses_ = false;
  ucred peer{};
  socklen_t size = sizeof peer;
  const bool known = ::getsockopt(connection.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0;
  if (!known || (peer.uid != ::geteuid() && peer.uid != 0)) {
    log_.Warning("the keeper refuses another user's process", {{"user", peer.uid}, {"process", peer.pid}});
    (void)SendHolderMessage(connection.get(), "error the keeper serves its own user and root", -1);
    return;
  }
  // An answer that does not fit into the peer's buffer must not stop the keeper.
  const timeval patience = ToTimeval(std::chrono::seconds(1));
  ::setsockopt(connection.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  const int fd = connection.get();
  connections_.insert_or_assign(fd, std::move(connection));
}

/// Answers one message. `is_gone`: nobody waits for the answer. Returns false at the end of the connection.
bool SessionHolderThread::Serve(int connection, bool is_gone) {
  auto message = ReceiveHolderMessage(connection);
  if (!message) return false;
  if (is_gone && message->text != "keep" && message->text != "drop") return false;
  const Answer answer = Execute(connection, *std::move(message));
  return SendHolderMessage(connection, answer.text, answer.descriptor).has_value();
}

/// Logs once, until there is room for a name again.
SessionHolderThread::Answer SessionHolderThread::Full() {
  if (!std::exchange(is_full_, true)) {
    log_.Error("the keeper is full: new mounts fail until others end", {{"mounts", kept_.size()}});
  }
  return {.text = fmt::format("full of mounts: it keeps {}", kept_.size())};
}

SessionHolderThread::Answer SessionHolderThread::Execute(int connection, SessionHolderMessage message) {
  is_full_ = is_full_ && kept_.size() >= max_sessions_;
  const std::string_view text = message.text;
  const std::size_t space = std::min(text.find(' '), text.size());
  const std::string_view verb = text.substr(0, space), name = text.substr(std::min(space + 1, text.size()));
  if (text == "list") return {.text = List()};
  if (text == "keep" || text == "drop") {
    HeldSession* held = HeldBy(connection);
    if (held == nullptr) return {.text = "error this connection holds no name"};
    if (text == "keep" && !message.descriptor) return {.text = "error keep what?"};
    if (text == "keep") held->device = std::move(message.descriptor);
    if (text == "drop") std::erase_if(kept_, [&](const auto& kept) { return kept.second.holder == connection; });
    return {};
  }
  if (!IsName(name)) return {.text = "error no such message"};
  if (verb == "hold") return Hold(connection, name);
  auto kept = kept_.find(name);
  if (verb == "plan") {
    if (!message.descriptor) return {.text = "error a plan is a descriptor"};
    if (kept == kept_.end() && kept_.size() >= max_sessions_) return Full();
    kept_[std::string(name)].plan = std::move(message.descriptor);
    return {};
  }
  if (verb == "read") {
    if (kept == kept_.end() || !kept->second.plan) return {.text = "none"};
    return {.text = "ok", .descriptor = kept->second.plan.get()};
  }
  if (verb == "forget") {
    if (kept != kept_.end() && kept->second.holder >= 0) return {.text = "busy"};
    if (kept != kept_.end()) kept_.erase(kept);
    return {};
  }
  return {.text = "error no such message"};
}

SessionHolderThread::Answer SessionHolderThread::Hold(int connection, std::string_view name) {
  auto kept = kept_.find(name);
  if (kept == kept_.end() && kept_.size() >= max_sessions_) return Full();
  if (kept != kept_.end() && kept->second.holder >= 0 && kept->second.holder != connection) {
    // The end of the holder's connection may be an event that waits for its turn.
    if (!HasEnded(kept->second.holder)) return {.text = "busy"};
    Release(kept->second.holder);
    kept = kept_.find(name);
  }
  if (HeldBy(connection) != nullptr && (kept == kept_.end() || kept->second.holder != connection)) {
    return {.text = "error this connection holds another name"};
  }
  HeldSession& mount = kept_[std::string(name)];
  mount.holder = connection;
  return {.text = "ok", .descriptor = mount.device.get()};
}

std::string SessionHolderThread::List() const {
  std::string text = "ok";
  for (const auto& [name, kept] : kept_) {
    text += fmt::format("\n{} {} {} {}", name, kept.holder >= 0 ? "held" : "left", kept.device ? "kept" : "new",
                        kept.plan ? "plan" : "bare");
    if (text.size() > kMaxText) return "error the list is too long";
  }
  return text;
}

HeldSession* SessionHolderThread::HeldBy(int connection) {
  const auto kept = std::ranges::find_if(kept_, [&](const auto& each) { return each.second.holder == connection; });
  return kept == kept_.end() ? nullptr : &kept->second;
}

void SessionHolderThread::Release(int connection) {
  for (auto kept = kept_.begin(); kept != kept_.end();) {
    const bool held = kept->second.holder == connection;
    if (held) kept->second.holder = -1;
    if (held && kept->second.device) log_.Warning("the process of a mount ended", {{"mount", kept->first}});
    // A process that ended before its mount was live leaves nothing to go on with.
    kept = held && !kept->second.device ? kept_.erase(kept) : std::next(kept);
  }
}

void SessionHolderThread::Close(int connection) {
  Release(connection);
  connections_.erase(connection);
}

}  // namespace

Result<std::unique_ptr<SessionHolder>> SessionHolder::Start(const std::filesystem::path& socket, Logger log) {
  const sockaddr_un address = MR_TRY(AddressOf(socket));
  if (ConnectSessionHolder(socket)) {
    return Fail(Code::kAlreadyExists, "a keeper listens on {}; stop it, or give this one another socket",
                socket.string());
  }
  ::unlink(socket.c_str());
  UniqueFd listener = MR_TRY(MakeSocket(0));
  const mode_t before = ::umask(0177);
  const int bound = ::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
  const int failed = errno;
  ::umask(before);
  if (bound != 0) return Fail(ErrnoError(failed, "cannot listen on " + socket.string()));
  if (::listen(listener.get(), SOMAXCONN) != 0) return Fail(ErrnoError(errno, "cannot listen on " + socket.string()));
  UniqueFd end(::eventfd(0, EFD_CLOEXEC));
  if (!end) return Fail(ErrnoError(errno, "cannot make an eventfd"));
  UniqueFd spare = MR_TRY(OpenFile("/dev/null", O_RDONLY));
  return std::make_unique<SessionHolderThread>(std::move(listener), socket, std::move(end), std::move(spare),
                                               std::move(log));
}

Result<UniqueFd> ConnectSessionHolder(const std::filesystem::path& socket, Duration timeout) {
  const sockaddr_un address = MR_TRY(AddressOf(socket));
  UniqueFd connection = MR_TRY(MakeSocket(0));
  const timeval patience = ToTimeval(timeout);
  ::setsockopt(connection.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);  // also of connect(2)
  ::setsockopt(connection.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  if (::connect(connection.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    if (errno == EAGAIN) return Fail(Silent());
    return Fail(ErrnoError(errno, "no keeper listens on " + socket.string()).WithCode(Code::kUnavailable));
  }
  return connection;
}

Status SendHolderMessage(int socket, std::string_view text, int descriptor) {
  iovec bytes{const_cast<char*>(text.data()), text.size()};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  if (descriptor >= 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof descriptor);
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  }
  while (::sendmsg(socket, &message, MSG_NOSIGNAL) < 0) {
    if (errno == EAGAIN) return Fail(Silent());
    if (errno != EINTR) return Fail(ErrnoError(errno, "the keeper's connection").WithCode(Code::kUnavailable));
  }
  return {};
}

Result<SessionHolderMessage> ReceiveHolderMessage(int socket) {
  std::string text(kMaxText + kMaxRequestBytes, '\0');
  iovec bytes{text.data(), text.size()};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  message.msg_control = control.data();
  message.msg_controllen = CMSG_LEN(sizeof(int));  // room for one descriptor: with more, one would be lost
  ssize_t size = 0;
  int failed = 0;
  // ECONNRESET, once: the keeper answered before it read the request. Its answer comes next.
  bool was_reset = false;
  while ((size = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC)) < 0) {
    failed = errno;
    if (failed != EINTR && (failed != ECONNRESET || std::exchange(was_reset, true))) break;
  }
  SessionHolderMessage received;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); size >= 0 && header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    int descriptor = -1;
    std::memcpy(&descriptor, CMSG_DATA(header), sizeof descriptor);
    received.descriptor = UniqueFd(descriptor);
  }
  if (size < 0 && failed == EAGAIN) return Fail(Silent());
  if (size <= 0) return Fail(Code::kUnavailable, "the keeper's connection has ended");
  text.resize(static_cast<std::size_t>(size));
  received.text = std::move(text);
  return received;
}

}  // namespace millrace::mount
