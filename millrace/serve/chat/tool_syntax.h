// The syntax by which a model writes calls of tools in its answers.
#pragma once

#include <cstdint>
#include <string_view>

namespace millrace::serve {

enum class ToolSyntax : std::uint8_t {
  kUnknown,  ///< calls stay text
  kHermes,   ///< <tool_call>{"name": …, "arguments": {…}}</tool_call>, also of Qwen
  kLlama3,   ///< {"name": …, "parameters": {…}} as the whole answer
  kMistral,  ///< [TOOL_CALLS] [{"name": …, "arguments": {…}}, …]
};

/// Returns the syntax that a chat template teaches or writes.
ToolSyntax ToolSyntaxOf(std::string_view chat_template);

}  // namespace millrace::serve
