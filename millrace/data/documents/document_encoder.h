// From the bytes of one record to the tokens of one document, and which of them are to be learnt. Whoever counts tokens
// and whoever makes rows of them uses this, so that both agree.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/data/loader.h"
#include "millrace/data/records/record_template.h"
#include "millrace/tokenizer/tokenizer.h"

namespace millrace::data {

struct TokenRange {
  std::uint32_t begin = 0, end = 0;
  bool operator==(const TokenRange&) const = default;
};

struct EncodedDocument {
  std::vector<TokenId> ids;         ///< BOS and EOS included
  std::vector<TokenRange> trained;  ///< ascending and disjoint: what the loss looks at
  void Clear() {
    ids.clear();
    trained.clear();
  }
};

/// What makes a document of a record: a template, or in mode sft a layout of prompts and answers. README.md has the
/// layouts and their masks. Immutable; any thread may read it.
class DocumentForm {
 public:
  /// Fails with kInvalidArgument on a template that is none and on a layout that is not known, naming those that are.
  static Result<DocumentForm> Make(const DatasetOptions& options);
  static DocumentForm OfTemplate(RecordTemplate record_template);

  /// Two forms with equal identities make the same documents.
  const std::string& identity() const { return identity_; }
  /// The fields of a record that it looks at.
  const std::vector<std::string>& fields() const { return fields_; }
  /// BOS and EOS, where every document has them around its text: an index does not count them.
  std::uint32_t added_tokens(const tokenizer::Tokenizer& tokenizer) const;

 private:
  friend class DocumentEncoder;
  enum class Layout { kText, kResponse, kAlpaca, kGuanaco, kLlama2, kLlama3, kChatml, kZephyr, kGemma };
  Layout layout_ = Layout::kText;
  /// kText and kGuanaco: the text; kResponse: prompt, answer; kAlpaca: input, prompt with it, prompt without, answer.
  std::vector<RecordTemplate> templates_;
  std::string identity_;
  std::vector<std::string> fields_;
};

/// Encodes records of one form; keeps its buffers between calls. One thread at a time; form and tokenizer must outlive
/// it.
class DocumentEncoder {
 public:
  /// Without a tokenizer it only judges records.
  DocumentEncoder(const DocumentForm& form, const tokenizer::Tokenizer* tokenizer);
  DocumentEncoder(DocumentEncoder&&) noexcept;
  ~DocumentEncoder();

  /// Replaces `document` by that of `record` (without its newline), or says why there is none; the verdict depends on
  /// the record's bytes and the form alone. Beyond its first `wanted` tokens a document may be cut anywhere. Fails as
  /// the tokenizer does.
  Result<std::optional<Broken>> Encode(std::string_view record, std::size_t wanted, EncodedDocument& document,
                                       StageTrace* trace = nullptr);
  Result<std::optional<Broken>> Encode(std::string_view record, EncodedDocument& document) {
    return Encode(record, static_cast<std::size_t>(-1), document);
  }

  /// What the last usable record says, for recognising it elsewhere: the document's text, or in mode sft the record as
  /// it is, since what its layout writes around it depends on the tokenizer. Valid until the next call and while the
  /// record lives.
  std::string_view content() const;

 private:
  struct Rep;
  std::unique_ptr<Rep> rep_;
};

}  // namespace millrace::data
