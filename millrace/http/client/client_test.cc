#include "millrace/http/client/client.h"

#include <gmock/gmock.h>

#include <atomic>
#include <latch>
#include <map>
#include <thread>

#include "millrace/http/testing/scripted_server.h"

namespace millrace::http {
namespace {

using std::chrono::milliseconds;
using testing::Answer;
using testing::ScriptedServer;
using Then = ScriptedServer::Reply::Then;
using Seen = ScriptedServer::Seen;

ScriptedServer::Reply Echo(const Seen& seen) { return {Answer(200, seen.body)}; }

Client::Options Impatient() {
  return {
      .timeouts = {.connect = std::chrono::seconds(2), .first_byte = milliseconds(150), .stall = milliseconds(150)}};
}

TEST(Client, SendsMethodHeadersAndBodyAndReportsStatusAndHeaders) {
  ScriptedServer server([](const Seen&) { return ScriptedServer::Reply{Answer(201, "made", "ETag: \"x\"\r\n")}; });
  Client client({});
  std::string body = "hello";
  Request request{.method = "PUT", .url = server.url() + "/a/../b%20c?d=e", .body = AsBytes(body)};
  request.headers.Set("X-One", "1");
  request.headers.Set("X-Empty", "");
  auto response = client.Send(std::move(request));
  ASSERT_TRUE(response) << response.error().ToString();
  EXPECT_EQ(response->status, 201);
  EXPECT_EQ(response->headers.Get("etag"), "\"x\"");
  EXPECT_EQ(response->body, "made");
  auto seen = server.seen();
  ASSERT_EQ(seen.size(), 1u);
  EXPECT_EQ(seen[0].method, "PUT");
  EXPECT_EQ(seen[0].target, "/a/../b%20c?d=e") << "paths must travel as they are: they are keys";
  EXPECT_EQ(seen[0].headers.Get("x-one"), "1");
  EXPECT_TRUE(seen[0].headers.Has("x-empty"));
  EXPECT_FALSE(seen[0].headers.Has("expect"));
  EXPECT_EQ(seen[0].body, "hello");
}

TEST(Client, EveryMethodKeepsItsName) {
  ScriptedServer server([](const Seen& seen) {
    return ScriptedServer::Reply{seen.method == "HEAD" ? "HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n"
                                                       : Answer(200, "")};
  });
  Client client({});
  for (std::string method : {"GET", "HEAD", "PUT", "POST", "DELETE"}) {
    auto response = client.Send({.method = method, .url = server.url() + "/"});
    ASSERT_TRUE(response) << method << response.error().ToString();
    EXPECT_EQ(server.seen().back().method, method);
    if (method == "PUT" || method == "POST") {
      EXPECT_EQ(server.seen().back().headers.Get("content-length"), "0");
    }
  }
  EXPECT_EQ(server.connections(), 1);
}

TEST(Client, ABodyLandsInTheCallersBuffer) {
  std::string content(3'000'000, 'x');
  for (std::size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i * 2654435761u >> 24);
  ScriptedServer server([&](const Seen&) { return ScriptedServer::Reply{Answer(206, content)}; });
  Client client({});
  Buffer into(content.size() + 10);
  auto response = client.Send({.url = server.url()}, {.into = into.span()});
  ASSERT_TRUE(response) << response.error().ToString();
  EXPECT_EQ(response->received, content.size());
  EXPECT_TRUE(response->body.empty());
  EXPECT_EQ(AsText(into.span().first(content.size())), content);
}

TEST(Client, ABodyLongerThanTheBufferIsCorrupt) {
  ScriptedServer server([](const Seen&) { return ScriptedServer::Reply{Answer(200, "0123456789")}; });
  Client client({});
  Buffer into(9);
  auto response = client.Send({.url = server.url()}, {.into = into.span()});
  ASSERT_FALSE(response);
  EXPECT_EQ(response.error().code(), Code::kCorrupt);
}

TEST(Client, ErrorBodiesAreCollectedAndNeverLandInTheBuffer) {
  ScriptedServer server([](const Seen&) { return ScriptedServer::Reply{Answer(503, "<Error/>")}; });
  Client client({});
  Buffer into(4);
  auto response = client.Send({.url = server.url()}, {.into = into.span()});
  ASSERT_TRUE(response) << response.error().ToString();
  EXPECT_EQ(response->status, 503);
  EXPECT_EQ(response->body, "<Error/>");
}

TEST(Client, CollectedBodiesAreBounded) {
  ScriptedServer server([](const Seen&) { return ScriptedServer::Reply{Answer(200, "0123456789")}; });
  Client client({});
  auto response = client.Send({.url = server.url()}, {.max_collected = 9});
  ASSERT_FALSE(response);
  EXPECT_EQ(response.error().code(), Code::kResourceExhausted);
}

struct Misbehaviour {
  std::string name;
  ScriptedServer::Reply reply;
};
class Broken : public ::testing::TestWithParam<Misbehaviour> {};

TEST_P(Broken, AnswersAreTransientErrorsThatNameTheRequest) {
  ScriptedServer server([&](const Seen&) { return GetParam().reply; });
  Client client(Impatient());
  Buffer into(100);
  auto response = client.Send({.url = server.url() + "/key?X-Amz-Signature=secret"}, {.into = into.span()});
  ASSERT_FALSE(response);
  EXPECT_EQ(response.error().code(), Code::kUnavailable) << response.error().ToString();
  EXPECT_THAT(response.error().ToString(), ::testing::HasSubstr(server.url() + "/key"));
  EXPECT_THAT(response.error().ToString(), ::testing::Not(::testing::HasSubstr("secret")));
}

INSTANTIATE_TEST_SUITE_P(
    All, Broken,
    ::testing::Values(Misbehaviour{"CutShort", {"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhalf", Then::kClose}},
                      Misbehaviour{"Reset", {"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhalf", Then::kReset}},
                      Misbehaviour{"ClosedAtOnce", {"", Then::kClose}}, Misbehaviour{"NoAnswer", {"", Then::kHang}},
                      Misbehaviour{"Stall", {"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhalf", Then::kHang}},
                      Misbehaviour{"ChunkedCutShort",
                                   {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nhalf", Then::kClose}}),
    [](const auto& info) { return info.param.name; });

TEST(Client, ARefusedConnectionSaysWhatToCheck) {
  int port = 0;
  {
    ScriptedServer gone(Echo);
    port = gone.port();
  }
  Client client({});
  auto response = client.Send({.url = fmt::format("http://127.0.0.1:{}/", port)});
  ASSERT_FALSE(response);
  EXPECT_EQ(response.error().code(), Code::kUnavailable);
  EXPECT_THAT(response.error().message(), ::testing::HasSubstr("check that the endpoint's address"));
}

TEST(Client, OtherProtocolsAreRefused) {
  Client client({});
  auto response = client.Send({.url = "file:///etc/passwd"});
  ASSERT_FALSE(response);
  EXPECT_EQ(response.error().code(), Code::kInvalidArgument);
}

TEST(Client, ADeadlineEndsARequestThatIsUnderWay) {
  ScriptedServer server([](const Seen&) { return ScriptedServer::Reply{"", Then::kHang}; });
  Client client({});
  auto response =
      client.Send({.url = server.url()}, {}, {.deadline = Deadline::After(SystemClock(), milliseconds(50))});
  ASSERT_FALSE(response);
  EXPECT_EQ(response.error().code(), Code::kDeadlineExceeded);
}

TEST(Client, ARequestMayHaveALimitOfItsOwnForSilence) {
  ScriptedServer server([](const Seen& seen) {
    const bool begins = seen.number == 1;
    return ScriptedServer::Reply{begins ? "HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhalf" : "", Then::kHang};
  });
  Client client({.timeouts = {.first_byte = milliseconds(50), .stall = milliseconds(50)}});
  for (const char* what : {"no answer within 120.0 ms", "next to no byte moved for 120.0 ms"}) {
    auto response = client.Send({.url = server.url(), .longest_silence = milliseconds(120)});
    ASSERT_FALSE(response);
    EXPECT_NE(response.error().ToString().find(what), std::string::npos) << response.error().ToString();
  }
}

TEST(Client, CancellingEndsRequestsUnderWayAndQueuedOnes) {
  std::atomic<int> arrived = 0;
  ScriptedServer server([&](const Seen&) {
    ++arrived;
    arrived.notify_all();
    return ScriptedServer::Reply{"", Then::kHang};
  });
  Client client({.max_connections = 1});
  std::stop_source stop;
  std::latch ended(3);
  std::atomic<int> cancelled = 0;
  for (int i = 0; i < 3; ++i) {
    client.Send({.url = server.url()}, {}, {.stop = stop.get_token()}, [&](Result<Response> response) {
      if (!response && response.error().code() == Code::kCancelled) ++cancelled;
      ended.count_down();
    });
  }
  arrived.wait(0);
  stop.request_stop();
  ended.wait();
  EXPECT_EQ(cancelled, 3);
  EXPECT_EQ(server.seen().size(), 1u);
  auto late = client.Send({.url = server.url()}, {}, {.stop = stop.get_token()});
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code(), Code::kCancelled);
}

TEST(Client, DestructionCompletesEverything) {
  ScriptedServer server([](const Seen&) { return ScriptedServer::Reply{"", Then::kHang}; });
  int completed = 0;
  {
    Client client({.max_connections = 2});
    for (int i = 0; i < 5; ++i) {
      client.Send({.url = server.url()}, {}, {}, [&](Result<Response> response) {
        EXPECT_FALSE(response);
        ++completed;
        // What a retry would do: the client refuses instead of waiting for ever.
        client.Send({.url = server.url()}, {}, {}, [&](Result<Response> again) {
          EXPECT_EQ(again.error().code(), Code::kCancelled);
          ++completed;
        });
      });
    }
  }
  EXPECT_EQ(completed, 10);
}

TEST(Client, ConnectionsAreKeptAndTheirNumberIsBounded) {
  ScriptedServer server(Echo);
  Client client({.max_connections = 3});
  std::latch ended(60);
  for (int i = 0; i < 60; ++i) {
    client.Send({.url = server.url()}, {}, {}, [&](Result<Response> response) {
      EXPECT_TRUE(response) << response.error().ToString();
      ended.count_down();
    });
  }
  ended.wait();
  EXPECT_LE(server.connections(), 3);
  Client::Stats stats = client.stats();
  EXPECT_EQ(stats.requests, 60u);
  EXPECT_EQ(static_cast<int>(stats.connections_opened), server.connections());
  EXPECT_EQ(stats.in_flight, 0);
}

TEST(Client, QueuedRequestsGoInOrder) {
  ScriptedServer server(Echo);
  Client client({.max_connections = 1});
  std::latch ended(20);
  for (int i = 0; i < 20; ++i) {
    client.Send({.url = fmt::format("{}/{}", server.url(), i)}, {}, {}, [&](Result<Response>) { ended.count_down(); });
  }
  ended.wait();
  auto seen = server.seen();
  ASSERT_EQ(seen.size(), 20u);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(seen[i].target, fmt::format("/{}", i));
}

TEST(Client, AConnectionTheServerDroppedWhileIdleIsReplaced) {
  ScriptedServer server([](const Seen& seen) { return ScriptedServer::Reply{Answer(200, seen.body), Then::kClose}; });
  Client client({});
  std::string body(100'000, 'b');
  for (int i = 0; i < 5; ++i) {
    auto response = client.Send({.method = "PUT", .url = server.url(), .body = AsBytes(body)});
    ASSERT_TRUE(response) << response.error().ToString();
    EXPECT_EQ(response->body, body);
  }
}

TEST(Client, InterimAnswersAreSkipped) {
  ScriptedServer server([](const Seen&) {
    return ScriptedServer::Reply{"HTTP/1.1 100 Continue\r\nX-Interim: 1\r\n\r\n" + Answer(200, "done")};
  });
  Client client({});
  auto response = client.Send({.url = server.url()});
  ASSERT_TRUE(response) << response.error().ToString();
  EXPECT_EQ(response->status, 200);
  EXPECT_FALSE(response->headers.Has("x-interim"));
}

TEST(Client, AnEndlessHeaderIsRefused) {
  ScriptedServer server([](const Seen&) {
    std::string fields;
    for (int i = 0; i < 10'000; ++i) fields += fmt::format("X-Field-{}: {}\r\n", i, std::string(40, 'v'));
    return ScriptedServer::Reply{Answer(200, "", fields)};
  });
  Client client({});
  auto response = client.Send({.url = server.url()});
  ASSERT_FALSE(response);
  EXPECT_EQ(response.error().code(), Code::kCorrupt);
}

TEST(Client, BandwidthIsLimitedOverAllRequests) {
  std::string content(100'000, 'x');
  ScriptedServer server([&](const Seen&) { return ScriptedServer::Reply{Answer(200, content)}; });
  Client client({.max_bytes_per_second = 1'000'000});
  TimePoint start = SystemClock().Now();
  std::latch ended(6);
  for (int i = 0; i < 6; ++i) {
    client.Send({.url = server.url()}, {}, {}, [&](Result<Response> response) {
      EXPECT_TRUE(response && response->body == content);
      ended.count_down();
    });
  }
  ended.wait();
  // 600 kB less the burst of 100 kB and the one chunk that may overdraw it.
  EXPECT_GE(SystemClock().Now() - start, milliseconds(300));
}

TEST(Client, ManyThreadsMaySendAndCancelAtOnce) {
  ScriptedServer server(Echo);
  Client client({.max_connections = 8});
  std::vector<std::thread> threads;
  std::atomic<int> completed = 0;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        std::stop_source stop;
        std::string body = fmt::format("{} {}", t, i);
        std::jthread canceller([&] {
          if (i % 3 == 0) stop.request_stop();
        });
        auto response =
            client.Send({.method = "PUT", .url = server.url(), .body = AsBytes(body)}, {}, {.stop = stop.get_token()});
        if (response) {
          EXPECT_EQ(response->body, body);
        } else {
          EXPECT_EQ(response.error().code(), Code::kCancelled) << response.error().ToString();
        }
        ++completed;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(completed, 200);
}

/// Answers the first requests at once; the `late`-th never.
ScriptedServer::Script OneNever(int late, std::string body) {
  return [=](const Seen& seen) {
    return seen.number == late ? ScriptedServer::Reply{"", Then::kHang} : ScriptedServer::Reply{Answer(200, body)};
  };
}

TEST(Client, ALateAnswerIsAskedForOnceMore) {
  constexpr int kUsual = 40;
  ScriptedServer server(OneNever(kUsual, "body"));
  Client client({.timeouts = {.first_byte = std::chrono::seconds(20)}});
  std::string into(4, '?');
  for (int i = 0; i <= kUsual; ++i) {
    into = "????";
    auto response = client.Send({.url = server.url(), .hedge = true}, {.into = AsWritableBytes(into)});
    ASSERT_TRUE(response) << response.error().ToString();
    EXPECT_EQ(into, "body");
  }
  EXPECT_EQ(client.stats().hedged, 1u);
  EXPECT_EQ(server.seen().size(), kUsual + 2u);
  EXPECT_EQ(client.stats().in_flight, 0);
}

TEST(Client, OnlyWhatAllowsItIsAskedForTwice) {
  constexpr int kUsual = 40;
  ScriptedServer server(OneNever(kUsual, "body"));
  Client client(Impatient());
  for (int i = 0; i < kUsual; ++i) ASSERT_TRUE(client.Send({.url = server.url(), .hedge = true}));
  EXPECT_FALSE(client.Send({.url = server.url()}));
  EXPECT_EQ(client.stats().hedged, 0u);
}

TEST(Client, WithoutAConnectionToSpareNothingIsAskedForTwice) {
  constexpr int kUsual = 40;
  ScriptedServer server(OneNever(kUsual, "body"));
  Client::Options options = Impatient();
  options.max_connections_per_host = 1;
  Client client(options);
  for (int i = 0; i < kUsual; ++i) ASSERT_TRUE(client.Send({.url = server.url(), .hedge = true}));
  EXPECT_FALSE(client.Send({.url = server.url(), .hedge = true}));
  EXPECT_EQ(client.stats().hedged, 0u);
}

TEST(Client, CancellingEndsBothOfAPair) {
  constexpr int kUsual = 40;
  ScriptedServer server([](const Seen& seen) {
    return seen.number >= kUsual ? ScriptedServer::Reply{"", Then::kHang} : ScriptedServer::Reply{Answer(200, "body")};
  });
  Client client({.timeouts = {.first_byte = std::chrono::seconds(20)}});
  for (int i = 0; i < kUsual; ++i) ASSERT_TRUE(client.Send({.url = server.url(), .hedge = true}));
  auto response = client.Send({.url = server.url(), .hedge = true}, {},
                              {.deadline = Deadline::After(SystemClock(), milliseconds(300))});
  ASSERT_FALSE(response);
  EXPECT_EQ(response.error().code(), Code::kDeadlineExceeded);
  EXPECT_EQ(client.stats().hedged, 1u);
}

TEST(Client, ConnectionsSpreadOverANamesAddressesAndPassTheDeadOnes) {
  auto script = [](const Seen&) { return ScriptedServer::Reply{Answer(200, "ok"), Then::kClose}; };
  ScriptedServer first(script), second(script, "127.0.0.2", first.port()), third(script, "127.0.0.3", first.port());
  const std::string authority = fmt::format("store.test:{}", first.port());
  Client client({.addresses = {{authority, {"127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4"}}}});
  for (int i = 0; i < 90; ++i) ASSERT_TRUE(client.Send({.url = "http://" + authority + "/"}));
  for (const ScriptedServer* server : {&first, &second, &third}) EXPECT_GE(server->seen().size(), 8u);
}

TEST(Client, LoopsShareRequestsAndConnections) {
  ScriptedServer server([](const Seen&) { return ScriptedServer::Reply{Answer(200, "ok")}; });
  Client client({.max_connections = 5, .max_connections_per_host = 5, .loops = 3});
  constexpr int kRequests = 200;
  std::latch left(kRequests);
  for (int i = 0; i < kRequests; ++i) {
    client.Send({.url = server.url()}, {}, {}, [&](Result<Response> response) {
      EXPECT_TRUE(response) << response.error().ToString();
      left.count_down();
    });
  }
  left.wait();
  EXPECT_EQ(client.stats().requests, static_cast<std::uint64_t>(kRequests));
  EXPECT_EQ(client.stats().most_active, 5);
  EXPECT_LE(server.connections(), 5);
  EXPECT_GE(server.connections(), 3);
  client.LimitActive(3);
  EXPECT_EQ(client.stats().most_active, 3);
}

TEST(Client, UploadsBeyondTheirLimitWaitAndOthersPassThem) {
  constexpr int kUploads = 4;
  std::atomic<int> arrived = 0;
  std::latch all_arrived(kUploads), all_ended(kUploads);
  ScriptedServer server([&](const Seen& seen) {
    if (seen.method == "GET") return ScriptedServer::Reply{Answer(200, "ok")};
    ++arrived;
    all_arrived.count_down();
    return ScriptedServer::Reply{"", Then::kHang};
  });
  Client client({.loops = 1});
  client.LimitUploads(2);
  std::stop_source stop;
  for (int i = 0; i < kUploads; ++i) {
    client.Send({.method = "PUT", .url = server.url(), .body = AsBytes("x"), .upload = true}, {},
                {.stop = stop.get_token()}, [&](Result<Response>) { all_ended.count_down(); });
  }
  ASSERT_TRUE(client.Send({.url = server.url()})) << "what is no upload does not wait behind them";
  EXPECT_LE(arrived, 2);
  client.LimitUploads(kUploads);
  all_arrived.wait();
  stop.request_stop();
  all_ended.wait();
}

TEST(Client, AServerThatDripsIsGivenUpOn) {
  for (const char* begin :
       {"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", "HTTP/1.1 200 OK\r\nX-Long: ", "HTTP/1.1"}) {
    ScriptedServer server([&](const Seen&) { return ScriptedServer::Reply{begin, Then::kDrip}; });
    Client client(Impatient());
    auto response = client.Send({.url = server.url()});
    ASSERT_FALSE(response) << begin;
    EXPECT_EQ(response.error().code(), Code::kUnavailable) << begin;
  }
}

TEST(Client, PlainRequestsGoThroughTheProxyAsWholeUrls) {
  ScriptedServer proxy([](const Seen& seen) { return ScriptedServer::Reply{Answer(200, "proxied " + seen.target)}; });
  Client client({.proxies = {.http = proxy.url(), .except = "direct.example,127.0.0.1"}});
  auto response = client.Send({.url = "http://bucket.example:81/a/../k?x=y"});
  ASSERT_TRUE(response) << response.error().ToString();
  EXPECT_EQ(response->body, "proxied http://bucket.example:81/a/../k?x=y");
  ScriptedServer server(Echo);
  ASSERT_TRUE(client.Send({.url = server.url() + "/"}));
  EXPECT_EQ(proxy.seen().size(), 1u) << "excepted hosts are reached without it";
}

TEST(Client, TlsGoesThroughATunnel) {
  ScriptedServer proxy([](const Seen&) { return ScriptedServer::Reply{Answer(403, "no tunnels here")}; });
  Client client({.proxies = {.https = proxy.url()}});
  auto response = client.Send({.url = "https://bucket.example/secret?token=1"});
  ASSERT_FALSE(response);
  EXPECT_EQ(response.error().code(), Code::kUnavailable);
  ASSERT_EQ(proxy.seen().size(), 1u);
  EXPECT_EQ(proxy.seen()[0].method, "CONNECT");
  EXPECT_EQ(proxy.seen()[0].target, "bucket.example:443") << "paths and queries stay within TLS";
}

TEST(Client, ProxiesOfTheEnvironmentAreTheCallersToPass) {
  std::map<std::string, std::string> env{{"HTTP_PROXY", "http://upper:1"},
                                         {"http_proxy", "http://lower:1"},
                                         {"ALL_PROXY", "http://all:1"},
                                         {"NO_PROXY", "x"}};
  Proxies proxies = Proxies::FromEnvironment([&](const char* name) -> std::optional<std::string> {
    auto found = env.find(name);
    return found == env.end() ? std::nullopt : std::optional(found->second);
  });
  EXPECT_EQ(proxies.http, "http://lower:1");
  EXPECT_EQ(proxies.https, "http://all:1");
  EXPECT_EQ(proxies.except, "x");
}

}  // namespace
}  // namespace millrace::http
