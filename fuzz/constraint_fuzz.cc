// Any regular expression or schema is refused, or is a grammar that runs over any bytes within its limits.
#include <cstdlib>
#include <string_view>

#include "millrace/serve/constraint/json_schema.h"
#include "millrace/serve/constraint/machine.h"
#include "millrace/serve/constraint/regex.h"

namespace {

void Run(millrace::serve::Grammar grammar, std::string_view bytes) {
  using millrace::serve::GrammarMachine;
  if (!grammar.Check()) return;
  GrammarMachine machine(std::move(grammar));
  GrammarMachine::State state = machine.Number(machine.start());
  for (const char byte : bytes.substr(0, 256)) {
    if (state == GrammarMachine::kDead) return;
    auto arrival = machine.ArrivalOf(state);
    machine.Trim();
    state = machine.Next(machine.Number(arrival), static_cast<unsigned char>(byte));
  }
  if (machine.stacks() > GrammarMachine::kMaxStacks) std::abort();
}

}  // namespace

/// The input up to its first NUL is the form; what follows is a text.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millrace;
  using namespace millrace::serve;
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const std::string_view form = all.substr(0, all.find('\0'));
  const std::string_view text = all.substr(std::min(form.size() + 1, all.size()));
  for (const RegexUse use : {RegexUse::kText, RegexUse::kJsonPattern}) {
    Grammar grammar;
    grammar.NewRule();
    const Grammar::NodeId end = grammar.End();
    if (const auto start = AddRegex(form, use, grammar, end)) {
      grammar.SetRule(0, *start);
      Run(std::move(grammar), text);
    }
  }
  const auto schema = ParseJson(form, "fuzz", {.depth = 32, .values = 1 << 14});
  if (!schema) return 0;
  if (auto made = JsonSchemaGrammar(*schema)) Run(*std::move(made), text);
  return 0;
}
