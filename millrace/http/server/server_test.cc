#include "millrace/http/server/server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <latch>
#include <thread>

#include "millrace/base/files/files.h"

namespace millrace::http {
namespace {

using namespace std::chrono_literals;

/// A client that sends exactly the bytes it is told to.
class RawClient {
 public:
  explicit RawClient(int port) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }
  void Send(std::string_view bytes) {
    while (!bytes.empty()) {
      ssize_t sent = send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return;
      bytes.remove_prefix(sent);
    }
  }
  /// Reads until `mark` has been seen or the server closes.
  std::string ReadUntil(std::string_view mark) {
    std::string all;
    char piece[4096];
    while (mark.empty() || all.find(mark) == std::string::npos) {
      ssize_t got = recv(fd_.get(), piece, mark.empty() ? sizeof piece : 1, 0);
      last_ = got < 0 ? errno : 0;
      if (got <= 0) break;
      all.append(piece, got);
    }
    return all;
  }
  std::string ReadToEnd() { return ReadUntil(""); }
  int last_errno() const { return last_; }
  void Leave() {
    shutdown(fd_.get(), SHUT_RDWR);  // a forked child may hold a copy of the descriptor
    fd_.Reset();
  }

 private:
  UniqueFd fd_;
  int last_ = 0;
};

/// Answers with what it got: method, target and body.
void EchoBody(ServerRequest& request, ServerResponse& response) {
  auto body = request.ReadAllBody(1 * kMiB);
  if (!body) {
    (void)response.Send(ToHttpStatus(body.error().code()), {}, AsBytes(body.error().message()));
    return;
  }
  std::string text = fmt::format("{} {} [{}]", request.method(), request.target(), *body);
  (void)response.Send(200, {}, AsBytes(text));
}

std::unique_ptr<Server> StartServer(Handler handler, Server::Options options = {}) {
  auto server = Server::Start(std::move(options), std::move(handler));
  EXPECT_TRUE(server) << server.error().ToString();
  return std::move(*server);
}

std::string Exchange(Server& server, std::string_view request) {
  RawClient client(server.port());
  client.Send(request);
  return client.ReadToEnd();
}

TEST(Server, KeepsConnectionsAndTakesPipelinedRequests) {
  auto server = StartServer(EchoBody);
  RawClient client(server->port());
  client.Send("GET /a HTTP/1.1\r\nHost: h\r\n\r\nPUT /b HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nxyz\r\n");
  EXPECT_NE(client.ReadUntil("[]").find("GET /a"), std::string::npos);
  EXPECT_NE(client.ReadUntil("]").find("PUT /b [xyz"), std::string::npos);
  client.Send("DELETE /c HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
  std::string last = client.ReadToEnd();
  EXPECT_NE(last.find("DELETE /c []"), std::string::npos);
  EXPECT_NE(last.find("Connection: close"), std::string::npos);
}

TEST(Server, UndoesTheChunkedCoding) {
  auto server = StartServer(EchoBody);
  std::string answer = Exchange(*server,
                                "PUT / HTTP/1.1\r\nHost: h\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
                                "3\r\nabc\r\n5;ext=1\r\ndefgh\r\n0\r\nTrailer: x\r\n\r\n");
  EXPECT_NE(answer.find("[abcdefgh]"), std::string::npos) << answer;
}

TEST(Server, RefusesBrokenChunks) {
  auto server = StartServer(EchoBody);
  for (std::string_view body :
       {"3\r\nabcd\r\n0\r\n\r\n", "x\r\n", "3\nabc\n0\n\n", "3\r\nabc\r\n0\r\nbad trailer\r\n\r\n"}) {
    std::string answer =
        Exchange(*server, fmt::format("PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n{}", body));
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 400")) << body << answer;
  }
}

TEST(Server, AnswersExpectationsBeforeTheBody) {
  auto server = StartServer(EchoBody);
  RawClient client(server->port());
  client.Send("PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(client.ReadUntil("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.Send("ok");
  EXPECT_NE(client.ReadUntil("]").find("[ok]"), std::string::npos);
}

TEST(Server, ClosesWhenAnExpectedBodyWasNotWanted) {
  auto server = StartServer([](ServerRequest&, ServerResponse& response) { (void)response.Send(403, {}, {}); });
  RawClient client(server->port());
  client.Send("PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
  std::string answer = client.ReadUntil("\r\n\r\n");
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 403 Forbidden")) << answer;
  EXPECT_NE(answer.find("Connection: close"), std::string::npos);
}

TEST(Server, RefusesMalformedAndOverlongHeads) {
  auto server = StartServer(EchoBody, {.max_header_bytes = 20 * kKiB});
  EXPECT_TRUE(Exchange(*server, "GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n")
                  .starts_with("HTTP/1.1 400"));
  std::string head = "GET / HTTP/1.1\r\nHost: h\r\nX: " + std::string(30'000, 'x') + "\r\n\r\n";
  EXPECT_TRUE(Exchange(*server, head).starts_with("HTTP/1.1 431"));
}

TEST(Server, HeadHasTheLengthButNoBody) {
  auto server = StartServer(EchoBody);
  std::string answer = Exchange(*server, "HEAD /abc HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
  EXPECT_NE(answer.find("Content-Length: 12\r\n"), std::string::npos) << answer;
  EXPECT_TRUE(answer.ends_with("\r\n\r\n"));
}

TEST(Server, StreamsWithoutALengthInChunks) {
  auto server = StartServer([](ServerRequest&, ServerResponse& response) {
    ASSERT_TRUE(response.Start(200, {}, std::nullopt));
    ASSERT_TRUE(response.Write(AsBytes("hello")));
    ASSERT_TRUE(response.Write(AsBytes(" world")));
    ASSERT_TRUE(response.Finish());
  });
  std::string answer = Exchange(*server, "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
  EXPECT_TRUE(answer.ends_with("\r\n\r\n5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n")) << answer;
  answer = Exchange(*server, "GET / HTTP/1.0\r\n\r\n");
  EXPECT_TRUE(answer.ends_with("\r\n\r\nhello world")) << answer;
}

TEST(Server, SendsFiles) {
  auto folder = TempDir::Create();
  ASSERT_TRUE(folder);
  std::string content(3'000'000, 'a');
  for (std::size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i * 31 >> 7);
  ASSERT_TRUE(WriteFileAtomic(folder->path() / "f", AsBytes(content)));
  UniqueFd file = *OpenFile(folder->path() / "f", O_RDONLY);
  auto server = StartServer([&](ServerRequest&, ServerResponse& response) {
    ASSERT_TRUE(response.Start(200, {}, content.size() - 10));
    ASSERT_TRUE(response.WriteFile(file.get(), 10, content.size() - 10));
    ASSERT_TRUE(response.Finish());
  });
  std::string answer = Exchange(*server, "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(answer.substr(answer.find("\r\n\r\n") + 4), content.substr(10));
}

TEST(Server, AShortAnswerEndsTheConnection) {
  auto server = StartServer([](ServerRequest&, ServerResponse& response) {
    ASSERT_TRUE(response.Start(200, {}, 100));
    ASSERT_TRUE(response.Write(AsBytes("short")));
    EXPECT_FALSE(response.Finish());
  });
  std::string answer = Exchange(*server, "GET / HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_TRUE(answer.ends_with("short")) << answer;
}

TEST(Server, AbortCanReset) {
  auto server = StartServer([](ServerRequest&, ServerResponse& response) { response.Abort(true); });
  RawClient client(server->port());
  client.Send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_EQ(client.ReadToEnd(), "");
  EXPECT_EQ(client.last_errno(), ECONNRESET);
}

TEST(Server, ValuesCannotBecomeFields) {
  auto server = StartServer([](ServerRequest&, ServerResponse& response) {
    Headers headers;
    headers.Set("X", "a\r\nInjected: yes");
    (void)response.Send(200, headers, {});
  });
  std::string answer = Exchange(*server, "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(answer.find("\r\nInjected"), std::string::npos);
}

TEST(Server, AHandlerWithoutAnAnswerIsAnError) {
  auto server = StartServer([](ServerRequest& request, ServerResponse&) {
    if (request.path() == "/throw") throw std::runtime_error("no");
  });
  for (std::string_view path : {"/", "/throw"}) {
    std::string answer =
        Exchange(*server, fmt::format("GET {} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", path));
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 500")) << answer;
  }
}

TEST(Server, LetsIdleAndSlowClientsGo) {
  auto server = StartServer(EchoBody, {.idle_timeout = 30ms, .header_timeout = 30ms, .wait = {.stall = 30ms}});
  RawClient idle(server->port());
  EXPECT_EQ(idle.ReadToEnd(), "");
  RawClient slow(server->port());
  slow.Send("GET / HT");
  EXPECT_TRUE(slow.ReadToEnd().starts_with("HTTP/1.1 408"));
  RawClient stalled(server->port());
  stalled.Send("PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\nx");
  EXPECT_TRUE(stalled.ReadUntil("\r\n\r\n").starts_with("HTTP/1.1 504"));
}

TEST(Server, EndsTheConnectionOfAClientThatSpeaksTls) {
  auto server = StartServer(EchoBody, {.idle_timeout = std::chrono::hours(1), .header_timeout = std::chrono::hours(1)});
  RawClient client(server->port());
  client.Send(std::string_view("\x16\x03\x01\x02\x00\x01", 6));
  EXPECT_EQ(client.ReadToEnd(), "");
}

constexpr std::string_view kGet = "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";

/// A server whose handlers wait until the test lets them go.
struct HeldServer {
  explicit HeldServer(Server::Options options, int requests)
      : entered(requests),
        server(StartServer(
            [this](ServerRequest&, ServerResponse& response) {
              if (!entered.try_wait()) entered.count_down();  // a latch must not go below zero
              release.wait();
              (void)response.Send(200, {}, AsBytes("done"));
            },
            std::move(options))) {}
  std::latch entered, release{1};
  std::unique_ptr<Server> server;
};

TEST(Server, TurnsAwayMoreRequestsThanItsConnections) {
  HeldServer held({.max_connections = 1}, 1);
  RawClient first(held.server->port());
  first.Send(kGet);
  held.entered.wait();
  EXPECT_TRUE(Exchange(*held.server, "").starts_with("HTTP/1.1 503"));
  held.release.count_down();
  EXPECT_TRUE(first.ReadToEnd().ends_with("done"));
}

TEST(Server, HalfOpenConnectionsDoNotShutOthersOut) {
  constexpr int kMax = 16;
  auto server = StartServer(EchoBody, {.max_connections = kMax});
  std::vector<std::unique_ptr<RawClient>> half_open;
  for (int i = 0; i < kMax; ++i) {
    half_open.push_back(std::make_unique<RawClient>(server->port()));
    half_open.back()->Send("GET / HT");
  }
  EXPECT_TRUE(Exchange(*server, kGet).starts_with("HTTP/1.1 200"));
  EXPECT_EQ(half_open.front()->ReadToEnd(), "") << "the oldest gives way";
  half_open.back()->Send("TP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
  EXPECT_TRUE(half_open.back()->ReadToEnd().starts_with("HTTP/1.1 200"));
}

TEST(Server, IdleConnectionsGiveWay) {
  auto server = StartServer(EchoBody, {.max_connections = 1});
  RawClient idle(server->port());
  idle.Send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
  idle.ReadUntil("]");
  // For a moment after its answer the connection still counts as at work.
  std::string answer;
  while (!answer.starts_with("HTTP/1.1 200")) answer = Exchange(*server, kGet);
  EXPECT_EQ(idle.ReadToEnd(), "");
}

TEST(Server, LimitsTheConnectionsOfOneAddress) {
  HeldServer held({.max_per_address = 2}, 2);
  RawClient first(held.server->port()), second(held.server->port());
  first.Send(kGet);
  second.Send(kGet);
  held.entered.wait();
  EXPECT_TRUE(Exchange(*held.server, kGet).starts_with("HTTP/1.1 503"));
  held.release.count_down();
  EXPECT_TRUE(first.ReadToEnd().ends_with("done"));
  EXPECT_TRUE(second.ReadToEnd().ends_with("done"));
  EXPECT_TRUE(Exchange(*held.server, kGet).ends_with("done"));
}

TEST(Server, TellsTheHandlerThatTheClientLeft) {
  std::latch entered(1), noticed(1);
  auto server = StartServer([&](ServerRequest& request, ServerResponse& response) {
    std::stop_callback wake(request.stop(), [&] { noticed.count_down(); });
    entered.count_down();
    noticed.wait();
    response.Abort(false);
  });
  RawClient client(server->port());
  client.Send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
  entered.wait();
  client.Leave();
  noticed.wait();
}

// A child between fork and exec holds a copy of every connection. AddressSanitizer sees the event of a freed worker.
TEST(Server, AChildThatHoldsAConnectionDoesNotBringItBack) {
  auto server = StartServer([](ServerRequest& request, ServerResponse& response) {
    if (request.target() == "/abort") return response.Abort(true);
    EchoBody(request, response);
  });
  for (int i = 0; i < 20; ++i) {
    RawClient client(server->port());
    client.Send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    client.ReadUntil("[]");
    const pid_t child = fork();
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      pause();
      _exit(0);
    }
    client.Send("GET /abort HTTP/1.1\r\nHost: h\r\n\r\n");
    // Rounds of the accept loop: the worker is freed in one, its connection would report the client's end in another.
    for (int round = 0; round < 4; ++round) {
      if (round == 2) client.Leave();
      EXPECT_NE(Exchange(*server, kGet).find("GET /"), std::string::npos);
    }
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  }
}

TEST(Server, StopLetsRunningHandlersFinish) {
  std::latch entered(1), release(1);
  auto server = StartServer([&](ServerRequest&, ServerResponse& response) {
    entered.count_down();
    release.wait();
    (void)response.Send(200, {}, AsBytes("done"));
  });
  RawClient client(server->port());
  client.Send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
  entered.wait();
  std::thread stopper([&] { server->Stop(10s); });
  release.count_down();
  std::string answer = client.ReadUntil("done");
  EXPECT_TRUE(answer.ends_with("done")) << answer;
  client.Leave();
  stopper.join();
}

TEST(Server, StopCutsWhatOutlivesTheGrace) {
  std::latch entered(1);
  std::atomic<bool> told = false;
  auto server = StartServer([&](ServerRequest& request, ServerResponse& response) {
    std::latch stopped(1);
    std::stop_callback wake(request.stop(), [&] { stopped.count_down(); });
    entered.count_down();
    stopped.wait();
    told = true;
    response.Abort(false);
  });
  RawClient client(server->port());
  client.Send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
  entered.wait();
  server->Stop(1ms);
  EXPECT_TRUE(told);
}

TEST(Server, ServesManyClientsAtOnce) {
  auto server = StartServer(EchoBody);
  std::atomic<int> right = 0;
  std::vector<std::thread> clients;
  for (int c = 0; c < 8; ++c) {
    clients.emplace_back([&, c] {
      RawClient client(server->port());
      for (int i = 0; i < 50; ++i) {
        std::string body = fmt::format("{}-{}", c, i);
        client.Send(fmt::format("PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n{}", body.size(), body));
        if (client.ReadUntil("]").ends_with(fmt::format("[{}]", body))) ++right;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(right, 400);
}

TEST(ParseQuery, DecodesInOrder) {
  auto query = ParseQuery("b=x%20y&a=1+2&&flag&e=");
  ASSERT_TRUE(query);
  using Pairs = std::vector<std::pair<std::string, std::string>>;
  EXPECT_EQ(*query, (Pairs{{"b", "x y"}, {"a", "1 2"}, {"flag", ""}, {"e", ""}}));
  EXPECT_FALSE(ParseQuery("a=%zz"));
}

}  // namespace
}  // namespace millrace::http
