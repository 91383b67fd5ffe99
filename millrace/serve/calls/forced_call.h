// The schema of a text that must be a call of a tool.
#pragma once

#include <string_view>

#include "millrace/base/json.h"
#include "millrace/base/result.h"
#include "millrace/serve/chat/tool_syntax.h"
#include "millrace/serve/protocol/request.h"

namespace millrace::serve {

/// Returns the JSON schema of a call of one of `tools`, or of the one that `choice` names: the member with the
/// arguments follows the schema of the function's parameters. Errors: kUnsupported if the tools have different
/// definitions of one name.
Result<Json> CallSchema(const Json& tools, const ToolChoice& choice, ToolSyntax syntax);

/// Returns what the model writes in front of a call.
std::string_view CallOpener(ToolSyntax syntax);

}  // namespace millrace::serve
