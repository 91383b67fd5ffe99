#include "millrace/tokenizer/spm_normalizer.h"

#include "millrace/tokenizer/utf8.h"

namespace millrace::tokenizer {
namespace {

constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581
constexpr std::string_view kReplacementText = "\xEF\xBF\xBD";

// A unit of darts-clone: bit 8 says that a key ends below it, bits 10 up (shifted by 8 more if bit 9 is set) are the
// offset of its children, bits 0-7 its label; a value's unit has bit 31 set.
std::uint32_t Offset(std::uint32_t unit) { return (unit >> 10) << ((unit & (1u << 9)) >> 6); }
std::uint32_t Label(std::uint32_t unit) { return unit & ((1u << 31) | 0xFF); }
bool HasLeaf(std::uint32_t unit) { return (unit >> 8 & 1) != 0; }

}  // namespace

Result<SpmNormalizer> SpmNormalizer::Make(const SentencePieceModel& model,
                                          const std::vector<std::string>& user_defined) {
  SpmNormalizer made;
  made.dummy_prefix_ = model.traits.add_dummy_prefix;
  made.remove_extra_ = model.traits.remove_extra_whitespaces;
  made.escape_ = model.traits.escape_whitespaces;
  made.suffix_ = model.traits.whitespace_is_suffix;
  std::vector<ByteTrie::Key> keys;
  for (const std::string& text : user_defined) keys.push_back({text, 0});
  made.user_defined_ = ByteTrie(std::move(keys));
  if (!model.character_map.empty()) {
    ByteSpan map = model.character_map;
    std::size_t trie_bytes = map.size() > 4 ? LoadLittle<std::uint32_t>(map.data()) : SIZE_MAX;
    if (trie_bytes >= map.size() - 4 || trie_bytes < 1024 || trie_bytes % 4 != 0 || map.back() != std::byte{0}) {
      return Fail(Code::kInvalidArgument, "its character map is broken");
    }
    made.units_.resize(trie_bytes / 4);
    std::memcpy(made.units_.data(), map.data() + 4, trie_bytes);
    made.replacements_ = AsText(map.subspan(4 + trie_bytes));
  }
  return made;
}

std::size_t SpmNormalizer::LongestRule(std::string_view text, std::string_view& replacement) const {
  std::size_t longest = 0;
  std::uint32_t at = Offset(units_[0]);
  for (std::size_t i = 0; i < text.size(); ++i) {
    auto byte = static_cast<std::uint8_t>(text[i]);
    at ^= byte;
    if (at >= units_.size() || Label(units_[at]) != byte) break;
    bool ends = HasLeaf(units_[at]);
    at ^= Offset(units_[at]);
    if (!ends || at >= units_.size()) continue;
    std::uint32_t value = units_[at] & 0x7FFFFFFF;
    if (value >= replacements_.size()) continue;
    longest = i + 1;
    replacement = replacements_.c_str() + value;
  }
  return longest;
}

SpmNormalizer::Step SpmNormalizer::Next(std::string_view text) const {
  if (!user_defined_.empty()) {
    std::size_t length = user_defined_.Longest(text).length;
    if (length > 0) return {text.substr(0, length), length};
  }
  if (!units_.empty()) {
    std::string_view replacement;
    std::size_t length = LongestRule(text, replacement);
    if (length > 0) return {replacement, length};
  }
  Decoded character = DecodeUtf8(text.data(), text.data() + text.size());
  if (character.code == kInvalid) return {kReplacementText, 1};
  return {text.substr(0, character.length), character.length};
}

void SpmNormalizer::Append(std::string_view part, std::string& normalized) const {
  if (!escape_) {
    normalized += part;
    return;
  }
  for (std::size_t mark; (mark = part.find(kSpaceMark)) != part.npos;) {
    normalized.append(part, 0, mark) += ' ';
    part.remove_prefix(mark + kSpaceMark.size());
  }
  normalized += part;
}

void SpmNormalizer::Normalize(std::string_view text, bool prefix, std::string& normalized) const {
  normalized.clear();
  if (remove_extra_) {
    while (!text.empty()) {
      Step step = Next(text);
      if (step.text != " ") break;
      text.remove_prefix(step.consumed);
    }
  }
  if (text.empty()) return;
  if (prefix && dummy_prefix_ && !suffix_) normalized += ' ';
  bool after_space = remove_extra_;
  while (!text.empty()) {
    Step step = Next(text);
    text.remove_prefix(step.consumed);
    while (after_space && step.text.starts_with(' ')) step.text.remove_prefix(1);
    if (!step.text.empty()) {
      Append(step.text, normalized);
      after_space = remove_extra_ && step.text.ends_with(' ');
    }
  }
  if (remove_extra_) {
    while (normalized.ends_with(' ')) normalized.pop_back();
  }
  if (prefix && dummy_prefix_ && suffix_) normalized += ' ';
}

}  // namespace millrace::tokenizer
