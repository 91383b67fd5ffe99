#include "millrace/serve/protocol/request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/base/hash/random.h"
#include "millrace/serve/protocol/embedding.h"

namespace millrace::serve {
namespace {

using ::testing::HasSubstr;

Json Body(std::string_view text) { return *ParseJson(text, "test"); }

TEST(ParseCompletion, FillsDefaults) {
  auto request = ParseCompletion(Body(R"({"prompt": "Hi"})"), {});
  ASSERT_TRUE(request);
  EXPECT_EQ(std::get<std::string>(request->prompts.at(0)), "Hi");
  EXPECT_FALSE(request->options.max_tokens);
  EXPECT_EQ(request->options.sampling, SamplingOptions());
  EXPECT_FALSE(request->options.stream || request->echo || request->options.seed_given);
}

TEST(ParseCompletion, ReadsEveryMember) {
  auto request = ParseCompletion(Body(R"({"model": "m", "prompt": ["a", [1, 2]], "max_tokens": 7, "temperature": 0.5,
      "top_p": 0.9, "top_k": 40, "seed": -3, "stop": ["x", "yy"], "stream": true,
      "stream_options": {"include_usage": true}, "echo": false, "user": "me", "n": 3, "best_of": 3, "logprobs": 2,
      "presence_penalty": 0.5, "frequency_penalty": 1, "logit_bias": {"7": -5.5}, "suffix": null, "min_p": 0.1,
      "typical_p": 0.9, "repetition_penalty": 1.1})"),
                                 {});
  ASSERT_TRUE(request) << request.error().message;
  EXPECT_EQ(request->options.model, "m");
  EXPECT_EQ(std::get<std::vector<TokenId>>(request->prompts.at(1)), (std::vector<TokenId>{1, 2}));
  EXPECT_EQ(request->options.max_tokens, 7);
  EXPECT_EQ(request->options.sampling.top_k, 40);
  EXPECT_EQ(request->options.sampling.seed, static_cast<std::uint64_t>(-3));
  EXPECT_TRUE(request->options.seed_given && request->options.stream && request->options.include_usage);
  EXPECT_EQ(request->options.texts, 3);
  const SamplingOptions& sampling = request->options.sampling;
  EXPECT_EQ(sampling.bias, (std::vector<std::pair<TokenId, double>>{{7, -5.5}}));
  EXPECT_EQ(sampling.logprobs, 2);
  EXPECT_EQ(sampling.min_p + sampling.typical_p + sampling.repetition_penalty, 0.1 + 0.9 + 1.1);
  EXPECT_EQ(sampling.presence_penalty + sampling.frequency_penalty, 1.5);
  EXPECT_EQ(request->options.stops, (std::vector<std::string>{"x", "yy"}));
}

TEST(ParseCompletion, TakesIdsAndOneStop) {
  auto request = ParseCompletion(Body(R"({"prompt": [5, 6, 7], "stop": "."})"), {});
  ASSERT_TRUE(request);
  EXPECT_EQ(request->prompts.size(), 1u);
  EXPECT_EQ(std::get<std::vector<TokenId>>(request->prompts[0]).size(), 3u);
  EXPECT_EQ(request->options.stops, std::vector<std::string>{"."});
}

TEST(ParseCompletion, RefusesWithASentenceAndTheParameter) {
  struct Refusal {
    std::string body, param, says;
  };
  const Refusal refusals[] = {
      {R"([])", "", "JSON object"},
      {R"({})", "prompt", "required"},
      {R"({"prompt": 5})", "prompt", "string"},
      {R"({"prompt": []})", "prompt", "string"},
      {R"({"prompt": [[]]})", "prompt", "string"},
      {R"({"prompt": [1, "a"]})", "prompt", "string"},
      {R"({"prompt": [1.5]})", "prompt", "string"},
      {R"({"prompt": [-1]})", "prompt", "string"},
      {R"({"prompt": [99999999999]})", "prompt", "string"},
      {R"({"prompt": ["a", "a", "a"]})", "prompt", "takes 2"},
      {R"({"prompt": "a", "max_tokens": -1})", "max_tokens", "from 0 to 4096"},
      {R"({"prompt": "a", "max_tokens": 1e3})", "max_tokens", "whole number"},
      {R"({"prompt": "a", "max_tokens": 18446744073709551615})", "max_tokens", "whole number"},
      {R"({"prompt": "a", "temperature": -0.1})", "temperature", "from 0"},
      {R"({"prompt": "a", "temperature": "hot"})", "temperature", "number"},
      {R"({"prompt": "a", "top_p": 0})", "top_p", "from"},
      {R"({"prompt": "a", "top_p": 1.1})", "top_p", "from"},
      {R"({"prompt": "a", "top_k": 1.5})", "top_k", "whole number"},
      {R"({"prompt": "a", "seed": "x"})", "seed", "whole number"},
      {R"({"prompt": "a", "stop": ""})", "stop", "1 to 256 bytes"},
      {R"({"prompt": "a", "stop": [1]})", "stop", "1 to 256 bytes"},
      {R"({"prompt": "a", "stream": 1})", "stream", "true or false"},
      {R"({"prompt": "a", "stream_options": {"include_usage": true}})", "stream_options", "stream"},
      {R"({"prompt": "a", "stream": true, "stream_options": 5})", "stream_options", "include_usage"},
      {R"({"prompt": "a", "n": 17})", "n", "from 1 to 16"},
      {R"({"prompt": "a", "best_of": 99})", "best_of", "from 1"},
      {R"({"prompt": "a", "logprobs": 50})", "logprobs", "from 0 to 20"},
      {R"({"prompt": "a", "logit_bias": {"x": 1}})", "logit_bias", "token ids"},
      {R"({"prompt": "a", "logit_bias": {"5": 101}})", "logit_bias", "-100 to 100"},
      {R"({"prompt": "a", "min_p": 1.5})", "min_p", "from 0 to 1"},
      {R"({"prompt": "a", "temprature": 1})", "temprature", "did you mean \"temperature\""},
  };
  for (const Refusal& refusal : refusals) {
    auto request = ParseCompletion(Body(refusal.body), {.max_prompts = 2});
    ASSERT_FALSE(request) << refusal.body;
    EXPECT_EQ(request.error().status, 400);
    EXPECT_EQ(request.error().param, refusal.param) << refusal.body;
    EXPECT_THAT(request.error().message, HasSubstr(refusal.says)) << refusal.body;
  }
}

TEST(ParseChat, ReadsConversations) {
  auto request = ParseChat(Body(R"({"model": "m", "messages": [{"role": "system", "content": "s"},
      {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "Ada"},
      {"role": "assistant", "content": null, "tool_calls": [{"id": "1", "type": "function",
        "function": {"name": "f", "arguments": "{\"x\": [1]}"}}]},
      {"role": "tool", "tool_call_id": "1", "content": "2"}], "tools": [{"type": "function"}], "tool_choice": "auto",
      "max_completion_tokens": 9, "logprobs": true, "top_logprobs": 2, "response_format": {"type": "text"},
      "chat_template_kwargs": {"enable_thinking": false}, "stream": true})"),
                           {});
  ASSERT_TRUE(request) << request.error().message;
  EXPECT_EQ(request->messages[1], Json({{"role", "user"}, {"content", "ab"}, {"name", "Ada"}}));
  EXPECT_EQ(request->messages[2]["tool_calls"][0]["function"]["arguments"], Json({{"x", {1}}}));
  EXPECT_EQ(request->tools.size(), 1u);
  EXPECT_EQ(request->options.max_tokens, 9);
  EXPECT_EQ(request->options.sampling.logprobs, 2);
  EXPECT_EQ(request->variables, Json({{"enable_thinking", false}}));
}

