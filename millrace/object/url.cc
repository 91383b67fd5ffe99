#include <algorithm>

#include "millrace/base/text.h"
#include "millrace/object/url.h"

namespace millrace::object {
namespace {

constexpr std::string_view kS3 = "s3://", kFile = "file://";

bool IsLowerAlnum(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); }

/// https://docs.aws.amazon.com/AmazonS3/latest/userguide/bucketnamingrules.html, as far as all servers agree.
Status CheckBucketName(std::string_view name) {
  bool characters = std::ranges::all_of(name, [](char c) { return IsLowerAlnum(c) || c == '-' || c == '.'; });
  if (name.size() < 3 || name.size() > 63 || !characters || !IsLowerAlnum(name.front()) || !IsLowerAlnum(name.back()) ||
      name.find("..") != std::string_view::npos) {
    return Fail(Code::kInvalidArgument,
                "\"{}\" cannot be a bucket name: 3 to 63 lower-case letters, digits, '-' and '.', with a letter or "
                "digit at both ends",
                name);
  }
  return {};
}

}  // namespace

std::string Url::ToString() const {
  return scheme == Scheme::kFile ? key : bucket.empty() ? std::string(kS3) : fmt::format("s3://{}/{}", bucket, key);
}

Result<Url> ParseUrl(std::string_view text) {
  if (text.empty()) return Fail(Code::kInvalidArgument, "an empty string is neither a URL nor a path");
  if (text.find('\0') != std::string_view::npos) {
    return Fail(Code::kInvalidArgument, "a URL or path cannot contain a NUL byte");
  }
  if (text.starts_with(kS3)) {
    std::string_view rest = text.substr(kS3.size());
    std::size_t slash = rest.find('/');
    Url url{Url::Scheme::kS3, std::string(rest.substr(0, slash)), ""};
    if (slash != std::string_view::npos) url.key = rest.substr(slash + 1);
    if (url.bucket.empty() && slash == std::string_view::npos) return url;
    if (auto valid = CheckBucketName(url.bucket); !valid) return Fail(valid.error().Context(std::string(text)));
    if (url.key.size() > 1024) {
      return Fail(Code::kInvalidArgument, "the key in s3://{}/… has {} bytes; S3 allows 1024", url.bucket,
                  url.key.size());
    }
    return url;
  }
  if (text.starts_with(kFile)) {
    std::string_view path = text.substr(kFile.size());
    if (!path.starts_with('/')) {
      return Fail(Code::kInvalidArgument, "{}: a file URL needs three slashes and an absolute path, as in file:///{}",
                  text, path);
    }
    auto decoded = PercentDecode(path);
    if (!decoded) return Fail(decoded.error().Context(std::string(text)));
    if (decoded->find('\0') != std::string::npos) {
      return Fail(Code::kInvalidArgument, "{}: a path cannot contain a NUL byte", text);
    }
    return Url{Url::Scheme::kFile, "", *std::move(decoded)};
  }
  if (std::size_t end = text.find("://"); end != std::string_view::npos) {
    return Fail(Code::kInvalidArgument, "{}: unknown scheme \"{}\"; use s3://bucket/key, file:///path or a path", text,
                text.substr(0, end));
  }
  return Url{Url::Scheme::kFile, "", std::string(text)};
}

}  // namespace millrace::object
