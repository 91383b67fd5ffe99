// Renders templates for scripts. Reads a JSON object a line, {"template": …, "variables": {…}}, and answers each with
// {"text": …} or {"error": …, "code": …}.
#include <iostream>
#include <string>

#include "millrace/base/json.h"
#include "millrace/jinja/template.h"

namespace millrace::jinja {
namespace {

Result<std::string> Render(const std::string& line) {
  const Json request = MR_TRY(ParseJson(line, "the request"));
  const Template parsed = MR_TRY(Template::Parse(MR_TRY(JsonString(request, "template"))));
  return parsed.Render(request.at("variables"), SystemClock().Wall());
}

int Main() {
  for (std::string line; std::getline(std::cin, line);) {
    const auto text = Render(line);
    const Json answer = text ? Json{{"text", *text}}
                             : Json{{"error", text.error().ToString()}, {"code", CodeName(text.error().code())}};
    std::cout << DumpJson(answer) << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace millrace::jinja

int main() { return millrace::jinja::Main(); }
