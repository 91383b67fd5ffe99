#include "millrace/jinja/interpreter.h"

#include <algorithm>
#include <optional>

#include "millrace/jinja/arguments.h"
#include "millrace/jinja/functions.h"
#include "millrace/jinja/python/operators.h"
#include "millrace/jinja/python/text.h"

namespace millrace::jinja {
namespace {

/// Lists and mappings within each other: printing, comparing and freeing them takes stack.
constexpr int kMaxNesting = 200;

/// Counts down a depth while it lives.
class Level {
 public:
  explicit Level(int& left) : left_(--left) {}
  ~Level() { ++left_; }
  Level(const Level&) = delete;
  Level& operator=(const Level&) = delete;
  bool beyond() const { return left_ < 0; }

 private:
  int& left_;
};

std::unexpected<Error> TooDeep() { return Fail(Code::kResourceExhausted, "the template calls itself too deeply"); }

Error AtLine(const Error& error, int line) {
  if (error.message().starts_with("line ")) return error;
  return Error(error.code(), fmt::format("line {}: {}", line, error.message()));
}

/// Returns loop.name.
Value LoopMember(const Loop& loop, const std::string& name) {
  const List& items = loop.items->items;
  const auto length = static_cast<std::int64_t>(items.size());
  const auto item = [&](std::int64_t at) {
    return at >= 0 && at < length ? items[static_cast<std::size_t>(at)] : Value::OfUndefined("loop." + name);
  };
  if (name == "index") return Value::Of(loop.index + 1);
  if (name == "index0") return Value::Of(loop.index);
  if (name == "revindex") return Value::Of(length - loop.index);
  if (name == "revindex0") return Value::Of(length - loop.index - 1);
  if (name == "first") return Value::Of(loop.index == 0);
  if (name == "last") return Value::Of(loop.index + 1 == length);
  if (name == "length") return Value::Of(length);
  if (name == "previtem") return item(loop.index - 1);
  if (name == "nextitem") return item(loop.index + 1);
  if (name == "cycle") {
    return Value::OfCallable("loop.cycle", [index = loop.index](Interpreter&, Arguments arguments) -> Result<Value> {
      if (arguments.positional.empty()) return Fail(Code::kInvalidArgument, "loop.cycle wants values");
      return arguments.positional[static_cast<std::size_t>(index) % arguments.positional.size()];
    });
  }
  return Value::OfUndefined("loop." + name);
}

}  // namespace

const Value* Scope::Find(std::string_view name) const {
  for (const Scope* scope = this; scope != nullptr; scope = scope->outer.get()) {
    for (const auto& [known, value] : scope->names) {
      if (known == name) return &value;
    }
  }
  return nullptr;
}

void Scope::Set(std::string_view name, Value value) {
  const auto found = std::find_if(names.begin(), names.end(), [&](const auto& each) { return each.first == name; });
  if (found != names.end()) {
    found->second = std::move(value);
  } else {
    names.emplace_back(name, std::move(value));
  }
}

Interpreter::Interpreter(const Block& block, Dict variables, WallTime now, RenderLimits limits)
    : block_(block),
      globals_(std::make_shared<Scope>()),
      now_(now),
      work_(limits.made_bytes, limits.read_bytes),
      steps_left_(limits.steps),
      depth_left_(limits.depth) {
  for (auto& [name, function] : GlobalFunctions()) globals_->Set(*name.text(), std::move(function));
  for (auto& [name, value] : variables) globals_->Set(*name.text(), std::move(value));
}

Result<std::string> Interpreter::RenderText(std::vector<TextSpan>* generated) {
  const auto scope = std::make_shared<Scope>(Scope{.outer = globals_});
  std::string out;
  text_ = &out;
  generated_ = generated;
  const auto flow = RunBlock(block_, scope, out);
  // A macro keeps the scope that keeps the macro.
  scope->names.clear();
  if (!flow) return std::unexpected(flow.error());
  MR_TRY(Spend(0));
  return out;
}

Status Interpreter::Spend(std::int64_t steps) {
  steps_left_ -= steps;
  if (steps_left_ >= 0) return Work::Check();
  return Fail(Code::kResourceExhausted, "the template takes too much work");
}

Result<Value> Interpreter::Call(const Value& callee, Arguments arguments) {
  const Level level(depth_left_);
  if (level.beyond()) return TooDeep();
  if (const auto* undefined = callee.As<Undefined>()) {
    return Fail(Code::kInvalidArgument, "\"{}\" is undefined and no function; define it as a macro, or remove the call",
                undefined->name);
  }
  if (callee.callable() == nullptr) {
    return Fail(Code::kInvalidArgument, "{} is no function; only functions and macros can be called",
                callee.TypeName());
  }
  Value result = MR_TRY(callee.callable()->call(*this, std::move(arguments)));
  MR_TRY(Work::Check());
  return result;
}

Result<Value> Interpreter::Filter(std::string_view name, const Value& input, Arguments arguments) {
  const Level level(depth_left_);
  if (level.beyond()) return TooDeep();
  return ApplyFilter(*this, name, input, std::move(arguments));
}

Result<bool> Interpreter::Test(std::string_view name, const Value& input, Arguments arguments) {
  return ApplyTest(*this, name, input, std::move(arguments));
}

Result<Value> Interpreter::Attribute(const Value& of, const std::string& name) {
  if (const auto* undefined = of.As<Undefined>()) {
    return Fail(Code::kInvalidArgument, "\"{}\" is undefined and has no \"{}\"; test it with `is defined` first",
                undefined->name, name);
  }
  if (const Loop* loop = of.loop()) return LoopMember(*loop, name);
  if (const Namespace* members = of.name_space()) {
    const Value* found = Find(members->members, name);
    return found != nullptr ? *found : Value::OfUndefined(name);
  }
  Value method = MethodOf(of, name);
  if (!method.undefined() || of.dict() == nullptr) return method;
  const Value* found = Find(*of.dict(), name);
  return found != nullptr ? *found : method;
}

Result<Value> Interpreter::Item(const Value& of, const Value& key) {
  if (const auto* undefined = of.As<Undefined>()) {
    return Fail(Code::kInvalidArgument, "\"{}\" is undefined and has no [{}]; test it with `is defined` first",
                undefined->name, key.Repr());
  }
  if (const Dict* dict = of.dict()) {
    if (const Value* found = Find(*dict, key)) return *found;
  } else if (key.integer() && (of.text() != nullptr || of.sequence() != nullptr)) {
    std::int64_t index = key.AsInteger();
    if (const Sequence* sequence = of.sequence()) {
      const auto size = static_cast<std::int64_t>(sequence->items.size());
      if (index < 0) index += size;
      if (index >= 0 && index < size) return sequence->items[static_cast<std::size_t>(index)];
    } else if (index > -static_cast<std::int64_t>(of.text()->size()) - 1) {
      MR_TRY(Spend(static_cast<std::int64_t>(of.text()->size()) / 64));
      Value character =
          MR_TRY(Slice(of, index, index == -1 ? std::optional<std::int64_t>() : std::optional(index + 1), 1));
      if (!character.text()->empty()) return character;
    }
  }
  if (key.text() != nullptr && (of.loop() != nullptr || of.name_space() != nullptr)) return Attribute(of, *key.text());
  return key.text() != nullptr ? MethodOf(of, *key.text()) : Value::OfUndefined(key.Repr());
}

Result<Interpreter::Flow> Interpreter::RunBlock(const Block& block, const ScopePointer& scope, std::string& out) {
  const Level level(depth_left_);
  if (level.beyond()) return TooDeep();
  for (const Statement& statement : block) {
    auto flow = RunStatement(statement, scope, out);
    if (!flow) return std::unexpected(AtLine(flow.error(), statement.line));
    if (*flow != Flow::kOn) return *flow;
  }
  return Flow::kOn;
}

Result<Interpreter::Flow> Interpreter::RunInner(const Block& block, const ScopePointer& outer, std::string& out) {
  const auto inner = std::make_shared<Scope>(Scope{.outer = outer});
  auto flow = RunBlock(block, inner, out);
  inner->names.clear();  // see Run()
  return flow;
}

Result<Interpreter::Flow> Interpreter::RunStatement(const Statement& statement, const ScopePointer& scope,
                                                    std::string& out) {
  MR_TRY(Spend(1));
  using Kind = Statement::Kind;
  switch (statement.kind) {
    case Kind::kText:
      Work::Make(statement.text.size());
      out += statement.text;
      return Flow::kOn;
    case Kind::kOutput: {
      const std::string text = MR_TRY(Print(MR_TRY(Evaluate(*statement.expression, scope))));
      Work::Make(text.size());
      MR_TRY(Work::Check());
      out += text;
      return Flow::kOn;
    }
    case Kind::kIf: {
      const bool holds = MR_TRY(Evaluate(*statement.expression, scope)).Truthy();
      return RunBlock(holds ? statement.body : statement.otherwise, scope, out);
    }
    case Kind::kFor:
      return RunFor(statement, scope, out);
    case Kind::kSet:
    case Kind::kSetBlock:
      MR_TRY(RunSet(statement, scope));
      return Flow::kOn;
    case Kind::kMacro:
      scope->Set(statement.text, MakeMacro(statement, scope));
      return Flow::kOn;
    case Kind::kGeneration:
      return RunGeneration(statement, scope, out);
    case Kind::kBreak:
      return Flow::kBreak;
    case Kind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kOn;
}

Result<Interpreter::Flow> Interpreter::RunGeneration(const Statement& statement, const ScopePointer& scope,
                                                     std::string& out) {
  if (generated_ != nullptr && &out != text_) {
    return Fail(Code::kUnsupported, "line {}: {{% generation %}} in a macro or a {{% set %}} block has no place",
                statement.line);
  }
  const std::size_t begin = out.size();
  const Flow flow = MR_TRY(RunBlock(statement.body, std::make_shared<Scope>(Scope{.outer = scope}), out));
  if (generated_ != nullptr && begin < out.size()) generated_->push_back({begin, out.size()});
  return flow;
}

Result<Interpreter::Flow> Interpreter::RunFor(const Statement& statement, const ScopePointer& scope, std::string& out) {
  const Value all = MR_TRY(Evaluate(*statement.expression, scope));
  List items = MR_TRY(Elements(all));
  MR_TRY(Spend(static_cast<std::int64_t>(items.size())));
  if (statement.condition) {
    List kept;
    for (Value& item : items) {
      const auto inner = std::make_shared<Scope>(Scope{.outer = scope});
      MR_TRY(Bind(statement.targets, item, *inner));
      if (MR_TRY(Evaluate(*statement.condition, inner)).Truthy()) kept.push_back(std::move(item));
    }
    items = std::move(kept);
  }
  if (items.empty()) return RunBlock(statement.otherwise, scope, out);
  const auto sequence = std::make_shared<const Sequence>(Sequence{.items = std::move(items)});
  bool completed = false;  // some pass through the body reached its end
  for (std::size_t i = 0; i < sequence->items.size(); ++i) {
    const auto inner = std::make_shared<Scope>(Scope{.outer = scope});
    MR_TRY(Bind(statement.targets, sequence->items[i], *inner));
    inner->Set("loop", Value(Value::Variant(std::make_shared<const Loop>(
                           Loop{.items = sequence, .index = static_cast<std::int64_t>(i)}))));
    const auto flow = RunBlock(statement.body, inner, out);
    inner->names.clear();  // see Run()
    if (!flow) return flow;
    completed = completed || *flow == Flow::kOn;
    if (*flow == Flow::kBreak) break;
  }
  // Jinja 3.1 takes a loop that {% continue %} or {% break %} cuts short in every pass for an empty one.
  return completed ? Flow::kOn : RunBlock(statement.otherwise, scope, out);
}

Status Interpreter::Bind(const std::vector<std::string>& targets, const Value& value, Scope& scope) {
  if (targets.size() == 1) {
    scope.Set(targets.front(), value);
    return {};
  }
  const List items = MR_TRY(Elements(value));
  if (items.size() != targets.size()) {
    return Fail(Code::kInvalidArgument, "{} values for {} names; expected as many names as values", items.size(),
                targets.size());
  }
  for (std::size_t i = 0; i < targets.size(); ++i) scope.Set(targets[i], items[i]);
  return {};
}

Status Interpreter::RunSet(const Statement& statement, const ScopePointer& scope) {
  Value value;
  if (statement.kind == Statement::Kind::kSetBlock) {
    std::string text;
    MR_TRY(RunInner(statement.body, scope, text));
    value = Value::Of(std::move(text));
  } else {
    value = MR_TRY(Evaluate(*statement.expression, scope));
  }
  if (statement.attribute.empty()) return Bind(statement.targets, value, *scope);
  const Value* target = scope->Find(statement.targets.front());
  Namespace* members = target != nullptr ? target->name_space() : nullptr;
  if (members == nullptr) {
    return Fail(Code::kInvalidArgument, "only members of a namespace can be set, and {} is none",
                statement.targets.front());
  }
  if (value.refers()) {
    return Fail(Code::kUnsupported, "a namespace keeps plain values, not {}", value.TypeName());
  }
  Assign(members->members, Value::Of(statement.attribute), std::move(value));
  return {};
}

Value Interpreter::MakeMacro(const Statement& statement, const ScopePointer& scope) {
  return Value::OfCallable(
      statement.text, [&statement, scope](Interpreter& self, Arguments arguments) -> Result<Value> {
        const auto inner = std::make_shared<Scope>(Scope{.outer = scope});
        ArgumentReader reader(statement.text, std::move(arguments));
        for (const Parameter& parameter : statement.parameters) {
          auto given = reader.Take(parameter.name);
          if (!given && parameter.fallback) given = MR_TRY(self.Evaluate(*parameter.fallback, inner));
          inner->Set(parameter.name, given ? *std::move(given) : Value::OfUndefined(parameter.name));
        }
        MR_TRY(reader.Finish());
        std::string text;
        const auto flow = self.RunBlock(statement.body, inner, text);
        inner->names.clear();  // see Run()
        if (!flow) return std::unexpected(flow.error());
        return Value::Of(std::move(text));
      });
}

Result<Value> Interpreter::Evaluate(const Expression& expression, const ScopePointer& scope) {
  MR_TRY(Spend(1));
  const Level level(depth_left_);
  if (level.beyond()) return TooDeep();
  auto value = EvaluateKind(expression, scope);
  // An operation that stopped early has a wrong result, or a wrong error.
  if (const Status limits = Work::Check(); !limits) value = std::unexpected(limits.error());
  if (value && value->nesting() > kMaxNesting) return Fail(Code::kResourceExhausted, "lists within lists are too deep");
  if (!value) return std::unexpected(AtLine(value.error(), expression.line));
  return value;
}

Result<Value> Interpreter::EvaluateKind(const Expression& expression, const ScopePointer& scope) {
  using Kind = Expression::Kind;
  const auto operand = [&](std::size_t i) { return Evaluate(*expression.operands[i], scope); };
  switch (expression.kind) {
    case Kind::kConstant:
      return expression.constant;
    case Kind::kName:
      return EvaluateName(expression, *scope);
    case Kind::kAttribute:
      return Attribute(MR_TRY(operand(0)), expression.text);
    case Kind::kItem: {
      const Value of = MR_TRY(operand(0)), key = MR_TRY(operand(1));
      return Item(of, key);
    }
    case Kind::kSlice:
      return EvaluateSlice(expression, scope);
    case Kind::kCall: {
      const Value callee = MR_TRY(operand(0));
      return Call(callee, MR_TRY(EvaluateArguments(expression, scope)));
    }
    case Kind::kFilter: {
      const Value input = MR_TRY(operand(0));
      return Filter(expression.text, input, MR_TRY(EvaluateArguments(expression, scope)));
    }
    case Kind::kTest: {
      const Value input = MR_TRY(operand(0));
      return Value::Of(MR_TRY(Test(expression.text, input, MR_TRY(EvaluateArguments(expression, scope)))));
    }
    case Kind::kNot:
      return Value::Of(!MR_TRY(operand(0)).Truthy());
    case Kind::kNegative:
      return Negate(MR_TRY(operand(0)));
    case Kind::kPositive: {
      Value value = MR_TRY(operand(0));
      if (!value.number())
        return Fail(Code::kInvalidArgument, "{} has no sign; only a number can have one", value.TypeName());
      return value;
    }
    case Kind::kArithmetic:
      return EvaluateArithmetic(expression, scope);
    case Kind::kConcatenate:
      return EvaluateConcatenate(expression, scope);
    case Kind::kCompare:
      return EvaluateCompare(expression, scope);
    case Kind::kAnd:
    case Kind::kOr: {
      Value left = MR_TRY(operand(0));
      const bool decides = left.Truthy() == (expression.kind == Kind::kOr);
      return decides ? std::move(left) : operand(1);
    }
    case Kind::kConditional:
      if (MR_TRY(operand(1)).Truthy()) return operand(0);
      return expression.operands[2] ? operand(2) : Value::OfUndefined("an if without an else");
    case Kind::kList:
      return Value::OfList(MR_TRY(EvaluateAll(expression, 0, scope)));
    case Kind::kTuple:
      return Value::OfTuple(MR_TRY(EvaluateAll(expression, 0, scope)));
    case Kind::kDict:
      return EvaluateDict(expression, scope);
  }
  return Value();
}

Result<Value> Interpreter::EvaluateName(const Expression& expression, const Scope& scope) {
  const Value* found = scope.Find(expression.text);
  return found != nullptr ? *found : Value::OfUndefined(expression.text);
}

Result<Value> Interpreter::EvaluateSlice(const Expression& expression, const ScopePointer& scope) {
  const Value of = MR_TRY(Evaluate(*expression.operands[0], scope));
  std::array<std::optional<std::int64_t>, 3> places;
  for (std::size_t i = 0; i < places.size(); ++i) {
    if (!expression.operands[i + 1]) continue;
    const Value place = MR_TRY(Evaluate(*expression.operands[i + 1], scope));
    if (place.none()) continue;
    if (!place.integer()) return Fail(Code::kInvalidArgument, "a slice wants integers, not {}", place.TypeName());
    places[i] = place.AsInteger();
  }
  return Slice(of, places[0], places[1], places[2].value_or(1));
}

Result<Value> Interpreter::EvaluateArithmetic(const Expression& expression, const ScopePointer& scope) {
  const Value left = MR_TRY(Evaluate(*expression.operands[0], scope));
  const Value right = MR_TRY(Evaluate(*expression.operands[1], scope));
  return Calculate(expression.text, left, right);
}

Result<Value> Interpreter::EvaluateConcatenate(const Expression& expression, const ScopePointer& scope) {
  List values;
  for (const auto& operand : expression.operands) values.push_back(MR_TRY(Evaluate(*operand, scope)));
  // Without autoescape, "~" makes a plain text, also of what is safe. "+" does not.
  std::string text;
  for (const Value& value : values) {
    text += MR_TRY(Print(value));
    Work::HasRoom(text.size());
    MR_TRY(Work::Check());
  }
  return Value::Of(std::move(text));
}

Result<Value> Interpreter::EvaluateCompare(const Expression& expression, const ScopePointer& scope) {
  Value left = MR_TRY(Evaluate(*expression.operands[0], scope));
  for (std::size_t i = 0; i < expression.operators.size(); ++i) {
    Value right = MR_TRY(Evaluate(*expression.operands[i + 1], scope));
    const std::string& operation = expression.operators[i];
    const auto holds = [&]() -> Result<bool> {
      if (operation == "==") return Equal(left, right);
      if (operation == "!=") return !Equal(left, right);
      if (operation == "in") return Contains(right, left);
      if (operation == "not in") return !MR_TRY(Contains(right, left));
      if (operation == "<") return Less(left, right);
      if (operation == ">") return Less(right, left);
      if (operation == "<=") return MR_TRY(Less(left, right)) || Equal(left, right);
      return MR_TRY(Less(right, left)) || Equal(left, right);
    };
    if (!MR_TRY(holds())) return Value::Of(false);
    left = std::move(right);
  }
  return Value::Of(true);
}

Result<Value> Interpreter::EvaluateDict(const Expression& expression, const ScopePointer& scope) {
  Dict members;
  for (std::size_t i = 0; i < expression.operands.size(); i += 2) {
    const Value key = MR_TRY(Evaluate(*expression.operands[i], scope));
    if (!Hashable(key)) {
      return Fail(Code::kInvalidArgument, "{} cannot be a key; keys must be texts, numbers, booleans, none or tuples",
                  key.TypeName());
    }
    Assign(members, key, MR_TRY(Evaluate(*expression.operands[i + 1], scope)));
  }
  return Value::OfDict(std::move(members));
}

Result<List> Interpreter::EvaluateAll(const Expression& expression, std::size_t first, const ScopePointer& scope) {
  List values;
  for (std::size_t i = first; i < expression.operands.size(); ++i) {
    values.push_back(MR_TRY(Evaluate(*expression.operands[i], scope)));
  }
  return values;
}

Result<Arguments> Interpreter::EvaluateArguments(const Expression& expression, const ScopePointer& scope) {
  Arguments arguments;
  arguments.positional = MR_TRY(EvaluateAll(expression, 1, scope));
  for (const auto& [name, value] : expression.named) {
    Value evaluated = MR_TRY(Evaluate(*value, scope));
    arguments.named.emplace_back(name, std::move(evaluated));
  }
  return arguments;
}

}  // namespace millrace::jinja
