// A tokenizer.json in memory, and how its members are read.
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

inline constexpr std::size_t kMaxVocabulary = 1u << 22;  // 16 times the largest published vocabularies

/// Return a member of `object`. If there is none of this type: null, an empty string, or `otherwise`.
const Json& Member(const Json& object, const char* key);
std::string StringMember(const Json& object, const char* key);
bool BoolMember(const Json& object, const char* key, bool otherwise = false);

/// Makes an error of code kUnsupported: "its normalizer (NFC) is not supported".
std::unexpected<Error> Unsupported(std::string_view part, const Json& what);

/// Returns the elements of {"type": "Sequence", "normalizers": […]}, or else `value` alone. Nothing for null.
std::vector<Json> Steps(const Json& value, const char* plural);

/// Returns the type of the file's model: "BPE", "WordPiece", "WordLevel", "Unigram", or what the file names.
std::string ModelType(const Json& file);

bool IsOneCharacter(std::string_view text);

/// A tokenizer.json, and the vocabulary that was read from it.
struct TokenizerFile {
  Json json;
  std::vector<std::string> tokens;  ///< by id, as the model's vocabulary writes them; empty for unused ids
  std::vector<double> scores;       ///< the scores of `tokens`, in a Unigram model
  std::vector<AddedToken> added;
  NamedTokens named;

  TokenId IdOf(std::string_view token) const;  ///< of an added token; kNoToken if there is none
};

/// Errors: kUnsupported if the added token is searched in normalized text.
Status CheckFoundEarly(const AddedToken& added);

/// Checks the ids of the added tokens. The library numbers added tokens itself: it takes the id of the model's
/// vocabulary, or else the next id behind the vocabulary. Errors: kUnsupported for other ids, or a token twice.
Status CheckAddedIds(const TokenizerFile& file);

/// Returns the two sides of each merge, which is "a b" or ["a", "b"]. Errors: kInvalidArgument for anything else.
Result<std::vector<std::pair<std::string, std::string>>> ReadMerges(const Json& merges);

/// Makes the error for a merge that has a side, or a result, that is no token of the model. Its code is kUnsupported if
/// this is a special token, which a document could forge, and else kInvalidArgument.
std::unexpected<Error> FailMerge(const TokenizerFile& file, std::string_view left, std::string_view right);

}  // namespace millrace::tokenizer::hf
