#include "millrace/object/s3/credentials.h"

#include <set>

#include "millrace/base/json.h"
#include "millrace/base/random.h"
#include "millrace/base/text.h"
#include "millrace/object/s3/xml.h"

namespace millrace::object::s3 {
namespace {

constexpr std::string_view kEcsHost = "http://169.254.170.2";
constexpr std::string_view kImdsHost = "http://169.254.169.254";

std::string Member(const Profile& profile, std::string_view name) {
  auto found = profile.find(name);
  return found == profile.end() ? "" : found->second;
}

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

/// The JSON that metadata services and credential_process agree on, but for the names of two members.
Result<Credentials> ParseJsonCredentials(std::string_view text, std::string_view what, std::string_view token_name) {
  Json json = MR_TRY(ParseJson(text, what));
  auto member = [&](std::string_view name) { return JsonString(json, name).value_or(""); };
  Credentials credentials{.access_key = member("AccessKeyId"),
                          .secret_key = member("SecretAccessKey"),
                          .session_token = member(token_name)};
  if (credentials.access_key.empty() || credentials.secret_key.empty()) {
    return Fail(Code::kPermissionDenied, "{} gave no AccessKeyId and SecretAccessKey{}{}", what,
                member("Message").empty() ? "" : ": ", member("Message"));
  }
  if (std::string expires = member("Expiration"); !expires.empty()) {
    credentials.expires = MR_TRY(ParseIso8601(expires));
  }
  return credentials;
}

Result<std::string> FetchText(const Surroundings& surroundings, http::Request request, std::stop_token stop,
                              std::string_view what) {
  auto response = surroundings.fetch(std::move(request), {.stop = stop});
  if (!response) return Fail(response.error().Context(fmt::format("asking {} for credentials", what)));
  if (response->status == 200) return std::move(response->body);
  ErrorDocument document = ParseErrorDocument(response->body);
  return Fail(CodeFromHttpStatus(response->status), "{} gave no credentials: HTTP {}{}{}", what, response->status,
              document.message.empty() ? "" : ": ", document.message);
}

class ProcessSource final : public CredentialSource {
 public:
  ProcessSource(std::vector<std::string> argv, const Surroundings& surroundings)
      : argv_(std::move(argv)), surroundings_(surroundings) {}
  Result<Credentials> Fetch(std::stop_token) override {
    auto text = surroundings_.run(argv_);
    if (!text) return Fail(text.error().WithCode(Code::kPermissionDenied).Context("credential_process failed"));
    return ParseJsonCredentials(*text, Describe(), "SessionToken");
  }
  std::string Describe() const override { return "credential_process"; }

 private:
  const std::vector<std::string> argv_;
  const Surroundings surroundings_;
};

/// Calls the Security Token Service.
class RoleSource final : public CredentialSource {
 public:
  struct Role {
    std::string arn, session_name, external_id, duration_seconds, region, endpoint;
    std::string token_file;  ///< for web identity; else `base` signs
    std::unique_ptr<CredentialSource> base;
  };
  RoleSource(Role role, const Surroundings& surroundings)
      : role_(std::move(role)), surroundings_(surroundings), signer_(role_.region, "sts") {}

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
      // Read each time: the file's owner replaces it before it expires.
      auto token = surroundings_.read_file(role_.token_file);
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
                   surroundings_.clock->Wall(), request.headers);
    }
    std::string answer = MR_TRY(FetchText(surroundings_, std::move(request), stop, Describe()));
    RoleCredentials role = MR_TRY(ParseRoleCredentials(answer));
    return Credentials{.access_key = role.access_key,
                       .secret_key = role.secret_key,
                       .session_token = role.session_token,
                       .expires = MR_TRY(ParseIso8601(role.expiration))};
  }
  std::string Describe() const override { return "role " + role_.arn; }

 private:
  const Role role_;
  const Surroundings surroundings_;
  const Signer signer_;
};

/// The metadata service of ECS tasks and EKS pods.
class ContainerSource final : public CredentialSource {
 public:
  ContainerSource(std::string url, std::string token, std::string token_file, const Surroundings& surroundings)
      : url_(std::move(url)),
        token_(std::move(token)),
        token_file_(std::move(token_file)),
        surroundings_(surroundings) {}
  Result<Credentials> Fetch(std::stop_token stop) override {
    http::Request request{.url = url_};
    std::string token = token_;
    if (!token_file_.empty()) token = std::string(Trim(MR_TRY(surroundings_.read_file(token_file_))));
    if (!token.empty()) request.headers.Set("Authorization", token);
    std::string answer = MR_TRY(FetchText(surroundings_, std::move(request), stop, Describe()));
    return ParseJsonCredentials(answer, Describe(), "Token");
  }
  std::string Describe() const override { return "the container's metadata service"; }

 private:
  const std::string url_, token_, token_file_;
  const Surroundings surroundings_;
};

