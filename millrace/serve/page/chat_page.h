// The chat page of the model server: one HTML document that loads nothing and asks the server's own API.
#pragma once

#include <string>

#include "millrace/http/server/server.h"

namespace millrace::serve {

/// Answers requests for the page. Immutable after construction, therefore thread-safe.
///
/// Its Content-Security-Policy allows the page's own script and style by their hashes, requests to the server it came
/// from, and nothing else. Trusted Types are required and none is defined, so the browser refuses every assignment of
/// text as HTML.
class ChatPage {
 public:
  ChatPage();

  /// Answers GET and HEAD, with 304 if the client has this version (If-None-Match), and other methods with 405.
  /// Returns the status. The page needs no key: it has no secrets, and asks its user for the key.
  int Answer(const http::ServerRequest& request, http::ServerResponse& response) const;

  const std::string& html() const { return html_; }

 private:
  std::string html_, policy_, etag_;
};

}  // namespace millrace::serve
