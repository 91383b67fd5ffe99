#include "millrace/http/server/request_head.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "millrace/base/text.h"

namespace millrace::http {
namespace {

constexpr std::size_t kMaxFields = 256;  // several times those of any S3 request; bounds the work for each head
constexpr std::size_t kMaxMethod = 32;   // the longest registered method, UPDATEREDIRECTREF, has 17

constexpr std::array<bool, 256> kTokenCharacters = [] {
  std::array<bool, 256> table{};
  for (int c = '0'; c <= '9'; ++c) table[c] = true;
  for (int c = 'a'; c <= 'z'; ++c) table[c] = table[c - 'a' + 'A'] = true;
  for (char c : std::string_view("!#$%&'*+-.^_`|~")) table[static_cast<unsigned char>(c)] = true;
  return table;
}();

bool IsToken(std::string_view text) {
  return !text.empty() &&
         std::ranges::all_of(text, [](char c) { return kTokenCharacters[static_cast<unsigned char>(c)]; });
}

bool IsFieldContent(std::string_view text) {
  return std::ranges::all_of(text, [](char c) {
    auto byte = static_cast<unsigned char>(c);
    return byte == '\t' || (byte >= 0x20 && byte != 0x7f);
  });
}

std::string_view TrimBlank(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

std::unexpected<Refusal> Refuse(int status, std::string reason) {
  return std::unexpected(Refusal{status, std::move(reason)});
}

/// Removes the next line from `rest`. No value if it contains a CR or LF of its own or has no CRLF.
std::optional<std::string_view> TakeLine(std::string_view& rest) {
  std::size_t end = rest.find_first_of("\r\n");
  if (end == std::string_view::npos || rest.substr(end, 2) != "\r\n") return std::nullopt;
  std::string_view line = rest.substr(0, end);
  rest.remove_prefix(end + 2);
  return line;
}

std::expected<void, Refusal> ParseRequestLine(std::string_view line, RequestHead& head) {
  std::size_t first = line.find(' '), last = line.rfind(' ');
  if (first == std::string_view::npos || first == last) return Refuse(400, "malformed request line");
  std::string_view method = line.substr(0, first), target = line.substr(first + 1, last - first - 1);
  std::string_view version = line.substr(last + 1);
  if (!IsToken(method) || method.size() > kMaxMethod) return Refuse(400, "malformed method");
  if (version.size() != 8 || !version.starts_with("HTTP/") || version[6] != '.' || version[5] < '0' ||
      version[5] > '9' || version[7] < '0' || version[7] > '9') {
    return Refuse(400, "malformed protocol version");
  }
  if (version != "HTTP/1.1" && version != "HTTP/1.0") return Refuse(505, "only HTTP/1.0 and HTTP/1.1 are spoken here");
  if (target.empty() || !IsVisible(target)) return Refuse(400, "malformed request target");
  head.method = method;
  head.minor_version = version[7] - '0';
  if (target.front() == '/' || (target == "*" && method == "OPTIONS")) {
    head.target = target;
    return {};
  }
  std::size_t scheme = target.find("://");
  if (scheme == std::string_view::npos) return Refuse(400, "the request target must start with '/'");
  std::size_t path = target.find_first_of("/?", scheme + 3);
  head.target = path == std::string_view::npos ? "/" : std::string(target.substr(path));
  if (head.target.front() == '?') head.target.insert(0, "/");
  return {};
}

std::expected<void, Refusal> ParseFields(std::string_view rest, RequestHead& head) {
  for (;;) {
    auto line = TakeLine(rest);
    if (!line) return Refuse(400, "lines must end with CRLF");
    if (line->empty()) break;
    if (head.headers.size() == kMaxFields) return Refuse(431, "too many header fields");
    if (line->front() == ' ' || line->front() == '\t') return Refuse(400, "folded header fields are obsolete");
    if (!IsFieldLine(*line)) return Refuse(400, "malformed header field");
    std::size_t colon = line->find(':');
    head.headers.Add(line->substr(0, colon), std::string(TrimBlank(line->substr(colon + 1))));
  }
  if (!rest.empty()) return Refuse(400, "bytes after the head");
  return {};
}

/// Returns the values of all fields called `name`, in order.
std::vector<std::string_view> All(const Headers& headers, std::string_view name) {
  std::vector<std::string_view> values;
  if (!headers.Has(name)) return values;
  std::string wanted = ToLower(name);
  for (const auto& [field, value] : headers) {
    if (field.size() == wanted.size() && ToLower(field) == wanted) values.push_back(value);
  }
  return values;
}

std::expected<void, Refusal> DecideFraming(RequestHead& head) {
  auto codings = All(head.headers, "Transfer-Encoding");
  auto lengths = All(head.headers, "Content-Length");
  if (!codings.empty()) {
    if (!lengths.empty()) return Refuse(400, "both Transfer-Encoding and Content-Length");
    if (head.minor_version == 0) return Refuse(400, "Transfer-Encoding in HTTP/1.0");
    if (codings.size() != 1 || ToLower(codings[0]) != "chunked") return Refuse(501, "unknown transfer coding");
    head.chunked = true;
    return {};
  }
  if (lengths.empty()) return {};
  if (lengths.size() != 1) return Refuse(400, "more than one Content-Length");
  std::string_view text = lengths[0];
  std::uint64_t length = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), length);
  if (text.empty() || text.size() > 18 || error != std::errc() || end != text.data() + text.size()) {
    return Refuse(400, "malformed Content-Length");
  }
  head.content_length = length;
  return {};
}

std::expected<void, Refusal> DecideConnection(RequestHead& head) {
  auto hosts = All(head.headers, "Host");
  if (hosts.size() > 1) return Refuse(400, "more than one Host");
  if (hosts.empty() && head.minor_version == 1) return Refuse(400, "no Host");
  head.keep_alive = head.minor_version == 1;
  for (std::string_view value : All(head.headers, "Connection")) {
    for (std::string_view option : Split(value, ',')) {
      std::string name = ToLower(TrimBlank(option));
      if (name == "close") head.keep_alive = false;
      if (name == "keep-alive" && head.minor_version == 0) head.keep_alive = true;
    }
  }
  if (head.headers.Has("Expect") && head.minor_version == 1) {
    if (ToLower(head.headers.Get("Expect")) != "100-continue") return Refuse(417, "unknown expectation");
    head.expect_continue = head.chunked || head.content_length.value_or(0) > 0;
  }
  return {};
}

}  // namespace

