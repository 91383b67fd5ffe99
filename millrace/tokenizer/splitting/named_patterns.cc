#include "millrace/tokenizer/splitting/named_patterns.h"

#include <algorithm>

namespace millrace::tokenizer {
namespace {

struct NamedPattern {
  std::string_view regex;
  SplitPattern pattern;
};
constexpr NamedPattern kPatterns[] = {
    {R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)", SplitPattern::kGpt2},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|)"
     R"(\s+(?!\S)|\s+)",
     SplitPattern::kLlama3},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|)"
     R"(\s+(?!\S)|\s+)",
     SplitPattern::kQwen2},
    {R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
     R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
     R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     SplitPattern::kO200k},
    {R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
     R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|)"
     R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     SplitPattern::kTekken}};
constexpr std::string_view kDeepSeek3[] = {
    R"(\p{N}{1,3})", "[\xE4\xB8\x80-\xE9\xBE\xA5\xE3\x81\x80-\xE3\x82\x9F\xE3\x82\xA0-\xE3\x83\xBF]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "
    "?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"};

}  // namespace

std::optional<SplitPattern> PatternOf(std::span<const std::string> regexes) {
  if (regexes.size() == 1) {
    const auto* known = std::ranges::find(kPatterns, regexes[0], &NamedPattern::regex);
    if (known != std::end(kPatterns)) return known->pattern;
  }
  if (std::ranges::equal(regexes, kDeepSeek3)) return SplitPattern::kDeepSeek3;
  if (!regexes.empty() && regexes.back() == kEachDigit) {
    const auto others = regexes.first(regexes.size() - 1);
    if (std::ranges::equal(others, EarlyDeepSeekSplitter::Regexes(EarlyDeepSeekSplitter::Variant::kLlm)))
      return SplitPattern::kDeepSeek2;
    if (std::ranges::equal(others, EarlyDeepSeekSplitter::Regexes(EarlyDeepSeekSplitter::Variant::kCoder))) {
      return SplitPattern::kDeepSeekCoder;
    }
  }
  return std::nullopt;
}

}  // namespace millrace::tokenizer
