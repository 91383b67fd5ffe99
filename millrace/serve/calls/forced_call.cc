#include "millrace/serve/calls/forced_call.h"

namespace millrace::serve {
namespace {

/// Moves the definitions of a schema to `root`, where its references look for them.
Status MoveDefinitions(Json& schema, Json& root) {
  for (const char* key : {"$defs", "definitions"}) {
    const auto found = schema.find(key);
    if (found == schema.end() || !found->is_object()) continue;
    for (const auto& [name, definition] : found->items()) {
      Json& known = root[key][name];
      if (!known.is_null() && known != definition) {
        return Fail(Code::kUnsupported, "two tools have different definitions of {}/{}", key, name);
      }
      known = definition;
    }
    schema.erase(key);
  }
  return {};
}

}  // namespace

Result<Json> CallSchema(const Json& tools, const ToolChoice& choice, ToolSyntax syntax) {
  const char* arguments = syntax == ToolSyntax::kLlama3 ? "parameters" : "arguments";
  Json root = Json::object();
  Json calls = Json::array();
  for (const Json& tool : tools) {
    const Json& function = tool["function"];
    if (choice.kind == ToolChoice::Kind::kNamed && function["name"] != choice.name) continue;
    const Json* given = JsonFind(function, "parameters");
    Json parameters = given != nullptr && given->is_object() && !given->empty() ? *given : Json{{"type", "object"}};
    MR_TRY(MoveDefinitions(parameters, root));
    Json properties = Json::object();
    properties["name"] = Json{{"const", function["name"]}};
    properties[arguments] = std::move(parameters);
    calls.push_back({{"type", "object"},
                     {"properties", std::move(properties)},
                     {"required", Json::array({"name", arguments})},
                     {"additionalProperties", false}});
  }
  root["anyOf"] = std::move(calls);
  return root;
}

std::string_view CallOpener(ToolSyntax syntax) {
  switch (syntax) {
    case ToolSyntax::kHermes:
      return "<tool_call>\n";
    case ToolSyntax::kMistral:
      return "[TOOL_CALLS] [";
    case ToolSyntax::kUnknown:
    case ToolSyntax::kLlama3:
    case ToolSyntax::kMistralNamed:
    case ToolSyntax::kDeepSeek:
    case ToolSyntax::kFunctionTag:
      return "";
  }
  return "";
}

}  // namespace millrace::serve
