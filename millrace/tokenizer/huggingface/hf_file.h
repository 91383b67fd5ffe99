// What all kinds of tokenizer.json have, and how their parts are looked up.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/tokenizer/vocabulary/added_tokens.h"
#include "millrace/tokenizer/vocabulary/vocabulary_tokenizer.h"

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

/// "BPE", "WordPiece", "WordLevel" or "Unigram", if the file is one that is known.
std::string ModelType(const Json& file);

bool IsOneCharacter(std::string_view text);

struct File {
  Json json;
  std::vector<std::string> tokens;  ///< as they are written in the model's vocabulary, by id; empty for gaps
  std::vector<double> scores;       ///< of `tokens`, in a Unigram model
  std::vector<AddedToken> added;
  NamedTokens named;

  TokenId IdOf(std::string_view token) const;  ///< of an added one
};

/// Fails with kUnsupported on an added token that is looked for in normalized text.
Status CheckFoundEarly(const AddedToken& added);

/// The library numbers added tokens itself: by the model's vocabulary, else behind it. Fails with kUnsupported where
/// the file has other ids, or a token twice.
Status CheckAddedIds(const File& file);

/// The two sides of each merge: "a b" or ["a", "b"]. Fails with kInvalidArgument on anything else.
Result<std::vector<std::pair<std::string, std::string>>> ReadMerges(const Json& merges);

/// The error of a merge of which a side, or what it makes, is no token that texts may become: kUnsupported if it is a
/// special one, which a document could forge, else kInvalidArgument.
std::unexpected<Error> FailMerge(const File& file, std::string_view left, std::string_view right);

}  // namespace millrace::tokenizer::hf
