#include "millrace/serve/chat/tool_syntax.h"

namespace millrace::serve {

ToolSyntax ToolSyntaxOf(std::string_view chat_template) {
  const auto has = [&](std::string_view text) { return chat_template.find(text) != std::string_view::npos; };
  if (has("<tool_call>")) return ToolSyntax::kHermes;
  if (has("[TOOL_CALLS]")) return ToolSyntax::kMistral;
  if (has("<|python_tag|>") || has(R"("parameters": dictionary)")) return ToolSyntax::kLlama3;
  return ToolSyntax::kUnknown;
}

}  // namespace millrace::serve
