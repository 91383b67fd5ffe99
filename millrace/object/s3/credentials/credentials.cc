#include "millrace/object/s3/credentials/credentials.h"

#include <set>

#include "millrace/base/hash/random.h"
#include "millrace/base/text.h"
#include "millrace/object/s3/credentials/credential_sources.h"

namespace millrace::object::s3 {
namespace {

constexpr std::string_view kEcsHost = "http://169.254.170.2";
constexpr std::string_view kImdsHost = "http://169.254.169.254", kImdsHost6 = "http://[fd00:ec2::254]";

/// http://, on this machine or at an address where containers have their metadata.
bool IsMetadataHost(std::string_view url) {
  std::size_t scheme = url.find("://");
  if (scheme == url.npos || url.substr(0, scheme) != "http") return false;
  std::string_view authority = url.substr(scheme + 3);
  authority = authority.substr(0, authority.find('/'));
  return IsLoopback(authority) || authority == "169.254.170.2" || authority == "169.254.170.23" ||
         authority == "[fd00:ec2::23]";
}

/// Searches the chain, once.
class Chain {
 public:
  Chain(const Settings& settings, const Profiles& profiles, const Environment& environment)
      : settings_(settings), profiles_(profiles), environment_(environment) {}

  using Found = std::unique_ptr<CredentialSource>;

  Result<Found> Find(bool profile_asked_for) {
    if (settings_.no_sign_request) return NewFixedSource(Credentials{}, "no signature");
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
      if (Found found = MR_TRY(FromSso(settings_.profile, *profile))) return found;
      if (Found found = MR_TRY(FromKeys(settings_.profile, *profile))) return found;
    }
    if (Found found = MR_TRY(FromContainer())) return found;
    return FromInstance();
  }

 private:
  std::string Env(const char* name) const { return environment_.getenv(name).value_or(""); }

  Result<Found> FromEnvironment() const {
    std::string access = Env("AWS_ACCESS_KEY_ID"), secret = Env("AWS_SECRET_ACCESS_KEY");
    if (access.empty() && secret.empty()) return nullptr;
    if (access.empty() || secret.empty()) {
      return Fail(Code::kInvalidArgument, "only one of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY is set: set both");
    }
    return NewFixedSource(
        Credentials{.access_key = access, .secret_key = secret, .session_token = Env("AWS_SESSION_TOKEN")},
        "environment");
  }

  Result<Found> FromKeys(const std::string& name, const Profile& profile) const {
    std::string access = Member(profile, "aws_access_key_id"), secret = Member(profile, "aws_secret_access_key");
    if (!access.empty() && !secret.empty()) {
      return NewProfileKeys(name, environment_);
    }
    std::string command = Member(profile, "credential_process");
    if (command.empty()) return nullptr;
    auto argv = SplitCommand(command);
    if (!argv) return Fail(argv.error().Context(fmt::format("profile {}: credential_process", name)));
    return NewProcessSource(*std::move(argv), environment_);
  }

  Found FromWebIdentity(const std::string& arn, const std::string& token_file, const std::string& session) const {
    if (arn.empty() || token_file.empty()) return nullptr;
    return NewRoleSource(NewRole(arn, session, token_file), environment_);
  }

  /// A profile may assume its role with another profile's credentials, and so on. `visited_` detects cycles.
  Result<Found> FromRole(const std::string& name, const Profile& profile) {
    std::string arn = Member(profile, "role_arn");
    if (arn.empty()) return nullptr;
    std::string session = Member(profile, "role_session_name");
    if (std::string token_file = Member(profile, "web_identity_token_file"); !token_file.empty()) {
      return FromWebIdentity(arn, token_file, session);
    }
    RoleToAssume role = NewRole(arn, session, "");
    role.external_id = Member(profile, "external_id");
    role.duration_seconds = Member(profile, "duration_seconds");
    std::string source = Member(profile, "source_profile"), ambient = Member(profile, "credential_source");
    if (source.empty() == ambient.empty()) {
      return Fail(Code::kInvalidArgument, "profile {}: role_arn needs either source_profile or credential_source",
                  name);
    }
    role.base = ambient.empty() ? MR_TRY(FromSourceProfile(name, source)) : MR_TRY(FromAmbient(name, ambient));
    return NewRoleSource(std::move(role), environment_);
  }

  Result<Found> FromSourceProfile(const std::string& name, const std::string& source) {
    const Profile* profile = profiles_.Find(source);
    if (!profile) return Fail(profiles_.Missing(source).Context(fmt::format("profile {}: source_profile", name)));
    // A profile may name itself: its own keys assume the role then.
    if (source != name) {
      if (!visited_.insert(source).second) {
        return Fail(Code::kInvalidArgument, "profile {}: source_profile leads back to {}; name a profile that has keys",
                    name, source);
      }
      if (Found found = MR_TRY(FromRole(source, *profile))) return found;
    }
    if (Found found = MR_TRY(FromSso(source, *profile))) return found;
    if (Found found = MR_TRY(FromKeys(source, *profile))) return found;
    return Fail(
        Code::kInvalidArgument,
        "profile {}: its source_profile {} has no credentials; add aws_access_key_id and aws_secret_access_key there",
        name, source);
  }

