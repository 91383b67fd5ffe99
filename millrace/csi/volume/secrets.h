// The keys of a Kubernetes Secret as the environment of a process that reads a bucket.
#pragma once

#include <map>
#include <string>

#include "millrace/base/result.h"

namespace millrace::csi {

using Secrets = std::map<std::string, std::string>;

/// The variables that carry a volume's own identity. Understands the names of the AWS command line and those that other
/// S3 drivers use (accessKeyID, secretAccessKey, endpoint, region). Other members of the secret are left alone. The
/// variables of the driver's own identity are in the result with empty values, so that no process falls back to it.
/// Errors: kInvalidArgument if one half of a key is missing, or a value has a line break; messages quote no value.
Result<std::map<std::string, std::string>> IdentityEnvironment(const Secrets& secrets);

/// Checks whether an environment is one that a volume may have: it has no other variables than those of
/// IdentityEnvironment and AWS_MAX_ATTEMPTS, and none of them names a file, a program or a service. The mounter asks,
/// since it does not trust the Node service. Errors: kInvalidArgument, naming the variable.
Status CheckVolumeEnvironment(const std::map<std::string, std::string>& environment);
/// Returns whether a process with this environment uses none of the driver's keys.
bool HidesDriverIdentity(const std::map<std::string, std::string>& environment);

}  // namespace millrace::csi
