#include "millrace/serve/chat/tool_syntax.h"

namespace millrace::serve {

ToolSyntax ToolSyntaxOf(std::string_view chat_template) {
  const auto has = [&](std::string_view text) { return chat_template.find(text) != std::string_view::npos; };
  if (has("<｜tool▁call▁begin｜>")) return ToolSyntax::kDeepSeek;
  if (has("[TOOL_CALLS]") && has("[ARGS]")) return ToolSyntax::kMistralNamed;
  // Arguments with tags of their own are no JSON.
  if (has("<arg_key>")) return ToolSyntax::kUnknown;
  if (has("<function=")) return has("<parameter=") ? ToolSyntax::kUnknown : ToolSyntax::kFunctionTag;
  if (has("<tool_call>")) return ToolSyntax::kHermes;
  if (has("[TOOL_CALLS]")) return ToolSyntax::kMistral;
  if (has("<|python_tag|>") || has(R"("parameters": dictionary)")) return ToolSyntax::kLlama3;
  return ToolSyntax::kUnknown;
}

}  // namespace millrace::serve
