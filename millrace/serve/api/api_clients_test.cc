// What clients of OpenAI, vLLM and Anthropic ask beside completions and conversations.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "millrace/serve/api/api_testing.h"

namespace millrace::serve {
namespace {

using ::testing::HasSubstr;

TEST_F(ApiTest, EchoTellsThePromptsLogprobs) {
  Serve(ScriptedModel::Says("yes"));
  Json answer = Post(R"({"prompt": "é>", "max_tokens": 2, "echo": true, "logprobs": 1})");
  Json told = answer["choices"][0]["logprobs"];
  EXPECT_EQ(answer["choices"][0]["text"], "é>ye");
  EXPECT_EQ(told["tokens"].size(), 5u);
  EXPECT_EQ(told["token_logprobs"][0], nullptr);
  EXPECT_EQ(told["top_logprobs"][0], nullptr);
  EXPECT_LT(told["token_logprobs"][1].get<double>(), -50) << "the model would have said otherwise";
  EXPECT_NEAR(told["token_logprobs"][3].get<double>(), 0, 1e-6);
  // The prompt alone, and from the cache or not: the same.
  for (int round = 0; round < 2; ++round) {
    answer = Post(R"({"prompt": ["é>"], "max_tokens": 0, "echo": true, "logprobs": 0})");
    EXPECT_EQ(answer["choices"][0]["text"], "é>");
    EXPECT_EQ(answer["choices"][0]["finish_reason"], "length");
    EXPECT_EQ(answer["choices"][0]["logprobs"]["token_logprobs"].size(), 3u);
    EXPECT_EQ(answer["choices"][0]["logprobs"]["token_logprobs"][1], told["token_logprobs"][1]);
    EXPECT_EQ(answer["usage"]["completion_tokens"], 0);
  }
  const std::string long_prompt(80, 'a');
  answer = Post(fmt::format(R"({{"prompt": "{}", "max_tokens": 0, "echo": true, "logprobs": 2}})", long_prompt));
  EXPECT_EQ(answer["choices"][0]["logprobs"]["token_logprobs"].size(), 80u);
  const auto events = PostStream(R"({"prompt": "é>", "max_tokens": 2, "echo": true, "logprobs": 0, "stream": true})");
  EXPECT_EQ(events[0]["choices"][0]["logprobs"]["tokens"].size(), 3u);
  EXPECT_EQ(events[1]["choices"][0]["logprobs"]["text_offset"][0], 2) << "in characters";
}

TEST_F(ApiTest, AnswersMessages) {
  template_ =
      "{# <tool_call> #}{% for m in messages %}{{ m.role }}:{{ m.content }}{% for c in m.tool_calls %}"
      "{{ c.function.arguments.a }}{% endfor %};{% endfor %}>";
  const std::string said = "yes<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}</tool_call>";
  Serve([said](std::span<const TokenId> tokens) -> TokenId {
    constexpr std::string_view kEnd = ";>";  // of the prompt
    const auto end = std::ranges::search(tokens, kEnd).end();
    const auto made = static_cast<std::size_t>(tokens.end() - end);
    return made < said.size() ? static_cast<unsigned char>(said[made]) : ByteTokenizer::kEos;
  });
  const std::string body = R"("max_tokens": 64, "system": [{"type": "text", "text": "s"}], "messages": [
      {"role": "user", "content": "u"},
      {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {"a": 7}}]},
      {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "r"}]}],
      "tools": [{"name": "f", "input_schema": {"type": "object"}}], "metadata": {"user_id": "x"}})";
  const Json answer = Post("{" + body, 200, "/v1/messages");
  EXPECT_EQ(answer["type"], "message");
  EXPECT_EQ(answer["content"][0], Json({{"type", "text"}, {"text", "yes"}}));
  EXPECT_EQ(answer["content"][1]["type"], "tool_use");
  EXPECT_EQ(answer["content"][1]["input"], Json({{"a", 1}}));
  EXPECT_EQ(answer["stop_reason"], "tool_use");
  const std::string prompt = "system:s;user:u;assistant:7;tool:r;>";
  EXPECT_EQ(answer["usage"]["input_tokens"], prompt.size());
  EXPECT_EQ(Post("{" + body, 200, "/v1/messages/count_tokens")["input_tokens"], prompt.size());
  const std::string events = Send("POST", "/v1/messages", R"({"stream": true, )" + body).body;
  std::size_t at = 0;
  for (const char* next : {"event: message_start\n", R"("type":"text")", R"("text":"y")", "event: content_block_stop\n",
                           R"("type":"tool_use")", "input_json_delta", "event: content_block_stop\n",
                           R"("stop_reason":"tool_use")", "event: message_stop\n"}) {
    at = events.find(next, at);
    ASSERT_NE(at, std::string::npos) << next << " in " << events;
  }
  const Json error = Post(R"({"messages": []})", 400, "/v1/messages");
  EXPECT_EQ(error["type"], "error");
  EXPECT_EQ(error["error"]["type"], "invalid_request_error");
  EXPECT_THAT(error["error"]["message"].get<std::string>(), HasSubstr("max_tokens"));
}