bool IsVisible(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c > ' ' && c <= '~'; });
}

bool IsFieldLine(std::string_view line) {
  std::size_t colon = line.find(':');
  return colon != std::string_view::npos && IsToken(line.substr(0, colon)) && IsFieldContent(line.substr(colon + 1));
}

std::optional<std::uint64_t> ParseChunkSize(std::string_view line) {
  std::size_t digits = line.find_first_not_of("0123456789abcdefABCDEF");
  if (digits == std::string_view::npos) digits = line.size();
  if (digits == 0 || digits > 15) return std::nullopt;
  std::string_view extension = TrimBlank(line.substr(digits));
  if (!extension.empty() && (extension.front() != ';' || !IsFieldContent(extension))) return std::nullopt;
  std::uint64_t size = 0;
  const std::string_view number = line.substr(0, digits);
  std::from_chars(number.data(), number.data() + number.size(), size, 16);
  return size;
}

std::expected<RequestHead, Refusal> ParseRequestHead(std::string_view head) {
  RequestHead parsed;
  auto line = TakeLine(head);
  if (!line) return Refuse(400, "lines must end with CRLF");
  if (auto done = ParseRequestLine(*line, parsed); !done) return std::unexpected(done.error());
  if (auto done = ParseFields(head, parsed); !done) return std::unexpected(done.error());
  if (auto done = DecideFraming(parsed); !done) return std::unexpected(done.error());
  if (auto done = DecideConnection(parsed); !done) return std::unexpected(done.error());
  return parsed;
}

}  // namespace millrace::http
