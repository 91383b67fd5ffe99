// The places that credentials come from, one factory each. Internal to this module; FindCredentials chooses among them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "millrace/object/s3/credentials/credentials.h"

namespace millrace::object::s3 {

/// Always the same.
std::unique_ptr<CredentialSource> NewFixedSource(Credentials credentials, std::string name);
/// A program that prints them (credential_process).
std::unique_ptr<CredentialSource> NewProcessSource(std::vector<std::string> argv, const Surroundings& surroundings);

/// A role of the Security Token Service.
struct RoleToAssume {
  std::string arn, session_name, external_id, duration_seconds, region, endpoint;
  std::string token_file;                  ///< for web identity; else `base` signs
  std::unique_ptr<CredentialSource> base;  ///< whose role it is to be
};
std::unique_ptr<CredentialSource> NewRoleSource(RoleToAssume role, const Surroundings& surroundings);

/// A sign-in through IAM Identity Center, made before by `aws sso login`: its cached token buys the role's credentials.
struct SsoRole {
  std::string profile;  ///< for messages
  std::string account_id, role_name, region;
  std::string token_name;    ///< what the cached token is filed under: the session's name, else the start URL
  std::string portal, oidc;  ///< base URLs of the two services
};
std::unique_ptr<CredentialSource> NewSsoSource(SsoRole role, const Surroundings& surroundings);

/// The metadata service of ECS tasks and EKS pods.
struct ContainerService {
  std::string url, token, token_file;
};
std::unique_ptr<CredentialSource> NewContainerSource(ContainerService service, const Surroundings& surroundings);

/// The metadata service of EC2 machines.
struct InstanceService {
  std::string endpoint;
  bool allow_version_1 = true;  ///< go on without a session where none is to be had
};
std::unique_ptr<CredentialSource> NewInstanceSource(InstanceService service, const Surroundings& surroundings);

/// What all of them say when there is nothing.
Error NoCredentials();

/// One request, tried a few times while the service is in trouble; any answer but a failure of that kind is given.
Result<http::Response> Ask(const Surroundings& surroundings, const http::Request& request, std::stop_token stop,
                           std::string_view what);
/// The body of a 200 answer; other answers are errors.
Result<std::string> AskForText(const Surroundings& surroundings, const http::Request& request, std::stop_token stop,
                               std::string_view what);
/// The error that an answer other than 200 stands for.
Error AnswerError(const http::Response& response, std::string_view what);
/// The JSON that metadata services and credential_process agree on, but for the name of the token.
Result<Credentials> ParseJsonCredentials(std::string_view text, std::string_view what, std::string_view token_name);

}  // namespace millrace::object::s3