TEST_F(ApiTest, AnswersResponses) {
  template_ =
      "{% for m in messages %}{{ m.role }}:{{ m.content }}{% for c in m.tool_calls %}{{ c.function.arguments.a }}"
      "{% endfor %};{% endfor %}>";
  Serve(ScriptedModel::Says("yes"));
  const std::string body = R"("max_output_tokens": 40, "instructions": "i", "store": false, "input": [
      {"role": "user", "content": [{"type": "input_text", "text": "u"}]}, {"type": "reasoning", "summary": []},
      {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{\"a\": 7}"},
      {"type": "function_call_output", "call_id": "c", "output": "r"}], "text": {"format": {"type": "text"}},
      "reasoning": {"effort": "low"}, "include": [], "metadata": {"k": "v"}})";
  const Json answer = Post("{" + body, 200, "/v1/responses");
  EXPECT_EQ(answer["object"], "response");
  EXPECT_EQ(answer["status"], "completed");
  EXPECT_EQ(answer["output"][0]["content"][0]["text"], "yes");
  EXPECT_EQ(answer["instructions"], "i");
  EXPECT_EQ(answer["metadata"], Json({{"k", "v"}}));
  EXPECT_EQ(answer["usage"]["input_tokens"], std::string("system:i;user:u;assistant:7;tool:r;>").size());
  const Json cut = Post(R"({"input": ">", "max_output_tokens": 2})", 200, "/v1/responses");
  EXPECT_EQ(cut["status"], "incomplete");
  EXPECT_EQ(cut["incomplete_details"]["reason"], "max_output_tokens");
  const std::string events = Send("POST", "/v1/responses", R"({"stream": true, )" + body).body;
  std::size_t at = 0;
  for (const char* next : {"response.created", "response.output_item.added", "response.content_part.added",
                           R"("delta":"y")", "response.output_text.done", R"("text":"yes")",
                           "response.output_item.done", "response.completed", R"("output_tokens":3)"}) {
    at = events.find(next, at);
    ASSERT_NE(at, std::string::npos) << next << " in " << events;
  }
  for (const auto& [members, says] : {std::pair(R"("conversation": "c")", "previous_response_id"),
                                      {R"("tools": [{"type": "web_search"}])", "web_search"},
                                      {R"("background": true)", "background"}}) {
    const Json error = Post(fmt::format(R"({{"input": "a", {}}})", members), 400, "/v1/responses")["error"];
    EXPECT_THAT(error["message"].get<std::string>(), HasSubstr(says));
  }
  EXPECT_EQ(Post(R"({"input": [{"type": "item_reference", "id": "x"}]})", 400, "/v1/responses")["error"]["param"],
            "input[0]");
}

