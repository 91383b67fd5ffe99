// Machines that are reached by ssh (OpenSSH's client).
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/process/subprocess.h"
#include "millrace/base/result.h"
#include "millrace/jobs/launchers/remote_launcher.h"

namespace millrace::jobs {

/// The way to start agents on other machines.
struct SshAccess {
  std::vector<std::string> options;  ///< of ssh, one word each; they come before our own and win
  std::string millrace;              ///< the path of `millrace` there
};

/// Returns the command that runs an agent on a host. ssh never asks for a password or a passphrase: nobody may be there
/// to answer.
std::vector<std::string> SshCommand(const std::string& host, const SshAccess& access);

/// Returns the hosts as nodes. A node's address is the name or address that ssh connects to (its own configuration may
/// have aliases). Blocks while ssh reads its configuration, once a host; connects to none.
/// Errors: kNotFound without ssh; kInvalidArgument if the first host's address is loopback and another's is not: other
/// machines could not find rank 0.
Result<std::vector<RemoteNode>> SshNodes(const std::vector<std::string>& hosts, const SshAccess& access);

/// Returns why an agent's ssh ended, from its exit state and its last words. Errors: kUnavailable if the host may
/// answer later; kPermissionDenied if the host key or the login was refused; kNotFound if millrace is not there;
/// kInvalidArgument if ssh does not understand its options or its configuration.
Error ExplainSshEnd(const RemoteNode& node, const ExitState& state, std::string_view words, const SshAccess& access);

/// Returns the variables of this process that ranks elsewhere need and ssh does not pass on: credentials, proxies, and
/// the settings of communication libraries. They hold secrets.
std::map<std::string, std::string> EnvironmentOfRanks();

}  // namespace millrace::jobs
