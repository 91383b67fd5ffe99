// Reads calls of tools for scripts. Reads a JSON object a line, {"template": …, "text": …, "names": […]}, and answers
// each with {"known": whether the template's syntax is, "text": …, "calls": [{"name": …, "arguments": "…"}, …]}.
#include <iostream>
#include <string>

#include "millrace/base/json.h"
#include "millrace/serve/calls/call_reader.h"

namespace millrace::serve {
namespace {

Result<Json> Answer(const std::string& line) {
  const Json request = MR_TRY(ParseJson(line, "the request"));
  const ToolSyntax syntax = ToolSyntaxOf(MR_TRY(JsonString(request, "template")));
  ToolCallParser parser(syntax, request.at("names").get<std::vector<std::string>>());
  Json answer = {{"known", syntax != ToolSyntax::kUnknown}, {"text", ""}, {"calls", Json::array()}};
  std::string text;
  const auto take = [&](const AnswerParts& parts) {
    text += parts.text;
    for (const ToolCallPart& part : parts.calls) {
      Json& calls = answer["calls"];
      if (!part.id.empty()) calls.push_back({{"name", part.name}, {"arguments", ""}});
      calls[part.index]["arguments"].get_ref<std::string&>() += part.arguments;
    }
  };
  // A byte at a time, as a stream may come.
  for (const char byte : MR_TRY(JsonString(request, "text"))) take(parser.Add(std::string_view(&byte, 1)));
  take(parser.Finish());
  answer["text"] = text;
  return answer;
}

int Main() {
  for (std::string line; std::getline(std::cin, line);) {
    auto answer = Answer(line);
    if (!answer) answer = Json{{"error", answer.error().ToString()}};
    std::cout << DumpJson(*answer) << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace millrace::serve

int main() { return millrace::serve::Main(); }