TEST(ParseChat, RefusesWithASentenceAndTheParameter) {
  const std::vector<std::array<std::string, 3>> refusals = {
      {R"({})", "messages", "required"},
      {R"({"messages": []})", "messages", "not empty"},
      {R"({"messages": "hello"})", "messages", "list"},
      {R"({"messages": [5]})", "messages[0]", "role"},
      {R"({"messages": [{"role": "user"}]})", "messages[0]", "no content"},
      {R"({"messages": [{"role": "user", "content": 5}]})", "messages[0]", "text parts"},
      {R"({"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": [{"type": "image_url"}]}]})",
       "messages[1]", "no images"},
      {R"({"messages": [{"role": "user", "content": "a"}], "tool_choice": "required"})", "tool_choice", "no tools"},
      {R"({"messages": [{"role": "user", "content": "a"}], "tool_choice": "always"})", "tool_choice", "required"},
      {R"({"messages": [{"role": "user", "content": "a"}], "tools": [{"type": "function", "function": {"name": "f"}}],
          "tool_choice": {"type": "function", "function": {"name": "g"}}})",
       "tool_choice", "not among the tools"},
      {R"({"messages": [{"role": "user", "content": "a"}], "tools": [{"function": {}}], "tool_choice": "required"})",
       "tools", "name"},
      {R"({"messages": [{"role": "user", "content": "a"}], "tools": [{"function": {"name": "f"}}],
          "tool_choice": "required", "response_format": {"type": "json_object"}})",
       "tool_choice", "not both"},
      {R"({"messages": [{"role": "user", "content": "a"}], "response_format": {"type": "xml"}})", "response_format",
       "text, json_object or json_schema"},
      {R"({"messages": [{"role": "user", "content": "a"}], "response_format": {"type": "json_schema"}})",
       "response_format", "\"schema\""},
      {R"({"messages": [{"role": "user", "content": "a"}], "response_format": {"type": "json_object"},
           "guided_regex": "a"})",
       "guided_regex", "not two"},
      {R"({"messages": [{"role": "user", "content": "a"}], "guided_choice": ["a", ""]})", "guided_choice", "strings"},
      {R"({"messages": [{"role": "user", "content": "a"}], "top_logprobs": 3})", "top_logprobs", "needs"},
      {R"({"messages": [{"role": "user", "content": "a"}], "prompt": "b"})", "prompt", "prompt"},
  };
  for (const auto& [body, param, says] : refusals) {
    const auto request = ParseChat(Body(body), {});
    ASSERT_FALSE(request) << body;
    EXPECT_EQ(request.error().param, param) << body;
    EXPECT_THAT(request.error().message, HasSubstr(says)) << body;
  }
}

