// WordPiece: cuts each of BERT's words into the longest tokens, from the left.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/tokenizer/vocabulary/vocabulary_tokenizer.h"
#include "millrace/tokenizer/wordpiece/bert.h"

namespace millrace::tokenizer {

struct WordPieceSpec {
  std::vector<std::string> tokens;    ///< by id; empty for ids that are not used
  std::vector<AddedToken> added;      ///< also in `tokens`; no part of a word becomes a special token
  std::vector<TokenId> not_in_words;  ///< the ids of `added` that the model itself does not know
  std::string continuing_prefix = "##";
  std::size_t max_word_characters = 100;  ///< longer words are unknown
  BertOptions normalizer;
  bool cleanup = true;  ///< decoding removes spaces in front of punctuation
  NamedTokens named;
};

/// Errors: kInvalidArgument if the vocabulary has no unknown token, or a token twice.
Result<std::shared_ptr<const Tokenizer>> MakeWordPiece(WordPieceSpec spec, std::string fingerprint);

/// Returns whether the first 64 KiB of the text have a line "[UNK]".
bool LooksLikeBertVocabulary(std::string_view text);

/// Loads BERT's vocab.txt, which has one token a line. The file does not say whether text becomes lower case and loses
/// its accents. It does, unless some token has a capital letter. Errors: those of MakeWordPiece().
Result<std::shared_ptr<const Tokenizer>> LoadBertVocabulary(std::string_view text, std::string fingerprint);

}  // namespace millrace::tokenizer
