#include "millrace/serve/page/chat_page.h"

#include <fmt/format.h>

#include <string_view>

#include "millrace/base/bytes.h"
#include "millrace/base/hash/digest.h"
#include "millrace/base/hash/text_encoding.h"
#include "millrace/base/text.h"

namespace millrace::serve {

// The files of the page, embedded at build time (embed.cmake).
/// page.html, with {{style}} and {{script}} where the other two go.
extern const std::string_view kPageMarkup;
extern const std::string_view kPageStyle;   ///< page.css
extern const std::string_view kPageScript;  ///< the scripts, joined
namespace {

/// The source expression of an inline script or style (W3C, Content Security Policy Level 3).
std::string HashSource(std::string_view text) {
  return fmt::format("'sha256-{}'", Base64Encode(Sha256(AsBytes(text))));
}

std::string Replaced(std::string text, std::string_view mark, std::string_view by) {
  return text.replace(text.find(mark), mark.size(), by);
}

/// Whether If-None-Match names `etag` (RFC 9110, 13.1.2).
bool Names(std::string_view if_none_match, std::string_view etag) {
  for (std::string_view named : Split(if_none_match, ',')) {
    named = Trim(named);
    if (named.starts_with("W/")) named.remove_prefix(2);
    if (named == "*" || named == etag) return true;
  }
  return false;
}

}  // namespace

ChatPage::ChatPage()
    : html_(Replaced(Replaced(std::string(kPageMarkup), "{{style}}", kPageStyle), "{{script}}", kPageScript)),
      policy_(fmt::format("default-src 'none'; script-src {}; style-src {}; connect-src 'self'; img-src data:; "
                          "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
                          "require-trusted-types-for 'script'; trusted-types 'none'",
                          HashSource(kPageScript), HashSource(kPageStyle))),
      etag_(fmt::format("\"{}\"", ShortHash(html_ + policy_))) {}

int ChatPage::Answer(const http::ServerRequest& request, http::ServerResponse& response) const {
  http::Headers headers;
  const bool head = request.method() == "HEAD";
  if (request.method() != "GET" && !head) {
    headers.Set("Allow", "GET, HEAD");
    (void)response.Send(405, std::move(headers), {});
    return 405;
  }
  headers.Set("ETag", etag_);
  headers.Set("Cache-Control", "no-cache");
  headers.Set("Content-Security-Policy", policy_);
  headers.Set("Cross-Origin-Opener-Policy", "same-origin");
  headers.Set("Cross-Origin-Resource-Policy", "same-origin");
  headers.Set("Referrer-Policy", "no-referrer");
  headers.Set("X-Content-Type-Options", "nosniff");
  const int status = Names(request.headers().Get("If-None-Match"), etag_) ? 304 : 200;
  if (status == 200) headers.Set("Content-Type", "text/html; charset=utf-8");
  // A client that has gone needs no answer.
  (void)response.Send(status, std::move(headers), status == 200 ? AsBytes(html_) : ByteSpan());
  return status;
}

}  // namespace millrace::serve
