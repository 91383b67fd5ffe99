// URLs of objects, as users type them.
#pragma once

#include <string>
#include <string_view>

#include "millrace/base/result.h"

namespace millrace::object {

/// "s3://bucket/some/key", "file:///folder/file", "/folder/file", "folder/file" (relative to the working directory).
struct Url {
  enum class Scheme { kS3, kFile };
  Scheme scheme = Scheme::kFile;
  std::string bucket;  ///< s3 only; empty for "s3://" alone
  std::string key;     ///< s3: without a leading slash. file: the absolute or relative path as typed
  /// "s3://bucket/key" or the path. ParseUrl makes the same Url of it.
  std::string ToString() const;
  bool operator==(const Url&) const = default;
};

/// Errors: kInvalidArgument if the scheme is unknown or the bucket name is impossible; the message names it.
Result<Url> ParseUrl(std::string_view text);

}  // namespace millrace::object
