#include "millrace/transfer/plan/glob.h"

#include <algorithm>
#include <optional>
#include <ranges>

namespace millrace::transfer {
namespace {

/// Returns the code point at `at` and advances `at` past it. A byte that begins no valid sequence counts as one.
char32_t NextCodePoint(std::string_view text, std::size_t& at) {
  auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  unsigned char lead = byte(at);
  std::size_t length = lead < 0x80 ? 1 : lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc0 ? 2 : 1;
  if (length == 1 || at + length > text.size()) return byte(at++);
  char32_t point = lead & (0x7fu >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(at + i) & 0xc0) != 0x80) return byte(at++);
    point = (point << 6) | (byte(at + i) & 0x3fu);
  }
  at += length;
  return point;
}

}  // namespace

bool Glob::Token::Accepts(char32_t c) const {
  if (type == Type::kLiteral) return c == literal;
  if (type == Type::kAnyOne) return true;
  return negated != std::ranges::any_of(ranges, [c](const Range& range) { return range.low <= c && c <= range.high; });
}

Glob::Glob(std::string_view pattern) {
  auto parse_set = [&](std::size_t at) -> std::optional<std::pair<Token, std::size_t>> {
    Token set{Token::Type::kSet};
    if (at < pattern.size() && (pattern[at] == '!' || pattern[at] == '^')) set.negated = true, ++at;
    for (bool first = true; at < pattern.size(); first = false) {
      if (pattern[at] == ']' && !first) return std::pair(std::move(set), at + 1);
      char32_t low = NextCodePoint(pattern, at), high = low;
      if (at + 1 < pattern.size() && pattern[at] == '-' && pattern[at + 1] != ']') high = NextCodePoint(pattern, ++at);
      set.ranges.push_back({low, high});
    }
    return std::nullopt;
  };
  for (std::size_t at = 0; at < pattern.size();) {
    std::size_t begin = at;
    char c = pattern[at];
    if (c == '*') {
      ++at;
      has_wildcard_ = true;
      if (tokens_.empty() || tokens_.back().type != Token::Type::kAnyMany) tokens_.push_back({Token::Type::kAnyMany});
      continue;
    }
    if (c == '?') {
      ++at;
      has_wildcard_ = true;
      tokens_.push_back({Token::Type::kAnyOne});
      continue;
    }
    if (c == '[') {
      if (auto set = parse_set(at + 1)) {
        has_wildcard_ = true;
        tokens_.push_back(std::move(set->first));
        at = set->second;
        continue;
      }
    }
    if (c == '\\' && at + 1 < pattern.size()) begin = ++at;
    tokens_.push_back({Token::Type::kLiteral, NextCodePoint(pattern, at)});
    if (!has_wildcard_) literal_prefix_ += pattern.substr(begin, at - begin);
  }
}

/// Backtracks only to the last star. Takes O(|pattern| × |text|) at worst.
bool Glob::Matches(std::string_view text) const {
  std::size_t token = 0, at = 0;
  std::optional<std::size_t> star;
  std::size_t star_at = 0;
  while (at < text.size()) {
    if (token < tokens_.size() && tokens_[token].type == Token::Type::kAnyMany) {
      star = token++;
      star_at = at;
      continue;
    }
    std::size_t next = at;
    char32_t c = NextCodePoint(text, next);
    if (token < tokens_.size() && tokens_[token].Accepts(c)) {
      ++token;
      at = next;
    } else if (star) {
      NextCodePoint(text, star_at);
      at = star_at;
      token = *star + 1;
    } else {
      return false;
    }
  }
  while (token < tokens_.size() && tokens_[token].type == Token::Type::kAnyMany) ++token;
  return token == tokens_.size();
}

bool HasWildcard(std::string_view text) { return Glob(text).has_wildcard(); }

bool IsBookkeeping(std::string_view name) {
  constexpr std::string_view kFolder = ".millrace/";
  return name.starts_with(kFolder) || name.find("/.millrace/") != std::string_view::npos;
}

NameFilter::NameFilter(const std::vector<FilterRule>& rules, bool bookkeeping) : bookkeeping_(bookkeeping) {
  for (const auto& [includes, pattern] : rules) {
    rules_.push_back({includes, pattern.ends_with('*') && !pattern.ends_with("\\*"), Glob(pattern)});
  }
}

bool NameFilter::ExcludesFolder(std::string_view folder) const {
  const std::string below = std::string(folder) + "/";
  for (const Rule& rule : std::views::reverse(rules_)) {
    if (rule.includes) return false;
    if (rule.matches_below && rule.glob.Matches(below)) return true;
  }
  return false;
}

bool NameFilter::Passes(std::string_view name) const {
  if (!bookkeeping_ && IsBookkeeping(name)) return false;
  for (const Rule& rule : std::views::reverse(rules_)) {
    if (rule.glob.Matches(name)) return rule.includes;
  }
  return rules_.empty() || !rules_.front().includes;
}

}  // namespace millrace::transfer
