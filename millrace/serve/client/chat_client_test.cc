#include "millrace/serve/client/chat_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/http/testing/scripted_server.h"

namespace millrace::serve {
namespace {

using http::testing::Answer;
using http::testing::ScriptedServer;
using ::testing::HasSubstr;
using Reply = ScriptedServer::Reply;

constexpr std::string_view kEvents =
    "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null}]}\n\n"
    "data: {\"choices\":[{\"delta\":{\"content\":\"Hel\"},\"finish_reason\":null}]}\n\n"
    "data: {\"choices\":[{\"delta\":{\"content\":\"lo\"},\"finish_reason\":null}]}\n\n"
    "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n"
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2}}\n\n";

struct Asked {
  std::string text;
  Result<ChatAnswer> answer;
};

Asked Ask(ScriptedServer& server, http::Call call = {}, std::string key = "", std::string path = "") {
  ChatClient client({.url = server.url() + path, .key = std::move(key)});
  std::string text;
  auto answer = client.Ask(
      Conversation{.messages = {{"user", "hello", ""}}}.NextRequest("tiny", 0),
      [&text](std::string_view piece) { text += piece; }, std::move(call));
  return {std::move(text), std::move(answer)};
}

TEST(ChatClient, StreamsAnAnswer) {
  ScriptedServer server([](const auto&) { return Reply{Answer(200, std::string(kEvents) + "data: [DONE]\n\n")}; });
  const Asked asked = Ask(server, {}, "0123456789abcdef", "/v1/");
  ASSERT_TRUE(asked.answer) << asked.answer.error().ToString();
  EXPECT_EQ(asked.text, "Hello");
  EXPECT_EQ(asked.answer->finish_reason, "stop");
  EXPECT_EQ(asked.answer->usage->prompt_tokens, 3);
  EXPECT_EQ(asked.answer->usage->completion_tokens, 2);
  const auto seen = server.seen();
  ASSERT_EQ(seen.size(), 1U);
  EXPECT_EQ(seen[0].target, "/v1/chat/completions");
  EXPECT_EQ(seen[0].headers.Get("Authorization"), "Bearer 0123456789abcdef");
}

TEST(ChatClient, AStreamWithoutItsEndIsCut) {
  ScriptedServer server([](const auto&) { return Reply{Answer(200, kEvents)}; });
  const Asked asked = Ask(server);
  EXPECT_EQ(asked.text, "Hello");
  EXPECT_EQ(asked.answer.error().code(), Code::kUnavailable);
}

TEST(ChatClient, AnErrorInTheStreamIsTold) {
  ScriptedServer server([](const auto&) {
    return Reply{Answer(200, "data: {\"error\":{\"message\":\"out of memory\"}}\n\ndata: [DONE]\n\n")};
  });
  EXPECT_THAT(Ask(server).answer.error().ToString(), HasSubstr("out of memory"));
}

TEST(ChatClient, ErrorsHaveTheWordsOfTheServer) {
  int status = 400;
  ScriptedServer server(
      [&](const auto&) { return Reply{Answer(status, R"({"error":{"message":"top_p is too large"}})")}; });
  const Error bad = Ask(server).answer.error();
  EXPECT_EQ(bad.code(), Code::kInvalidArgument);
  EXPECT_THAT(bad.ToString(), HasSubstr("top_p is too large"));
  status = 401;
  const Error refused = Ask(server, {}, "a-secret-that-is-wrong").answer.error();
  EXPECT_EQ(refused.code(), Code::kPermissionDenied);
  EXPECT_THAT(refused.ToString(), HasSubstr("does not know the key"));
  EXPECT_THAT(refused.ToString(), ::testing::Not(HasSubstr("a-secret")));
  status = 429;
  EXPECT_EQ(Ask(server).answer.error().code(), Code::kThrottled);
}

TEST(ChatClient, AnAnswerCanBeStopped) {
  std::stop_source stop;
  ScriptedServer server([](const auto&) {
    std::string head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    return Reply{head + fmt::format("{:x}\r\n{}\r\n", kEvents.size(), kEvents), Reply::Then::kHang};
  });
  ChatClient client({.url = server.url()});
  std::string text;
  const auto answer = client.Ask(Conversation{.messages = {{"user", "hello", ""}}}.NextRequest("tiny", 0),
                                 [&](std::string_view piece) {
                                   text += piece;
                                   if (text == "Hello") stop.request_stop();
                                 },
                                 {.stop = stop.get_token()});
  EXPECT_EQ(answer.error().code(), Code::kCancelled);
  EXPECT_EQ(text, "Hello");
}

TEST(ChatClient, ListsModels) {
  ScriptedServer server(
      [](const auto&) { return Reply{Answer(200, R"({"data":[{"id":"a","max_model_len":256},{"id":"b"}]})")}; });
  const auto models = ChatClient({.url = server.url()}).Models({});
  ASSERT_TRUE(models);
  ASSERT_EQ(models->size(), 2U);
  EXPECT_EQ((*models)[0].context, 256);
  EXPECT_EQ((*models)[1].id, "b");
}

}  // namespace
}  // namespace millrace::serve
