// A served model on a real socket, for tests.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "millrace/http/client/client.h"
#include "millrace/serve/api/api.h"
#include "millrace/serve/testing.h"

namespace millrace::serve {

/// A served model on a real socket.
class ApiTest : public testing::Test {
 protected:
  void Serve(ScriptedModel::Next next, Scheduler::Options scheduling = {}, Api::Options options = {}) {
    model_ = std::make_unique<ScriptedModel>(std::move(next), 100);
    model_->on_append = [this](std::span<const TokenId> tokens) {
      ++appends_;
      if (on_append_) on_append_(tokens);
    };
    scheduler_ = std::make_unique<ServedScheduler>(std::make_shared<Scheduler>(*model_, scheduling, nullptr, clock_));
    options.model_name = "fake";
    options.context_length = 100;
    options.ends = {ByteTokenizer::kEos};
    options.chat =
        std::make_shared<ChatTemplate>(ChatTemplate::Make({.text = template_, .stops = {"|"}}, tokenizer_).value());
    api_ = std::make_unique<Api>(*scheduler_, tokenizer_, clock_, std::move(options));
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
  std::vector<Json> PostStream(std::string body, std::string path = "/v1/completions") {
    auto response = Send("POST", std::move(path), std::move(body));
    EXPECT_EQ(response.status, 200) << response.body;
    EXPECT_THAT(std::string(response.headers.Get("Content-Type")), ::testing::HasSubstr("text/event-stream"));
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

  FakeClock clock_;
  std::string template_ = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}>";
  ByteTokenizer tokenizer_;
  std::atomic<int> appends_{0};
  std::function<void(std::span<const TokenId>)> on_append_;
  std::unique_ptr<ScriptedModel> model_;
  std::unique_ptr<ServedScheduler> scheduler_;
  std::unique_ptr<Api> api_;
  std::unique_ptr<http::Server> server_;
  http::Client client_{{}};
};

}  // namespace millrace::serve
