#include "millrace/serve/client/conversation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace millrace::serve {
namespace {

using ::testing::HasSubstr;

TEST(Conversation, ParametersAreChecked) {
  Conversation conversation;
  ASSERT_TRUE(conversation.SetParameter("temperature", " 0.5 "));
  ASSERT_TRUE(conversation.SetParameter("top_k", "40"));
  ASSERT_TRUE(conversation.SetParameter("seed", "9007199254740991"));
  EXPECT_EQ(DumpJson(conversation.parameters), R"({"temperature":0.5,"top_k":40,"seed":9007199254740991})");
  for (const auto& [name, value] : std::initializer_list<std::pair<const char*, const char*>>{{"temperature", "-1"},
                                                                                              {"temperature", "nan"},
                                                                                              {"temperature", "inf"},
                                                                                              {"temperature", "0.5x"},
                                                                                              {"temperature", ""},
                                                                                              {"top_p", "1.1"},
                                                                                              {"top_k", "1.5"},
                                                                                              {"max_tokens", "0"}}) {
    EXPECT_EQ(conversation.SetParameter(name, value).error().code(), Code::kInvalidArgument) << name << " " << value;
  }
  EXPECT_THAT(conversation.SetParameter("temprature", "1").error().message(), HasSubstr("\"temperature\""));
  ASSERT_TRUE(conversation.SetParameter("temperature", "default"));
  EXPECT_EQ(DumpJson(conversation.parameters), R"({"top_k":40,"seed":9007199254740991})");
}

TEST(Conversation, ARequestHasTheMessagesInTurn) {
  Conversation conversation{
      .system = "Be short.",
      .messages = {{"user", "a", ""}, {"user", "b", ""}, {"assistant", "c", "m"}, {"user", "d", ""}},
      .stop = {"END"}};
  ASSERT_TRUE(conversation.SetParameter("top_p", "0.9"));
  const Conversation::Request request = conversation.NextRequest("tiny", 0);
  EXPECT_EQ(request.path, "/v1/chat/completions");
  EXPECT_EQ(DumpJson(request.body),
            R"({"stream":true,"stream_options":{"include_usage":true},"model":"tiny","top_p":0.9,"stop":["END"],)"
            R"("messages":[{"role":"system","content":"Be short."},{"role":"user","content":"a\n\nb"},)"
            R"({"role":"assistant","content":"c"},{"role":"user","content":"d"}]})");
}

TEST(Conversation, PlainTextLeavesRoomInTheContext) {
  Conversation conversation{.messages = {{"user", "a", ""}, {"assistant", "b", ""}, {"user", "c", ""}},
                            .plain_text = true};
  const Conversation::Request request = conversation.NextRequest("", 64);
  EXPECT_EQ(request.path, "/v1/completions");
  EXPECT_EQ(DumpJson(request.body),
            R"({"stream":true,"stream_options":{"include_usage":true},"prompt":"a\nb\nc","max_tokens":32})");
}

TEST(Conversation, AFileHasAllOfIt) {
  Conversation conversation{.system = "s",
                            .messages = {{"user", "Wie läuft die Mühle? \n\x01", ""}, {"assistant", "Gut.", "tiny"}},
                            .plain_text = true,
                            .stop = {"a", "b"}};
  ASSERT_TRUE(conversation.SetParameter("min_p", "0.05"));
  const Conversation loaded = *Conversation::Load(conversation.Save(1.5e9), "file");
  EXPECT_EQ(loaded.NextRequest("x", 0).body, conversation.NextRequest("x", 0).body);
  EXPECT_EQ(loaded.system, "s");
  ASSERT_EQ(loaded.messages.size(), 2U);
  EXPECT_EQ(loaded.messages[1].model, "tiny");
}

TEST(Conversation, OfAFileOfThePageTheBranchOnTheScreenIsRead) {
  const Conversation loaded = *Conversation::Load(
      R"({"format":"millrace-chat","version":1,"conversations":[{"updated":1,"messages":[]},{"updated":2,"leaf":"c",
      "settings":{"temperature":0.5,"seed":null},"messages":[
        {"id":"a","parent":"","role":"user","content":"hello"},
        {"id":"b","parent":"a","role":"assistant","content":"first"},
        {"id":"c","parent":"a","role":"assistant","content":"second"},
        {"id":"d","parent":"","role":"user","content":"other"}]}]})",
      "file");
  ASSERT_EQ(loaded.messages.size(), 2U);
  EXPECT_EQ(loaded.messages[1].content, "second");
  EXPECT_EQ(DumpJson(loaded.parameters), R"({"temperature":0.5})");
}

TEST(Conversation, OtherFilesAreRefused) {
  const std::string head = R"({"format":"millrace-chat","version":1,"conversations":)";
  for (const std::string& text :
       {std::string("{"), std::string("{}"),
        std::string(R"({"format":"millrace-chat","version":2,"conversations":[{}]})"), head + "[]}", head + "[{}]}",
        head + R"([{"messages":[{"id":"a","parent":"a","role":"user","content":""}]}]})",
        head + R"([{"messages":[{"id":"a","parent":"","role":"system","content":"x"}]}]})",
        head + R"([{"messages":[{"id":"a","parent":"","role":"user","content":3}]}]})"}) {
    EXPECT_EQ(Conversation::Load(text, "file").error().code(), Code::kInvalidArgument) << text;
  }
}

TEST(Conversation, AnAnswerCanBeTakenBack) {
  Conversation conversation{.messages = {{"user", "a", ""}, {"assistant", "b", ""}}};
  EXPECT_TRUE(conversation.DropAnswer());
  EXPECT_EQ(conversation.messages.size(), 1U);
  EXPECT_TRUE(conversation.DropAnswer()) << "an answer that failed";
  EXPECT_FALSE(Conversation().DropAnswer());
}

}  // namespace
}  // namespace millrace::serve
