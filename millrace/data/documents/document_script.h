// A document as a layout writes it: texts and special tokens one after the other, each trained or not.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/data/documents/document_encoder.h"

namespace millrace::data {

/// The text between two special tokens is encoded as one text. Where a trained stretch begins or ends inside the text,
/// at byte b, the boundary among the tokens is the number of tokens of the first b bytes encoded alone. Keeps its
/// buffers between calls. One thread.
class DocumentScript {
 public:
  explicit DocumentScript(const tokenizer::Tokenizer* tokenizer) : tokenizer_(tokenizer) {}

  void Clear();
  void Text(std::string_view text, bool trained = false);
  /// Appends the special token that is spelled `piece`, or the text if the vocabulary has no such token.
  void Special(std::string_view piece, bool trained = false);
  void Bos();
  void Eos(bool trained);

  /// Returns true if the document exceeds kMaxDocumentBytes. Further additions are ignored.
  bool is_full() const;
  /// Returns how many trained texts were added. The same with every tokenizer.
  std::uint64_t answers() const { return answers_; }
  /// Replaces `document`. Beyond its first `wanted` tokens it may be cut anywhere.
  Status Encode(std::size_t wanted, EncodedDocument& document);

 private:
  /// A stretch of text that ends with a special token.
  struct Run {
    std::size_t begin = 0, end = 0;  ///< in text_; may be empty
    TokenId token = tokenizer::kNoToken;
    bool token_trained = false;
    std::size_t first_mark = 0, marks = 0;
  };
  void Token(TokenId id, bool trained);
  Run& Open();
  /// Returns the number of tokens of text_[begin, end), at most `wanted`.
  Result<std::size_t> Count(std::size_t begin, std::size_t end, std::size_t wanted);
  static void Train(EncodedDocument& document, std::size_t begin, std::size_t end);

  TokenId IdOf(std::string_view piece);

  const tokenizer::Tokenizer* tokenizer_;
  std::map<std::string, TokenId, std::less<>> specials_;  ///< ids that were looked up so far
  std::string text_;
  std::vector<Run> runs_;
  std::vector<std::pair<std::size_t, std::size_t>> marks_;  ///< trained stretches of text_, ascending
  std::vector<TokenId> scratch_;
  std::uint64_t answers_ = 0;
};

}  // namespace millrace::data