/// Clients send what they know. What changes nothing is taken, and the rest is named.
TEST(ParseChat, TakesWhatChangesNothing) {
  const auto parse = [](std::string_view members) {
    return ParseChat(Body(fmt::format(R"({{"messages": [{{"role": "user", "content": "a"}}], {}}})", members)), {});
  };
  for (const char* members :
       {R"("service_tier": "auto")", R"("modalities": ["text"])", R"("audio": null)",
        R"("prediction": {"type": "content"})", R"("reasoning_effort": "low")", R"("verbosity": "medium")",
        R"("function_call": "none")", R"("functions": [])",
        R"("prompt_cache_key": "k", "safety_identifier": "u", "store": true, "metadata": {"a": "b"})",
        R"("web_search_options": null, "never_heard_of": null)", R"("ignore_eos": true, "min_tokens": 2)",
        R"("stream": true, "stream_options": {"include_usage": true, "include_obfuscation": false})"}) {
    const auto parsed = parse(members);
    EXPECT_TRUE(parsed) << members << ": " << parsed.error().message;
  }
  EXPECT_EQ(parse(R"("reasoning_effort": "low")")->variables["reasoning_effort"], "low");
  EXPECT_EQ(parse(R"("stop_token_ids": [3, 4])")->options.stop_tokens, (std::vector<TokenId>{3, 4}));
  for (const char* members : {R"("modalities": ["audio"])", R"("audio": {"voice": "x"})", R"("web_search_options": {})",
                              R"("functions": [{}])", R"("function_call": {"name": "f"})", R"("verbosity": "low")",
                              R"("stop_token_ids": ["a"])", R"("min_tokens": 3, "max_tokens": 2)", R"("unheard": 1)",
                              R"("continue_final_message": true, "add_generation_prompt": true)"}) {
    EXPECT_FALSE(parse(members)) << members;
  }
}

TEST(ParseChat, TakesAnswersWithoutWords) {
  const auto message = [](std::string_view text) {
    const auto parsed = ParseChat(Body(fmt::format(R"({{"messages": [{}]}})", text)), {});
    EXPECT_TRUE(parsed) << parsed.error().message;
    return parsed ? parsed->messages[0] : Json();
  };
  EXPECT_EQ(message(R"({"role": "assistant", "content": null, "refusal": "no"})")["content"], "no");
  EXPECT_EQ(message(R"({"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]})")["content"], "no");
  EXPECT_EQ(message(R"({"role": "assistant"})")["content"], "");
  const Json called =
      message(R"({"role": "assistant", "content": null, "function_call": {"name": "f", "arguments": "{}"}})");
  EXPECT_EQ(called["tool_calls"][0]["function"], Json({{"name", "f"}, {"arguments", Json::object()}}));
  EXPECT_EQ(message(R"({"role": "function", "name": "f", "content": "1"})")["role"], "tool");
  EXPECT_FALSE(ParseChat(Body(R"({"messages": [{"role": "user", "content": null}]})"), {}));
}

