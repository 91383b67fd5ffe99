// Encodes the bytes of one record as the tokens of one document, and marks those that the loss trains. The code that
// counts tokens and the code that fills rows both use this encoder, so that they agree.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/data/batch/token.h"
#include "millrace/data/documents/turn_markers.h"
#include "millrace/data/options/dataset_options.h"
#include "millrace/data/records/record_template.h"
#include "millrace/tokenizer/tokenizer.h"

namespace millrace::data {

class ModelTemplate;
class StageTrace;

struct TokenRange {
  std::uint32_t begin = 0, end = 0;
  bool operator==(const TokenRange&) const = default;
};

struct EncodedDocument {
  /// BOS and EOS included. In classification both texts without special tokens; a pair of answers has two documents.
  std::vector<TokenId> ids;
  std::vector<TokenRange> trained;  ///< ascending and disjoint: the tokens that the loss trains
  std::uint32_t first_text = 0;     ///< classification and pairs of answers: tokens of the first text
  std::int32_t label = 0;           ///< classification: the class
  void Clear() {
    ids.clear();
    trained.clear();
    first_text = 0;
    label = 0;
  }
};

/// The form in which a record becomes a document: by a template, in mode sft by a layout of prompts and answers, for
/// the objective dpo by such a layout twice, or in classification by the fields of texts and class. data/README.md has
/// the layouts and their masks. Immutable; any thread may read it.
class DocumentForm {
 public:
  /// Layout auto needs `tokenizer`, which must outlive the form: its templates write the conversations. Other layouts
  /// ignore it. Errors: kInvalidArgument if a template does not parse or the layout is unknown; names the known ones;
  /// those of ModelTemplate::Make.
  static Result<DocumentForm> Make(const DatasetOptions& options, const tokenizer::Tokenizer* tokenizer = nullptr);
  /// With `keeps_empty`, a record whose fields are all empty is a document without text.
  static DocumentForm OfTemplate(RecordTemplate record_template, bool keeps_empty = false);
  static DocumentForm OfLabels(const ClassificationOptions& options);
  static Result<DocumentForm> OfPreferences(const DatasetOptions& options, const tokenizer::Tokenizer* tokenizer);

  /// Forms with equal identities make the same documents.
  const std::string& identity() const { return identity_; }
  /// Returns the fields of a record that the form reads.
  const std::vector<std::string>& fields() const { return fields_; }
  /// Returns these and the fields that make a record unusable if they are there.
  std::vector<std::string> all_fields() const;
  /// Returns how many of BOS and EOS every document has around its text. An index does not count these.
  std::uint32_t added_tokens(const tokenizer::Tokenizer& tokenizer) const;
  /// Returns whether the tokenizer's eos() ends a document or an answer. Some layouts of chats have a mark of their
  /// own.
  bool ends_with_eos() const;
  /// Returns the special tokens that a layout of chats writes. A vocabulary without them spells each as text.
  std::span<const std::string_view> special_tokens() const;
  /// Returns whether a model's own chat template writes the documents.
  bool has_model_template() const { return model_template_ != nullptr; }

 private:
  friend class DocumentEncoder;
  enum class Layout { kText, kResponse, kAlpaca, kTurns, kLlama2, kLlama3, kChatml, kZephyr, kGemma, kAuto, kLabelled };
  static std::optional<Layout> ParseLayout(std::string_view name);
  /// Parses templates, and adds them to the identity and their fields to those that are read.
  Status AddTemplates(std::initializer_list<std::string_view> texts);
  Status SetMarkers(const DatasetOptions& options);
  /// For kAuto. Errors: those of ModelTemplate::Make.
  Status SetModelTemplate(const tokenizer::Tokenizer* tokenizer);

  Layout layout_ = Layout::kText;
  bool keeps_empty_ = false;
  bool pairs_ = false;  ///< a document has two answers to one prompt, for the objective dpo
  /// Pairs that share rows: the most tokens of each answer with its prompt, because an index counts them as they are
  /// cut. Else in mode sft: the most tokens of a document in a row, which must have a label.
  std::size_t most_tokens_ = static_cast<std::size_t>(-1);
  /// kText and kTurns: the text; kResponse: prompt, answer and, of a pair, the other answer; kAlpaca: input, prompt
  /// with it, prompt without, answer.
  std::vector<RecordTemplate> templates_;
  TurnMarkers markers_;                                  ///< kTurns
  ClassificationOptions classification_;                 ///< kLabelled
  std::shared_ptr<const ModelTemplate> model_template_;  ///< kAuto
  std::string identity_;
  std::vector<std::string> fields_;
};

/// Encodes records of one form. Keeps its buffers between calls. One thread at a time. The form and the tokenizer must
/// outlive it.
class DocumentEncoder {
 public:
  /// Without a tokenizer the encoder only finds broken records.
  DocumentEncoder(const DocumentForm& form, const tokenizer::Tokenizer* tokenizer);
  DocumentEncoder(DocumentEncoder&&) noexcept;
  ~DocumentEncoder();

  /// Replaces `document` by the document of `record`, which has no newline at its end. Returns the reason if the record
  /// is broken, which depends on its bytes and the form, and for kNoLabel on the tokenizer. Beyond its first `wanted`
  /// tokens the document may be cut anywhere; of a pair of answers, each of the two documents. Errors: those of the
  /// tokenizer.
  Result<std::optional<BrokenReason>> Encode(std::string_view record, std::size_t wanted, EncodedDocument& document,
                                             StageTrace* trace = nullptr);
  Result<std::optional<BrokenReason>> Encode(std::string_view record, EncodedDocument& document) {
    return Encode(record, static_cast<std::size_t>(-1), document);
  }

  /// Returns what identifies the last usable record: the document's text, or the record itself in mode sft, where
  /// the text around it depends on the tokenizer, and in classification. Valid until the next call, and as long as the
  /// record.
  std::string_view content() const;
  /// Returns the names of members of messages that were not read so far, as ConversationParser::ignored_members.
  std::set<std::string, std::less<>> ignored_members() const;
  /// Returns what the model's own template said of the last record that it refused. Empty if it refused none.
  std::string template_refusal() const;

 private:
  struct Rep;
  std::unique_ptr<Rep> rep_;
};

}  // namespace millrace::data
