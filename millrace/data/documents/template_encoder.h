// Writes conversations with a model's own chat template, and finds the tokens of their answers.
#pragma once

#include <expected>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/data/documents/document_encoder.h"
#include "millrace/data/documents/model_template.h"
#include "millrace/data/documents/template_messages.h"
#include "millrace/data/documents/token_extents.h"
#include "millrace/data/records/broken_reason.h"

namespace millrace::data {

/// Encodes the conversations of records. The ids are those of transformers' apply_chat_template(tokenize=True), but
/// what a record spells like a special token stays text. Trained are the tokens of the {% generation %} blocks of
/// answers or, in a template without such blocks, of what each answer adds (data/README.md). Keeps its buffers. One
/// thread. The template must outlive it.
class TemplateEncoder {
 public:
  explicit TemplateEncoder(const ModelTemplate& form)
      : form_(form), parser_(form), extents_of_(form.tokenizer(), form.specials()) {}

  /// Replaces `document` by the document of a record. Returns why the record is broken. Errors: those of the tokenizer.
  Result<std::optional<BrokenReason>> Encode(std::string_view record, EncodedDocument& document);
  /// Replaces the documents by those of a pair of answers.
  Result<std::optional<BrokenReason>> EncodePair(std::string_view record, EncodedDocument& chosen,
                                                 EncodedDocument& rejected);

  /// Returns what the template said of the last record that it refused (kTemplateError). Empty: it refused none.
  const std::string& refusal() const { return refusal_; }
  const std::set<std::string, std::less<>>& ignored_members() const { return parser_.ignored_members(); }

 private:
  using Spans = std::vector<jinja::TextSpan>;

  Result<std::optional<BrokenReason>> Encode(const TemplateConversation& conversation, EncodedDocument& document);
  /// Returns the text of the first `count` messages.
  std::expected<jinja::MarkedText, BrokenReason> Render(const TemplateConversation& conversation, std::size_t count,
                                                        bool begins_answer);
  /// Returns where the trained answers are in `whole`, the text of the conversation.
  std::expected<Spans, BrokenReason> MarkedAnswers(const TemplateConversation& conversation,
                                                   const jinja::MarkedText& whole) const;
  std::expected<Spans, BrokenReason> FindAnswers(const TemplateConversation& conversation, std::string_view whole);
  std::expected<std::size_t, BrokenReason> FindBegin(const TemplateConversation& conversation, std::size_t at,
                                                     std::string_view whole);
  std::expected<std::size_t, BrokenReason> FindEnd(const TemplateConversation& conversation, std::size_t at,
                                                   std::string_view whole, std::size_t begin);
  /// Returns the bytes of `answer` up to the token that ends the turn, or all if no such token ends it.
  std::size_t TurnBytes(std::string_view answer) const;
  Status Tokenize(std::string_view text, EncodedDocument& document);
  /// Marks the tokens of `spans` as trained. Returns why their tokens are not known.
  std::optional<BrokenReason> Train(const Spans& spans, EncodedDocument& document) const;

  const ModelTemplate& form_;
  TemplateMessageParser parser_;
  TokenExtentFinder extents_of_;
  std::vector<TokenExtent> extents_;  ///< of the last document
  std::string refusal_;
  std::uint64_t rendered_ = 0;  ///< bytes of the texts of the current record
};

}  // namespace millrace::data
