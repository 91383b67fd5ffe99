#include "millrace/tokenizer/formats/tekken.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "millrace/base/hash/text_encoding.h"
#include "millrace/tokenizer/byte_level/byte_bpe.h"
#include "millrace/tokenizer/huggingface/hf_file.h"
#include "millrace/tokenizer/splitting/named_patterns.h"

namespace millrace::tokenizer {
namespace {

using hf::Member;
using hf::StringMember;

/// The special tokens of files up to version 7, which do not list them. The other ids are "<SPECIAL_20>" and so on.
constexpr std::string_view kFirstSpecials[] = {"<unk>",
                                               "<s>",
                                               "</s>",
                                               "[INST]",
                                               "[/INST]",
                                               "[AVAILABLE_TOOLS]",
                                               "[/AVAILABLE_TOOLS]",
                                               "[TOOL_RESULTS]",
                                               "[/TOOL_RESULTS]",
                                               "[TOOL_CALLS]",
                                               "[IMG]",
                                               "<pad>",
                                               "[IMG_BREAK]",
                                               "[IMG_END]",
                                               "[PREFIX]",
                                               "[MIDDLE]",
                                               "[SUFFIX]",
                                               "[SYSTEM_PROMPT]",
                                               "[/SYSTEM_PROMPT]",
                                               "[TOOL_CONTENT]"};
constexpr std::string_view kVersionsWithoutList[] = {"v1", "v2", "v3", "v7"};

Result<std::size_t> ReadSize(const hf::Json& config, const char* key) {
  const hf::Json& size = Member(config, key);
  if (!size.is_number_unsigned() || size.get<std::uint64_t>() > hf::kMaxVocabulary) {
    return Fail(Code::kInvalidArgument, "the tokenizer's {} is no number up to {}", key, hf::kMaxVocabulary);
  }
  return size.get<std::size_t>();
}

/// Returns the special tokens, which have the ids from 0 to `count` - 1.
Result<std::vector<AddedToken>> ReadSpecials(const hf::Json& json, std::size_t count) {
  std::vector<std::string> names(kFirstSpecials, std::end(kFirstSpecials));
  const hf::Json& listed = Member(json, "special_tokens");
  if (listed.is_array()) {
    names.clear();
    for (const hf::Json& token : listed) {
      if (Member(token, "rank") != names.size() || StringMember(token, "token_str").empty()) {
        return Fail(Code::kInvalidArgument,
                    "the tokenizer's special token {} has no text, or another rank; special_tokens must be in order of "
                    "rank, each with a token_str",
                    names.size());
      }
      names.push_back(StringMember(token, "token_str"));
    }
  } else if (const std::string version = StringMember(Member(json, "config"), "version");
             std::ranges::find(kVersionsWithoutList, version) == std::end(kVersionsWithoutList)) {
    return Fail(Code::kUnsupported, "the tokenizer lists no special tokens, which the version \"{}\" has to", version);
  }
  if (names.size() > count) {
    return Fail(Code::kInvalidArgument,
                "the tokenizer has more special tokens than {}; raise default_num_special_tokens of its config", count);
  }
  while (names.size() < count) names.push_back(fmt::format("<SPECIAL_{}>", names.size()));
  std::vector<AddedToken> specials;
  std::set<std::string_view> seen;
  for (const std::string& name : names) {
    if (!seen.insert(name).second) {
      return Fail(Code::kInvalidArgument,
                  "the tokenizer has the special token {} twice; each token_str of special_tokens must differ", name);
    }
    specials.push_back({.text = name, .id = static_cast<TokenId>(specials.size())});
  }
  return specials;
}

TokenId IdOf(const std::vector<AddedToken>& specials, std::string_view name) {
  const auto found = std::ranges::find(specials, name, &AddedToken::text);
  return found == specials.end() ? kNoToken : found->id;
}

}  // namespace

bool IsTekken(const hf::Json& json) {
  return Member(Member(json, "config"), "pattern").is_string() && Member(json, "vocab").is_array();
}

Result<std::shared_ptr<const Tokenizer>> LoadTekken(const hf::Json& json, std::string fingerprint) {
  const hf::Json &config = Member(json, "config"), &vocabulary = Member(json, "vocab");
  ByteBpeSpec spec;
  const std::string regex = StringMember(config, "pattern");
  const auto pattern = PatternOf({&regex, 1});
  if (!pattern) return hf::Unsupported("pattern", hf::Json(regex));
  spec.pattern = *pattern;
  const std::size_t size = MR_TRY(ReadSize(config, "default_vocab_size"));
  const std::size_t specials = MR_TRY(ReadSize(config, "default_num_special_tokens"));
  if (specials > size || size - specials > vocabulary.size()) {
    return Fail(Code::kInvalidArgument,
                "the tokenizer's vocabulary of {} and {} special tokens do not make {}; change default_vocab_size of "
                "its config",
                vocabulary.size(), specials, size);
  }
  spec.added = MR_TRY(ReadSpecials(json, specials));
  spec.named = {.bos = IdOf(spec.added, "<s>"),
                .eos = IdOf(spec.added, "</s>"),
                .unk = IdOf(spec.added, "<unk>"),
                .pad = IdOf(spec.added, "<pad>")};
  spec.tokens.resize(specials);
  for (std::size_t rank = 0; specials + rank < size; ++rank) {
    const hf::Json& token = vocabulary[rank];
    auto bytes = Base64Decode(StringMember(token, "token_bytes"));
    if (Member(token, "rank") != rank || !bytes || bytes->empty()) {
      return Fail(Code::kInvalidArgument,
                  "the token {} of its vocabulary has no bytes, or another rank; vocab must be in order of rank, each "
                  "with token_bytes in base64",
                  rank);
    }
    spec.tokens.emplace_back(AsText(*bytes));
  }
  return MakeByteBpe(std::move(spec), std::move(fingerprint));
}

}  // namespace millrace::tokenizer
