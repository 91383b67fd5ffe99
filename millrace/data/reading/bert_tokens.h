// The special tokens that rows of BERT need.
#pragma once

#include "millrace/base/result.h"
#include "millrace/data/batch/token.h"
#include "millrace/tokenizer/tokenizer.h"

namespace millrace::data {

struct BertTokens {
  TokenId cls = 0;   ///< in front of a row; kNoToken: nothing is
  TokenId sep = 0;   ///< behind each text; kNoToken: nothing is
  TokenId mask = 0;  ///< kNoToken if the vocabulary has none
  TokenId pad = 0;

  /// Finds them by their names: [CLS], [SEP], [MASK] and [PAD], or <s>, </s>, <mask> and <pad>. A vocabulary without a
  /// token for padding pads with `sep`.
  /// Errors: kInvalidArgument if the vocabulary lacks the tokens at the ends of texts.
  static Result<BertTokens> Find(const tokenizer::Tokenizer& tokenizer);
  /// As Find() where the vocabulary has the tokens at the ends of texts. Else rows are texts without special tokens, as
  /// GPT-2 reads them, and the padding is the vocabulary's own or EOS.
  /// Errors: kInvalidArgument if the vocabulary has neither of these.
  static Result<BertTokens> FindForClasses(const tokenizer::Tokenizer& tokenizer);
  /// Returns how many special tokens a row of `texts` texts has.
  int added(int texts) const { return cls == tokenizer::kNoToken ? 0 : 1 + texts; }
};

}  // namespace millrace::data
