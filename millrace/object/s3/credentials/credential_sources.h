// One factory for each source of credentials. Internal to this module. FindCredentials chooses among them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "millrace/object/s3/credentials/credentials.h"

namespace millrace::object::s3 {

/// Always returns these credentials.
std::unique_ptr<CredentialSource> NewFixedSource(Credentials credentials, std::string name);
/// Returns the keys that the profile has in the shared files at the moment.
std::unique_ptr<CredentialSource> NewProfileKeys(std::string profile, const Environment& environment);
/// Runs a program that prints credentials (credential_process).
std::unique_ptr<CredentialSource> NewProcessSource(std::vector<std::string> argv, const Environment& environment);

/// A role of the Security Token Service.
struct RoleToAssume {
  std::string arn, session_name, external_id, duration_seconds, region, endpoint;
  std::string token_file;                  ///< web identity: the file with its token. Empty: `base` signs
  std::unique_ptr<CredentialSource> base;  ///< the identity that assumes the role
};
std::unique_ptr<CredentialSource> NewRoleSource(RoleToAssume role, const Environment& environment);

/// A role of IAM Identity Center. `aws sso login` has cached the token that is exchanged for the role's credentials.
struct SsoRole {
  std::string profile;  ///< for messages
  std::string account_id, role_name, region;
  std::string token_name;    ///< the name of the cached token: that of the session, else the start URL
  std::string portal, oidc;  ///< base URLs of the two services
};
std::unique_ptr<CredentialSource> NewSsoSource(SsoRole role, const Environment& environment);

/// The metadata service of ECS tasks and EKS pods.
struct ContainerService {
  std::string url, token, token_file;
};
std::unique_ptr<CredentialSource> NewContainerSource(ContainerService service, const Environment& environment);

/// The metadata service of EC2 machines.
struct InstanceService {
  std::string endpoint;
  bool allow_version_1 = true;  ///< use version 1 (without a session token) if version 2 is not available
};
std::unique_ptr<CredentialSource> NewInstanceSource(InstanceService service, const Environment& environment);

/// The error if no source has credentials.
Error NoCredentials();

/// Sends a request, and again a few times if the service fails for the moment. Returns any other response.
Result<http::Response> Ask(const Environment& environment, const http::Request& request, std::stop_token stop,
                           std::string_view what);
/// As Ask. Returns the body of a response with status 200; other statuses are errors.
Result<std::string> AskForText(const Environment& environment, const http::Request& request, std::stop_token stop,
                               std::string_view what);
/// The error for a response with a status other than 200.
Error AnswerError(const http::Response& response, std::string_view what);
/// Parses the JSON of metadata services and credential_process, which differ in the name of the token only.
Result<Credentials> ParseJsonCredentials(std::string_view text, std::string_view what, std::string_view token_name);

}  // namespace millrace::object::s3
