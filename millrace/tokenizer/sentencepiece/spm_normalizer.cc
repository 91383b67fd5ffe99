#include "millrace/tokenizer/sentencepiece/spm_normalizer.h"

#include "millrace/tokenizer/unicode/utf8.h"

namespace millrace::tokenizer {
namespace {

constexpr std::string_view kReplacementText = "\xEF\xBF\xBD";

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
  if (!model.character_map.empty()) made.map_ = MR_TRY(CharacterMap::Parse(model.character_map));
  return made;
}

SpmNormalizer::Step SpmNormalizer::Next(std::string_view text) const {
  if (!user_defined_.empty()) {
    std::size_t length = user_defined_.Longest(text).length;
    if (length > 0) return {text.substr(0, length), length};
  }
  if (!map_.empty()) {
    std::string_view replacement;
    std::size_t length = map_.Longest(text, replacement);
    if (length > 0) return {replacement, length};
  }
  DecodedCharacter character = DecodeUtf8(text.data(), text.data() + text.size());
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
