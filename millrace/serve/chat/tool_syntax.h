// The syntax by which a model writes calls of tools in its answers.
#pragma once

#include <cstdint>
#include <string_view>

namespace millrace::serve {

enum class ToolSyntax : std::uint8_t {
  kUnknown,       ///< calls stay text
  kHermes,        ///< <tool_call>{"name": …, "arguments": {…}}</tool_call>, also of Qwen
  kLlama3,        ///< {"name": …, "parameters": {…}} as the whole answer
  kMistral,       ///< [TOOL_CALLS] [{"name": …, "arguments": {…}}, …]
  kMistralNamed,  ///< [TOOL_CALLS]name[ARGS]{…}, once for each call, also with [CALL_ID] and an id before [ARGS]
  /// <｜tool▁call▁begin｜>function<｜tool▁sep｜>name, then {…} as a block of code; or name<｜tool▁sep｜>{…}
  kDeepSeek,
  kFunctionTag,  ///< <function=name>{…}</function>
};

/// Returns whether a call is a name and then the arguments, not one JSON object of both.
inline bool NamesFirst(ToolSyntax syntax) {
  return syntax == ToolSyntax::kMistralNamed || syntax == ToolSyntax::kDeepSeek || syntax == ToolSyntax::kFunctionTag;
}

/// Returns the syntax that a chat template teaches or writes.
ToolSyntax ToolSyntaxOf(std::string_view chat_template);

}  // namespace millrace::serve
