// URLs of objects, as users type them.
#pragma once

#include <string>
#include <string_view>

#include "millrace/base/error.h"

namespace millrace::object {

/// "s3://bucket/some/key", "file:///folder/file", "/folder/file", "folder/file" (relative to the working directory),
/// "s3://arn:aws:s3:REGION:ACCOUNT:accesspoint/NAME/some/key", "hf://OWNER/MODEL@REVISION/file",
/// "hf://datasets/OWNER/NAME/file" (read-only, object/hf).
struct Url {
  /// The kind of store.
  enum class Scheme {
    kS3,    ///< s3://
    kFile,  ///< file:// and paths
    kHub,   ///< hf://
  };
  Scheme scheme = Scheme::kFile;  ///< of the URL
  /// s3: a name, or the ARN of an access point; empty for "s3://" alone. hf: the repository with its kind and revision,
  /// "datasets/OWNER/NAME@REVISION", where models have no kind. The revision stays percent-encoded. file: empty.
  std::string bucket;
  std::string key;  ///< s3, hf: without a leading slash. file: the absolute or relative path as typed
  /// "s3://bucket/key", "hf://…" or the path. ParseUrl makes the same Url of it.
  std::string ToString() const;
  bool operator==(const Url&) const = default;
};

/// Checks the name of a bucket that is to be made:
/// https://docs.aws.amazon.com/AmazonS3/latest/userguide/bucketnamingrules.html. Buckets that exist may have other
/// names. Errors: kInvalidArgument; the message has the rules.
Status CheckNewBucketName(std::string_view name);

/// Errors: kInvalidArgument if the scheme is unknown or the bucket name is impossible; the message names it.
Result<Url> ParseUrl(std::string_view text);

}  // namespace millrace::object
