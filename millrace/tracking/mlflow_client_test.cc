#include "millrace/tracking/mlflow_client.h"

#include <gmock/gmock.h>

#include <map>
#include <string>

#include "millrace/http/testing/scripted_server.h"
#include "millrace/tracking/testing/collected_log.h"

namespace millrace::tracking {
namespace {

using http::testing::Answer;
using http::testing::ScriptedServer;
using ::testing::HasSubstr;
using ::testing::Not;

Environment Variables(std::map<std::string, std::string> variables) {
  return [variables = std::move(variables)](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
}

TEST(MlflowAccess, ReadsTheVariablesOfMlflow) {
  const auto token = MlflowAccess::Find("", "/ca.pem",
                                        Variables({{"MLFLOW_TRACKING_URI", "https://mlflow.example/base/"},
                                                   {"MLFLOW_TRACKING_TOKEN", "t"},
                                                   {"MLFLOW_TRACKING_USERNAME", "u"}}))
                         .value();
  EXPECT_EQ(token.url, "https://mlflow.example/base");
  EXPECT_EQ(token.authorization, "Bearer t");
  EXPECT_EQ(token.ca_bundle, "/ca.pem");
  EXPECT_TRUE(token.verify_tls);
  const auto password = MlflowAccess::Find("http://a", "/ca.pem",
                                           Variables({{"MLFLOW_TRACKING_URI", "http://b"},
                                                      {"MLFLOW_TRACKING_USERNAME", "user"},
                                                      {"MLFLOW_TRACKING_PASSWORD", "pass"},
                                                      {"MLFLOW_TRACKING_SERVER_CERT_PATH", "/own.pem"},
                                                      {"MLFLOW_TRACKING_INSECURE_TLS", "true"}}))
                            .value();
  EXPECT_EQ(password.url, "http://a");
  EXPECT_EQ(password.authorization, "Basic dXNlcjpwYXNz");
  EXPECT_EQ(password.ca_bundle, "/own.pem");
  EXPECT_FALSE(password.verify_tls);
}

TEST(MlflowAccess, RefusesOtherUrls) {
  for (const char* url : {"", "databricks", "file:///mlruns", "https://user:word@mlflow.example"}) {
    const auto access = MlflowAccess::Find(url, "", Variables({}));
    ASSERT_FALSE(access) << url;
    EXPECT_EQ(access.error().code(), Code::kInvalidArgument);
    EXPECT_THAT(access.error().message(), Not(HasSubstr("word@")));
  }
}

class MlflowClientTest : public ::testing::Test {
 protected:
  MlflowClientTest() { clock_.AdvanceOnSleep(true); }
  Result<Json> Ask(const ScriptedServer& server, Duration patience = std::chrono::minutes(5)) {
    MlflowClient client({.url = server.url(), .authorization = "Bearer secret"}, clock_, log_.logger());
    return client.Call("runs/create", Json::object({{"name", "x"}}), Deadline::After(clock_, patience));
  }
  FakeClock clock_;
  CollectedLog log_;
};

TEST_F(MlflowClientTest, AsksAgainWhileTheServerIsBusy) {
  ScriptedServer server([](const ScriptedServer::Seen& seen) -> ScriptedServer::Reply {
    if (seen.number == 0) return {.bytes = Answer(503, "")};
    if (seen.number == 1) return {.bytes = Answer(429, R"({"error_code":"REQUEST_LIMIT_EXCEEDED","message":"slow"})")};
    if (seen.number == 2) return {.bytes = "", .then = ScriptedServer::Reply::Then::kReset};
    return {.bytes = Answer(200, R"({"a": 1})")};
  });
  EXPECT_EQ(Ask(server).value()["a"], 1);
  const auto seen = server.seen();
  ASSERT_EQ(seen.size(), 4u);
  EXPECT_EQ(seen[3].target, "/api/2.0/mlflow/runs/create");
  EXPECT_EQ(seen[3].headers.Get("Authorization"), "Bearer secret");
  EXPECT_EQ(seen[3].body, R"({"name":"x"})");
  EXPECT_EQ(log_.Count("does not answer"), 1);
  EXPECT_EQ(log_.Count("secret"), 0);
}

TEST_F(MlflowClientTest, GivesUpAtTheDeadline) {
  ScriptedServer server([](const auto&) -> ScriptedServer::Reply { return {.bytes = Answer(500, "<html>oops")}; });
  const auto answer = Ask(server, std::chrono::seconds(10));
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code(), Code::kUnavailable);
  EXPECT_EQ(server.seen().size(), 5u);  // after 0, 0.5, 1.5, 3.5 and 7.5 s
}

TEST_F(MlflowClientTest, StopsBetweenTwoTries) {
  ScriptedServer server([](const auto&) -> ScriptedServer::Reply { return {.bytes = Answer(500, "")}; });
  std::stop_source stop;
  stop.request_stop();
  MlflowClient client({.url = server.url()}, clock_, log_.logger());
  EXPECT_FALSE(client.Call("runs/get?run_id=1", std::nullopt, {}, stop.get_token()));
  EXPECT_EQ(server.seen().size(), 1u);
}

TEST_F(MlflowClientTest, TellsWhyTheServerRefuses) {
  int status = 0;
  std::string body;
  ScriptedServer server([&](const auto&) -> ScriptedServer::Reply { return {.bytes = Answer(status, body)}; });
  const auto ask = [&](int with, std::string text) {
    status = with;
    body = std::move(text);
    return Ask(server).error();
  };
  const Error denied = ask(401, "You are not authenticated");
  EXPECT_EQ(denied.code(), Code::kPermissionDenied);
  EXPECT_THAT(denied.message(), HasSubstr("MLFLOW_TRACKING_TOKEN"));
  EXPECT_THAT(denied.message(), Not(HasSubstr("secret")));
  EXPECT_EQ(ask(404, R"({"error_code":"RESOURCE_DOES_NOT_EXIST","message":"no"})").code(), Code::kNotFound);
  EXPECT_EQ(ask(400, R"({"error_code":"RESOURCE_ALREADY_EXISTS","message":"no"})").code(), Code::kAlreadyExists);
  const Error refused = ask(400, R"({"error_code":"INVALID_PARAMETER_VALUE","message":"bad key"})");
  EXPECT_EQ(refused.code(), Code::kInvalidArgument);
  EXPECT_THAT(refused.message(), HasSubstr("bad key"));
  EXPECT_EQ(server.seen().size(), 4u);
}

}  // namespace
}  // namespace millrace::tracking
