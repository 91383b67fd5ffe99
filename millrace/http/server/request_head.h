// Strict parsing of what a client sends before and around a body (RFC 9112). Everything that two parsers could read
// differently is refused rather than repaired: that is what request smuggling lives on.
#pragma once

#include <cstdint>
#include <expected>
#include <optional>
#include <string>
#include <string_view>

#include "millrace/http/client/client.h"  // Headers

namespace millrace::http {

/// A request's head, taken apart. `target` is in origin form ("/path?query") or "*", also when it was sent in absolute
/// form.
struct RequestHead {
  std::string method;
  std::string target;
  int minor_version = 1;  ///< HTTP/1.x
  Headers headers;
  std::optional<std::uint64_t> content_length;
  bool chunked = false;
  bool keep_alive = true;
  bool expect_continue = false;

  std::string_view path() const { return std::string_view(target).substr(0, target.find('?')); }
  std::string_view query() const {
    std::size_t mark = target.find('?');
    return mark == std::string::npos ? std::string_view() : std::string_view(target).substr(mark + 1);
  }
};

/// Why a request cannot be served: the status to answer with, and a sentence. The connection is then of no more use.
struct Refusal {
  int status = 400;
  std::string reason;
};

/// Whether all of `text` are ASCII characters that print, without spaces.
bool IsVisible(std::string_view text);

/// Parses a head: request line and fields, up to and including the empty line.
std::expected<RequestHead, Refusal> ParseRequestHead(std::string_view head);

/// Parses "1a2b;ext=x" (without CRLF); nothing unless it is 1 to 15 hexadecimal digits and, perhaps, an extension.
std::optional<std::uint64_t> ParseChunkSize(std::string_view line);

/// True for a well-formed "Name: value" line of a trailer section.
bool IsFieldLine(std::string_view line);

}  // namespace millrace::http
