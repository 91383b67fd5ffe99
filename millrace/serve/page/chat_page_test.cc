#include "millrace/serve/page/chat_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "millrace/base/bytes.h"
#include "millrace/base/hash/digest.h"
#include "millrace/base/hash/text_encoding.h"
#include "millrace/http/client/client.h"

namespace millrace::serve {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class ChatPageTest : public testing::Test {
 protected:
  void SetUp() override {
    auto server =
        http::Server::Start({}, [this](auto& request, auto& response) { answered_ = page_.Answer(request, response); });
    ASSERT_TRUE(server) << server.error().ToString();
    server_ = *std::move(server);
  }
  http::Response Send(std::string method, http::Headers headers = {}) {
    auto response = client_.Send({.method = std::move(method),
                                  .url = fmt::format("http://{}/", server_->address()),
                                  .headers = std::move(headers)});
    if (!response) return http::Response{.status = -1, .body = response.error().ToString()};
    return *std::move(response);
  }

  ChatPage page_;
  int answered_ = 0;
  std::unique_ptr<http::Server> server_;
  http::Client client_{{}};
};

/// The text between the marks, which is what a browser hashes.
std::string_view Between(std::string_view text, std::string_view begin, std::string_view end) {
  const std::size_t from = text.find(begin) + begin.size();
  return text.substr(from, text.find(end, from) - from);
}

TEST_F(ChatPageTest, ThePolicyAllowsTheScriptAndTheStyleThatThePageHas) {
  const http::Response page = Send("GET");
  ASSERT_EQ(page.status, 200);
  EXPECT_EQ(page.headers.Get("Content-Type"), "text/html; charset=utf-8");
  const std::string policy(page.headers.Get("Content-Security-Policy"));
  for (const std::string_view text :
       {Between(page.body, "<script type=\"module\">", "</script>"), Between(page.body, "<style>", "</style>")}) {
    EXPECT_GT(text.size(), 1000U);
    EXPECT_THAT(policy, HasSubstr("'sha256-" + Base64Encode(Sha256(AsBytes(text))) + "'"));
  }
  EXPECT_TRUE(policy.starts_with("default-src 'none'; ")) << policy;
  EXPECT_THAT(policy, HasSubstr("require-trusted-types-for 'script'"));
  EXPECT_THAT(policy, Not(HasSubstr("unsafe")));
}

TEST_F(ChatPageTest, ThePageLoadsNothing) {
  const std::string& html = page_.html();
  EXPECT_THAT(html, Not(HasSubstr("{{")));
  for (const char* loading : {" src=", "@import", "url(", "innerHTML", "eval(", "document.write"}) {
    EXPECT_THAT(html, Not(HasSubstr(loading)));
  }
}

TEST_F(ChatPageTest, AClientThatHasThePageGetsNoBody) {
  const std::string etag(Send("GET").headers.Get("ETag"));
  for (const std::string& named : {etag, "W/" + etag, "\"other\", " + etag, std::string("*")}) {
    http::Headers headers;
    headers.Set("If-None-Match", named);
    const http::Response unchanged = Send("GET", headers);
    EXPECT_EQ(unchanged.status, 304) << named;
    EXPECT_EQ(unchanged.body, "");
    EXPECT_EQ(unchanged.headers.Get("ETag"), etag);
  }
  http::Headers headers;
  headers.Set("If-None-Match", "\"other\"");
  EXPECT_EQ(Send("GET", headers).status, 200);
}

TEST_F(ChatPageTest, OtherMethodsAreRefused) {
  const http::Response refused = Send("POST");
  EXPECT_EQ(refused.status, 405);
  EXPECT_EQ(refused.headers.Get("Allow"), "GET, HEAD");
  server_.reset();  // A client has the answer before the handler returns: this waits for the handler.
  EXPECT_EQ(answered_, 405);
}

TEST_F(ChatPageTest, HeadHasTheHeadersOnly) {
  const http::Response head = Send("HEAD");
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.body, "");
  EXPECT_EQ(head.headers.Get("Content-Length"), std::to_string(page_.html().size()));
}

}  // namespace
}  // namespace millrace::serve
