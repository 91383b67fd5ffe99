// The standard chain of sources of AWS credentials.
//
// The order is:
// 1. AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, unless an option names a profile;
// 2. the profile's role (role_arn with source_profile, credential_source or web_identity_token_file);
// 3. the environment's web identity (AWS_ROLE_ARN, AWS_WEB_IDENTITY_TOKEN_FILE);
// 4. the profile's single sign-on, its keys, its credential_process;
// 5. the metadata service of the container, then of the machine (IMDSv2).
#pragma once

#include <memory>
#include <string>

#include "millrace/object/s3/credentials/profile.h"
#include "millrace/object/s3/credentials/settings.h"
#include "millrace/object/s3/protocol/signer.h"

namespace millrace::object::s3 {

/// A source of credentials. Not thread-safe.
class CredentialSource {
 public:
  virtual ~CredentialSource() = default;
  /// Blocks on files, programs and the network, for a few seconds at most or until `stop` fires.
  virtual Result<Credentials> Fetch(std::stop_token stop) = 0;
  /// "environment", "profile research", "instance metadata": for messages.
  virtual std::string Describe() const = 0;
  /// True if Fetch never blocks and always returns the same.
  virtual bool fixed() const { return false; }
};

/// Selects the first source of the chain that is configured. Reads only the environment. `profile_asked_for`: an option
/// names the profile, so it takes precedence over keys in the environment.
/// Errors: kInvalidArgument if the configuration of that source cannot work.
Result<std::unique_ptr<CredentialSource>> FindCredentials(const Settings& settings, bool profile_asked_for,
                                                          const Profiles& profiles, const Environment& environment);

/// Splits a command line (`prog "an arg" 'another'`) into words as a shell does, but without any expansion.
Result<std::vector<std::string>> SplitCommand(std::string_view command);

}  // namespace millrace::object::s3
