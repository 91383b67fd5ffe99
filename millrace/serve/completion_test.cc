#include "millrace/serve/completion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/base/hash/random.h"

namespace millrace::serve {
namespace {

using ::testing::HasSubstr;

Json Body(std::string_view text) { return *ParseJson(text, "test"); }

TEST(ParseCompletion, FillsDefaults) {
  auto request = ParseCompletion(Body(R"({"prompt": "Hi"})"), {});
  ASSERT_TRUE(request);
  EXPECT_EQ(std::get<std::string>(request->prompts.at(0)), "Hi");
  EXPECT_FALSE(request->max_tokens);
  EXPECT_EQ(request->sampling, SamplingOptions());
  EXPECT_FALSE(request->stream || request->echo || request->seed_given);
}

TEST(ParseCompletion, ReadsEveryMember) {
  auto request = ParseCompletion(Body(R"({"model": "m", "prompt": ["a", [1, 2]], "max_tokens": 7, "temperature": 0.5,
      "top_p": 0.9, "top_k": 40, "seed": -3, "stop": ["x", "yy"], "stream": true,
      "stream_options": {"include_usage": true}, "echo": true, "user": "me", "n": 1, "best_of": 1, "logprobs": null,
      "presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}, "suffix": null})"),
                                 {});
  ASSERT_TRUE(request) << request.error().message;
  EXPECT_EQ(request->model, "m");
  EXPECT_EQ(std::get<std::vector<TokenId>>(request->prompts.at(1)), (std::vector<TokenId>{1, 2}));
  EXPECT_EQ(request->max_tokens, 7);
  EXPECT_EQ(request->sampling.top_k, 40);
  EXPECT_EQ(request->sampling.seed, static_cast<std::uint64_t>(-3));
  EXPECT_TRUE(request->seed_given && request->stream && request->include_usage && request->echo);
  EXPECT_EQ(request->stops, (std::vector<std::string>{"x", "yy"}));
}

TEST(ParseCompletion, TakesIdsAndOneStop) {
  auto request = ParseCompletion(Body(R"({"prompt": [5, 6, 7], "stop": "."})"), {});
  ASSERT_TRUE(request);
  EXPECT_EQ(request->prompts.size(), 1u);
  EXPECT_EQ(std::get<std::vector<TokenId>>(request->prompts[0]).size(), 3u);
  EXPECT_EQ(request->stops, std::vector<std::string>{"."});
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
      {R"({"prompt": ["a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a"]})", "prompt", "takes 16"},
      {R"({"prompt": "a", "max_tokens": 0})", "max_tokens", "from 1 to 4096"},
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
      {R"({"prompt": "a", "n": 2})", "n", "not supported"},
      {R"({"prompt": "a", "logprobs": 5})", "logprobs", "not supported"},
      {R"({"prompt": "a", "logit_bias": {"5": 1}})", "logit_bias", "not supported"},
      {R"({"prompt": "a", "temprature": 1})", "temprature", "did you mean \"temperature\""},
  };
  for (const Refusal& refusal : refusals) {
    auto request = ParseCompletion(Body(refusal.body), {});
    ASSERT_FALSE(request) << refusal.body;
    EXPECT_EQ(request.error().status, 400);
    EXPECT_EQ(request.error().param, refusal.param) << refusal.body;
    EXPECT_THAT(request.error().message, HasSubstr(refusal.says)) << refusal.body;
  }
}

TEST(ParseInvocation, TakesBothForms) {
  auto completion = ParseInvocation(Body(R"({"prompt": "a", "max_tokens": 3})"), {});
  ASSERT_TRUE(completion);
  EXPECT_FALSE(completion->inputs_form);
  auto inputs = ParseInvocation(Body(R"({"inputs": "a", "parameters": {"max_new_tokens": 3, "do_sample": false,
      "return_full_text": true, "stop": ["\n"], "top_p": 0.5}})"),
                                {});
  ASSERT_TRUE(inputs) << inputs.error().message;
  EXPECT_TRUE(inputs->inputs_form && inputs->request.echo);
  EXPECT_EQ(inputs->request.max_tokens, 3);
  EXPECT_EQ(inputs->request.sampling.temperature, 0);
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
  const std::vector<std::string> keys = {
      "model",  "prompt",         "max_tokens", "temperature", "top_p",    "top_k",  "seed",       "stop",
      "stream", "stream_options", "echo",       "n",           "logprobs", "inputs", "parameters", ""};
  for (int round = 0; round < 3000; ++round) {
    Json body = Json::object();
    for (std::uint64_t i = random.Below(6); i > 0; --i)
      body[keys[random.Below(keys.size())]] = values[random.Below(values.size())];
    auto request = ParseInvocation(body, {});
    if (request) {
      EXPECT_FALSE(request->request.prompts.empty());
    } else {
      EXPECT_FALSE(request.error().message.empty());
      EXPECT_EQ(request.error().status, 400);
    }
  }
}

}  // namespace
}  // namespace millrace::serve
