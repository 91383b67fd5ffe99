#include <algorithm>

#include "millrace/base/text.h"
#include "millrace/object/access_point.h"
#include "millrace/object/url.h"

namespace millrace::object {
namespace {

constexpr std::string_view kS3 = "s3://", kFile = "file://", kHub = "hf://";

bool IsLowerAlnum(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); }

/// The names that buckets may have at all: Amazon's first rules, which old buckets and other servers still follow.
Status CheckBucketName(std::string_view name) {
  auto is_allowed = [](char c) {
    return IsLowerAlnum(c) || (c >= 'A' && c <= 'Z') || c == '-' || c == '.' || c == '_';
  };
  const bool path = name == "." || name == "..";
  if (!name.empty() && name.size() <= 255 && std::ranges::all_of(name, is_allowed) && !path) return {};
  return Fail(Code::kInvalidArgument, "\"{}\" cannot be a bucket name: at most 255 letters, digits, '-', '.' and '_'",
              name);
}

bool IsWordCharacter(char c) { return IsLowerAlnum(c) || (c >= 'A' && c <= 'Z') || c == '_'; }

/// One of the two names of a repository, by the rules of huggingface_hub's validate_repo_id().
bool IsHubName(std::string_view name) {
  const bool characters = std::ranges::all_of(name, [](char c) { return IsWordCharacter(c) || c == '-' || c == '.'; });
  return characters && !name.empty() && name.size() <= 96 && IsWordCharacter(name.front()) &&
         IsWordCharacter(name.back()) && !name.contains("--") && !name.contains("..");
}

/// Whether the second name of "hf://gpt2/config.json" is a file of the model gpt2, whose repository has no owner. Names
/// of repositories do not end like this.
bool IsFileInHub(std::string_view name) {
  constexpr std::string_view kEndings[] = {".json",    ".jsonl", ".txt", ".model",   ".safetensors", ".bin",
                                           ".md",      ".gguf",  ".csv", ".parquet", ".h5",          ".ot",
                                           ".msgpack", ".pt",    ".py",  ".index"};
  return !IsHubName(name) || std::ranges::any_of(kEndings, [&](std::string_view end) { return name.ends_with(end); });
}

/// The length of the revision that `text` begins with. The hub's own references have slashes: "refs/pr/3",
/// "refs/convert/parquet". Another revision's slashes are written %2F.
std::size_t RevisionLength(std::string_view text) {
  for (const std::string_view refs : {"refs/convert/", "refs/pr/"}) {
    if (text.starts_with(refs)) return std::min(text.find('/', refs.size()), text.size());
  }
  return std::min(text.find('/'), text.size());
}

/// Reads "hf://[KIND/]OWNER/NAME[@REVISION][/PATH]" as huggingface_hub's parse_hf_uri() does. Besides, a model or data
/// set may have no owner, where that can be told: its revision or a file's name follows, or nothing.
Result<Url> ParseHubUrl(std::string_view text) {
  auto refuse = [&](std::string_view why) { return Fail(Code::kInvalidArgument, "{}: {}", text, why); };
  constexpr std::string_view kForm = "use hf://OWNER/MODEL/path, or hf://datasets/OWNER/NAME/path";
  std::string_view rest = text.substr(kHub.size());
  const std::string_view kind = rest.substr(0, rest.find('/'));
  std::string bucket;
  if (kind == "datasets" || kind == "spaces") bucket = fmt::format("{}/", kind);
  if (kind == "datasets" || kind == "spaces" || kind == "models") {
    rest.remove_prefix(std::min(kind.size() + 1, rest.size()));
  } else if (kind == "dataset" || kind == "space" || kind == "model") {
    return refuse(fmt::format("the kind is written {0}s: hf://{0}s/OWNER/NAME/path", kind));
  } else if (kind == "buckets" || kind == "kernels") {
    return refuse(fmt::format("{} of the hub cannot be read; {}", kind, kForm));
  }
  const std::size_t slash = rest.find('/'), at = rest.find('@');
  const std::string_view second =
      slash == rest.npos ? "" : rest.substr(slash + 1, rest.find_first_of("/@", slash + 1) - slash - 1);
  const bool ownerless = slash == rest.npos || at < slash || second.empty() ||
                         (IsFileInHub(second) && rest.find('@', slash) != slash + 1 + second.size());
  const std::size_t end = ownerless ? std::min({slash, at, rest.size()}) : slash + 1 + second.size();
  const std::string_view id = rest.substr(0, end);
  if (id.empty() || id.starts_with('/')) return refuse(fmt::format("no repository is named; {}", kForm));
  for (const std::string_view name : {id.substr(0, id.find('/')), ownerless ? id : second}) {
    if (!IsHubName(name)) return refuse(fmt::format("\"{}\" cannot be a name on the hub; {}", name, kForm));
  }
  bucket += id;
  rest.remove_prefix(end);
  if (rest.starts_with('@')) {
    const std::string_view revision = rest.substr(1, RevisionLength(rest.substr(1)));
    auto decoded = PercentDecode(revision);
    const bool good = decoded && !decoded->empty() &&
                      std::ranges::all_of(*decoded, [](unsigned char c) { return c > 0x20 && c != 0x7f; });
    if (!good) return refuse(fmt::format("\"{}\" behind the @ cannot be a branch, a tag or a commit", revision));
    bucket += fmt::format("@{}", revision);
    rest.remove_prefix(1 + revision.size());
  } else if (ownerless) {
    bucket += "@main";  // so that the text of any key of this repository is parsed back
  }
  if (rest.starts_with('/')) rest.remove_prefix(1);
  if (rest.size() > 1024) return refuse(fmt::format("the path has {} bytes; at most 1024 are read", rest.size()));
  return Url{Url::Scheme::kHub, std::move(bucket), std::string(rest)};
}

Result<Url> ParseS3Url(std::string_view text) {
  std::string_view rest = text.substr(kS3.size());
  Url url{Url::Scheme::kS3, "", ""};
  if (IsArn(rest)) {
    const AccessPoint point = MR_TRY(ParseAccessPoint(rest, &rest));
    url.bucket = point.Arn();
    if (!rest.empty()) url.key = rest.substr(1);
  } else {
    const std::size_t slash = rest.find('/');
    url.bucket = rest.substr(0, slash);
    if (slash != std::string_view::npos) url.key = rest.substr(slash + 1);
    if (url.bucket.empty() && slash == std::string_view::npos) return url;
    if (auto valid = CheckBucketName(url.bucket); !valid) return Fail(valid.error().Context(std::string(text)));
  }
  if (url.key.size() > 1024) {
    return Fail(Code::kInvalidArgument, "the key in s3://{}/… has {} bytes; S3 allows at most 1024", url.bucket,
                url.key.size());
  }
  return url;
}

}  // namespace

