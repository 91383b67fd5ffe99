// Each source of credentials against a local service that speaks its protocol over a real connection, with real files
// and programs. Which source is chosen when is in credentials_test.cc.
#include <gmock/gmock.h>

#include <fstream>
#include <map>

#include "millrace/base/files/files.h"
#include "millrace/base/hash/digest.h"
#include "millrace/base/hash/text_encoding.h"
#include "millrace/base/json.h"
#include "millrace/base/text.h"
#include "millrace/http/client/client.h"
#include "millrace/http/testing/scripted_server.h"
#include "millrace/object/s3/credentials/credentials.h"
#include "millrace/object/s3/credentials/settings.h"

namespace millrace::object::s3 {
namespace {

using http::testing::Answer;
using http::testing::ScriptedServer;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Reply = ScriptedServer::Reply;
using Seen = ScriptedServer::Seen;

class CredentialServices : public ::testing::Test {
 protected:
  void SetUp() override {
    auto folder = TempDir::Create();
    ASSERT_TRUE(folder) << folder.error().ToString();
    folder_.emplace(*std::move(folder));
    env_["HOME"] = folder_->path().string();
    env_["AWS_EC2_METADATA_DISABLED"] = "true";
    clock_.AdvanceOnSleep(true);
  }
  void Write(const std::filesystem::path& name, std::string_view text) {
    std::filesystem::create_directories((folder_->path() / name).parent_path());
    ASSERT_TRUE(WriteFileAtomic(folder_->path() / name, AsBytes(text)));
  }
  std::string Read(const std::filesystem::path& name) { return ReadFile(folder_->path() / name).value_or("<absent>"); }
  void Serve(ScriptedServer::Script script) { server_ = std::make_unique<ScriptedServer>(std::move(script)); }
  Result<Credentials> Fetch(std::string profile = "") {
    Environment environment = Environment::System();
    environment.getenv = [this](const char* name) -> std::optional<std::string> {
      auto found = env_.find(name);
      return found == env_.end() ? std::nullopt : std::optional(found->second);
    };
    environment.fetch = [](http::Request request, http::Call call) {
      http::Client client(
          {.timeouts = {.connect = std::chrono::seconds(1), .first_byte = std::chrono::milliseconds(300)}});
      return client.Send(std::move(request), {}, std::move(call));
    };
    environment.clock = &clock_;
    Profiles profiles = MR_TRY(Profiles::Load(environment));
    Settings settings = MR_TRY(Settings::Resolve({.profile = profile}, profiles, environment));
    auto source = MR_TRY(FindCredentials(settings, !profile.empty(), profiles, environment));
    return source->Fetch({});
  }
  std::string Key(std::string profile = "") {
    auto credentials = Fetch(std::move(profile));
    return credentials ? credentials->access_key : "error: " + credentials.error().ToString();
  }