TEST(ParseInvocation, TakesThreeForms) {
  EXPECT_TRUE(std::holds_alternative<CompletionRequest>(
      ParseInvocation(Body(R"({"prompt": "a", "max_tokens": 3})"), {}).value()));
  EXPECT_TRUE(std::holds_alternative<ChatRequest>(
      ParseInvocation(Body(R"({"messages": [{"role": "user", "content": "a"}]})"), {}).value()));
  const auto parsed = ParseInvocation(Body(R"({"inputs": "a", "parameters": {"max_new_tokens": 3, "do_sample": false,
      "return_full_text": true, "stop": ["\n"], "top_p": 0.5, "repetition_penalty": 1.3, "num_return_sequences": 2}})"),
                                      {});
  ASSERT_TRUE(parsed) << parsed.error().message;
  const CompletionRequest& inputs = std::get<InputsRequest>(*parsed).request;
  EXPECT_TRUE(inputs.echo);
  EXPECT_EQ(inputs.options.max_tokens, 3);
  EXPECT_EQ(inputs.options.texts, 2);
  EXPECT_EQ(inputs.options.sampling.temperature, 0);
  EXPECT_EQ(inputs.options.sampling.repetition_penalty, 1.3);
  const auto temperature = [](std::string_view parameters) {
    const auto plain = ParseInvocation(Body(fmt::format(R"({{"inputs": "a", "parameters": {}}})", parameters)), {});
    EXPECT_TRUE(plain) << parameters;
    return plain ? std::get<InputsRequest>(*plain).request.options.sampling.temperature : -1;
  };
  EXPECT_EQ(temperature(R"({"watermark": false, "best_of": 1, "stop_sequences": ["x"], "truncate": null})"), 0);
  EXPECT_EQ(temperature(R"({"do_sample": true})"), 1);
  EXPECT_EQ(temperature(R"({"top_p": 0.9})"), 1);
  EXPECT_EQ(temperature(R"({"temperature": 0.5})"), 0.5);
  EXPECT_EQ(temperature(R"({"temperature": 0.5, "do_sample": false})"), 0);
  EXPECT_FALSE(ParseInvocation(Body(R"({"inputs": "a", "parameters": {"max_tokens": 3}})"), {}));
  EXPECT_FALSE(ParseInvocation(Body(R"({"inputs": "a", "parameters": []})"), {}));
  EXPECT_FALSE(ParseInvocation(Body(R"({"inputs": "a", "stream": true})"), {}));
  EXPECT_FALSE(ParseInvocation(Body(R"("text")"), {}));
}

/// Whatever JSON comes, parsing ends with a request or an error.
TEST(ParseCompletion, SurvivesAnyJson) {
  Random random(6);
  const std::vector<Json> values = {nullptr,
                                    true,
                                    -1,
                                    1.5,
                                    "text",
                                    Json::array(),
                                    Json::array({1, "a", nullptr}),
                                    Json::object(),
                                    {{"include_usage", 5}},
                                    18446744073709551615u};
  const std::vector<std::string> keys = {"model", "prompt",   "max_tokens", "temperature", "top_p",
                                         "top_k", "seed",     "stop",       "stream",      "stream_options",
                                         "echo",  "n",        "logprobs",   "inputs",      "parameters",
                                         "",      "messages", "tools",      "logit_bias"};
  for (int round = 0; round < 3000; ++round) {
    Json body = Json::object();
    for (std::uint64_t i = random.Below(6); i > 0; --i)
      body[keys[random.Below(keys.size())]] = values[random.Below(values.size())];
    auto request = ParseInvocation(body, {});
    if (!request) {
      EXPECT_FALSE(request.error().message.empty());
      EXPECT_EQ(request.error().status, 400);
    }
  }
}

TEST(EmbeddingAnswer, JsonNumbersAreBounded) {
  EmbeddingRequest request{.model = "", .inputs = std::vector<Prompt>(2048, Prompt("a"))};
  EXPECT_FALSE(CheckAnswer(request, 1024));
  const auto refused = CheckAnswer(request, 1025);
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->status, 400);
  EXPECT_THAT(refused->message, HasSubstr("base64"));
  request.dimensions = 256;
  EXPECT_FALSE(CheckAnswer(request, 4096)) << "of the elements that are kept";
  request.dimensions = 0;
  request.base64 = true;
  EXPECT_FALSE(CheckAnswer(request, 4096));
}

}  // namespace
}  // namespace millrace::serve
