#include "millrace/http/server/cors.h"

#include <algorithm>
#include <utility>

#include "millrace/base/text.h"
#include "millrace/http/server/access.h"

namespace millrace::http {
namespace {

constexpr std::string_view kMethods = "GET, HEAD, POST, PUT, DELETE, OPTIONS";
constexpr std::string_view kMaxAgeSeconds = "600";  // what Chromium takes at most without asking again is 7,200

bool IsOrigin(std::string_view text) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!text.starts_with(scheme)) continue;
    const std::string_view authority = text.substr(scheme.size());
    return !authority.empty() && authority.find_first_of("/?#@ *") == std::string_view::npos &&
           !HostOfAuthority(authority).empty();
  }
  return false;
}

/// Returns an origin as browsers write it: without its scheme's own port.
std::string AsSent(std::string origin) {
  const std::string_view port = origin.starts_with("https:") ? ":443" : ":80";
  if (origin.ends_with(port)) origin.erase(origin.size() - port.size());
  return origin;
}

/// Adds the fields that let a page read an answer.
class SharedResponse final : public ServerResponse {
 public:
  SharedResponse(ServerResponse& inner, std::string origin) : inner_(inner), origin_(std::move(origin)) {}
  Status Send(int status, Headers headers, ByteSpan body) override {
    return inner_.Send(status, Shared(std::move(headers)), body);
  }
  Status Start(int status, Headers headers, std::optional<std::uint64_t> content_length) override {
    return inner_.Start(status, Shared(std::move(headers)), content_length);
  }
  Status Write(ByteSpan bytes) override { return inner_.Write(bytes); }
  Status WriteFile(int fd, std::uint64_t offset, std::uint64_t length) override {
    return inner_.WriteFile(fd, offset, length);
  }
  Status Finish() override { return inner_.Finish(); }
  void Abort(bool reset) override { inner_.Abort(reset); }
  bool started() const override { return inner_.started(); }

 private:
  Headers Shared(Headers headers) const {
    headers.Set("Access-Control-Allow-Origin", origin_);
    headers.Set("Access-Control-Expose-Headers", "*");
    headers.Set("Vary", "Origin");
    return headers;
  }

  ServerResponse& inner_;
  const std::string origin_;
};

}  // namespace

Result<AllowedOrigins> AllowedOrigins::Parse(const std::vector<std::string>& origins) {
  AllowedOrigins allowed;
  for (const std::string& given : origins) {
    if (given == "*") {
      allowed.all_ = true;
    } else if (IsOrigin(given)) {
      allowed.origins_.push_back(AsSent(ToLower(given)));
    } else {
      return Fail(Code::kInvalidArgument,
                  "\"{}\" is not a web origin: write it as https://app.example.org, without a path, or \"*\" for "
                  "all",
                  given);
    }
  }
  return allowed;
}

bool AllowedOrigins::Allow(const Headers& headers) const { return !Answer(headers).empty(); }

std::string_view AllowedOrigins::Answer(const Headers& headers) const {
  const std::string_view origin = headers.Get("Origin");
  if (origin.empty()) return "";
  if (all_) return "*";
  return std::ranges::find(origins_, ToLower(origin)) != origins_.end() ? origin : "";
}

Handler ShareWith(AllowedOrigins origins, Handler inner) {
  if (origins.empty()) return inner;
  return [origins = std::move(origins), inner = std::move(inner)](ServerRequest& request, ServerResponse& response) {
    const std::string_view answer = origins.Answer(request.headers());
    if (answer.empty()) return inner(request, response);
    SharedResponse shared(response, std::string(answer));
    if (request.method() != "OPTIONS" || !request.headers().Has("Access-Control-Request-Method")) {
      return inner(request, shared);
    }
    Headers headers;
    headers.Set("Access-Control-Allow-Methods", std::string(kMethods));
    // "*" would leave out Authorization, so the browser's own list is answered.
    headers.Set("Access-Control-Allow-Headers", std::string(request.headers().Get("Access-Control-Request-Headers")));
    headers.Set("Access-Control-Max-Age", std::string(kMaxAgeSeconds));
    (void)shared.Send(204, std::move(headers), {});
  };
}

}  // namespace millrace::http