Status CheckNewBucketName(std::string_view name) {
  const bool characters = std::ranges::all_of(name, [](char c) { return IsLowerAlnum(c) || c == '-' || c == '.'; });
  if (name.size() < 3 || name.size() > 63 || !characters || !IsLowerAlnum(name.front()) || !IsLowerAlnum(name.back()) ||
      name.contains("..")) {
    return Fail(Code::kInvalidArgument,
                "\"{}\" cannot be a new bucket's name: choose 3 to 63 lower-case letters, digits, '-' and '.', with a "
                "letter or digit at both ends",
                name);
  }
  return {};
}

std::string Url::ToString() const {
  if (scheme == Scheme::kHub) return fmt::format("{}{}/{}", kHub, bucket, key);
  return scheme == Scheme::kFile ? key : bucket.empty() ? std::string(kS3) : fmt::format("s3://{}/{}", bucket, key);
}

Result<Url> ParseUrl(std::string_view text) {
  if (text.empty())
    return Fail(Code::kInvalidArgument, "an empty string is neither a URL nor a path; write s3://BUCKET/KEY or a path");
  if (text.find('\0') != std::string_view::npos) {
    return Fail(Code::kInvalidArgument, "a URL or path cannot contain a NUL byte; remove it");
  }
  if (text.starts_with(kS3)) return ParseS3Url(text);
  if (text.starts_with(kFile)) {
    std::string_view path = text.substr(kFile.size());
    if (!path.starts_with('/')) {
      return Fail(Code::kInvalidArgument, "{}: a file URL needs three slashes and an absolute path, as in file:///{}",
                  text, path);
    }
    auto decoded = PercentDecode(path);
    if (!decoded) return Fail(decoded.error().Context(std::string(text)));
    if (decoded->find('\0') != std::string::npos) {
      return Fail(Code::kInvalidArgument, "{}: a path cannot contain a NUL byte; remove %00", text);
    }
    return Url{Url::Scheme::kFile, "", *std::move(decoded)};
  }
  if (text.starts_with(kHub)) return ParseHubUrl(text);
  if (constexpr std::string_view kScheme = "s3:"; text.starts_with(kScheme)) {
    std::string_view rest = text.substr(kScheme.size());
    while (rest.starts_with('/')) rest.remove_prefix(1);
    return Fail(Code::kInvalidArgument,
                "{}: a bucket's URL has two slashes: s3://{}; for a file of this name, write ./{}", text, rest, text);
  }
  if (std::size_t end = text.find("://"); end != std::string_view::npos) {
    return Fail(Code::kInvalidArgument,
                "{}: unknown scheme \"{}\"; use s3://bucket/key, hf://OWNER/MODEL/path, file:///path or a path", text,
                text.substr(0, end));
  }
  return Url{Url::Scheme::kFile, "", std::string(text)};
}

}  // namespace millrace::object
