#include "millrace/tokenizer/huggingface/hf_pipeline.h"

#include <array>
#include <optional>
#include <utility>

#include "millrace/base/hash/text_encoding.h"
#include "millrace/tokenizer/splitting/named_patterns.h"

namespace millrace::tokenizer::hf {
namespace {

using Normalizing = std::vector<HfNormalizer::Step>;
using Dividing = std::vector<HfPreTokenizer::Step>;
using Behavior = HfPreTokenizer::Behavior;
using CharacterKind = HfPreTokenizer::CharacterKind;

constexpr int kMaxNesting = 16;  // of sequences; a guess, which bounds the stack

Status AddReplace(const Json& json, Normalizing& steps) {
  const Json& pattern = Member(json, "pattern");
  const std::string text = StringMember(pattern, "String"), regex = StringMember(pattern, "Regex"),
                    to = StringMember(json, "content");
  if (!text.empty()) {
    steps.emplace_back(HfNormalizer::Replace{text, to});
  } else if (!regex.empty()) {
    steps.emplace_back(HfNormalizer::ReplaceMatches{MR_TRY(Regex::Compile(regex)), to});
  } else {
    return Unsupported("normalizer", json);
  }
  return {};
}

void AddBert(const Json& json, Normalizing& steps) {
  const bool lowercase = BoolMember(json, "lowercase", true);
  if (BoolMember(json, "clean_text", true)) steps.emplace_back(HfNormalizer::BertClean{});
  if (BoolMember(json, "handle_chinese_chars", true)) steps.emplace_back(HfNormalizer::BertChinese{});
  if (BoolMember(json, "strip_accents", lowercase)) {
    steps.emplace_back(HfNormalizer::Decompose{});
    steps.emplace_back(HfNormalizer::BertAccents{});
  }
  if (lowercase) steps.emplace_back(HfNormalizer::Lowercase{});
}

Status AddNormalizer(const Json& json, int depth, Normalizing& steps) {
  const std::string type = StringMember(json, "type");
  if (type == "Sequence" && Member(json, "normalizers").is_array() && depth < kMaxNesting) {
    for (const Json& one : Member(json, "normalizers")) MR_TRY(AddNormalizer(one, depth + 1, steps));
  } else if (type == "Precompiled") {
    auto map = Base64Decode(StringMember(json, "precompiled_charsmap"));
    if (!map) {
      return Fail(Code::kInvalidArgument,
                  "the tokenizer's precompiled_charsmap is not base64; copy it unchanged from the tokenizer.json that "
                  "was published");
    }
    if (!map->empty()) steps.emplace_back(HfNormalizer::Precompiled{MR_TRY(CharacterMap::Parse(*map))});
  } else if (type == "Replace") {
    return AddReplace(json, steps);
  } else if (type == "Prepend" && !StringMember(json, "prepend").empty()) {
    steps.emplace_back(HfNormalizer::Prepend{StringMember(json, "prepend")});
  } else if (type == "NFC") {
    steps.emplace_back(HfNormalizer::Compose{});
  } else if (type == "NFKC") {
    steps.emplace_back(HfNormalizer::ComposeCompatible{});
  } else if (type == "NFD") {
    steps.emplace_back(HfNormalizer::Decompose{});
  } else if (type == "NFKD") {
    steps.emplace_back(HfNormalizer::DecomposeCompatible{});
  } else if (type == "StripAccents") {
    steps.emplace_back(HfNormalizer::StripAccents{});
  } else if (type == "Lowercase") {
    steps.emplace_back(HfNormalizer::Lowercase{});
  } else if (type == "Strip") {
    steps.emplace_back(
        HfNormalizer::Strip{BoolMember(json, "strip_left", true), BoolMember(json, "strip_right", true)});
  } else if (type == "Nmt") {
    steps.emplace_back(HfNormalizer::Nmt{});
  } else if (type == "ByteLevel") {
    steps.emplace_back(HfNormalizer::ToByteAlphabet{});
  } else if (type == "BertNormalizer") {
    AddBert(json, steps);
  } else {
    return Unsupported("normalizer", json);
  }
  return {};
}

Result<Behavior> ReadBehavior(const Json& json, std::string_view otherwise) {
  constexpr std::array<std::pair<std::string_view, Behavior>, 5> kBehaviors = {
      {{"Removed", Behavior::kRemoved},
       {"Isolated", Behavior::kIsolated},
       {"MergedWithPrevious", Behavior::kMergedWithPrevious},
       {"MergedWithNext", Behavior::kMergedWithNext},
       {"Contiguous", Behavior::kContiguous}}};
  std::string name = StringMember(json, "behavior");
  if (name.empty()) name = otherwise;
  for (auto [known, behavior] : kBehaviors) {
    if (known == name) return behavior;
  }
  return Unsupported("behavior", Json(name));
}

Status AddMetaspace(const Json& json, Dividing& steps) {
  using Prefix = HfPreTokenizer::Prefix;
  HfPreTokenizer::Metaspace step{.replacement = StringMember(json, "replacement"),
                                 .split = BoolMember(json, "split", true)};
  const std::string scheme = StringMember(json, "prepend_scheme");
  if (scheme == "never" || (scheme.empty() && !BoolMember(json, "add_prefix_space", true))) {
    step.prefix = Prefix::kNever;
  } else if (scheme == "first") {
    step.prefix = Prefix::kFirst;
  } else if (!scheme.empty() && scheme != "always") {
    return Unsupported("prepend_scheme", Json(scheme));
  }
  if (!IsOneCharacter(step.replacement)) return Unsupported("replacement", Member(json, "replacement"));
  steps.emplace_back(std::move(step));
  return {};
}

Status AddSplit(const Json& json, Dividing& steps) {
  const Json& pattern = Member(json, "pattern");
  const std::string text = StringMember(pattern, "String"), regex = StringMember(pattern, "Regex");
  const Behavior behavior = MR_TRY(ReadBehavior(json, ""));
  const bool invert = BoolMember(json, "invert");
  if (!text.empty()) {
    steps.emplace_back(HfPreTokenizer::AtText{text, behavior, invert});
  } else if (const auto known = PatternOf(std::array{regex}); known && !regex.empty()) {
    steps.emplace_back(HfPreTokenizer::AtPattern{Splitter(*known), behavior, invert});
  } else if (!regex.empty()) {
    steps.emplace_back(HfPreTokenizer::AtRegex{MR_TRY(Regex::Compile(regex)), behavior, invert});
  } else {
    return Unsupported("pre_tokenizer", json);
  }
  return {};
}

Status AddPreTokenizer(const Json& json, int depth, Dividing& steps) {
  const std::string type = StringMember(json, "type");
  if (type == "Sequence" && Member(json, "pretokenizers").is_array() && depth < kMaxNesting) {
    for (const Json& one : Member(json, "pretokenizers")) MR_TRY(AddPreTokenizer(one, depth + 1, steps));
  } else if (type == "BertPreTokenizer") {
    steps.emplace_back(HfPreTokenizer::AtCharacters{CharacterKind::kWhiteSpace, Behavior::kRemoved});
    steps.emplace_back(HfPreTokenizer::AtCharacters{CharacterKind::kPunctuation, Behavior::kIsolated});
  } else if (type == "ByteLevel") {
    steps.emplace_back(
        HfPreTokenizer::ByteLevel{BoolMember(json, "add_prefix_space", true), BoolMember(json, "use_regex", true)});
  } else if (type == "CharDelimiterSplit" && IsOneCharacter(StringMember(json, "delimiter"))) {
    steps.emplace_back(HfPreTokenizer::AtText{StringMember(json, "delimiter"), Behavior::kRemoved, false});
  } else if (type == "Metaspace") {
    return AddMetaspace(json, steps);
  } else if (type == "Whitespace") {
    steps.emplace_back(HfPreTokenizer::WordRuns{});
  } else if (type == "WhitespaceSplit") {
    steps.emplace_back(HfPreTokenizer::AtCharacters{CharacterKind::kWhiteSpace, Behavior::kRemoved});
  } else if (type == "Split") {
    return AddSplit(json, steps);
  } else if (type == "Punctuation") {
    const Behavior behavior = MR_TRY(ReadBehavior(json, "Isolated"));
    steps.emplace_back(HfPreTokenizer::AtCharacters{CharacterKind::kPunctuation, behavior});
  } else if (type == "Digits") {
    const Behavior behavior = BoolMember(json, "individual_digits") ? Behavior::kIsolated : Behavior::kContiguous;
    steps.emplace_back(HfPreTokenizer::AtCharacters{CharacterKind::kNumber, behavior});
  } else if (type == "FixedLength") {
    const Json& length = Member(json, "length");
    const std::size_t characters = length.is_number_unsigned() ? length.get<std::size_t>() : 5;
    if (characters == 0) return Unsupported("pre_tokenizer", json);
    steps.emplace_back(HfPreTokenizer::FixedLength{characters});
  } else {
    return Unsupported("pre_tokenizer", json);
  }
  return {};
}

}  // namespace

Result<Normalizing> ReadNormalizer(const Json& normalizer) {
  Normalizing steps;
  if (!normalizer.is_null()) MR_TRY(AddNormalizer(normalizer, 0, steps));
  return steps;
}

Result<Dividing> ReadPreTokenizer(const Json& pre_tokenizer) {
  Dividing steps;
  if (!pre_tokenizer.is_null()) MR_TRY(AddPreTokenizer(pre_tokenizer, 0, steps));
  return steps;
}

}  // namespace millrace::tokenizer::hf