/// The metadata service of EC2 machines, version 2: a session token first.
class InstanceSource final : public CredentialSource {
 public:
  InstanceSource(std::string endpoint, const Surroundings& surroundings)
      : endpoint_(std::move(endpoint)), surroundings_(surroundings) {}
  Result<Credentials> Fetch(std::stop_token stop) override {
    http::Request request{.method = "PUT", .url = endpoint_ + "/latest/api/token"};
    request.headers.Set("X-aws-ec2-metadata-token-ttl-seconds", "21600");
    auto token = FetchText(surroundings_, std::move(request), stop, Describe());
    if (!token) {
      return Fail(Error(token.error())
                      .WithCode(token.error().code() == Code::kCancelled ? Code::kCancelled : Code::kPermissionDenied)
                      .Context("no AWS credentials found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, choose a "
                               "profile with --profile, or read public data with --no-sign-request"));
    }
    const std::string path = "/latest/meta-data/iam/security-credentials/";
    std::string role = MR_TRY(Get(path, *token, stop));
    std::string_view first = Trim(Split(role, '\n')[0]);
    std::string answer = MR_TRY(Get(path + PercentEncode(first, false), *token, stop));
    return ParseJsonCredentials(answer, Describe(), "Token");
  }
  std::string Describe() const override { return "the instance metadata service"; }

 private:
  Result<std::string> Get(const std::string& path, const std::string& token, std::stop_token stop) {
    http::Request request{.url = endpoint_ + path};
    request.headers.Set("X-aws-ec2-metadata-token", token);
    return FetchText(surroundings_, std::move(request), stop, Describe());
  }
  const std::string endpoint_;
  const Surroundings surroundings_;
};

/// Walks the chain. One use.
class Chain {
 public:
  Chain(const Settings& settings, const Profiles& profiles, const Surroundings& surroundings)
      : settings_(settings), profiles_(profiles), surroundings_(surroundings) {}

  using Found = std::unique_ptr<CredentialSource>;

  Result<Found> Find(bool profile_asked_for) {
    if (settings_.no_sign_request) return std::make_unique<FixedSource>(Credentials{}, "no signature");
    if (!profile_asked_for) {
      if (Found found = MR_TRY(FromEnvironment())) return found;
    }
    const Profile* profile = profiles_.Find(settings_.profile);
    if (profile) {
      if (Found found = MR_TRY(FromRole(settings_.profile, *profile))) return found;
    }
    if (!profile_asked_for) {
      if (Found found =
              FromWebIdentity(Env("AWS_ROLE_ARN"), Env("AWS_WEB_IDENTITY_TOKEN_FILE"), Env("AWS_ROLE_SESSION_NAME"))) {
        return found;
      }
    }
    if (profile) {
      if (Found found = MR_TRY(FromKeys(settings_.profile, *profile))) return found;
      if (profile->contains("sso_session") || profile->contains("sso_account_id")) {
        return Fail(Code::kUnsupported,
                    "profile {} signs in through SSO, which needs a browser; run `aws configure "
                    "export-credentials --profile {} --format env` and use what it prints",
                    settings_.profile, settings_.profile);
      }
    }
    if (Found found = MR_TRY(FromContainer())) return found;
    return FromInstance();
  }

 private:
  std::string Env(const char* name) const { return surroundings_.getenv(name).value_or(""); }

  Result<Found> FromEnvironment() const {
    std::string access = Env("AWS_ACCESS_KEY_ID"), secret = Env("AWS_SECRET_ACCESS_KEY");
    if (access.empty() && secret.empty()) return nullptr;
    if (access.empty() || secret.empty()) {
      return Fail(Code::kInvalidArgument, "only one of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY is set: set both");
    }
    return std::make_unique<FixedSource>(
        Credentials{.access_key = access, .secret_key = secret, .session_token = Env("AWS_SESSION_TOKEN")},
        "environment");
  }

  Result<Found> FromKeys(const std::string& name, const Profile& profile) const {
    std::string access = Member(profile, "aws_access_key_id"), secret = Member(profile, "aws_secret_access_key");
    if (!access.empty() && !secret.empty()) {
      return std::make_unique<FixedSource>(
          Credentials{
              .access_key = access, .secret_key = secret, .session_token = Member(profile, "aws_session_token")},
          "profile " + name);
    }
    std::string command = Member(profile, "credential_process");
    if (command.empty()) return nullptr;
    auto argv = SplitCommand(command);
    if (!argv) return Fail(argv.error().Context(fmt::format("profile {}: credential_process", name)));
    return std::make_unique<ProcessSource>(*std::move(argv), surroundings_);
  }

  Found FromWebIdentity(const std::string& arn, const std::string& token_file, const std::string& session) const {
    if (arn.empty() || token_file.empty()) return nullptr;
    return std::make_unique<RoleSource>(NewRole(arn, session, token_file), surroundings_);
  }

