// Exchanges the token that `aws sso login` left in ~/.aws/sso/cache for credentials.
#include <openssl/evp.h>

#include <array>

#include "millrace/base/hash/text_encoding.h"
#include "millrace/base/json.h"
#include "millrace/base/text.h"
#include "millrace/object/s3/credentials/credential_sources.h"

namespace millrace::object::s3 {
namespace {

/// A token with less time left is renewed, if possible.
constexpr Duration kRenewTokenBefore = std::chrono::minutes(5);  // as CredentialCache

std::string Sha1Hex(std::string_view text) {
  std::array<std::byte, 20> digest;
  EVP_Digest(text.data(), text.size(), reinterpret_cast<unsigned char*>(digest.data()), nullptr, EVP_sha1(), nullptr);
  return HexEncode(digest);
}

class SsoSource final : public CredentialSource {
 public:
  SsoSource(SsoRole role, const Environment& environment) : role_(std::move(role)), environment_(environment) {}

  Result<Credentials> Fetch(std::stop_token stop) override {
    std::string token = MR_TRY(AccessToken(stop));
    http::Request request{.url = fmt::format("{}/federation/credentials?account_id={}&role_name={}", role_.portal,
                                             PercentEncode(role_.account_id, false),
                                             PercentEncode(role_.role_name, false))};
    request.headers.Set("x-amz-sso_bearer_token", token);
    http::Response response = MR_TRY(Ask(environment_, request, stop, Describe()));
    if (response.status == 401) return Fail(SignInAgain("the service no longer accepts the cached token"));
    if (response.status != 200) return Fail(AnswerError(response, Describe()));
    Json answer = MR_TRY(ParseJson(response.body, Describe()));
    const Json* found = JsonFind(answer, "roleCredentials");
    if (!found) return Fail(Code::kCorrupt, "{} gave an answer without roleCredentials", Describe());
    Credentials credentials;
    credentials.expires = WallTime(std::chrono::milliseconds(MR_TRY(JsonInt(*found, "expiration"))));
    credentials.access_key = MR_TRY(JsonString(*found, "accessKeyId"));
    credentials.secret_key = MR_TRY(JsonString(*found, "secretAccessKey"));
    credentials.session_token = MR_TRY(JsonString(*found, "sessionToken"));
    return credentials;
  }
  std::string Describe() const override { return fmt::format("single sign-on of profile {}", role_.profile); }

 private:
  Error SignInAgain(std::string_view why) const {
    return Error(Code::kPermissionDenied, fmt::format("{}; run `aws sso login --profile {}`", why, role_.profile));
  }

  Result<std::string> AccessToken(std::stop_token stop) {
    auto home = environment_.getenv("HOME");
    if (!home) return Fail(SignInAgain("HOME is not set, so there is no ~/.aws/sso/cache"));
    std::filesystem::path path =
        std::filesystem::path(*home) / ".aws" / "sso" / "cache" / (Sha1Hex(role_.token_name) + ".json");
    // Read each time, because a new sign-in replaces it.
    auto text = environment_.read_file(path);
    if (!text) return Fail(SignInAgain(fmt::format("there is no token in {}", path.string())));
    Json cached = MR_TRY(ParseJson(*text, path.string()));
    auto token = JsonString(cached, "accessToken");
    auto expires = ParseIso8601(JsonString(cached, "expiresAt").value_or(""));
    if (!token || !expires) return Fail(SignInAgain(fmt::format("{} holds no token", path.string())));
    WallTime now = environment_.clock->Wall();
    if (now + kRenewTokenBefore < *expires) return *token;
    auto renewed = Renew(cached, path, stop);
    if (renewed) return renewed;
    if (now < *expires) return *token;
    return Fail(SignInAgain(fmt::format("the token has expired ({})", renewed.error().message())));
  }

  /// Exchanges the refresh token, if there is one, for a new token. A refresh token can be used once, so the new one
  /// goes into the cache, which other programs share.
  Result<std::string> Renew(Json cached, const std::filesystem::path& path, std::stop_token stop) {
    WallTime now = environment_.clock->Wall();
    auto registered = ParseIso8601(JsonString(cached, "registrationExpiresAt").value_or(""));
    if (!registered || *registered <= now)
      return Fail(Code::kPermissionDenied, "the session cannot be renewed; run `aws sso login`");
    Json ask{{"grantType", "refresh_token"}};
    for (const char* member : {"clientId", "clientSecret", "refreshToken"}) {
      ask[member] = MR_TRY(JsonString(cached, member));
    }
    std::string body = DumpJson(ask);
    http::Request request{.method = "POST", .url = role_.oidc + "/token", .body = AsBytes(body)};
    request.headers.Set("Content-Type", "application/json");
    Json answer = MR_TRY(ParseJson(MR_TRY(AskForText(environment_, request, stop, Describe())), Describe()));
    std::string token = MR_TRY(JsonString(answer, "accessToken"));
    cached["accessToken"] = token;
    cached["expiresAt"] = FormatIso8601(now + std::chrono::seconds(MR_TRY(JsonInt(answer, "expiresIn"))));
    if (auto refresh = JsonString(answer, "refreshToken")) cached["refreshToken"] = *refresh;
    std::string text = DumpJson(cached);
    MR_TRY(environment_.write_file(path, text));
    return token;
  }

  const SsoRole role_;
  const Environment environment_;
};

}  // namespace

std::unique_ptr<CredentialSource> NewSsoSource(SsoRole role, const Environment& environment) {
  return std::make_unique<SsoSource>(std::move(role), environment);
}

}  // namespace millrace::object::s3
