// A server for tests that answers with exactly the bytes, and the misbehaviour, that the test wrote down.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "millrace/base/files/files.h"
#include "millrace/base/threads/sync.h"
#include "millrace/http/headers.h"

namespace millrace::http::testing {

/// Listens on a free loopback port, or at the address and port given. Each connection has a thread, which reads whole
/// requests (Content-Length bodies) and sends what the script says. Destruction cuts every connection and joins.
class ScriptedServer {
 public:
  struct Seen {
    int number = 0;  ///< counts the server's requests from 0
    std::string method, target;
    Headers headers;
    std::string body;
  };
  struct Reply {
    std::string bytes;  ///< raw: status line, fields, body
    /// kDrip: one more byte ('x') every 20 ms until the client leaves.
    enum class Then { kKeep, kClose, kReset, kHang, kDrip } then = Then::kKeep;
  };
  /// Called on connection threads, one call at a time.
  using Script = std::function<Reply(const Seen&)>;

  explicit ScriptedServer(Script script, const char* address = "127.0.0.1", int port = 0);
  ~ScriptedServer();

  std::string url() const;  ///< "http://127.0.0.1:port"
  int port() const { return port_; }
  std::vector<Seen> seen() const MR_EXCLUDES(mutex_);
  int connections() const { return connections_; }

 private:
  void Accept();
  void Serve(int fd);
  bool ReadRequest(int fd, std::string& buffered, Seen& seen);

  const Script script_;
  UniqueFd listener_;
  int port_ = 0;
  std::atomic<int> connections_{0};
  std::thread acceptor_;

  mutable Mutex mutex_;
  std::vector<Seen> seen_ MR_GUARDED_BY(mutex_);
  bool stopping_ MR_GUARDED_BY(mutex_) = false;
  std::map<int, std::thread> open_ MR_GUARDED_BY(mutex_);  ///< by descriptor, which lives until destruction
};

/// "HTTP/1.1 200 OK" with Content-Length, the given fields ("Name: value\r\n"…) and body.
std::string Answer(int status, std::string_view body, std::string_view fields = {});

}  // namespace millrace::http::testing
