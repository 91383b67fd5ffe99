#include "millrace/object/hf/refusal.h"

#include <algorithm>
#include <charconv>

#include "millrace/object/s3/requests/retry.h"

namespace millrace::object::hf {
namespace {

constexpr std::size_t kMaxQuoted = 300;  // of the hub's own words

/// The words of a server, safe to print.
std::string Quoted(std::string_view words) {
  std::string text(words.substr(0, kMaxQuoted));
  std::ranges::replace_if(text, [](unsigned char c) { return c < 0x20 || c == 0x7f; }, ' ');
  return text;
}

/// How long the server asks to wait: Retry-After, or the end of the rate limit's window, `"api";r=0;t=55`
/// (draft-ietf-httpapi-ratelimit-headers).
std::optional<Duration> AskedWait(const http::Response& response, WallTime now) {
  if (auto wait = s3::Classify(response, now).wait) return wait;
  const std::string_view limit = response.headers.Get("ratelimit");
  const std::size_t at = limit.find("t=");
  if (response.status != 429 || at == limit.npos) return std::nullopt;
  int seconds = 0;
  std::from_chars(limit.data() + at + 2, limit.data() + limit.size(), seconds);
  return std::chrono::seconds(seconds);
}

std::string TokenAdvice(const Settings& settings, bool token_sent) {
  if (token_sent) return "the token in use has no right to read it; see " + settings.endpoint + "/settings/tokens";
  return "set HF_TOKEN to a token of " + settings.endpoint + "/settings/tokens that may read it";
}

}  // namespace

Refusal Classify(const http::Response& response, const Repository& repository, const Settings& settings,
                 bool token_sent, WallTime now) {
  const std::string_view code = response.headers.Get("x-error-code");
  const std::string words = Quoted(response.headers.Get("x-error-message"));
  const int status = response.status;
  Refusal refusal{.code = CodeFromHttpStatus(status), .message = "", .wait = AskedWait(response, now)};
  auto say = [&](Code means, std::string message) {
    refusal.code = means;
    refusal.message = std::move(message);
    return refusal;
  };
  const std::string_view kind = repository.KindName();
  if (code == "EntryNotFound") {
    refusal.no_entry = true;
    return say(Code::kNotFound, "the revision has no such file or folder");
  }
  if (code == "RevisionNotFound") {
    return say(Code::kNotFound,
               fmt::format("the {} {} has no branch, tag or commit \"{}\"", kind, repository.id, repository.revision));
  }
  if (code == "GatedRepo") {
    const std::string page = settings.endpoint + repository.Page();
    if (!token_sent) {
      return say(Code::kPermissionDenied,
                 fmt::format("the {} {} is gated: accept its terms at {}, then set HF_TOKEN to a token of that account",
                             kind, repository.id, page));
    }
    return say(Code::kPermissionDenied,
               fmt::format("the {} {} is gated, and the account of the token in use has no access: accept its terms at "
                           "{}, and use a token that may read gated repositories",
                           kind, repository.id, page));
  }
  if (status == 401 && words.starts_with("Invalid credentials")) {
    return say(Code::kPermissionDenied,
               fmt::format("the hub does not know the token in use, which may have expired: set HF_TOKEN to a token of "
                           "{}/settings/tokens, or unset it",
                           settings.endpoint));
  }
  // The hub does not tell strangers which private repositories exist.
  if (code == "RepoNotFound" || status == 401) {
    const std::string_view ownerless =
        repository.id.contains('/') ? "; a repository without an owner is written NAME@main" : "";
    return say(
        status == 401 && code.empty() ? Code::kPermissionDenied : Code::kNotFound,
        fmt::format("there is no {} {} that this user may see; check the name and the kind{}, and if it is private, {}",
                    kind, repository.id, ownerless, TokenAdvice(settings, token_sent)));
  }
  if (status == 403) {
    return say(Code::kPermissionDenied, fmt::format("the hub refuses access{}{}; {}", words.empty() ? "" : ": ", words,
                                                    TokenAdvice(settings, token_sent)));
  }
  return say(refusal.code, fmt::format("the hub answers HTTP {}{}{}", status, words.empty() ? "" : ": ", words));
}

Refusal ClassifyStorage(const http::Response& response, WallTime now) {
  // A signed address that has expired is refused like a wrong one; the hub gives a new one.
  const bool refused = response.status < 500 && response.status != 429;
  return {.code = refused ? Code::kUnavailable : CodeFromHttpStatus(response.status),
          .message = fmt::format("the storage behind the hub answers HTTP {}", response.status),
          .wait = AskedWait(response, now)};
}

}  // namespace millrace::object::hf
