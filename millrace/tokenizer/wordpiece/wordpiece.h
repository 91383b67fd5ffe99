// WordPiece: BERT's words, cut into the longest pieces from the left.
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
  std::vector<AddedToken> added;      ///< of `tokens`; no part of a word becomes a special one
  std::vector<TokenId> not_in_words;  ///< of `added`: those that the model does not know
  std::string continuing_prefix = "##";
  std::size_t max_word_characters = 100;  ///< longer words are unknown
  BertOptions normalizer;
  bool cleanup = true;  ///< decoding takes spaces from in front of punctuation
  NamedTokens named;
};

/// Fails with kInvalidArgument on a vocabulary without an unknown token or with a token twice.
Result<std::shared_ptr<const Tokenizer>> MakeWordPiece(WordPieceSpec spec, std::string fingerprint);

/// Whether the text has a line "[UNK]" among its first thousands.
bool LooksLikeBertVocabulary(std::string_view text);

/// Loads BERT's vocab.txt: a token a line. Text is put in lower case, and loses its accents, unless a token has a
/// capital letter (the file does not say).
Result<std::shared_ptr<const Tokenizer>> LoadBertVocabulary(std::string_view text, std::string fingerprint);

}  // namespace millrace::tokenizer