  std::optional<TempDir> folder_;
  std::map<std::string, std::string> env_;
  FakeClock clock_;
  std::unique_ptr<ScriptedServer> server_;
};

constexpr std::string_view kMetadataAnswer =
    R"({"Code":"Success","AccessKeyId":"META","SecretAccessKey":"s","Token":"t","Expiration":"2030-01-31T12:00:00Z"})";

/// An instance metadata service. `sessions`: the status of the request for a session token.
ScriptedServer::Script Instance(int sessions) {
  return [sessions](const Seen& seen) -> Reply {
    if (seen.method == "PUT") {
      EXPECT_EQ(seen.target, "/latest/api/token");
      EXPECT_EQ(seen.headers.Get("X-aws-ec2-metadata-token-ttl-seconds"), "21600");
      if (sessions == 0) return {"", Reply::Then::kHang};
      return {Answer(sessions, sessions == 200 ? "SESSION" : "")};
    }
    if (sessions == 200 && seen.headers.Get("X-aws-ec2-metadata-token") != "SESSION") return {Answer(401, "")};
    if (seen.target.ends_with("/security-credentials/")) return {Answer(200, "the-role\n")};
    if (seen.target.ends_with("/security-credentials/the-role")) return {Answer(200, kMetadataAnswer)};
    return {Answer(404, "")};
  };
}

TEST_F(CredentialServices, InstanceMetadataWithASession) {
  Serve(Instance(200));
  env_["AWS_EC2_METADATA_DISABLED"] = "false";
  env_["AWS_EC2_METADATA_SERVICE_ENDPOINT"] = server_->url() + "/";
  auto credentials = Fetch();
  ASSERT_TRUE(credentials) << credentials.error().ToString();
  EXPECT_EQ(credentials->access_key, "META");
  EXPECT_EQ(credentials->session_token, "t");
  EXPECT_EQ(credentials->expires, *ParseIso8601("2030-01-31T12:00:00Z"));
  EXPECT_EQ(server_->seen().size(), 3u);
}

TEST_F(CredentialServices, InstanceMetadataWithoutSessions) {
  env_["AWS_EC2_METADATA_DISABLED"] = "false";
  for (int refusal : {403, 404, 405, 0}) {
    Serve(Instance(refusal));
    env_["AWS_EC2_METADATA_SERVICE_ENDPOINT"] = server_->url();
    EXPECT_EQ(Key(), "META") << refusal;
  }
  env_["AWS_EC2_METADATA_V1_DISABLED"] = "true";
  EXPECT_THAT(Key(), HasSubstr("no AWS credentials found"));
  env_.erase("AWS_EC2_METADATA_V1_DISABLED");
  Serve(Instance(400));
  env_["AWS_EC2_METADATA_SERVICE_ENDPOINT"] = server_->url();
  EXPECT_THAT(Key(), AllOf(HasSubstr("no AWS credentials found"), HasSubstr("HTTP 400")))
      << "a refusal that is no absence";
}

TEST_F(CredentialServices, AServiceInTroubleIsAskedAgain) {
  auto instance = Instance(200);
  Serve([&](const Seen& seen) { return seen.number % 2 == 0 ? Reply{Answer(503, "")} : instance(seen); });
  env_["AWS_EC2_METADATA_DISABLED"] = "false";
  env_["AWS_EC2_METADATA_SERVICE_ENDPOINT"] = server_->url();
  EXPECT_EQ(Key(), "META");
}

TEST_F(CredentialServices, ContainersWithTokensFromFiles) {
  Serve([](const Seen& seen) -> Reply {
    if (seen.headers.Get("Authorization") != "Bearer abc") return {Answer(401, R"({"message":"who are you"})")};
    EXPECT_EQ(seen.target, "/v1/credentials?x=1");
    return {Answer(200, kMetadataAnswer)};
  });
  Write("token", "Bearer abc\n");
  env_["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = server_->url() + "/v1/credentials?x=1";
  EXPECT_THAT(Key(), HasSubstr("HTTP 401"));
  env_["AWS_CONTAINER_AUTHORIZATION_TOKEN"] = "Bearer abc";
  EXPECT_EQ(Key(), "META");
  env_["AWS_CONTAINER_AUTHORIZATION_TOKEN"] = "old";
  env_["AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"] = (folder_->path() / "token").string();
  EXPECT_EQ(Key(), "META") << "EKS replaces the file, so it goes before the variable";
  Write("token", "Bearer abc\r\nX-Evil: 1\n");
  EXPECT_THAT(Key(), HasSubstr("more than one line"));
  env_["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = "http://example.com/credentials";
  EXPECT_THAT(Key(), HasSubstr("give it as https://")) << "the token must not leave the machine in the clear";
}

std::string RoleAnswer(std::string_view action, std::string_view key) {
  return fmt::format(
      "<{0}Response "
      "xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"><{0}Result><Credentials><AccessKeyId>{1}</AccessKeyId>"
      "<SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken><Expiration>2030-01-31T12:00:00Z</Expiration>"
      "</Credentials></{0}Result></{0}Response>",
      action, key);
}

TEST_F(CredentialServices, WebIdentity) {
  Serve([](const Seen& seen) -> Reply {
    EXPECT_EQ(seen.method, "POST");
    EXPECT_FALSE(seen.headers.Has("Authorization"));
    if (seen.body.find("WebIdentityToken=jwt") == std::string::npos) {
      return {Answer(400,
                     "<ErrorResponse><Error><Code>InvalidIdentityToken</Code><Message>the token is not good</Message>"
                     "</Error></ErrorResponse>")};
    }
    EXPECT_THAT(seen.body, AllOf(HasSubstr("Action=AssumeRoleWithWebIdentity"), HasSubstr("RoleSessionName=job")));
    return {Answer(200, RoleAnswer("AssumeRoleWithWebIdentity", "WEB"))};
  });
  env_["AWS_ROLE_ARN"] = "arn:aws:iam::1:role/r";
  env_["AWS_ROLE_SESSION_NAME"] = "job";
  env_["AWS_WEB_IDENTITY_TOKEN_FILE"] = (folder_->path() / "token").string();
  env_["AWS_ENDPOINT_URL_STS"] = server_->url();
  EXPECT_THAT(Key(), HasSubstr("reading the web identity token"));
  Write("token", "old");
  EXPECT_THAT(Key(), HasSubstr("the token is not good"));
  Write("token", "jwt\n");
  EXPECT_EQ(Key(), "WEB");
}

TEST_F(CredentialServices, AssumedRolesAreSignedFor) {
  Serve([this](const Seen& seen) -> Reply {
    // What STS does: sign the request with the key that is named, and compare.
    http::Headers again;
    again.Set("Content-Type", std::string(seen.headers.Get("Content-Type")));
    Signer signer("eu-west-1", "sts");
    std::string host = fmt::format("127.0.0.1:{}", server_->port());
    signer.Sign({.method = "POST", .host = host, .path = "/", .query = ""}, HexEncode(Sha256(AsBytes(seen.body))),
                {.access_key = "BASE", .secret_key = "base secret"}, *ParseIso8601(seen.headers.Get("X-Amz-Date")),
                again);
    if (again.Get("Authorization") != seen.headers.Get("Authorization")) return {Answer(403, "")};
    return {Answer(200, RoleAnswer("AssumeRole", "ROLE"))};
  });
  env_["AWS_ENDPOINT_URL_STS"] = server_->url();
  Write(".aws/config", "[profile work]\nrole_arn = R\nsource_profile = base\nregion = eu-west-1\n");
  Write(".aws/credentials", "[base]\naws_access_key_id = BASE\naws_secret_access_key = base secret\n");
  EXPECT_EQ(Key("work"), "ROLE");
  Write(".aws/credentials", "[base]\naws_access_key_id = BASE\naws_secret_access_key = another\n");
  EXPECT_THAT(Key("work"), HasSubstr("HTTP 403"));
}

TEST_F(CredentialServices, ProgramsThatPrint) {
  Write("helper", "#!/bin/sh\necho '{\"Version\":1,\"AccessKeyId\":\"'$1'\",\"SecretAccessKey\":\"s\"}'\n");
  std::filesystem::permissions(folder_->path() / "helper", std::filesystem::perms::owner_all);
  std::string command = (folder_->path() / "helper").string();
  Write(".aws/config", fmt::format("[default]\ncredential_process = {} \"PROC\"\n", command));
  EXPECT_EQ(Key(), "PROC");
  Write("helper", "#!/bin/sh\nexit 3\n");
  std::filesystem::permissions(folder_->path() / "helper", std::filesystem::perms::owner_all);
  EXPECT_THAT(Key(), HasSubstr("credential_process failed"));
}

/// The portal and the token service of IAM Identity Center. Accepts the access token FRESH only.
Reply SignOn(const Seen& seen) {
  if (seen.target == "/token") {
    auto ask = ParseJson(seen.body, "request");
    EXPECT_TRUE(ask && JsonString(*ask, "grantType").value_or("") == "refresh_token");
    if (JsonString(*ask, "refreshToken").value_or("") != "REFRESH")
      return {Answer(400, R"({"error":"invalid_grant"})")};
    return {Answer(200, R"({"accessToken":"FRESH","expiresIn":28800,"refreshToken":"REFRESH2"})")};
  }
  EXPECT_EQ(seen.target, "/federation/credentials?account_id=12&role_name=a%20role");
  if (seen.headers.Get("x-amz-sso_bearer_token") != "FRESH")
    return {Answer(401, R"({"message":"Session token not found"})")};
  return {Answer(200, R"({"roleCredentials":{"accessKeyId":"SSO","secretAccessKey":"s","sessionToken":"t",)"
                      R"("expiration":1900000000000}})")};
}

class SingleSignOn : public CredentialServices {
 protected:
  void SetUp() override {
    CredentialServices::SetUp();
    Serve(SignOn);
    env_["AWS_ENDPOINT_URL_SSO"] = env_["AWS_ENDPOINT_URL_SSO_OIDC"] = server_->url();
    Write(".aws/config",
          "[profile p]\nsso_session = corp\nsso_account_id = 12\nsso_role_name = a role\n"
          "[sso-session corp]\nsso_region = eu-west-1\nsso_start_url = https://corp.awsapps.com/start\n"
          "[profile old]\nsso_region = eu-west-1\nsso_start_url = https://corp.awsapps.com/start\n"
          "sso_account_id = 12\nsso_role_name = a role\n"
          "[profile via]\nrole_arn = R\nsource_profile = p\n"
          "[profile half]\nsso_account_id = 12\n[profile none]\nsso_session = who\nsso_account_id = 12\nsso_role_name "
          "= r\n");
  }
  // SHA-1 of "corp" and of the start URL: what `aws sso login` names the files.
  static constexpr const char* kSession = ".aws/sso/cache/ee0bfd2552fbd840c02cc48b6e823320543c450f.json";
  static constexpr const char* kStartUrl = ".aws/sso/cache/a51746d4aa793ae07b25e90c3a5db96fc7832bd7.json";
};

TEST_F(SingleSignOn, TheCachedTokenBuysCredentials) {
  EXPECT_THAT(Key("p"), AllOf(HasSubstr("there is no token in"), HasSubstr("run `aws sso login --profile p`")));
  Write(kSession, R"({"accessToken":"FRESH","expiresAt":"2023-11-15T12:00:00Z","region":"eu-west-1"})");
  auto credentials = Fetch("p");
  ASSERT_TRUE(credentials) << credentials.error().ToString();
  EXPECT_EQ(credentials->access_key, "SSO");
  EXPECT_EQ(credentials->session_token, "t");
  EXPECT_EQ(credentials->expires, WallTime(std::chrono::seconds(1'900'000'000)));
  Write(kStartUrl, R"({"accessToken":"FRESH","expiresAt":"2023-11-15T12:00:00Z"})");
  EXPECT_EQ(Key("old"), "SSO") << "profiles without a session are filed under their start URL";
}

TEST_F(SingleSignOn, ATokenThatEndsIsRenewedAndFiled) {
  Write(kSession, R"({"accessToken":"OLD","expiresAt":"2023-11-14T22:00:00Z","refreshToken":"REFRESH","clientId":"c",)"
                  R"("clientSecret":"x","registrationExpiresAt":"2024-01-01T00:00:00Z","startUrl":"kept"})");
  EXPECT_EQ(Key("p"), "SSO");
  EXPECT_THAT(Read(kSession), AllOf(HasSubstr("FRESH"), HasSubstr("REFRESH2"), HasSubstr("kept"),
                                    HasSubstr("2023-11-15T06:13:20.000Z")));
}

TEST_F(SingleSignOn, WhatCannotBeRenewedAsksForASignIn) {
  Write(kSession, R"({"accessToken":"OLD","expiresAt":"2023-11-14T22:00:00Z"})");
  EXPECT_THAT(Key("p"), AllOf(HasSubstr("the token has expired"), HasSubstr("aws sso login")));
  Write(kSession, R"({"accessToken":"REVOKED","expiresAt":"2023-11-15T22:00:00Z"})");
  EXPECT_THAT(Key("p"), AllOf(HasSubstr("no longer accepts"), HasSubstr("aws sso login")));
}

TEST_F(SingleSignOn, ProfilesThatLackSomething) {
  EXPECT_THAT(Key("half"), HasSubstr("single sign-on needs sso_account_id, sso_role_name"));
  EXPECT_THAT(Key("none"), HasSubstr("there is no [sso-session who]"));
}

}  // namespace
}  // namespace millrace::object::s3