  /// A profile may take its role with another profile's credentials, and so on: `visited_` stops circles.
  Result<Found> FromRole(const std::string& name, const Profile& profile) {
    std::string arn = Member(profile, "role_arn");
    if (arn.empty()) return nullptr;
    std::string session = Member(profile, "role_session_name");
    if (std::string token_file = Member(profile, "web_identity_token_file"); !token_file.empty()) {
      return FromWebIdentity(arn, token_file, session);
    }
    RoleSource::Role role = NewRole(arn, session, "");
    role.external_id = Member(profile, "external_id");
    role.duration_seconds = Member(profile, "duration_seconds");
    std::string source = Member(profile, "source_profile"), ambient = Member(profile, "credential_source");
    if (source.empty() == ambient.empty()) {
      return Fail(Code::kInvalidArgument, "profile {}: role_arn needs either source_profile or credential_source",
                  name);
    }
    role.base = ambient.empty() ? MR_TRY(FromSourceProfile(name, source)) : MR_TRY(FromAmbient(name, ambient));
    return std::make_unique<RoleSource>(std::move(role), surroundings_);
  }

  Result<Found> FromSourceProfile(const std::string& name, const std::string& source) {
    const Profile* profile = profiles_.Find(source);
    if (!profile) return Fail(profiles_.Missing(source).Context(fmt::format("profile {}: source_profile", name)));
    // A profile may name itself: then its own keys take the role.
    if (source != name) {
      if (!visited_.insert(source).second) {
        return Fail(Code::kInvalidArgument, "profile {}: source_profile leads back to {}", name, source);
      }
      if (Found found = MR_TRY(FromRole(source, *profile))) return found;
    }
    if (Found found = MR_TRY(FromKeys(source, *profile))) return found;
    return Fail(Code::kInvalidArgument, "profile {}: its source_profile {} has no credentials", name, source);
  }

  Result<Found> FromAmbient(const std::string& name, const std::string& source) const {
    Found found;
    if (source == "Environment") found = MR_TRY(FromEnvironment());
    if (source == "EcsContainer") found = MR_TRY(FromContainer());
    if (source == "Ec2InstanceMetadata") found = MR_TRY(FromInstance());
    if (found) return found;
    return Fail(Code::kInvalidArgument, "profile {}: credential_source {} has no credentials", name, source);
  }

  Result<Found> FromContainer() const {
    std::string url = Env("AWS_CONTAINER_CREDENTIALS_FULL_URI");
    if (std::string path = Env("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"); !path.empty()) {
      url = std::string(kEcsHost) + path;
    }
    if (url.empty()) return nullptr;
    return std::make_unique<ContainerSource>(url, Env("AWS_CONTAINER_AUTHORIZATION_TOKEN"),
                                             Env("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"), surroundings_);
  }

  Result<Found> FromInstance() const {
    if (ToLower(Env("AWS_EC2_METADATA_DISABLED")) == "true") {
      return Fail(Code::kPermissionDenied,
                  "no AWS credentials found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, choose a profile with "
                  "--profile, or read public data with --no-sign-request");
    }
    std::string endpoint = Env("AWS_EC2_METADATA_SERVICE_ENDPOINT");
    while (endpoint.ends_with('/')) endpoint.pop_back();
    return std::make_unique<InstanceSource>(endpoint.empty() ? std::string(kImdsHost) : endpoint, surroundings_);
  }

  RoleSource::Role NewRole(const std::string& arn, const std::string& session, const std::string& token_file) const {
    std::string endpoint = Env("AWS_ENDPOINT_URL_STS");
    while (endpoint.ends_with('/')) endpoint.pop_back();
    if (endpoint.empty()) {
      endpoint = fmt::format("https://sts.{}.amazonaws.com{}", settings_.region,
                             settings_.region.starts_with("cn-") ? ".cn" : "");
    }
    return {.arn = arn,
            .session_name = session.empty() ? fmt::format("millrace-{:016x}", SystemEntropy()) : session,
            .region = settings_.region,
            .endpoint = std::move(endpoint),
            .token_file = token_file};
  }

  const Settings& settings_;
  const Profiles& profiles_;
  const Surroundings& surroundings_;
  std::set<std::string> visited_;
};

}  // namespace

Result<std::unique_ptr<CredentialSource>> FindCredentials(const Settings& settings, bool profile_asked_for,
                                                          const Profiles& profiles, const Surroundings& surroundings) {
  return Chain(settings, profiles, surroundings).Find(profile_asked_for);
}

Result<std::vector<std::string>> SplitCommand(std::string_view command) {
  std::vector<std::string> words;
  bool in_word = false;
  char quote = 0;
  for (std::size_t i = 0; i < command.size(); ++i) {
    char c = command[i];
    if (!quote && (c == ' ' || c == '\t')) {
      in_word = false;
      continue;
    }
    if (!in_word) words.emplace_back();
    in_word = true;
    if (quote ? c == quote : c == '"' || c == '\'') {
      quote = quote ? 0 : c;
    } else if (c == '\\' && quote != '\'' && i + 1 < command.size()) {
      words.back() += command[++i];
    } else {
      words.back() += c;
    }
  }
  if (quote) return Fail(Code::kInvalidArgument, "a quote is left open in {:?}", command.substr(0, 40));
  if (words.empty()) return Fail(Code::kInvalidArgument, "the command is empty");
  return words;
}

}  // namespace millrace::object::s3
