// Access points of Amazon S3: other names of a bucket, each with a policy of its own.
// Source: "Using Amazon S3 access points", Amazon S3 User Guide; endpoint rules of botocore 1.40 (aws-partition ARNs).
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "millrace/base/result.h"

namespace millrace::object {

/// The parts of "arn:aws:s3:REGION:ACCOUNT:accesspoint/NAME".
struct AccessPoint {
  std::string partition;  ///< "aws", "aws-cn", "aws-us-gov"
  std::string region, account, name;

  /// The ARN, with a slash before the name. Such a text stands where the name of a bucket can stand.
  std::string Arn() const;
  /// "NAME-ACCOUNT", the first label of the host's name.
  std::string HostLabel() const { return name + "-" + account; }
  /// "NAME-ACCOUNT.s3-accesspoint.REGION.amazonaws.com"
  std::string Host() const;
};

/// Returns whether the text is meant as an ARN, and not as the name of a bucket.
inline bool IsArn(std::string_view bucket) { return bucket.starts_with("arn:"); }

/// Parses an ARN at the beginning of `text`; "/key" may follow, and `rest` is what does. Also understands a colon
/// before the name. Errors: kInvalidArgument for malformed ARNs, for access points of several regions (they need
/// another kind of signature), and for those of other services; the message says what to use.
Result<AccessPoint> ParseAccessPoint(std::string_view text, std::string_view* rest = nullptr);

}  // namespace millrace::object
