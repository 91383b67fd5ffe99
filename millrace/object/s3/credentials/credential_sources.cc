#include "millrace/object/s3/credentials/credential_sources.h"

#include "millrace/base/hash/digest.h"
#include "millrace/base/hash/text_encoding.h"
#include "millrace/base/json.h"
#include "millrace/base/text.h"
#include "millrace/object/s3/protocol/xml.h"

namespace millrace::object::s3 {
namespace {

class FixedSource final : public CredentialSource {
 public:
  FixedSource(Credentials credentials, std::string name)
      : credentials_(std::move(credentials)), name_(std::move(name)) {}
  Result<Credentials> Fetch(std::stop_token) override { return credentials_; }
  std::string Describe() const override { return name_; }
  bool fixed() const override { return true; }

 private:
  const Credentials credentials_;
  const std::string name_;
};

/// The keys of a profile. Reads the files each time, because other programs replace the keys in them.
class ProfileKeys final : public CredentialSource {
 public:
  ProfileKeys(std::string profile, const Environment& environment)
      : profile_(std::move(profile)), environment_(environment) {}
  Result<Credentials> Fetch(std::stop_token) override {
    const Profiles profiles = MR_TRY(Profiles::Load(environment_));
    const Profile* profile = profiles.Find(profile_);
    if (!profile) return Fail(profiles.Missing(profile_));
    Credentials keys{.access_key = Member(*profile, "aws_access_key_id"),
                     .secret_key = Member(*profile, "aws_secret_access_key"),
                     .session_token = Member(*profile, "aws_session_token")};
    if (!keys.access_key.empty() && !keys.secret_key.empty()) return keys;
    return Fail(Code::kPermissionDenied,
                "profile {} has no aws_access_key_id and aws_secret_access_key any more; write both back, or choose "
                "another --profile",
                profile_);
  }
  std::string Describe() const override { return "profile " + profile_; }

 private:
  const std::string profile_;
  const Environment environment_;
};

class ProcessSource final : public CredentialSource {
 public:
  ProcessSource(std::vector<std::string> argv, const Environment& environment)
      : argv_(std::move(argv)), environment_(environment) {}
  Result<Credentials> Fetch(std::stop_token) override {
    auto text = environment_.run(argv_);
    if (!text) return Fail(text.error().WithCode(Code::kPermissionDenied).Context("credential_process failed"));
    return ParseJsonCredentials(*text, Describe(), "SessionToken");
  }
  std::string Describe() const override { return "credential_process"; }

 private:
  const std::vector<std::string> argv_;
  const Environment environment_;
};

/// Calls the Security Token Service.
class RoleSource final : public CredentialSource {
 public:
  RoleSource(RoleToAssume role, const Environment& environment)
      : role_(std::move(role)), environment_(environment), signer_(role_.region, "sts") {}

  Result<Credentials> Fetch(std::stop_token stop) override {
    Query form{{"Version", "2011-06-15"}, {"RoleArn", role_.arn}, {"RoleSessionName", role_.session_name}};
    if (!role_.duration_seconds.empty()) form.emplace_back("DurationSeconds", role_.duration_seconds);
    if (!role_.external_id.empty()) form.emplace_back("ExternalId", role_.external_id);
    Credentials base;
    if (role_.token_file.empty()) {
      form.emplace_back("Action", "AssumeRole");
      base = MR_TRY(role_.base->Fetch(stop));
    } else {
      form.emplace_back("Action", "AssumeRoleWithWebIdentity");
      // Read each time, because the owner of the file replaces the token before it expires.
      auto token = environment_.read_file(role_.token_file);
      if (!token) return Fail(token.error().Context("reading the web identity token"));
      form.emplace_back("WebIdentityToken", Trim(*token));
    }
    std::string body = EncodeQuery(form);
    http::Request request{.method = "POST", .url = role_.endpoint + "/", .body = AsBytes(body)};
    request.headers.Set("Content-Type", "application/x-www-form-urlencoded; charset=utf-8");
    if (!base.anonymous()) {
      std::string_view host = std::string_view(role_.endpoint).substr(role_.endpoint.find("://") + 3);
      Sha256Digest digest = Sha256(AsBytes(body));
      signer_.Sign({.method = "POST", .host = host, .path = "/", .query = ""}, HexEncode(digest), base,
                   environment_.clock->Wall(), request.headers);
    }
    std::string answer = MR_TRY(AskForText(environment_, request, stop, Describe()));
    RoleCredentials role = MR_TRY(ParseRoleCredentials(answer));
    const WallTime expires = MR_TRY(ParseIso8601(role.expiration));
    return Credentials{.access_key = role.access_key,
                       .secret_key = role.secret_key,
                       .session_token = role.session_token,
                       .expires = expires};
  }
  std::string Describe() const override { return "role " + role_.arn; }

