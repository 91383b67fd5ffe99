// A document as a layout writes it: text and special tokens one after the other, each to be learnt or not.
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

/// Text between two special tokens is encoded as one. Where what is learnt begins or ends inside of it, at byte b, the
/// boundary among its tokens is the number of tokens of its first b bytes encoded by themselves. Keeps its buffers. One
/// thread.
class DocumentScript {
 public:
  explicit DocumentScript(const tokenizer::Tokenizer* tokenizer) : tokenizer_(tokenizer) {}

  void Clear();
  void Text(std::string_view text, bool trained = false);
  /// The special token spelled so; as text if the vocabulary has none.
  void Special(std::string_view piece, bool trained = false);
  void Bos();
  void Eos(bool trained);

  /// The document takes more memory than it may (kMaxDocumentBytes); what is added then is left out.
  bool is_full() const;
  /// How often Text was told to be learnt; the same with every tokenizer.
  std::uint64_t answers() const { return answers_; }
  /// Replaces `document`. Beyond `wanted` tokens it may be cut anywhere.
  Status Encode(std::size_t wanted, EncodedDocument& document);

 private:
  /// Ends the text before it, if any, with a token.
  struct Run {
    std::size_t begin = 0, end = 0;  ///< of text_
    TokenId token = tokenizer::kNoToken;
    bool token_trained = false;
    std::size_t first_mark = 0, marks = 0;
  };
  void Token(TokenId id, bool trained);
  Run& Open();
  /// Tokens of text_[begin, end), at most `wanted`.
  Result<std::size_t> Count(std::size_t begin, std::size_t end, std::size_t wanted);
  static void Train(EncodedDocument& document, std::size_t begin, std::size_t end);

  TokenId IdOf(std::string_view piece);

  const tokenizer::Tokenizer* tokenizer_;
  std::map<std::string, TokenId, std::less<>> specials_;  ///< looked up so far
  std::string text_;
  std::vector<Run> runs_;
  std::vector<std::pair<std::size_t, std::size_t>> marks_;  ///< learnt stretches of text_, ascending
  std::vector<TokenId> scratch_;
  std::uint64_t answers_ = 0;
};

}  // namespace millrace::data
