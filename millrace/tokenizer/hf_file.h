// What all kinds of tokenizer.json have, and how their parts are looked up.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/tokenizer/added_tokens.h"
#include "millrace/tokenizer/vocabulary_tokenizer.h"

namespace millrace::tokenizer::hf {

// Not base/json.h's type, which keeps the order of keys and therefore takes quadratic time for a vocabulary.
using Json = nlohmann::json;

inline constexpr std::size_t kMaxVocabulary = 1u << 22;

/// Null, an empty string or `otherwise` where there is none, or it is of another type.
const Json& Get(const Json& object, const char* key);
std::string Text(const Json& object, const char* key);
bool Flag(const Json& object, const char* key, bool otherwise = false);

/// "its normalizer (NFC) is not supported".
std::unexpected<Error> Unsupported(std::string_view part, const Json& what);

/// The elements of {"type": "Sequence", "normalizers": […]}, or the one thing itself; nothing for null.
std::vector<Json> Steps(const Json& value, const char* plural);

struct File {
  Json json;
  std::vector<std::string> tokens;  ///< as they are written in the vocabulary, by id
  std::vector<AddedToken> added;
  NamedTokens named;

  TokenId IdOf(std::string_view token) const;  ///< of an added one
};

/// Fails with kUnsupported on an added token that is looked for in normalized text.
Status CheckFoundEarly(const AddedToken& added);

/// Of a model of the type Unigram; `file` has all but its vocabulary.
Result<std::shared_ptr<const Tokenizer>> MakeUnigram(File file, std::string fingerprint);

}  // namespace millrace::tokenizer::hf