/// A response goes on where another one ended, without its instructions.
TEST_F(ApiTest, ResponsesGoOn) {
  Serve(ScriptedModel::Says("yes"));
  const auto tokens = [](const Json& answer) { return answer["usage"]["input_tokens"].get<std::size_t>(); };
  const Json first = Post(R"({"input": "a", "instructions": "i", "max_output_tokens": 8})", 200, "/v1/responses");
  EXPECT_EQ(tokens(first), std::string("system:i;user:a;>").size());
  const std::string next =
      fmt::format(R"({{"input": "b", "max_output_tokens": 8, "previous_response_id": {}}})", DumpJson(first["id"]));
  const Json second = Post(next, 200, "/v1/responses");
  EXPECT_EQ(tokens(second), std::string("user:a;assistant:yes;user:b;>").size());
  EXPECT_EQ(second["previous_response_id"], first["id"]);
  EXPECT_THAT(Send("POST", "/v1/responses", R"({"stream": true, )" + next.substr(1)).body,
              HasSubstr(R"("input_tokens":29)"));
  const Json unkept = Post(R"({"input": "a", "store": false})", 200, "/v1/responses");
  const std::string lost = fmt::format(R"({{"input": "b", "previous_response_id": {}}})", DumpJson(unkept["id"]));
  EXPECT_EQ(Post(lost, 404, "/v1/responses")["error"]["code"], "previous_response_not_found");
}

TEST(ResponseStore, KeepsTheLastConversations) {
  ResponseStore store(30);
  store.Put("a", 0, Json::array({"0123456789"}));
  store.Put("b", 0, Json::array({"0123456789"}));
  EXPECT_TRUE(store.Find("a", 0)) << "now the last one";
  store.Put("c", 1, Json::array({"x"}));
  EXPECT_FALSE(store.Find("b", 0));
  EXPECT_TRUE(store.Find("a", 0));
  EXPECT_FALSE(store.Find("c", 0)) << "another user's";
  EXPECT_EQ(store.Find("c", 1), Json::array({"x"}));
}

TEST_F(ApiTest, TokenizesAndBack) {
  Serve(ScriptedModel::Says("yes"), {}, {.add_bos = true});
  Json tokens = Post(R"({"prompt": "ab"})", 200, "/tokenize");
  EXPECT_EQ(tokens["tokens"], Json({ByteTokenizer::kBos, 97, 98}));
  EXPECT_EQ(tokens["count"], 3);
  EXPECT_EQ(tokens["max_model_len"], 100);
  EXPECT_EQ(Post(R"({"prompt": "ab", "add_special_tokens": false})", 200, "/tokenize")["count"], 2);
  tokens = Post(R"({"messages": [{"role": "user", "content": "x"}]})", 200, "/tokenize");
  EXPECT_EQ(Post(DumpJson(Json{{"tokens", tokens["tokens"]}}), 200, "/detokenize")["prompt"], "user:x;>");
  EXPECT_EQ(Post(R"({})", 400, "/tokenize")["error"]["param"], "prompt");
  EXPECT_EQ(Post(R"({"tokens": [1000]})", 400, "/detokenize")["error"]["param"], "tokens");
  EXPECT_EQ(Post(R"({"tokens": "a"})", 400, "/detokenize")["error"]["param"], "tokens");
}

TEST_F(ApiTest, CountsCachedTokens) {
  Serve(ScriptedModel::Says("yes"));
  const std::string body = fmt::format(R"({{"prompt": "{}>", "max_tokens": 2}})", std::string(40, 'a'));
  EXPECT_EQ(Post(body)["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
  EXPECT_EQ(Post(body)["usage"]["prompt_tokens_details"]["cached_tokens"], 32);
}

TEST_F(ApiTest, EndsAreChosen) {
  Serve(ScriptedModel::Says("yes"));
  const auto text = [&](std::string_view more) {
    return Post(fmt::format(R"({{"prompt": "a>", "max_tokens": 6, {}}})", more))["choices"][0];
  };
  const Json stopped = text(R"("stop_token_ids": [101])");
  EXPECT_EQ(stopped["text"], "y");
  EXPECT_EQ(stopped["finish_reason"], "stop");
  EXPECT_EQ(text(R"("ignore_eos": true)")["finish_reason"], "length");
  const Json longer = text(R"("min_tokens": 5)");
  EXPECT_EQ(longer["finish_reason"], "stop");
  EXPECT_EQ(longer["text"].get<std::string>().substr(0, 3), "yes");
}

}  // namespace
}  // namespace millrace::serve