  Result<Found> FromAmbient(const std::string& name, const std::string& source) const {
    Found found;
    if (source == "Environment") found = MR_TRY(FromEnvironment());
    if (source == "EcsContainer") found = MR_TRY(FromContainer());
    if (source == "Ec2InstanceMetadata") found = MR_TRY(FromInstance());
    if (found) return found;
    return Fail(Code::kInvalidArgument,
                "profile {}: credential_source {} has no credentials; known are Environment, EcsContainer and "
                "Ec2InstanceMetadata",
                name, source);
  }

  Result<Found> FromSso(const std::string& name, const Profile& profile) const {
    std::string session_name = Member(profile, "sso_session");
    SsoRole role{.profile = name,
                 .account_id = Member(profile, "sso_account_id"),
                 .role_name = Member(profile, "sso_role_name"),
                 .region = Member(profile, "sso_region"),
                 .token_name = Member(profile, "sso_start_url")};
    if (role.account_id.empty() && role.role_name.empty()) return nullptr;
    if (!session_name.empty()) {
      const Profile* session = profiles_.FindSsoSession(session_name);
      if (!session) {
        return Fail(Code::kInvalidArgument,
                    "profile {}: there is no [sso-session {}]; `aws configure sso` adds it to ~/.aws/config", name,
                    session_name);
      }
      role.region = Member(*session, "sso_region");
      role.token_name = session_name;
    }
    if (role.account_id.empty() || role.role_name.empty() || role.region.empty() || role.token_name.empty()) {
      return Fail(
          Code::kInvalidArgument,
          "profile {}: single sign-on needs sso_account_id, sso_role_name, and an sso_session (or sso_region and "
          "sso_start_url)",
          name);
    }
    std::string domain = fmt::format("{}.amazonaws.com{}", role.region, role.region.starts_with("cn-") ? ".cn" : "");
    role.portal = ServiceUrl("AWS_ENDPOINT_URL_SSO", "https://portal.sso." + domain);
    role.oidc = ServiceUrl("AWS_ENDPOINT_URL_SSO_OIDC", "https://oidc." + domain);
    return NewSsoSource(std::move(role), environment_);
  }

  Result<Found> FromContainer() const {
    std::string url = Env("AWS_CONTAINER_CREDENTIALS_FULL_URI");
    if (std::string path = Env("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"); !path.empty()) {
      url = std::string(kEcsHost) + path;
    }
    if (url.empty()) return nullptr;
    // The token must not go unencrypted to any host.
    if (!url.starts_with("https://") && !IsMetadataHost(url)) {
      return Fail(Code::kInvalidArgument,
                  "AWS_CONTAINER_CREDENTIALS_FULL_URI is {:?}: give it as https://, or as http:// on a loopback or a "
                  "metadata address",
                  url);
    }
    return NewContainerSource({.url = url,
                               .token = Env("AWS_CONTAINER_AUTHORIZATION_TOKEN"),
                               .token_file = Env("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE")},
                              environment_);
  }

  Result<Found> FromInstance() const {
    if (ToLower(Env("AWS_EC2_METADATA_DISABLED")) == "true") return Fail(NoCredentials());
    bool ipv6 = ToLower(Env("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE")) == "ipv6";
    return NewInstanceSource(
        {.endpoint = ServiceUrl("AWS_EC2_METADATA_SERVICE_ENDPOINT", std::string(ipv6 ? kImdsHost6 : kImdsHost)),
         .allow_version_1 = ToLower(Env("AWS_EC2_METADATA_V1_DISABLED")) != "true"},
        environment_);
  }

  /// The base URL in the variable, or the service's default.
  std::string ServiceUrl(const char* variable, std::string usual) const {
    std::string url = Env(variable);
    while (url.ends_with('/')) url.pop_back();
    return url.empty() ? std::move(usual) : url;
  }

  RoleToAssume NewRole(const std::string& arn, const std::string& session, const std::string& token_file) const {
    std::string endpoint =
        ServiceUrl("AWS_ENDPOINT_URL_STS", fmt::format("https://sts.{}.amazonaws.com{}", settings_.region,
                                                       settings_.region.starts_with("cn-") ? ".cn" : ""));
    return {.arn = arn,
            .session_name = session.empty() ? fmt::format("millrace-{:016x}", SystemEntropy()) : session,
            .region = settings_.region,
            .endpoint = std::move(endpoint),
            .token_file = token_file};
  }

  const Settings& settings_;
  const Profiles& profiles_;
  const Environment& environment_;
  std::set<std::string> visited_;
};

}  // namespace

Result<std::unique_ptr<CredentialSource>> FindCredentials(const Settings& settings, bool profile_asked_for,
                                                          const Profiles& profiles, const Environment& environment) {
  return Chain(settings, profiles, environment).Find(profile_asked_for);
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
  if (quote) {
    return Fail(Code::kInvalidArgument, "a quote is left open in {:?}; close it in credential_process",
                command.substr(0, 40));
  }
  if (words.empty()) {
    return Fail(Code::kInvalidArgument,
                "the command is empty; write a program into credential_process, or remove the key");
  }
  return words;
}

}  // namespace millrace::object::s3
