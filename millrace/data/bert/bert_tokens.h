// The special tokens that rows of BERT need.
#pragma once

#include "millrace/base/result.h"
#include "millrace/data/batch/token.h"
#include "millrace/tokenizer/tokenizer.h"

namespace millrace::data {

struct BertTokens {
  TokenId cls = 0;   ///< in front of a row
  TokenId sep = 0;   ///< behind each text
  TokenId mask = 0;  ///< kNoToken if the vocabulary has none
  TokenId pad = 0;

  /// Finds them by their names: [CLS], [SEP], [MASK] and [PAD], or <s>, </s>, <mask> and <pad>. A vocabulary without a
  /// token for padding pads with `sep`.
  /// Errors: kInvalidArgument if the vocabulary lacks the tokens at the ends of texts.
  static Result<BertTokens> Find(const tokenizer::Tokenizer& tokenizer);
};

}  // namespace millrace::data
