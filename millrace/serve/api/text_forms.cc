#include "millrace/serve/api/text_forms.h"

#include <algorithm>

#include "millrace/serve/constraint/json_schema.h"
#include "millrace/serve/constraint/regex.h"

namespace millrace::serve {
namespace {

constexpr std::size_t kKept = 8;

/// Equal forms have equal keys.
std::string KeyOf(const TextForm& form) {
  return fmt::format("{} {} {} {}", static_cast<int>(form.kind), DumpJson(form.schema), form.regex,
                     DumpJson(Json(form.choices)));
}

Result<Grammar> GrammarOf(const TextForm& form) {
  if (form.kind == TextForm::Kind::kJsonObject) return JsonObjectGrammar();
  if (form.kind == TextForm::Kind::kJsonSchema) return JsonSchemaGrammar(form.schema);
  Grammar grammar;
  grammar.NewRule();
  const Grammar::NodeId end = grammar.End();
  if (form.kind == TextForm::Kind::kRegex) {
    grammar.SetRule(0, MR_TRY(AddRegex(form.regex, RegexUse::kText, grammar, end)));
  } else {
    std::vector<Grammar::NodeId> choices;
    for (const std::string& choice : form.choices) choices.push_back(grammar.Text(choice, end));
    grammar.SetRule(0, grammar.Choice(choices));
  }
  MR_TRY(grammar.Check());
  return grammar;
}

}  // namespace

Result<std::shared_ptr<Constraint>> TextForms::Get(const TextForm& form) {
  if (form.kind == TextForm::Kind::kAny) return std::shared_ptr<Constraint>();
  const std::string key = KeyOf(form);
  MutexLock lock(mutex_);
  const auto known = std::find_if(made_.begin(), made_.end(), [&](const auto& each) { return each.first == key; });
  if (known != made_.end() && known->second->worn()) {
    made_.erase(known);
  } else if (known != made_.end()) {
    made_.splice(made_.begin(), made_, known);
    return known->second;
  }
  Grammar grammar = MR_TRY(GrammarOf(form));
  if (!vocabulary_) vocabulary_ = std::make_shared<const TokenBytes>(tokenizer_);
  auto made = std::make_shared<Constraint>(std::move(grammar), vocabulary_);
  if (made->start().dead()) {
    return Fail(Code::kInvalidArgument,
                "no text fits the constraint, or it has too many ways to begin; change its schema or pattern");
  }
  made_.emplace_front(key, made);
  if (made_.size() > kKept) made_.pop_back();
  return made;
}

}  // namespace millrace::serve
