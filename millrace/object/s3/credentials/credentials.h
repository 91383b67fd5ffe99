// Where credentials come from: the standard AWS chain.
//
// In this order: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (unless a profile was asked for), the profile's role
// (role_arn with source_profile, credential_source or web_identity_token_file), the environment's web identity
// (AWS_ROLE_ARN, AWS_WEB_IDENTITY_TOKEN_FILE), the profile's single sign-on, its keys, its credential_process, the
// container's metadata service, the machine's (IMDSv2).
#pragma once

#include <memory>
#include <string>

#include "millrace/object/s3/protocol/signer.h"
#include "millrace/object/s3/settings/profile.h"
#include "millrace/object/s3/settings/settings.h"

namespace millrace::object::s3 {

/// A place to get credentials. One caller at a time.
class CredentialSource {
 public:
  virtual ~CredentialSource() = default;
  /// May block on files, programs and the network, for some seconds at most or until `stop` fires.
  virtual Result<Credentials> Fetch(std::stop_token stop) = 0;
  /// "environment", "profile research", "instance metadata": for messages.
  virtual std::string Describe() const = 0;
  /// True when Fetch neither blocks nor ever yields anything else.
  virtual bool fixed() const { return false; }
};

/// Picks the first source of the chain that is configured. Reads no more than the environment; fails with
/// kInvalidArgument when what is configured cannot work. `profile_asked_for`: by option, so that it wins over keys in
/// the environment.
Result<std::unique_ptr<CredentialSource>> FindCredentials(const Settings& settings, bool profile_asked_for,
                                                          const Profiles& profiles, const Surroundings& surroundings);

/// `prog "an arg" 'another'`: words of a command line, split as a shell would but without any expansion.
Result<std::vector<std::string>> SplitCommand(std::string_view command);

}  // namespace millrace::object::s3
