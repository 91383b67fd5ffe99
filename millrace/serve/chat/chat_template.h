// A model's template, by which conversations become prompts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/json.h"
#include "millrace/base/result.h"
#include "millrace/jinja/template.h"
#include "millrace/serve/chat/tool_syntax.h"
#include "millrace/tokenizer/tokenizer.h"
#include "millrace/tokenizer/vocabulary/special_texts.h"

namespace millrace::serve {

using tokenizer::TokenId;

/// The facts about conversations from a model's files, or from a user.
struct ChatTemplateSource {
  std::string text;                     ///< Jinja; empty: the model has no template
  std::string tool_text;                ///< for conversations with tools; empty: `text`
  Json variables = Json::object();      ///< of every prompt: "bos_token", "eos_token", …
  std::vector<std::string> stops = {};  ///< texts that end an answer
  std::vector<std::string> ends = {};   ///< tokens that end an answer, beside the model's own
};

/// Returns a template that Millrace has: plain, chatml, llama2, llama3, zephyr, gemma or guanaco. The text of a
/// conversation is the one that `data.layout` of the same name trains on. Nothing for another name.
std::optional<ChatTemplateSource> BuiltInChatTemplate(std::string_view name);
/// Returns the names, the plain one first.
std::vector<std::string_view> BuiltInChatTemplates();

/// The end of a prompt, behind its last message.
enum class PromptEnd : std::uint8_t {
  kNothing,
  kNewAnswer,     ///< what begins an answer
  kContinueLast,  ///< nothing, not even the end of the last message, which the answer continues
};

/// Makes prompts of conversations. Immutable; any thread.
class ChatTemplate {
 public:
  /// REQUIRES: `tokenizer` outlives this object. Errors: those of jinja::Template::Parse.
  static Result<ChatTemplate> Make(const ChatTemplateSource& source, const tokenizer::Tokenizer& tokenizer);

  /// Returns the tokens of a prompt. Special tokens come from the template alone: what messages and tools spell like
  /// one ("<|im_end|>") stays text. `messages`, `tools` and `variables` as in ChatRequest. Messages of the role
  /// "developer" become those of "system" if the template does not know the former.
  /// Errors: kInvalidArgument, also if the template refuses the conversation; kUnsupported; kResourceExhausted.
  Result<std::vector<TokenId>> Prompt(const Json& messages, const Json& tools, const Json& variables, PromptEnd end,
                                      WallTime now) const;

  /// Texts and tokens that end an answer, beside the model's own end.
  const std::vector<std::string>& stops() const { return stops_; }
  const std::vector<TokenId>& ends() const { return ends_; }
  ToolSyntax tool_syntax() const { return tool_syntax_; }

 private:
  ChatTemplate(const tokenizer::Tokenizer& tokenizer, jinja::Template text)
      : tokenizer_(&tokenizer), text_(text), specials_(tokenizer) {}
  /// Breaks up what is spelled like a special token.
  std::string WithoutSpecials(std::string text) const;
  Json WithoutSpecials(const Json& value) const;

  const tokenizer::Tokenizer* tokenizer_;
  jinja::Template text_;
  std::optional<jinja::Template> tool_text_;
  Json variables_ = Json::object();
  tokenizer::SpecialTexts specials_;
  std::vector<std::string> stops_;
  std::vector<TokenId> ends_;
  ToolSyntax tool_syntax_ = ToolSyntax::kUnknown;
  bool knows_developer_ = false;
};

}  // namespace millrace::serve
