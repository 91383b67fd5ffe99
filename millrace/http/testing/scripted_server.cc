#include "millrace/http/testing/scripted_server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>

#include "millrace/base/text.h"

namespace millrace::http::testing {
namespace {

bool Receive(int fd, std::string& into) {
  char chunk[65536];
  ssize_t got = recv(fd, chunk, sizeof chunk, 0);
  if (got <= 0) return false;
  into.append(chunk, static_cast<std::size_t>(got));
  return true;
}

bool SendAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    ssize_t sent = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
  return true;
}

}  // namespace

ScriptedServer::ScriptedServer(Script script, const char* at, int port)
    : script_(std::move(script)), listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address{.sin_family = AF_INET, .sin_port = htons(static_cast<std::uint16_t>(port))};
  inet_pton(AF_INET, at, &address.sin_addr);
  socklen_t length = sizeof address;
  if (bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
      listen(listener_.get(), 128) != 0 ||
      getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    std::abort();
  }
  port_ = ntohs(address.sin_port);
  acceptor_ = std::thread([this] { Accept(); });
}

ScriptedServer::~ScriptedServer() {
  shutdown(listener_.get(), SHUT_RDWR);
  acceptor_.join();
  std::map<int, std::thread> open;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    open.swap(open_);
  }
  for (auto& [fd, thread] : open) {
    shutdown(fd, SHUT_RDWR);
    thread.join();
    close(fd);
  }
}

std::string ScriptedServer::url() const { return fmt::format("http://127.0.0.1:{}", port_); }

std::vector<ScriptedServer::Seen> ScriptedServer::seen() const {
  MutexLock lock(mutex_);
  return seen_;
}

void ScriptedServer::Accept() {
  while (true) {
    int fd = accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) return;
    ++connections_;
    MutexLock lock(mutex_);
    open_.emplace(fd, std::thread([this, fd] { Serve(fd); }));
  }
}

bool ScriptedServer::ReadRequest(int fd, std::string& buffered, Seen& seen) {
  std::size_t end;
  while ((end = buffered.find("\r\n\r\n")) == buffered.npos) {
    if (!Receive(fd, buffered)) return false;
  }
  std::string head = buffered.substr(0, end);
  buffered.erase(0, end + 4);
  auto lines = Split(head, '\n');
  auto words = Split(Trim(lines[0]), ' ');
  seen.method = words[0];
  seen.target = words[1];
  for (std::size_t i = 1; i < lines.size(); ++i) {
    std::size_t colon = lines[i].find(':');
    seen.headers.Add(lines[i].substr(0, colon), std::string(Trim(lines[i].substr(colon + 1))));
  }
  std::size_t length = std::strtoull(std::string(seen.headers.Get("content-length")).c_str(), nullptr, 10);
  while (buffered.size() < length) {
    if (!Receive(fd, buffered)) return false;
  }
  seen.body = buffered.substr(0, length);
  buffered.erase(0, length);
  return true;
}

void ScriptedServer::Serve(int fd) {
  std::string buffered;
  while (true) {
    Seen seen;
    if (!ReadRequest(fd, buffered, seen)) break;
    Reply reply;
    {
      MutexLock lock(mutex_);
      if (stopping_) break;
      seen.number = static_cast<int>(seen_.size());
      seen_.push_back(seen);
      reply = script_(seen);
    }
    if (!SendAll(fd, reply.bytes)) break;
    if (reply.then == Reply::Then::kKeep) continue;
    if (reply.then == Reply::Then::kHang) {
      std::string ignored;
      while (Receive(fd, ignored)) ignored.clear();
    }
    if (reply.then == Reply::Then::kDrip) {
      pollfd client{fd, POLLIN | POLLRDHUP, 0};
      while (poll(&client, 1, 20) == 0 && SendAll(fd, "x")) continue;
    }
    if (reply.then == Reply::Then::kReset) {
      linger reset{.l_onoff = 1, .l_linger = 0};
      setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
      // Closes the connection but keeps the number: the descriptor is freed by the destructor.
      int spare = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      dup3(spare, fd, O_CLOEXEC);
      close(spare);
      return;
    }
    break;
  }
  shutdown(fd, SHUT_RDWR);
}

std::string Answer(int status, std::string_view body, std::string_view fields) {
  return fmt::format("HTTP/1.1 {} Scripted\r\nContent-Length: {}\r\n{}\r\n{}", status, body.size(), fields, body);
}

}  // namespace millrace::http::testing
