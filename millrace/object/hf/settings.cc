#include "millrace/object/hf/settings.h"

#include <algorithm>
#include <filesystem>

#include "millrace/base/files/files.h"
#include "millrace/base/text.h"

namespace millrace::object::hf {
namespace {

namespace fs = std::filesystem;

std::string Value(const GetEnv& getenv, const char* name) {
  const char* value = getenv(name);
  return value ? std::string(Trim(value)) : "";
}

/// Replaces a "~/" at the beginning by the home folder.
fs::path Expanded(const GetEnv& getenv, const std::string& path) {
  if (!path.starts_with("~/")) return path;
  return fs::path(Value(getenv, "HOME")) / path.substr(2);
}

fs::path TokenPath(const GetEnv& getenv) {
  if (const std::string path = Value(getenv, "HF_TOKEN_PATH"); !path.empty()) return Expanded(getenv, path);
  if (const std::string home = Value(getenv, "HF_HOME"); !home.empty()) return Expanded(getenv, home) / "token";
  const std::string cache = Value(getenv, "XDG_CACHE_HOME"), home = Value(getenv, "HOME");
  if (cache.empty() && home.empty()) return {};
  return (cache.empty() ? fs::path(home) / ".cache" : Expanded(getenv, cache)) / "huggingface" / "token";
}

Result<std::string> FindToken(const GetEnv& getenv) {
  constexpr std::uint64_t kMaxBytes = 64 * kKiB;  // a token has some forty
  std::string token, from = "HF_TOKEN";
  for (const char* name : {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}) {
    if (token.empty()) token = Value(getenv, name);
  }
  if (token.empty()) {
    const fs::path path = TokenPath(getenv);
    std::error_code error;
    if (path.empty() || !fs::exists(path, error)) return "";
    from = path.string();
    token = Trim(MR_TRY(ReadFile(path, kMaxBytes)));
  }
  // Anything else would break the header that the token goes into.
  if (!std::ranges::all_of(token, [](unsigned char c) { return c > 0x20 && c < 0x7f; })) {
    return Fail(Code::kInvalidArgument, "{} has characters that no token of the hub has; write it again", from);
  }
  return token;
}

}  // namespace

std::string Settings::Authority() const { return endpoint.substr(endpoint.find("://") + 3); }

Result<Settings> LoadSettings(const GetEnv& getenv) {
  Settings settings;
  if (std::string endpoint = Value(getenv, "HF_ENDPOINT"); !endpoint.empty()) {
    while (endpoint.ends_with('/')) endpoint.pop_back();
    const std::size_t scheme = endpoint.find("://");
    const bool known = endpoint.starts_with("http://") || endpoint.starts_with("https://");
    if (!known || endpoint.size() == scheme + 3 || endpoint.find_first_of("?#@ ") != endpoint.npos) {
      return Fail(Code::kInvalidArgument, "HF_ENDPOINT is {}; use an address such as https://huggingface.co", endpoint);
    }
    settings.endpoint = std::move(endpoint);
  }
  settings.token = MR_TRY(FindToken(getenv));
  return settings;
}

std::string OriginOf(std::string_view url) {
  const std::size_t scheme = url.find("://");
  if (scheme == url.npos) return "";
  std::string origin = ToLower(url.substr(0, std::min(url.find_first_of("/?#", scheme + 3), url.size())));
  if (origin.starts_with("https://") && origin.ends_with(":443")) origin.resize(origin.size() - 4);
  if (origin.starts_with("http://") && origin.ends_with(":80")) origin.resize(origin.size() - 3);
  return origin;
}

}  // namespace millrace::object::hf
