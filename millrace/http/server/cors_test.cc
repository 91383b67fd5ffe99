#include "millrace/http/server/cors.h"

#include <gtest/gtest.h>

#include "millrace/http/client/client.h"

namespace millrace::http {
namespace {

class CorsTest : public ::testing::Test {
 protected:
  void Serve(const std::vector<std::string>& origins) {
    server_ = *Server::Start({}, ShareWith(*AllowedOrigins::Parse(origins), [](auto& request, auto& response) {
                               (void)response.Send(request.method() == "OPTIONS" ? 405 : 200, {},
                                                   AsBytes(std::string_view("answer")));
                             }));
  }
  Response Ask(std::string method, const std::vector<std::pair<std::string, std::string>>& fields) {
    Client client({});
    Request request{.method = std::move(method), .url = fmt::format("http://{}/x", server_->address())};
    for (const auto& [name, value] : fields) request.headers.Set(name, value);
    return client.Send(std::move(request)).value_or(Response{});
  }
  std::unique_ptr<Server> server_;
};

TEST_F(CorsTest, PagesThatMayReadAnswers) {
  Serve({"https://App.example.org", "http://localhost:3000"});
  for (const char* origin : {"https://app.example.org", "http://localhost:3000"}) {
    const Response answer = Ask("GET", {{"Origin", origin}});
    EXPECT_EQ(answer.status, 200);
    EXPECT_EQ(answer.headers.Get("Access-Control-Allow-Origin"), origin);
    EXPECT_EQ(answer.headers.Get("Vary"), "Origin");
  }
  for (const char* origin : {"https://app.example.org.evil.com", "http://app.example.org", "null", "*"}) {
    EXPECT_FALSE(Ask("GET", {{"Origin", origin}}).headers.Has("Access-Control-Allow-Origin")) << origin;
  }
  EXPECT_FALSE(Ask("GET", {}).headers.Has("Access-Control-Allow-Origin"));
}

TEST_F(CorsTest, BrowsersLeaveTheUsualPortOut) {
  Serve({"https://a.org:443", "http://b.org:80", "https://c.org:80", "http://[::1]:80"});
  for (const char* origin : {"https://a.org", "http://b.org", "https://c.org:80", "http://[::1]"}) {
    EXPECT_EQ(Ask("GET", {{"Origin", origin}}).headers.Get("Access-Control-Allow-Origin"), origin);
  }
  EXPECT_FALSE(Ask("GET", {{"Origin", "https://c.org"}}).headers.Has("Access-Control-Allow-Origin"));
}

TEST_F(CorsTest, AnswersBrowsersThatAskFirst) {
  Serve({"https://app.example.org"});
  const Response answer = Ask("OPTIONS", {{"Origin", "https://app.example.org"},
                                          {"Access-Control-Request-Method", "POST"},
                                          {"Access-Control-Request-Headers", "authorization,content-type"}});
  EXPECT_EQ(answer.status, 204);
  EXPECT_NE(answer.headers.Get("Access-Control-Allow-Methods").find("POST"), std::string_view::npos);
  EXPECT_EQ(answer.headers.Get("Access-Control-Allow-Headers"), "authorization,content-type");
  EXPECT_EQ(Ask("OPTIONS", {{"Origin", "https://evil.com"}, {"Access-Control-Request-Method", "POST"}}).status, 405);
  EXPECT_EQ(Ask("OPTIONS", {{"Origin", "https://app.example.org"}}).status, 405) << "no preflight request";
}

TEST_F(CorsTest, AllPagesOrNone) {
  Serve({"*"});
  EXPECT_EQ(Ask("GET", {{"Origin", "https://any.org"}}).headers.Get("Access-Control-Allow-Origin"), "*");
  Serve({});
  EXPECT_FALSE(Ask("GET", {{"Origin", "https://any.org"}}).headers.Has("Access-Control-Allow-Origin"));
}

TEST(AllowedOrigins, RefusesWhatIsNoOrigin) {
  for (const char* wrong :
       {"app.example.org", "https://app.example.org/", "https://", "ftp://a", "https://*.org", ""}) {
    EXPECT_FALSE(AllowedOrigins::Parse({wrong})) << wrong;
  }
}

}  // namespace
}  // namespace millrace::http
