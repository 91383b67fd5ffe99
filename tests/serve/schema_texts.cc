// Asks the grammars of JSON schemas for scripts. Reads a JSON object a line, {"schema": …, "texts": […], "draw": n,
// "seed": s}, and answers each with {"fits": [whether each text fits], "drawn": [n random texts that fit]} or
// {"error": …, "code": …}. A drawn text that grows too long is left out.
#include <iostream>
#include <optional>
#include <string>

#include "millrace/base/hash/random.h"
#include "millrace/base/json.h"
#include "millrace/serve/constraint/json_schema.h"
#include "millrace/serve/constraint/machine.h"

namespace millrace::serve {
namespace {

constexpr std::size_t kMaxText = 2000;

bool Fits(GrammarMachine& machine, std::string_view text) {
  GrammarMachine::State state = machine.Number(machine.start());
  for (const char byte : text) {
    if (state == GrammarMachine::kDead) return false;
    state = machine.Next(state, static_cast<unsigned char>(byte));
  }
  return state != GrammarMachine::kDead && machine.Accepts(state);
}

/// Draws a byte that may follow, then the next. Bytes that end something come often, so that texts end.
std::optional<std::string> Draw(GrammarMachine& machine, Random& random) {
  std::string text;
  GrammarMachine::State state = machine.Number(machine.start());
  while (text.size() < kMaxText) {
    if (machine.Accepts(state) && random.Below(3) == 0) return text;
    std::string any, ending;
    for (int byte = 0; byte < 256; ++byte) {
      if (machine.Next(state, static_cast<unsigned char>(byte)) == GrammarMachine::kDead) continue;
      const char c = static_cast<char>(byte);
      (std::string_view("\"]},:").contains(c) ? ending : any) += c;
    }
    if (any.empty() && ending.empty()) return machine.Accepts(state) ? std::optional(text) : std::nullopt;
    const std::string& from = any.empty() || (!ending.empty() && random.Below(2) == 0) ? ending : any;
    text += from[random.Below(from.size())];
    state = machine.Next(state, static_cast<unsigned char>(text.back()));
  }
  return std::nullopt;
}

Result<Json> Answer(const std::string& line) {
  const Json request = MR_TRY(ParseJson(line, "the request"));
  GrammarMachine machine(MR_TRY(JsonSchemaGrammar(request.at("schema"))));
  Json answer = {{"fits", Json::array()}, {"drawn", Json::array()}};
  for (const Json& text : request.at("texts")) answer["fits"].push_back(Fits(machine, text.get<std::string>()));
  Random random(request.at("seed").get<std::uint64_t>());
  for (int i = request.at("draw").get<int>(); i > 0; --i) {
    if (const auto text = Draw(machine, random)) answer["drawn"].push_back(*text);
  }
  return answer;
}

int Main() {
  for (std::string line; std::getline(std::cin, line);) {
    auto answer = Answer(line);
    if (!answer) answer = Json{{"error", answer.error().ToString()}, {"code", CodeName(answer.error().code())}};
    std::cout << DumpJson(*answer) << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace millrace::serve

int main() { return millrace::serve::Main(); }
