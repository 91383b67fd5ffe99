#include "millrace/serve/chat/chat_template.h"

#include <algorithm>

#include "millrace/base/text.h"

namespace millrace::serve {
namespace {

/// Returns a prompt up to the end of its last message's content, as transformers does: white space at the ends of the
/// content counts if the template left it there.
Result<std::string> CutBehind(std::string prompt, const Json& messages) {
  const Json* content = JsonFind(messages.back(), "content");
  const std::string text = content != nullptr && content->is_string() ? content->get<std::string>() : "";
  const std::string_view trimmed = Trim(text);
  const std::size_t at = trimmed.empty() ? std::string::npos : prompt.rfind(trimmed);
  if (at == std::string::npos) {
    return Fail(Code::kInvalidArgument,
                "the prompt does not have the last message, which the answer should continue; leave out "
                "continue_final_message");
  }
  const std::size_t begin = static_cast<std::size_t>(trimmed.data() - text.data());
  const std::string_view with_end = std::string_view(text).substr(begin);
  prompt.resize(at + (std::string_view(prompt).substr(at).starts_with(with_end) ? with_end : trimmed).size());
  return prompt;
}

}  // namespace

Result<ChatTemplate> ChatTemplate::Make(const ChatTemplateSource& source, const tokenizer::Tokenizer& tokenizer) {
  ChatTemplate made(tokenizer, MR_TRY(jinja::Template::Parse(source.text)));
  if (!source.tool_text.empty()) made.tool_text_ = MR_TRY(jinja::Template::Parse(source.tool_text));
  made.variables_ = source.variables;
  made.stops_ = source.stops;
  for (const std::string& end : source.ends) {
    if (const TokenId id = tokenizer.IdOf(end); id != tokenizer::kNoToken) made.ends_.push_back(id);
  }
  made.tool_syntax_ = ToolSyntaxOf(source.tool_text.empty() ? source.text : source.tool_text);
  made.knows_developer_ = (source.text + source.tool_text).find("developer") != std::string::npos;
  return made;
}

std::string ChatTemplate::WithoutSpecials(std::string text) const {
  specials_.Break(text);
  return text;
}

Json ChatTemplate::WithoutSpecials(const Json& value) const {
  if (value.is_string()) return WithoutSpecials(value.get<std::string>());
  if (!value.is_structured()) return value;
  Json safe = value.is_array() ? Json::array() : Json::object();
  for (const auto& [key, member] : value.items()) {
    if (value.is_array()) {
      safe.push_back(WithoutSpecials(member));
    } else {
      safe[WithoutSpecials(key)] = WithoutSpecials(member);
    }
  }
  return safe;
}

Result<std::vector<TokenId>> ChatTemplate::Prompt(const Json& messages, const Json& tools, const Json& variables,
                                                  PromptEnd end, WallTime now) const {
  Json all = variables_;
  for (const auto& [name, value] : variables.items()) all[name] = WithoutSpecials(value);
  all["messages"] = WithoutSpecials(messages);
  for (Json& message : all["messages"]) {
    if (!knows_developer_ && JsonString(message, "role") == "developer") message["role"] = "system";
  }
  all["tools"] = WithoutSpecials(tools);
  all["documents"] = nullptr;
  all["add_generation_prompt"] = end == PromptEnd::kNewAnswer;
  const jinja::Template& text = tool_text_ && !tools.is_null() ? *tool_text_ : text_;
  std::string prompt = MR_TRY(text.Render(all, now));
  if (end == PromptEnd::kContinueLast) prompt = MR_TRY(CutBehind(std::move(prompt), all["messages"]));
  std::vector<TokenId> ids;
  for (std::size_t begin = 0; begin <= prompt.size();) {
    const std::size_t stop = std::min(prompt.find(tokenizer::kSpecialBreak, begin), prompt.size());
    MR_TRY(tokenizer_->EncodeWithSpecials(std::string_view(prompt).substr(begin, stop - begin), ids));
    begin = stop + 1;
  }
  return ids;
}

}  // namespace millrace::serve