 private:
  const RoleToAssume role_;
  const Environment environment_;
  const Signer signer_;
};

}  // namespace

std::unique_ptr<CredentialSource> NewFixedSource(Credentials credentials, std::string name) {
  return std::make_unique<FixedSource>(std::move(credentials), std::move(name));
}
std::unique_ptr<CredentialSource> NewProfileKeys(std::string profile, const Environment& environment) {
  return std::make_unique<ProfileKeys>(std::move(profile), environment);
}
std::unique_ptr<CredentialSource> NewProcessSource(std::vector<std::string> argv, const Environment& environment) {
  return std::make_unique<ProcessSource>(std::move(argv), environment);
}
std::unique_ptr<CredentialSource> NewRoleSource(RoleToAssume role, const Environment& environment) {
  return std::make_unique<RoleSource>(std::move(role), environment);
}

Error NoCredentials() {
  return Error(Code::kPermissionDenied,
               "no AWS credentials found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, choose a profile with "
               "--profile, or read public data with --no-sign-request");
}

/// Parses the JSON of metadata services and credential_process. They differ in the names of two members only.
Result<Credentials> ParseJsonCredentials(std::string_view text, std::string_view what, std::string_view token_name) {
  Json json = MR_TRY(ParseJson(text, what));
  auto member = [&](std::string_view name) { return JsonString(json, name).value_or(""); };
  Credentials credentials{.access_key = member("AccessKeyId"),
                          .secret_key = member("SecretAccessKey"),
                          .session_token = member(token_name)};
  if (credentials.access_key.empty() || credentials.secret_key.empty()) {
    return Fail(Code::kPermissionDenied, "{} gave no AccessKeyId and SecretAccessKey, which are required{}{}", what,
                member("Message").empty() ? "" : ": ", member("Message"));
  }
  if (std::string expires = member("Expiration"); !expires.empty()) {
    credentials.expires = MR_TRY(ParseIso8601(expires));
  }
  return credentials;
}

Result<http::Response> Ask(const Environment& environment, const http::Request& request, std::stop_token stop,
                           std::string_view what) {
  constexpr int kTries = 3;  // a metadata service recovers in a moment, or not soon
  for (int tries = 1;; ++tries) {
    auto response = environment.fetch(request, {.stop = stop});
    bool in_trouble = response && (response->status >= 500 || response->status == 429);
    if (response && (!in_trouble || tries == kTries)) return response;
    if (!response) return Fail(response.error().Context(fmt::format("asking {} for credentials", what)));
    if (!environment.clock->SleepFor(std::chrono::milliseconds(200) * tries, stop)) {
      return Fail(Code::kCancelled, "asking {} for credentials was cancelled", what);
    }
  }
}

Error AnswerError(const http::Response& response, std::string_view what) {
  ErrorDocument document = ParseErrorDocument(response.body);
  return Error(CodeFromHttpStatus(response.status),
               fmt::format("{} gave no credentials: HTTP {}{}{}", what, response.status,
                           document.message.empty() ? "" : ": ", document.message));
}

Result<std::string> AskForText(const Environment& environment, const http::Request& request, std::stop_token stop,
                               std::string_view what) {
  http::Response response = MR_TRY(Ask(environment, request, std::move(stop), what));
  if (response.status == 200) return std::move(response.body);
  return Fail(AnswerError(response, what));
}

}  // namespace millrace::object::s3
