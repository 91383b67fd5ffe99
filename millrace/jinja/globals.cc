#include <algorithm>
#include <array>
#include <ctime>

#include "millrace/jinja/arguments.h"
#include "millrace/jinja/functions.h"

namespace millrace::jinja {
namespace {

/// As in Jinja's sandbox.
constexpr std::int64_t kMaxRange = 100'000;

Result<Value> Range(Interpreter& interpreter, Arguments arguments) {
  const std::size_t count = arguments.positional.size();
  ArgumentReader reader("range", std::move(arguments));
  std::int64_t start = reader.Integer("start", 0), stop = 0, step = 1;
  if (count == 1) std::swap(start, stop);
  if (count >= 2) stop = reader.Integer("stop", 0);
  if (count >= 3) step = reader.Integer("step", 1);
  MR_TRY(reader.Finish());
  if (count == 0 || step == 0)
    return Fail(Code::kInvalidArgument, "range wants 1 to 3 numbers, and a step that is not 0");
  List items;
  for (std::int64_t i = start; step > 0 ? i < stop : i > stop;) {
    if (static_cast<std::int64_t>(items.size()) == kMaxRange) {
      return Fail(Code::kResourceExhausted, "a range has at most {} numbers", kMaxRange);
    }
    items.push_back(Value::Of(i));
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  MR_TRY(interpreter.Spend(static_cast<std::int64_t>(items.size())));
  return Value::OfList(std::move(items));
}

/// dict() and namespace(): the members of a mapping, and then the named ones.
Result<Dict> Members(std::string_view function, Arguments arguments) {
  Dict members;
  if (arguments.positional.size() > 1) return Fail(Code::kInvalidArgument, "{} takes one mapping", function);
  if (!arguments.positional.empty()) {
    const Dict* given = arguments.positional.front().dict();
    if (given == nullptr) return Fail(Code::kInvalidArgument, "{} wants a mapping", function);
    members = *given;
  }
  for (auto& [name, value] : arguments.named) Assign(members, Value::Of(name), std::move(value));
  return members;
}

Result<Value> MakeDict(Interpreter&, Arguments arguments) {
  return Value::OfDict(MR_TRY(Members("dict", std::move(arguments))));
}

Result<Value> MakeNamespace(Interpreter&, Arguments arguments) {
  auto made = std::make_shared<Namespace>();
  made->members = MR_TRY(Members("namespace", std::move(arguments)));
  for (const auto& [name, value] : made->members) {
    if (value.refers()) return Fail(Code::kUnsupported, "a namespace keeps plain values, not {}", value.TypeName());
  }
  return Value(Value::Variant(std::move(made)));
}

Result<Value> RaiseException(Interpreter&, Arguments arguments) {
  ArgumentReader reader("raise_exception", std::move(arguments));
  const Value message = reader.Require("message");
  MR_TRY(reader.Finish());
  return Fail(Code::kInvalidArgument, "the template refuses: {}", message.ToText());
}

Result<Value> FormatTime(Interpreter& interpreter, Arguments arguments) {
  ArgumentReader reader("strftime_now", std::move(arguments));
  const std::string format = reader.RequireText("format");
  MR_TRY(reader.Finish());
  if (format.size() > 256)
    return Fail(Code::kInvalidArgument, "strftime_now: the format is too long; at most 256 bytes are allowed");
  const std::time_t now = std::chrono::system_clock::to_time_t(interpreter.now());
  std::tm local{};
  localtime_r(&now, &local);
  std::array<char, 4096> text{};
  return Value::Of(std::string(text.data(), std::strftime(text.data(), text.size(), format.c_str(), &local)));
}

}  // namespace

Dict GlobalFunctions() {
  Dict functions;
  const auto add = [&](const char* name, Result<Value> (*function)(Interpreter&, Arguments)) {
    functions.emplace_back(Value::Of(std::string(name)), Value::OfCallable(name, function));
  };
  add("dict", MakeDict);
  add("namespace", MakeNamespace);
  add("raise_exception", RaiseException);
  add("range", Range);
  add("strftime_now", FormatTime);
  return functions;
}

}  // namespace millrace::jinja
