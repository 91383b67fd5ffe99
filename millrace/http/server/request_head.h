// Strict parsing of request heads and of the framing of bodies (RFC 9112). Refuses everything that two parsers could
// read differently, because request smuggling exploits such differences.
#pragma once

#include <cstdint>
#include <expected>
#include <optional>
#include <string>
#include <string_view>

#include "millrace/http/headers.h"

namespace millrace::http {

/// A parsed request head. `target` is in origin form ("/path?query") or "*", even if it was sent in absolute form.
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

/// A refusal of a request by the server: the status and a sentence for the response. The connection ends after it.
struct Refusal {
  int status = 400;
  std::string reason;
};

/// Returns whether `text` consists of printable ASCII characters without spaces.
bool IsVisible(std::string_view text);

/// Parses a head: request line and fields, up to and including the empty line.
std::expected<RequestHead, Refusal> ParseRequestHead(std::string_view head);

/// Parses a chunk-size line such as "1a2b;ext=x" (without CRLF). No value unless it is 1 to 15 hexadecimal digits and
/// perhaps an extension. 15 digits cannot overflow 64 bits.
std::optional<std::uint64_t> ParseChunkSize(std::string_view line);

/// True for a well-formed "Name: value" line of a trailer section.
bool IsFieldLine(std::string_view line);

}  // namespace millrace::http
