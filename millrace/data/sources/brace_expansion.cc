#include "millrace/data/sources/brace_expansion.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>

#include "millrace/base/text.h"

namespace millrace::data {
namespace {

constexpr std::uint64_t kMaxUrls = 100'000;  // a guess: far above the shards of published data sets

std::optional<std::uint64_t> ParseNumber(std::string_view digits) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (digits.empty() || error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return number;
}

bool IsPadded(std::string_view digits) { return digits.size() > 1 && digits.starts_with('0'); }

/// Returns the words that `braces`, such as "{a,b}", stand for, or the braces themselves. Makes no more than
/// kMaxUrls + 1.
std::vector<std::string> WordsOf(std::string_view braces) {
  const std::string_view inside = braces.substr(1, braces.size() - 2);
  std::vector<std::string> words;
  const std::size_t dots = inside.find("..");
  if (dots == inside.npos) {
    if (!inside.contains(',')) return {std::string(braces)};
    for (const std::string_view word : Split(inside, ',')) words.emplace_back(word);
    return words;
  }
  const std::string_view from = inside.substr(0, dots), to = inside.substr(dots + 2);
  const auto first = ParseNumber(from), last = ParseNumber(to);
  if (!first || !last) return {std::string(braces)};
  const std::size_t digits = IsPadded(from) || IsPadded(to) ? std::max(from.size(), to.size()) : 0;
  const std::uint64_t steps = std::min(std::max(*first, *last) - std::min(*first, *last), kMaxUrls);
  for (std::uint64_t i = 0; i <= steps; ++i) {
    words.push_back(fmt::format("{:0{}}", *first <= *last ? *first + i : *first - i, digits));
  }
  return words;
}

}  // namespace

Result<std::vector<std::string>> ExpandBraces(std::string_view url) {
  std::vector<std::string> urls = {""};
  for (std::string_view rest = url; !rest.empty();) {
    const std::size_t open = rest.find('{');
    const std::size_t close = open == rest.npos ? open : rest.find('}', open);
    const std::string_view before = rest.substr(0, close == rest.npos ? close : open);
    for (std::string& one : urls) one += before;
    if (close == rest.npos) break;
    const std::vector<std::string> words = WordsOf(rest.substr(open, close + 1 - open));
    rest.remove_prefix(close + 1);
    if (urls.size() * words.size() > kMaxUrls) {
      return Fail(Code::kInvalidArgument, "{}: its braces stand for more than {} objects; use wildcards", url,
                  kMaxUrls);
    }
    std::vector<std::string> longer;
    longer.reserve(urls.size() * words.size());
    for (const std::string& one : urls) {
      for (const std::string& word : words) longer.push_back(one + word);
    }
    urls = std::move(longer);
  }
  return urls;
}

}  // namespace millrace::data
