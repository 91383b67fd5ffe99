#include "millrace/s3d/operations/conditions.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <string>

#include "millrace/base/clock.h"
#include "millrace/base/text.h"
#include "millrace/xml/xml.h"

namespace millrace::s3d {
namespace {

/// Returns whether an ETag list names `etag`: "*", "\"a\", W/\"b\"", or an ETag without quotes, as some clients send
/// it.
bool Names(std::string_view list, std::string_view etag) {
  for (std::string_view item : Split(list, ',')) {
    item = Trim(item);
    if (item == "*") return true;
    if (item.starts_with("W/")) item.remove_prefix(2);
    if (xml::Unquote(item) == etag) return true;
  }
  return false;
}

/// HTTP's dates have whole seconds.
std::optional<WallTime> DateOf(std::string_view text) {
  if (text.empty()) return std::nullopt;
  auto time = ParseHttpDate(text);
  if (!time) time = ParseIso8601(text);
  if (!time) return std::nullopt;
  return *time;
}

std::optional<std::uint64_t> Digits(std::string_view text) {
  std::uint64_t value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace

ReadVerdict CheckRead(const http::Headers& headers, std::string_view prefix, const Object& object) {
  auto field = [&](std::string_view name) { return headers.Get(std::string(prefix).append(name)); };
  const auto modified = std::chrono::floor<std::chrono::seconds>(object.modified);

  if (std::string_view wanted = field("If-Match"); !wanted.empty()) {
    if (!Names(wanted, object.etag)) return ReadVerdict::kFailed;
  } else if (auto date = DateOf(field("If-Unmodified-Since")); date && modified > *date) {
    return ReadVerdict::kFailed;
  }
  if (std::string_view unwanted = field("If-None-Match"); !unwanted.empty()) {
    if (Names(unwanted, object.etag)) return ReadVerdict::kNotModified;
  } else if (auto date = DateOf(field("If-Modified-Since")); date && modified <= *date) {
    return ReadVerdict::kNotModified;
  }
  return ReadVerdict::kServe;
}

Reply<std::optional<BodyRange>> ParseRange(std::string_view range, std::uint64_t size) {
  constexpr std::string_view kUnit = "bytes=";
  std::size_t dash = range.find('-');
  if (!range.starts_with(kUnit) || dash == std::string_view::npos || range.find(',') != std::string_view::npos) {
    return std::nullopt;
  }
  std::string_view first = range.substr(kUnit.size(), dash - kUnit.size()), last = range.substr(dash + 1);
  auto unsatisfiable = [] { return Refuse("InvalidRange", "The requested range is not satisfiable"); };
  if (first.empty()) {
    auto suffix = Digits(last);
    if (!suffix) return std::nullopt;
    if (*suffix == 0 || size == 0) return unsatisfiable();
    std::uint64_t length = std::min(*suffix, size);
    return BodyRange{size - length, length};
  }
  auto begin = Digits(first);
  auto end = last.empty() ? std::optional<std::uint64_t>(UINT64_MAX) : Digits(last);
  if (!begin || !end || *end < *begin) return std::nullopt;
  if (*begin >= size) return unsatisfiable();
  return BodyRange{*begin, std::min(*end, size - 1) - *begin + 1};
}

Reply<WriteCondition> ParseWriteCondition(const http::Headers& headers) {
  WriteCondition condition;
  std::string_view none = Trim(headers.Get("If-None-Match"));
  if (!none.empty() && none != "*") {
    return Refuse("NotImplemented", "A header you provided implies functionality that is not implemented.");
  }
  condition.if_none_match = !none.empty();
  condition.if_match = xml::Unquote(Trim(headers.Get("If-Match")));
  return condition;
}

}  // namespace millrace::s3d
