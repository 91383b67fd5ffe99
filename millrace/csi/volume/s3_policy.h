// The policy of IAM that allows exactly the requests of a volume, or of the provisioner.
#pragma once

#include <string>

#include "millrace/base/json.h"
#include "millrace/base/result.h"

namespace millrace::csi {

/// The identity that gets the policy.
enum class PolicyUse : std::uint8_t {
  kReadOnlyVolume,
  kVolume,       ///< that pods write, too
  kProvisioner,  ///< makes, copies and deletes volumes that are prefixes
  kOwnBuckets,   ///< the same, for volumes that are buckets
};

struct PolicyRequest {
  PolicyUse use = PolicyUse::kVolume;
  std::string bucket;  ///< a name, or the ARN of an access point; with kOwnBuckets: the beginning of the buckets' names
  std::string prefix;  ///< of the keys; empty: the whole bucket
};

/// The policy document. Its actions follow from the list of operations of object/s3.
/// Errors: kInvalidArgument if the bucket cannot have that name, or the prefix begins with a slash.
Result<Json> MakeS3Policy(const PolicyRequest& request);

}  // namespace millrace::csi
