#include <algorithm>
#include <array>
#include <functional>

#include "millrace/jinja/functions.h"
#include "millrace/jinja/python/operators.h"

namespace millrace::jinja {
namespace {

/// Tests without an argument.
struct Test {
  std::string_view name;
  bool (*holds)(const Value&);
};
constexpr std::array<Test, 14> kTests = {{
    {"boolean", [](const Value& value) { return value.As<bool>() != nullptr; }},
    {"callable", [](const Value& value) { return value.callable() != nullptr || value.undefined(); }},
    {"defined", [](const Value& value) { return !value.undefined(); }},
    {"false", [](const Value& value) { return value.As<bool>() != nullptr && !*value.As<bool>(); }},
    {"float", [](const Value& value) { return value.As<double>() != nullptr; }},
    {"integer", [](const Value& value) { return value.As<std::int64_t>() != nullptr; }},
    {"iterable",
     [](const Value& value) {
       return value.undefined() || value.text() != nullptr || value.sequence() != nullptr || value.dict() != nullptr ||
              value.iteration() != nullptr;
     }},
    {"mapping", [](const Value& value) { return value.dict() != nullptr; }},
    {"none", [](const Value& value) { return value.none(); }},
    {"number", [](const Value& value) { return value.number(); }},
    {"sequence",
     [](const Value& value) {
       return value.undefined() || value.text() != nullptr || value.sequence() != nullptr || value.dict() != nullptr;
     }},
    {"string", [](const Value& value) { return value.text() != nullptr; }},
    {"true", [](const Value& value) { return value.As<bool>() != nullptr && *value.As<bool>(); }},
    {"undefined", [](const Value& value) { return value.undefined(); }},
}};

Result<bool> HasLetters(const Value& value, bool small) {
  const std::string text = MR_TRY(Print(value));
  const auto is = [](char c, char first) { return c >= first && c < first + 26; };
  if (std::any_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) >= 0x80; })) {
    return Fail(Code::kUnsupported, "capital and small letters beyond ASCII are not supported");
  }
  const auto count = [&](char first) {
    return std::count_if(text.begin(), text.end(), [&](char c) { return is(c, first); });
  };
  return small ? count('a') > 0 && count('A') == 0 : count('A') > 0 && count('a') == 0;
}

Result<bool> Divisible(const Value& value, const Value& by) {
  const Value rest = MR_TRY(Calculate("%", value, by));
  return Equal(rest, Value::Of(std::int64_t{0}));
}

}  // namespace

Result<bool> ApplyTest(Interpreter&, std::string_view name, const Value& input, Arguments arguments) {
  if (!arguments.named.empty() || arguments.positional.size() > 1) {
    return Fail(Code::kInvalidArgument, "the test \"{}\" takes at most one argument", name);
  }
  const auto found = std::find_if(kTests.begin(), kTests.end(), [&](const auto& each) { return each.name == name; });
  if (found != kTests.end()) {
    if (!arguments.positional.empty()) return Fail(Code::kInvalidArgument, "the test \"{}\" takes no argument", name);
    return found->holds(input);
  }
  const auto is = [&](std::initializer_list<std::string_view> names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  if (is({"lower", "upper", "odd", "even"})) {
    if (!arguments.positional.empty()) return Fail(Code::kInvalidArgument, "the test \"{}\" takes no argument", name);
    if (is({"lower", "upper"})) return HasLetters(input, name == "lower");
    const Value rest = MR_TRY(Calculate("%", input, Value::Of(std::int64_t{2})));
    return Equal(rest, Value::Of(std::int64_t{name == "odd" ? 1 : 0}));
  }
  const bool known = is({"==", "eq", "equalto", "!=", "ne", "<", "lt", "lessthan", "<=", "le", ">", "gt", "greaterthan",
                         ">=", "ge", "in", "divisibleby", "sameas"});
  if (!known) return Fail(Code::kUnsupported, "the test \"{}\" is not supported", name);
  if (arguments.positional.empty()) return Fail(Code::kInvalidArgument, "the test \"{}\" wants an argument", name);
  const Value& other = arguments.positional.front();
  if (is({"==", "eq", "equalto"})) return Equal(input, other);
  if (is({"!=", "ne"})) return !Equal(input, other);
  if (is({"<", "lt", "lessthan"})) return Less(input, other);
  if (is({">", "gt", "greaterthan"})) return Less(other, input);
  if (is({"<=", "le"})) return MR_TRY(Less(input, other)) || Equal(input, other);
  if (is({">=", "ge"})) return MR_TRY(Less(other, input)) || Equal(input, other);
  if (is({"in"})) return Contains(other, input);
  if (is({"divisibleby"})) return Divisible(input, other);
  return input.TypeName() == other.TypeName() && Equal(input, other);
}

}  // namespace millrace::jinja
