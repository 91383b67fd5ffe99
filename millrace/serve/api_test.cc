#include "millrace/serve/api.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <latch>

#include "millrace/http/client/client.h"
#include "millrace/serve/testing.h"

namespace millrace::serve {
namespace {

using ::testing::HasSubstr;

/// A served model on a real socket.
class ApiTest : public testing::Test {
 protected:
  void Serve(ScriptedModel::Next next, Scheduler::Options scheduling = {}, Api::Options options = {}) {
    model_ = std::make_unique<ScriptedModel>(std::move(next), 100);
    model_->on_append = [this](std::span<const TokenId> tokens) {
      ++appends_;
      if (on_append_) on_append_(tokens);
    };
    scheduler_ = std::make_unique<Scheduler>(*model_, scheduling);
    options.model_name = "fake";
    options.context_length = 100;
    api_ = std::make_unique<Api>(*scheduler_, tokenizer_, SystemClock(), std::move(options));
    auto server = http::Server::Start({}, [this](auto& request, auto& response) { api_->Handle(request, response); });
    ASSERT_TRUE(server) << server.error().ToString();
    server_ = *std::move(server);
  }
  void TearDown() override {
    if (server_) server_->Stop(std::chrono::seconds(5));
  }
  http::Response Send(std::string method, std::string path, std::string body = "", http::Call call = {}) {
    http::Request request{.method = std::move(method), .url = fmt::format("http://{}{}", server_->address(), path)};
    request.body = AsBytes(body);
    auto response = client_.Send(std::move(request), {}, std::move(call));
    if (!response) return http::Response{.status = -1, .body = response.error().ToString()};
    return *std::move(response);
  }
  Json Post(std::string body, int status = 200, std::string path = "/v1/completions") {
    auto response = Send("POST", std::move(path), std::move(body));
    EXPECT_EQ(response.status, status) << response.body;
    return ParseJson(response.body, "answer").value_or(Json());
  }
  /// The objects of a streamed answer, checked to be whole events that end with [DONE].
  std::vector<Json> PostStream(std::string body) {
    auto response = Send("POST", "/v1/completions", std::move(body));
    EXPECT_EQ(response.status, 200) << response.body;
    EXPECT_THAT(std::string(response.headers.Get("Content-Type")), HasSubstr("text/event-stream"));
    EXPECT_TRUE(response.body.ends_with("data: [DONE]\n\n")) << response.body;
    std::vector<Json> events;
    std::string_view rest = response.body;
    for (std::size_t end; (end = rest.find("\n\n")) != std::string_view::npos; rest.remove_prefix(end + 2)) {
      std::string_view event = rest.substr(0, end);
      EXPECT_TRUE(event.starts_with("data: "));
      if (event != "data: [DONE]") events.push_back(*ParseJson(event.substr(6), "event"));
    }
    EXPECT_TRUE(rest.empty());
    return events;
  }

  ByteTokenizer tokenizer_;
  std::atomic<int> appends_{0};
  std::function<void(std::span<const TokenId>)> on_append_;
  std::unique_ptr<ScriptedModel> model_;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<Api> api_;
  std::unique_ptr<http::Server> server_;
  http::Client client_{{}};
};

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
  http::Request request{.url = fmt::format("http://{}/metrics", server_->address())};
  request.headers.Set("Authorization", "Bearer " + key);
  EXPECT_EQ(client_.Send(request).value().status, 200);
}

// Limits of count and depth: parsing does not take the time, nor the memory, that a body asks for.
TEST_F(ApiTest, BodiesAreBoundedInCountAndDepth) {
  Serve(ScriptedModel::Says("x"));
  std::string many = "{\"prompt\": [1";
  for (int i = 0; i < 1024 * 1024; ++i) many += ",1";
  EXPECT_EQ(Post(many + "]}", 400)["error"]["code"], "invalid_json");
  EXPECT_EQ(Post("{\"prompt\": " + std::string(20, '[') + std::string(20, ']') + "}", 400)["error"]["code"],
            "invalid_json");
  std::string keys = "{";
  for (int i = 0; i < 100'000; ++i) keys += fmt::format("{}\"k{}\":1", i == 0 ? "" : ",", i);
  const TimePoint begun = SystemClock().Now();
  Post(keys + "}", 400);
  EXPECT_LT(SystemClock().Now() - begun, std::chrono::seconds(5)) << "a quadratic parser takes over 30 s";
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
  EXPECT_EQ(answer["usage"], Json({{"prompt_tokens", 6}, {"completion_tokens", 6}, {"total_tokens", 12}}));
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

TEST_F(ApiTest, RefusesBadRequestsCleanly) {
  Serve(ScriptedModel::Says("yes"), {}, {.max_body_bytes = 2000});
  Json error = Post("{\"prompt\": ", 400)["error"];
  EXPECT_EQ(error["type"], "invalid_request_error");
  EXPECT_EQ(error["code"], "invalid_json");
  EXPECT_EQ(Post(R"({"prompt": "a", "model": "gpt-4"})", 404)["error"]["code"], "model_not_found");
  EXPECT_EQ(Post(R"({"prompt": "a", "max_tokens": 100})", 400)["error"]["code"], "context_length_exceeded");
  EXPECT_EQ(Post(R"({"prompt": [258]})", 400)["error"]["param"], "prompt");
  EXPECT_EQ(Post(R"({"prompt": "a", "n": 3})", 400)["error"]["param"], "n");
  Post(fmt::format(R"({{"prompt": "{}"}})", std::string(3000, 'x')), 413);
  EXPECT_EQ(Send("GET", "/v1/completions").status, 405);
  EXPECT_EQ(Send("GET", "/v1/completions").headers.Get("Allow"), "POST");
  EXPECT_EQ(Send("POST", "/v1/chat/completions", "{}").status, 404);
  EXPECT_EQ(Post(R"({"prompt": "a>"})")["choices"][0]["text"], "yes") << "still serving";
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
  EXPECT_EQ(Send("GET", "/health").status, 200);
  api_->Drain();
  EXPECT_EQ(Send("GET", "/health").status, 503);
  EXPECT_EQ(Send("GET", "/ping").status, 503);
  Post(R"({"prompt": "a>"})", 200);
}

TEST_F(ApiTest, AModelThatFailsIsAServerError) {
  Serve([](std::span<const TokenId>) -> TokenId { return 'x'; });
  scheduler_.reset();
  model_ = nullptr;
  struct Broken final : LanguageModel {
    int vocab_size() const override { return 258; }
    int context_length() const override { return 100; }
    Result<std::unique_ptr<Sequence>> NewSequence(int) override { return Fail(Code::kInternal, "out of luck"); }
  } broken;
  server_->Stop(std::chrono::seconds(1));
  Scheduler scheduler(broken, {});
  Api api(scheduler, tokenizer_, SystemClock(), {.model_name = "fake", .context_length = 100});
  server_ = *http::Server::Start({}, [&](auto& request, auto& response) { api.Handle(request, response); });
  Json error = Post(R"({"prompt": "a"})", 500)["error"];
  EXPECT_EQ(error["type"], "server_error");
  auto streamed = Send("POST", "/v1/completions", R"({"prompt": "a", "stream": true})");
  EXPECT_THAT(streamed.body, HasSubstr("out of luck"));
  EXPECT_THAT(streamed.body, testing::Not(HasSubstr("[DONE]")));
  server_->Stop(std::chrono::seconds(1));
}

}  // namespace
}  // namespace millrace::serve
