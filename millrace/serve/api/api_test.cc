#include "millrace/serve/api/api.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <ctime>
#include <latch>
#include <map>
#include <thread>

#include "millrace/serve/api/api_testing.h"

namespace millrace::serve {
namespace {

using ::testing::HasSubstr;

TEST_F(ApiTest, ThePageNeedsNoKey) {
  Serve(ScriptedModel::Says("x"), {}, {.keys = http::ApiKeys({"0123456789abcdef"})});
  const http::Response page = Send("GET", "/");
  EXPECT_EQ(page.status, 200);
  EXPECT_THAT(page.body, HasSubstr("<!DOCTYPE html>"));
  EXPECT_EQ(Send("POST", "/").status, 405);
}

TEST_F(ApiTest, WithoutKeysPagesOfOtherSitesAreRefused) {
  Serve(ScriptedModel::Says("x"));
  const auto status = [&](std::string path, std::string name, std::string value) {
    http::Request request{.url = fmt::format("http://{}{}", server_->address(), path)};
    request.headers.Set(name, std::move(value));
    auto response = client_.Send(std::move(request));
    return response ? response->status : -1;
  };
  EXPECT_EQ(status("/v1/models", "Origin", "https://evil.com"), 403);
  EXPECT_EQ(status("/v1/models", "Sec-Fetch-Site", "cross-site"), 403);
  EXPECT_EQ(status("/v1/models", "Host", "evil.com"), 403);
  EXPECT_EQ(status("/v1/models", "Origin", "http://" + server_->address()), 200);
  EXPECT_EQ(status("/health", "Host", "evil.com"), 200);
  EXPECT_EQ(status("/", "Sec-Fetch-Site", "cross-site"), 200) << "a link to the page";
}

TEST_F(ApiTest, PagesOfOtherSitesCanBeLetIn) {
  Serve(ScriptedModel::Says("x"), {}, {.own_site_only = false});
  http::Request request{.url = fmt::format("http://{}/v1/models", server_->address())};
  request.headers.Set("Origin", "https://app.example.org");
  EXPECT_EQ(client_.Send(std::move(request))->status, 200);
}

TEST_F(ApiTest, ThePageCanBeLeftOut) {
  Serve(ScriptedModel::Says("x"), {}, {.page = false});
  EXPECT_EQ(Send("GET", "/").status, 404);
}

TEST_F(ApiTest, WithKeysOnlyHealthIsOpen) {
  const std::string key = "0123456789abcdef";
  Serve(ScriptedModel::Says("x"), {}, {.keys = http::ApiKeys({key, "fedcba9876543210"})});
  for (const char* open : {"/ping", "/health"}) EXPECT_EQ(Send("GET", open).status, 200) << open;
  for (const char* closed : {"/metrics", "/v1/models", "/v1/models/fake"}) {
    const http::Response refused = Send("GET", closed);
    EXPECT_EQ(refused.status, 401) << closed;
    EXPECT_EQ(refused.headers.Get("WWW-Authenticate"), "Bearer");
  }
  EXPECT_EQ(Post(R"({"prompt": "a"})", 401)["error"]["code"], "invalid_api_key");
  EXPECT_EQ(Post(R"({"prompt": "a"})", 401, "/invocations")["error"]["code"], "invalid_api_key");
  for (const auto& [name, value] : {std::pair("Authorization", "Bearer " + key), {"x-api-key", key}}) {
    http::Request request{.url = fmt::format("http://{}/metrics", server_->address())};
    request.headers.Set(name, value);
    EXPECT_EQ(client_.Send(request).value().status, 200) << name;
  }
}

// Limits of count and depth: parsing does not take the time, nor the memory, that a body asks for.
TEST_F(ApiTest, BodiesAreBoundedInCountAndDepth) {
  Serve(ScriptedModel::Says("x"));
  std::string many = "{\"prompt\": [1";
  for (int i = 0; i < 1024 * 1024; ++i) many += ",1";
  EXPECT_EQ(Post(many + "]}", 400)["error"]["code"], "invalid_json");
  EXPECT_EQ(Post("{\"prompt\": " + std::string(40, '[') + std::string(40, ']') + "}", 400)["error"]["code"],
            "invalid_json");
}

// Whatever looks each key up among the earlier ones takes 100 times as long for ten times as many keys.
TEST_F(ApiTest, ManyKeysTakeLinearTime) {
  Serve(ScriptedModel::Says("x"));
  const auto post = [&](int count) {
    std::string keys = "{";
    for (int i = 0; i < count; ++i) keys += fmt::format("{}\"k{}\":1", i == 0 ? "" : ",", i);
    const std::clock_t before = std::clock();  // of all threads of this process
    Post(keys + "}", 400);
    return static_cast<double>(std::clock() - before);
  };
  const double few = std::min({post(10'000), post(10'000), post(10'000)});
  EXPECT_LT(post(100'000), 40 * few);
}

TEST_F(ApiTest, CompletesAPrompt) {
  Serve(ScriptedModel::Says(" world"));
  Json answer = Post(R"({"model": "fake", "prompt": "hello>", "temperature": 0, "max_tokens": 50})");
  EXPECT_EQ(answer["object"], "text_completion");
  EXPECT_EQ(answer["model"], "fake");
  EXPECT_TRUE(answer["id"].get<std::string>().starts_with("cmpl-"));
  EXPECT_EQ(answer["choices"].size(), 1u);
  EXPECT_EQ(answer["choices"][0]["text"], " world");
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(answer["usage"], Json({{"prompt_tokens", 6},
                                   {"completion_tokens", 6},
                                   {"total_tokens", 12},
                                   {"prompt_tokens_details", {{"cached_tokens", 0}}}}));
}

TEST_F(ApiTest, EndsAtMaxTokensAndByDefaultAtSixteen) {
  Serve(ScriptedModel::Says(std::string(90, 'x')));
  Json answer = Post(R"({"prompt": ">", "max_tokens": 5})");
  EXPECT_EQ(answer["choices"][0]["text"], "xxxxx");
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(Post(R"({"prompt": ">"})")["usage"]["completion_tokens"], 16);
}

TEST_F(ApiTest, StopsBeforeAStopString) {
  Serve(ScriptedModel::Says("one two three"));
  Json answer = Post(R"({"prompt": ">", "max_tokens": 50, "stop": ["zero", " thr"]})");
  EXPECT_EQ(answer["choices"][0]["text"], "one two");
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop");
}

TEST_F(ApiTest, StreamsWholeCharactersThatAddUpToTheAnswer) {
  Serve(ScriptedModel::Says("né 中文 😀!"));
  std::string body = R"({"prompt": "say>", "max_tokens": 50, "stop": "!")";
  Json whole = Post(body + "}");
  auto events = PostStream(body + R"(, "stream": true, "stream_options": {"include_usage": true}})");
  std::string text;
  for (std::size_t i = 0; i + 2 < events.size(); ++i) {
    text += events[i]["choices"][0]["text"].get<std::string>();
    EXPECT_EQ(events[i]["choices"][0]["finish_reason"], nullptr);
  }
  EXPECT_EQ(text, whole["choices"][0]["text"].get<std::string>());
  EXPECT_EQ(text, "né 中文 😀");
  EXPECT_EQ(events.at(events.size() - 2)["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(events.back()["usage"], whole["usage"]);
  EXPECT_TRUE(events.back()["choices"].empty());
}

TEST_F(ApiTest, AnswersSeveralPromptsAndEchoes) {
  Serve(ScriptedModel::Says("yes"));
  Json answer = Post(R"({"prompt": ["a>", [98, 62]], "max_tokens": 9, "echo": true})");
  EXPECT_EQ(answer["choices"][0]["text"], "a>yes");
  EXPECT_EQ(answer["choices"][1]["text"], "b>yes");
  EXPECT_EQ(answer["choices"][1]["index"], 1);
  EXPECT_EQ(answer["usage"]["total_tokens"], 10);
  auto events = PostStream(R"({"prompt": ["a>", "b>"], "max_tokens": 9, "echo": true, "stream": true})");
  std::string texts[2];
  for (const Json& event : events) {
    texts[event["choices"][0]["index"].get<std::size_t>()] += event["choices"][0]["text"].get<std::string>();
  }
  EXPECT_EQ(texts[0], "a>yes");
  EXPECT_EQ(texts[1], "b>yes");
}

TEST_F(ApiTest, AnEmptyPromptStartsADocument) {
  TokenId first = -1;
  Serve([&](std::span<const TokenId> tokens) -> TokenId {
    first = tokens.front();
    return ByteTokenizer::kEos;
  });
  Json answer = Post(R"({"prompt": ""})");
  EXPECT_EQ(answer["choices"][0]["text"], "");
  EXPECT_EQ(first, ByteTokenizer::kEos);
}

TEST_F(ApiTest, TheSameSeedGivesTheSameText) {
  // Nothing is likelier than anything else.
  Serve([](std::span<const TokenId>) -> TokenId { return 'x'; });
  std::string body = R"({"prompt": "a", "temperature": 100, "max_tokens": 30, "seed": 7})";
  EXPECT_EQ(Post(body)["choices"][0]["text"], Post(body)["choices"][0]["text"]);
}

TEST_F(ApiTest, AnswersConversations) {
  std::vector<TokenId> prompt;
  Serve(ScriptedModel::Says("hello|never"));
  on_append_ = [&](std::span<const TokenId> tokens) {
    if (prompt.empty()) prompt.assign(tokens.begin(), tokens.end());
  };
  const std::string body = R"({"model": "fake", "messages": [{"role": "system", "content": "s"},
      {"role": "user", "content": [{"type": "text", "text": "hi"}]}], "temperature": 0)";
  const Json answer = Post(body + "}", 200, "/v1/chat/completions");
  EXPECT_EQ(prompt, Bytes("system:s;user:hi;>"));
  EXPECT_EQ(answer["object"], "chat.completion");
  EXPECT_TRUE(answer["id"].get<std::string>().starts_with("chatcmpl-"));
  EXPECT_EQ(answer["choices"][0]["message"], Json({{"role", "assistant"}, {"content", "hello"}}));
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop") << "at the template's stop";
  EXPECT_EQ(Post(body + "}", 200, "/invocations")["choices"], answer["choices"]);

  const auto events =
      PostStream(body + R"(, "stream": true, "stream_options": {"include_usage": true}})", "/v1/chat/completions");
  ASSERT_GE(events.size(), 4u);
  EXPECT_EQ(events[0]["object"], "chat.completion.chunk");
  EXPECT_EQ(events[0]["choices"][0]["delta"], Json({{"role", "assistant"}, {"content", ""}}));
  std::string text;
  for (std::size_t i = 1; i + 2 < events.size(); ++i) text += events[i]["choices"][0]["delta"]["content"];
  EXPECT_EQ(text, "hello");
  EXPECT_EQ(events[events.size() - 2]["choices"][0]["delta"], Json::object());
  EXPECT_EQ(events[events.size() - 2]["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(events.back()["usage"]["prompt_tokens"], 18);
}

TEST_F(ApiTest, SeveralTextsOfOnePrompt) {
  Serve([](std::span<const TokenId>) -> TokenId { return 'a'; });
  const Json answer = Post(R"({"prompt": ["x", "yy"], "n": 2, "max_tokens": 3, "echo": true})");
  ASSERT_EQ(answer["choices"].size(), 4u);
  EXPECT_EQ(answer["choices"][1]["text"], "xaaa");
  EXPECT_EQ(answer["choices"][3]["text"], "yyaaa");
  EXPECT_EQ(answer["choices"][3]["index"], 3);
  EXPECT_EQ(answer["usage"], Json({{"prompt_tokens", 3},
                                   {"completion_tokens", 12},
                                   {"total_tokens", 15},
                                   {"prompt_tokens_details", {{"cached_tokens", 0}}}}));
}

TEST_F(ApiTest, TextsAreStreamedBesideEachOther) {
  Serve([](std::span<const TokenId>) -> TokenId { return 'a'; });
  std::vector<int> order;
  std::map<int, std::string> texts;
  for (const Json& event : PostStream(R"({"prompt": ["x", "yy"], "n": 2, "max_tokens": 40, "stream": true})")) {
    const Json& choice = event["choices"][0];
    const int index = choice["index"];
    texts[index] += choice["text"].get<std::string>();
    if (choice["finish_reason"].is_null()) order.push_back(index);
  }
  ASSERT_EQ(texts.size(), 4U);
  for (const auto& [index, text] : texts) EXPECT_EQ(text, std::string(40, 'a')) << index;
  // Whatever threads do meanwhile: the last text begins before the first one ends.
  const auto last_begins = std::ranges::find(order, 3);
  EXPECT_NE(std::find(last_begins, order.end(), 0), order.end());
}

TEST_F(ApiTest, TheBestTextsAreTheLikeliest) {
  Serve([](std::span<const TokenId>) -> TokenId { return 'a'; });
  // The bias makes other tokens be drawn, which the model finds unlikely.
  const Json answer = Post(R"({"prompt": "x", "n": 2, "best_of": 8, "max_tokens": 3, "seed": 4, "logprobs": 0,
      "logit_bias": {"97": -100, "98": 0.5}, "temperature": 1})");
  ASSERT_EQ(answer["choices"].size(), 2U);
  EXPECT_EQ(answer["usage"]["completion_tokens"], 24) << "all that were made";
  EXPECT_EQ(answer["choices"][1]["index"], 1);
  const auto score = [&](int index) {
    double sum = 0;
    for (const Json& each : answer["choices"][index]["logprobs"]["token_logprobs"]) sum += each.get<double>();
    return sum;
  };
  EXPECT_GE(score(0), score(1));
  EXPECT_EQ(Post(R"({"prompt": "x", "n": 3, "best_of": 2})", 400)["error"]["param"], "best_of");
  EXPECT_EQ(Post(R"({"prompt": "x", "best_of": 2, "stream": true})", 400)["error"]["param"], "best_of");
}

constexpr std::string_view kAskWithTools =
    R"({"temperature": 0, "max_tokens": 80, "messages": [{"role": "user", "content": "x"}],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object",
               "properties": {"a": {"type": "boolean"}}, "required": ["a"]}}}])";

/// What follows the first `mark` of the prompt is `text`, and then the end.
ScriptedModel::Next SaysBehindTheFirst(TokenId mark, std::string text) {
  return [mark, text = std::move(text)](std::span<const TokenId> tokens) -> TokenId {
    const auto said = static_cast<std::size_t>(tokens.end() - std::ranges::find(tokens, mark)) - 1;
    return said < text.size() ? static_cast<unsigned char>(text[said]) : ByteTokenizer::kEos;
  };
}

TEST_F(ApiTest, TellsCallsOfTools) {
  template_ = "{# <tool_call> #}>";
  Serve(SaysBehindTheFirst('>', "I see.<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": true}}\n</tool_call>"));
  const std::string body(kAskWithTools);
  const Json choice = Post(body + "}", 200, "/v1/chat/completions")["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(choice["message"]["content"], "I see.");
  ASSERT_EQ(choice["message"]["tool_calls"].size(), 1U);
  const Json& call = choice["message"]["tool_calls"][0];
  EXPECT_EQ(call["type"], "function");
  EXPECT_EQ(call["function"], (Json{{"name", "f"}, {"arguments", "{\"a\": true}"}}));
  EXPECT_TRUE(call["id"].get<std::string>().starts_with("call_"));

  std::string content, arguments, finish;
  int named = 0;
  for (const Json& event : PostStream(body + R"(, "stream": true})", "/v1/chat/completions")) {
    const Json& delta = event["choices"][0]["delta"];
    if (delta.contains("content")) content += delta["content"].get<std::string>();
    if (!event["choices"][0]["finish_reason"].is_null()) finish = event["choices"][0]["finish_reason"];
    if (!delta.contains("tool_calls")) continue;
    const Json& part = delta["tool_calls"][0];
    EXPECT_EQ(part["index"], 0);
    if (part.contains("id")) ++named;
    arguments += part["function"]["arguments"].get<std::string>();
  }
  EXPECT_EQ(content, "I see.");
  EXPECT_EQ(arguments, "{\"a\": true}");
  EXPECT_EQ(named, 1);
  EXPECT_EQ(finish, "tool_calls");

  const Json none = Post(body + R"(, "tool_choice": "none"})", 200, "/v1/chat/completions")["choices"][0];
  EXPECT_FALSE(none["message"].contains("tool_calls"));
  EXPECT_EQ(none["finish_reason"], "stop");
}

TEST_F(ApiTest, JsonThatCallsNoToolIsContent) {
  struct Case {
    std::string mark, text, more;
  };
  const std::string alice = R"({"name": "Alice", "age": 30})", call = R"({"name":"f","parameters":{}})";
  for (const Case& each : {
           Case{"<|python_tag|>", alice, ""},
           Case{"<|python_tag|>", alice, R"(, "tool_choice": "auto")"},
           Case{"<|python_tag|>", call, R"(, "tool_choice": "none")"},
           Case{"<|python_tag|>", call, R"(, "response_format": {"type": "json_object"})"},
           Case{"<|python_tag|>", call, R"(, "response_format": {"type": "json_schema", "json_schema": {"name": "p",
               "schema": {"type": "object", "properties": {"name": {"const": "f"}, "parameters": {"type": "object"}},
                          "required": ["name", "parameters"], "additionalProperties": false}}})"},
           Case{"[TOOL_CALLS]", "[" + alice + "]", ""},
           Case{"<tool_call>", "<tool_call>" + alice + "</tool_call>", ""},
       }) {
    template_ = "{# " + each.mark + " #}>";
    Serve(SaysBehindTheFirst('>', each.text));
    const std::string body = std::string(kAskWithTools) + each.more;
    const Json choice = Post(body + "}", 200, "/v1/chat/completions")["choices"][0];
    EXPECT_EQ(choice["message"]["content"], each.text) << each.more;
    EXPECT_FALSE(choice["message"].contains("tool_calls")) << choice;
    EXPECT_EQ(choice["finish_reason"], "stop");
    std::string content;
    for (const Json& event : PostStream(body + R"(, "stream": true})", "/v1/chat/completions")) {
      const Json& delta = event["choices"][0]["delta"];
      EXPECT_FALSE(delta.contains("tool_calls")) << delta;
      if (delta.contains("content")) content += delta["content"].get<std::string>();
    }
    EXPECT_EQ(content, each.text) << each.more;
    server_->Stop(std::chrono::seconds(5));
  }
}

TEST_F(ApiTest, ACallCanBeForced) {
  template_ = "{# <tool_call> #}>";
  Serve([](std::span<const TokenId>) -> TokenId { return 'x'; });
  // Without white space, which the constraint would allow.
  const std::string body = std::string(kAskWithTools) + R"(, "logit_bias": {"9": -100, "10": -100, "32": -100})";
  const auto ask = [&](const std::string& choice) {
    return Post(body + ", \"tool_choice\": " + choice + "}", 200, "/v1/chat/completions")["choices"][0];
  };
  const Json required = ask("\"required\"");
  EXPECT_EQ(required["finish_reason"], "tool_calls") << required;
  EXPECT_TRUE(required["message"]["content"].is_null());
  EXPECT_EQ(required["message"]["tool_calls"][0]["function"], (Json{{"name", "f"}, {"arguments", "{\"a\":false}"}}));
  const Json named = ask(R"({"type": "function", "function": {"name": "f"}})");
  EXPECT_EQ(named["finish_reason"], "stop");
  EXPECT_EQ(named["message"]["tool_calls"][0]["function"]["name"], "f");
}

TEST_F(ApiTest, RequestsHaveTheirTime) {
  std::latch entered(1), leave(1);
  on_append_ = [&](std::span<const TokenId>) {
    if (!entered.try_wait()) entered.count_down();
    leave.wait();
    clock_.Advance(std::chrono::seconds(2));
  };
  Serve([](std::span<const TokenId>) -> TokenId { return 'a'; }, {.max_running = 1},
        {.max_wait = std::chrono::seconds(3), .max_time = std::chrono::seconds(10)});
  Json first, second;
  std::jthread running([&] { first = Post(R"({"prompt": "a", "max_tokens": 90})", 504); });
  entered.wait();
  std::jthread waiting([&] { second = Post(R"({"prompt": "b", "max_tokens": 90})", 429); });
  while (scheduler_->waiting() == 0) std::this_thread::yield();
  leave.count_down();
  running.join();
  waiting.join();
  EXPECT_EQ(first["error"]["code"], "deadline_exceeded");
  EXPECT_EQ(second["error"]["type"], "rate_limit_error");
  EXPECT_THAT(second["error"]["message"].get<std::string>(), HasSubstr("waited"));
}

TEST_F(ApiTest, TextsHaveTheFormThatARequestWants) {
  // The model wants to say "xxxx…"; the form leaves it no x.
  Serve([](std::span<const TokenId>) -> TokenId { return 'x'; });
  const auto text = [&](const std::string& form) {
    const Json answer = Post(R"({"prompt": "a", "max_tokens": 60, "temperature": 0, )" + form + "}");
    EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop") << form;
    return answer["choices"][0]["text"].get<std::string>();
  };
  EXPECT_EQ(text(R"("guided_choice": ["no", "yes"])"), "no");
  EXPECT_EQ(text(R"("guided_regex": "[a-c]{2}x?")"), "aax");
  EXPECT_EQ(text(R"("logit_bias": {"9": -100, "10": -100, "32": -100}, "response_format": {"type": "json_schema",
      "json_schema": {"name": "n", "schema": {"type": "object", "properties": {"a": {"type": "boolean"}},
      "required": ["a"]}}})"),
            R"({"a":false})");
  EXPECT_EQ(Post(R"({"prompt": "a", "guided_json": {"type": "integer", "not": {"const": 3}}})", 400)["error"]["code"],
            "unsupported_form");
  EXPECT_EQ(Post(R"({"prompt": "a", "guided_regex": "("})", 400)["error"]["code"], "unsupported_form");
}

TEST_F(ApiTest, TellsLogprobs) {
  Serve(ScriptedModel::Says("ab"));
  const Json completion = Post(R"({"prompt": ">", "logprobs": 1, "temperature": 0})")["choices"][0]["logprobs"];
  EXPECT_EQ(completion["tokens"], Json({"a", "b"}));
  EXPECT_EQ(completion["text_offset"], Json({0, 1}));
  EXPECT_NEAR(completion["top_logprobs"][1]["b"].get<double>(), 0, 1e-6);
  const std::string body = R"({"messages": [{"role": "user", "content": "x"}], "temperature": 0, "logprobs": true,
      "top_logprobs": 2)";
  const Json chat = Post(body + "}", 200, "/v1/chat/completions")["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(chat.size(), 2u);
  EXPECT_EQ(chat[0]["token"], "a");
  EXPECT_EQ(chat[0]["bytes"], Json({97}));
  EXPECT_EQ(chat[0]["top_logprobs"].size(), 2u);
  Json streamed = Json::array();
  for (const Json& event : PostStream(body + R"(, "stream": true})", "/v1/chat/completions")) {
    const Json& logprobs = event["choices"][0]["logprobs"];
    if (!logprobs.is_null()) streamed.insert(streamed.end(), logprobs["content"].begin(), logprobs["content"].end());
  }
  EXPECT_EQ(streamed, chat);
}

TEST_F(ApiTest, RefusesBadRequestsCleanly) {
  Serve(ScriptedModel::Says("yes"), {}, {.max_body_bytes = 2000});
  Json error = Post("{\"prompt\": ", 400)["error"];
  EXPECT_EQ(error["type"], "invalid_request_error");
  EXPECT_EQ(error["code"], "invalid_json");
  EXPECT_EQ(Post(R"({"prompt": "a", "model": "gpt-4"})", 404)["error"]["code"], "model_not_found");
  EXPECT_EQ(Post(R"({"prompt": "a", "max_tokens": 100})", 400)["error"]["code"], "context_length_exceeded");
  EXPECT_EQ(Post(R"({"prompt": [258]})", 400)["error"]["param"], "prompt");
  EXPECT_EQ(Post(R"({"prompt": "a", "n": 99})", 400)["error"]["param"], "n");
  Post(fmt::format(R"({{"prompt": "{}"}})", std::string(3000, 'x')), 413);
  EXPECT_EQ(Send("GET", "/v1/completions").status, 405);
  EXPECT_EQ(Send("GET", "/v1/completions").headers.Get("Allow"), "POST");
  EXPECT_EQ(Send("POST", "/v1/audio/speech", "{}").status, 404);
  EXPECT_EQ(Post(R"({"prompt": "a>"})")["choices"][0]["text"], "yes") << "still serving";
}

TEST_F(ApiTest, EmbedsTexts) {
  Serve(ScriptedModel::Says("x"), {.embedding_chunk = 4}, {.embeds_bos = true, .embeds_eos = true});
  const auto post = [&](std::string body, int status = 200) { return Post(std::move(body), status, "/v1/embeddings"); };
  const Json one = post(R"({"input": "ab", "model": "fake"})");
  EXPECT_EQ(one["object"], "list");
  EXPECT_EQ(one["model"], "fake");
  EXPECT_EQ(one["usage"], (Json{{"prompt_tokens", 4}, {"total_tokens", 4}}));
  EXPECT_EQ(one["data"][0], (Json{{"object", "embedding"}, {"index", 0}, {"embedding", {256, 257, 4}}}));
  const Json several = post(R"({"input": [[5, 6, 7], [8]], "encoding_format": "float"})");
  EXPECT_EQ(several["data"][0]["embedding"], (Json{5, 7, 3})) << "tokens are taken as they are";
  EXPECT_EQ(several["data"][1]["embedding"], (Json{8, 8, 1}));
  EXPECT_EQ(several["data"][1]["index"], 1);
  EXPECT_EQ(post(R"({"input": [3, 4], "dimensions": 2})")["data"][0]["embedding"], (Json{0.6, 0.8}));
  const Json coded = post(R"({"input": [3, 4], "encoding_format": "base64"})")["data"][0]["embedding"];
  EXPECT_EQ(coded, "AABAQAAAgEAAAABA") << "3, 4 and 2, little-endian";
  EXPECT_EQ(post(R"({"input": "ab"})")["data"], Post(R"({"input": "ab"})", 200, "/invocations")["data"]);
  EXPECT_EQ(post(R"({"input": "ab", "dimensions": 4})", 400)["error"]["param"], "dimensions");
  EXPECT_EQ(post(R"({"input": "ab", "model": "other"})", 404)["error"]["code"], "model_not_found");
  EXPECT_EQ(post(R"({"input": [300]})", 400)["error"]["param"], "input");
  EXPECT_EQ(post(R"({"input": []})", 400)["error"]["param"], "input");
  EXPECT_EQ(post(R"({"inputs": "ab"})", 400)["error"]["param"], "input");
  EXPECT_EQ(post("{\"input\": \"" + std::string(99, 'a') + "\"}", 400)["error"]["code"], "context_length_exceeded");
  model_->on_embed = [](auto) -> Status { return Fail(Code::kInternal, "no memory"); };
  EXPECT_EQ(post(R"({"input": "ab"})", 500)["error"]["type"], "server_error");
  EXPECT_EQ(Post(R"({"prompt": ">"})")["choices"][0]["text"], "x") << "texts go on";
}

TEST_F(ApiTest, AnEncoderMakesNoTexts) {
  Serve(ScriptedModel::Says("x"), {}, {.generates = false});
  EXPECT_EQ(Post(R"({"prompt": ">"})", 400)["error"]["code"], "no_texts");
  EXPECT_EQ(Post(R"({"input": "a"})", 200, "/v1/embeddings")["data"].size(), 1U);
}

TEST_F(ApiTest, TooManyRequestsAreTurnedAway) {
  std::latch entered(1), leave(1);
  std::atomic<bool> first{true};
  on_append_ = [&](std::span<const TokenId>) {
    if (first.exchange(false)) entered.count_down();
    leave.wait();
  };
  Serve(ScriptedModel::Says("yes"), {.max_admitted = 1});
  std::jthread busy([&] { Post(R"({"prompt": ">"})"); });
  entered.wait();
  auto refused = Send("POST", "/v1/completions", R"({"prompt": ">"})");
  EXPECT_EQ(refused.status, 429);
  EXPECT_EQ(refused.headers.Get("Retry-After"), "1");
  EXPECT_EQ((*ParseJson(refused.body, "error"))["error"]["type"], "rate_limit_error");
  leave.count_down();
}

TEST_F(ApiTest, AClientThatLeavesFreesTheModel) {
  std::stop_source gone;
  std::latch entered(1);
  on_append_ = [&](std::span<const TokenId>) {
    if (appends_ == 3) entered.count_down();
    // The model is held up until the client's going has been noticed, so that the text cannot end by itself.
    if (appends_ >= 3 && appends_ < 90) SystemClock().SleepFor(std::chrono::milliseconds(20));
  };
  Serve([](std::span<const TokenId>) -> TokenId { return 'x'; });
  std::jthread client([&] {
    http::Call call{.stop = gone.get_token(), .deadline = {}};
    Send("POST", "/v1/completions", R"({"prompt": ">", "max_tokens": 90, "stream": true})", call);
  });
  entered.wait();
  gone.request_stop();
  client.join();
  EXPECT_EQ(Post(R"({"prompt": ">", "max_tokens": 1})")["choices"][0]["text"], "x");
  EXPECT_LT(appends_, 80);
  // The handler of the lost client counts it once it has cleaned up, which the answer above does not wait for.
  std::string metrics;
  for (int tries = 0; tries < 2000 && !metrics.contains("millrace_requests_cancelled_total 1\n"); ++tries)
    metrics = Send("GET", "/metrics").body;
  EXPECT_THAT(metrics, HasSubstr("millrace_requests_cancelled_total 1\n"));
}

TEST_F(ApiTest, MetricsTellWhatTheCacheSaves) {
  Serve(ScriptedModel::Says("yes"));
  const std::string body = R"({"prompt": ")" + std::string(40, 's') + R"(>"})";
  Post(body, 200);
  Post(body, 200);
  EXPECT_THAT(Send("GET", "/metrics").body, HasSubstr("millrace_shared_tokens_total 32\n"));
  const std::string metrics = Send("GET", "/metrics").body;
  EXPECT_THAT(metrics, HasSubstr("millrace_shared_tokens_total 32\n")) << "asking again adds nothing";
  EXPECT_THAT(metrics, HasSubstr("millrace_cache_blocks_used 0\n"));
  EXPECT_THAT(metrics, HasSubstr("millrace_preemptions_total 0\n"));
}

TEST_F(ApiTest, SageMakersContract) {
  Serve(ScriptedModel::Says(" world"));
  EXPECT_EQ(Send("GET", "/ping").status, 200);
  Json texts = Post(R"({"inputs": "hello>", "parameters": {"max_new_tokens": 20}})", 200, "/invocations");
  EXPECT_EQ(texts, Json::array({{{"generated_text", " world"}}}));
  EXPECT_EQ(Post(R"({"prompt": "hello>"})", 200, "/invocations")["choices"][0]["text"], " world");
  Post(R"({"inputs": 5})", 400, "/invocations");
}

TEST_F(ApiTest, ListsItsModelHealthAndFigures) {
  Serve(ScriptedModel::Says("yes"));
  EXPECT_EQ((*ParseJson(Send("GET", "/v1/models").body, "models"))["data"][0]["id"], "fake");
  EXPECT_EQ(Send("GET", "/v1/models/fake").status, 200);
  EXPECT_EQ(Send("GET", "/v1/models/other").status, 404);
  Post(R"({"prompt": "a>"})");
  std::string metrics = Send("GET", "/metrics").body;
  EXPECT_THAT(metrics, HasSubstr("millrace_prompt_tokens_total 2\n"));
  EXPECT_THAT(metrics, HasSubstr("millrace_generated_tokens_total 3\n"));
  EXPECT_THAT(metrics, HasSubstr("millrace_requests_total{status=\"404\"} 1\n"));
  for (const char* path : {"/health", "/ping", "/v1/models", "/metrics", "/"}) {
    const http::Response head = Send("HEAD", path);
    EXPECT_EQ(head.status, 200) << path;
    EXPECT_EQ(head.body, "") << path;
  }
  EXPECT_EQ(Send("HEAD", "/v1/completions").status, 405);
  EXPECT_EQ(Send("GET", "/health").status, 200);
  api_->Drain(clock_.Now());
  EXPECT_EQ(Send("GET", "/health").status, 503);
  EXPECT_EQ(Send("GET", "/ping").status, 503);
  EXPECT_EQ(Post(R"({"prompt": "a>"})", 503)["error"]["code"], "server_ending");
}

/// While a request is answered, new connections are told that the server ends.
TEST_F(ApiTest, DrainsUntilRequestsAreAnswered) {
  Serve(ScriptedModel::Says("yes"));
  std::latch began(1), may_end(1);
  on_append_ = [&](std::span<const TokenId>) {
    if (appends_ == 1) {
      began.count_down();
      may_end.wait();
    }
  };
  std::jthread asks([&] { EXPECT_EQ(Post(R"({"prompt": "a>"})")["choices"][0]["text"], "yes"); });
  began.wait();
  std::jthread drains([&] { api_->Drain(SystemClock().Now() + std::chrono::minutes(1)); });
  while (Send("GET", "/health").status == 200) std::this_thread::yield();
  EXPECT_EQ(Send("GET", "/health").status, 503);
  may_end.count_down();
}

TEST_F(ApiTest, AModelThatFailsIsAServerError) {
  Serve([](std::span<const TokenId>) -> TokenId { return 'x'; });
  scheduler_.reset();
  model_ = nullptr;
  struct Broken final : LanguageModel {
    int vocab_size() const override { return 258; }
    int context_length() const override { return 100; }
    CacheSize cache() const override { return {.blocks = 8, .block_tokens = 16}; }
    Result<std::span<const float>> Step(std::span<const StepPart>) override {
      return Fail(Code::kInternal, "out of luck");
    }
  } broken;
  server_->Stop(std::chrono::seconds(1));
  ServedScheduler scheduler(std::make_shared<Scheduler>(broken, Scheduler::Options{}));
  Api api(scheduler, tokenizer_, SystemClock(), {.model_name = "fake", .context_length = 100});
  server_ = *http::Server::Start({}, [&](auto& request, auto& response) { api.Handle(request, response); });
  Json error = Post(R"({"prompt": "a"})", 500)["error"];
  EXPECT_EQ(error["type"], "server_error");
  auto streamed = Send("POST", "/v1/completions", R"({"prompt": "a", "stream": true})");
  EXPECT_THAT(streamed.body, HasSubstr("out of luck"));
  EXPECT_THAT(streamed.body, testing::Not(HasSubstr("[DONE]")));
  server_->Stop(std::chrono::seconds(1));
}

TEST_F(ApiTest, RequestsChooseAdapters) {
  const auto load = [](const std::string& url, const ReserveMemory& reserve,
                       const object::Call&) -> Result<std::shared_ptr<const Adapter>> {
    if (url == "s3://b/broken") return Fail(Code::kCorrupt, "{} is cut short", url);
    MR_TRY(reserve(10));
    return std::make_shared<const Adapter>(url == "s3://b/run" ? std::optional(false) : std::nullopt);
  };
  AdapterStore adapters(
      {.urls = {{"polite", "s3://b/polite"}, {"run", "s3://b/run"}, {"broken", "s3://b/broken"}}, .folder_url = ""},
      100, load);
  Serve(ScriptedModel::Says("base"), {}, {.add_bos = true, .adapters = &adapters});
  model_->next_of_adapter = [](const Adapter& adapter, std::span<const TokenId> tokens) {
    const bool begun = tokens.front() == ByteTokenizer::kBos;
    return ScriptedModel::Says(adapter.add_bos() ? (begun ? "bos" : "no bos") : (begun ? "please" : "?"))(tokens);
  };
  const auto ask = [&](std::string_view model, std::string_view path = "/v1/completions") {
    const bool chat = path.contains("chat");
    const Json answer =
        Post(fmt::format(R"({{"model": "{}", {}, "max_tokens": 20}})", model,
                         chat ? R"("messages": [{"role": "user", "content": "hi"}])" : R"("prompt": ">")"),
             200, std::string(path));
    EXPECT_EQ(answer["model"], model.empty() ? "fake" : model);
    return (chat ? answer["choices"][0]["message"]["content"] : answer["choices"][0]["text"]).get<std::string>();
  };
  EXPECT_EQ(ask("fake"), "base");
  EXPECT_EQ(ask(""), "base");
  EXPECT_EQ(ask("polite"), "please");
  EXPECT_EQ(ask("run"), "no bos") << "its training texts began without";
  EXPECT_EQ(ask("polite", "/v1/chat/completions"), "?") << "the template has no beginning-of-text token";

  const Json broken = Post(R"({"model": "broken", "prompt": ">"})", 422);
  EXPECT_EQ(broken["error"]["param"], "model");
  EXPECT_THAT(broken["error"]["message"].get<std::string>(),
              HasSubstr("the adapter \"broken\" cannot be used: s3://b/broken is cut short"));
  const Json unknown = Post(R"({"model": "other", "prompt": ">"})", 404);
  EXPECT_THAT(unknown["error"]["message"].get<std::string>(), HasSubstr("/v1/models lists"));
  EXPECT_EQ(ask("fake"), "base") << "the server goes on";

  const Json list = ParseJson(Send("GET", "/v1/models").body, "list").value();
  ASSERT_EQ(list["data"].size(), 4U);
  EXPECT_EQ(list["data"][0]["id"], "fake");
  EXPECT_FALSE(list["data"][0].contains("parent"));
  EXPECT_EQ(list["data"][2]["id"], "polite");
  EXPECT_EQ(list["data"][2]["parent"], "fake");
  EXPECT_EQ(Send("GET", "/v1/models/polite").status, 200);
  EXPECT_EQ(Send("GET", "/v1/models/other").status, 404);
  const std::string metrics = Send("GET", "/metrics").body;
  EXPECT_THAT(metrics, HasSubstr("millrace_adapter_loads_total 2"));
  EXPECT_THAT(metrics, HasSubstr("millrace_adapter_failures_total 1"));
  EXPECT_THAT(metrics, HasSubstr("millrace_adapter_bytes 20"));
}

}  // namespace
}  // namespace millrace::serve
