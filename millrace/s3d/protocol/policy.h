// The policy of an endpoint's identity: a policy document of IAM, of which a part is understood. Source: "IAM JSON
// policy elements reference", AWS Identity and Access Management User Guide.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/json.h"
#include "millrace/base/result.h"
#include "millrace/base/threads/sync.h"
#include "millrace/s3d/protocol/s3_error.h"

namespace millrace::s3d {

/// The properties of a request that a policy looks at.
struct PolicyRequest {
  std::string_view operation;  ///< S3's name: "PutObject"
  std::string_view bucket, key;
  const std::string* prefix = nullptr;  ///< of a listing; null: the request has none
  std::string_view copy_source;         ///< the header x-amz-copy-source; empty: none
};

/// Statements with Effect, Action, Resource (with * and ?) and the condition StringLike on s3:prefix. Thread-safe.
class Policy {
 public:
  /// Errors: kInvalidArgument for what is not understood: a rule that is ignored would allow too much.
  static Result<std::unique_ptr<Policy>> Parse(std::string_view json);

  /// Checks whether a request may be served. DeleteObjects is checked key by key, by CheckDelete. Errors: AccessDenied.
  Reply<void> Check(const PolicyRequest& request) const MR_EXCLUDES(mutex_);
  Reply<void> CheckDelete(std::string_view bucket, std::string_view key) const MR_EXCLUDES(mutex_);
  /// As S3: without the right to list the whole bucket, an absent key looks like one that may not be read.
  bool HidesAbsence(std::string_view bucket) const MR_EXCLUDES(mutex_);
  /// The actions that were allowed so far.
  std::set<std::string> used() const MR_EXCLUDES(mutex_);

 private:
  struct Statement {
    bool allows = false;
    std::vector<std::string> actions, resources;
    std::vector<std::string> prefixes;  ///< of s3:prefix
    bool limits_prefix = false;
  };
  struct Asked {
    std::string action, resource;
    const std::string* prefix = nullptr;  ///< null: the request has none
  };
  bool Allows(const Asked& asked) const;
  Reply<void> Require(const Asked& asked) const MR_EXCLUDES(mutex_);
  static Result<Statement> ParseStatement(const Json& json);

  std::vector<Statement> statements_;  // constant after Parse
  mutable Mutex mutex_;
  mutable std::set<std::string> used_ MR_GUARDED_BY(mutex_);
};

}  // namespace millrace::s3d
