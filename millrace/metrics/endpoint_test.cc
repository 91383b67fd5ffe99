#include "millrace/metrics/endpoint.h"

#include <gmock/gmock.h>

#include "millrace/base/files/files.h"
#include "millrace/http/client/client.h"

namespace millrace::metrics {
namespace {

using ::testing::HasSubstr;

TEST(Endpoint, AnswersWithTheFiguresOfTheMoment) {
  int asked = 0;
  auto server =
      ServeMetrics({.listen = "127.0.0.1:0"}, {{"/metrics", [&] { return fmt::format("asked {}\n", ++asked); }},
                                               {"/history", [] { return "{}"; }}})
          .value();
  const std::string at = "http://" + server->address();
  http::Client client({});
  for (int i = 1; i <= 2; ++i) {
    auto response = client.Send({.url = at + "/metrics"});
    ASSERT_TRUE(response) << response.error().ToString();
    EXPECT_EQ(response->body, fmt::format("asked {}\n", i));
    EXPECT_THAT(response->headers.Get("Content-Type"), HasSubstr("version=0.0.4"));
  }
  EXPECT_EQ(client.Send({.url = at + "/"}).value().status, 404);
  EXPECT_EQ(client.Send({.method = "POST", .url = at + "/metrics"}).value().status, 405);
  EXPECT_EQ(asked, 2);
  const auto other = client.Send({.url = at + "/history"}).value();
  EXPECT_EQ(other.body, "{}");
  EXPECT_EQ(other.headers.Get("Content-Type"), "application/json");
  auto taken = ServeMetrics({.listen = server->address()}, {{"/metrics", [] { return std::string(); }}});
  ASSERT_FALSE(taken);
  EXPECT_THAT(taken.error().ToString(), HasSubstr(server->address()));
}

TEST(Endpoint, SaysThatTheProgramDoesNotWork) {
  bool works = true;
  auto server = ServeMetrics({.listen = "127.0.0.1:0",
                              .health = [&]() -> Status {
                                if (works) return {};
                                return Fail(Code::kUnavailable, "the disk is gone");
                              }},
                             {})
                    .value();
  http::Client client({});
  const std::string health = "http://" + server->address() + "/health";
  EXPECT_EQ(client.Send({.url = health}).value().status, 200);
  works = false;
  const auto failed = client.Send({.url = health}).value();
  EXPECT_EQ(failed.status, 503);
  EXPECT_EQ(failed.body, "the disk is gone\n");
}

TEST(Endpoint, WantsOneOfItsKeys) {
  auto folder = TempDir::Create().value();
  const auto file = folder.path() / "keys";
  ASSERT_TRUE(WriteFileAtomic(file, AsBytes("0123456789abcdef\n"), 0600));
  auto server =
      ServeMetrics({.listen = "127.0.0.1:0", .access = {.key_file = file}}, {{"/metrics", [] { return "x 1\n"; }}})
          .value();
  const std::string at = "http://" + server->address();
  http::Client client({});
  EXPECT_EQ(client.Send({.url = at + "/health"}).value().status, 200);
  EXPECT_EQ(client.Send({.url = at + "/metrics"}).value().status, 401);
  http::Request request{.url = at + "/metrics"};
  request.headers.Set("Authorization", "Bearer 0123456789abcdef");
  EXPECT_EQ(client.Send(request).value().body, "x 1\n");
}

TEST(Endpoint, StaysOnLoopbackWithoutKeys) {
  auto refused =
      ServeMetrics({.listen = "0.0.0.0:0", .how = "a key file"}, {{"/metrics", [] { return std::string(); }}});
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message(), HasSubstr("give a key file"));
  EXPECT_TRUE(ServeMetrics({.listen = "0.0.0.0:0", .access = {.insecure = true}},
                           {{"/metrics", [] { return std::string(); }}}));
}

}  // namespace
}  // namespace millrace::metrics
