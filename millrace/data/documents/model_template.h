// The chat template of a model's own files, by which `layout: auto` writes conversations.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "millrace/base/result.h"
#include "millrace/jinja/template.h"
#include "millrace/tokenizer/tokenizer.h"
#include "millrace/tokenizer/vocabulary/special_texts.h"

namespace millrace::data {

/// The templates of a tokenizer, parsed, and its special tokens. Immutable; any thread. The tokenizer must outlive it.
class ModelTemplate {
 public:
  /// Errors: kNotFound if the tokenizer has no template; those of jinja::Template::Parse; kInvalidArgument if a
  /// template refuses a question and its answer; kUnsupported if it does not tell where an answer begins.
  static Result<std::shared_ptr<const ModelTemplate>> Make(const tokenizer::Tokenizer& tokenizer);

  const tokenizer::Tokenizer& tokenizer() const { return tokenizer_; }
  const tokenizer::SpecialTexts& specials() const { return specials_; }
  /// Everything that the text of a conversation depends on.
  const std::string& identity() const { return identity_; }
  /// Returns whether a template names `word`, which a message or a record may have as a member.
  bool Names(std::string_view word) const;
  /// Returns whether {% generation %} blocks mark the answers of conversations, with or without tools.
  bool MarksAnswers(bool with_tools) const { return TemplateFor(with_tools).marks_generation(); }

  /// Renders a conversation. `variables` are those of the record, and give way to those that every template has.
  /// Errors: those of jinja::Template::RenderMarked.
  Result<jinja::MarkedText> Render(const jinja::Dict& variables, jinja::List messages, const jinja::Value& tools,
                                   bool begins_answer) const;

 private:
  explicit ModelTemplate(const tokenizer::Tokenizer& tokenizer) : tokenizer_(tokenizer), specials_(tokenizer) {}
  const jinja::Template& TemplateFor(bool with_tools) const { return with_tools && tools_ ? *tools_ : *text_; }
  /// Errors: as Make().
  Status CheckAnswers() const;

  const tokenizer::Tokenizer& tokenizer_;
  const tokenizer::SpecialTexts specials_;
  std::shared_ptr<const jinja::Template> text_, tools_;  ///< tools_: null if it is no other one
  std::string sources_, identity_;
  jinja::Dict tokens_;  ///< "bos_token" and the like
};

}  // namespace millrace::data
