// The functions, filters, tests and methods that templates may call.
#pragma once

#include <string>
#include <string_view>

#include "millrace/jinja/interpreter.h"

namespace millrace::jinja {

/// Return `input | name(arguments)` and `input is name(arguments)`.
/// Errors: kUnsupported for a name that is not known; kInvalidArgument.
Result<Value> ApplyFilter(Interpreter& interpreter, std::string_view name, const Value& input, Arguments arguments);
Result<bool> ApplyTest(Interpreter& interpreter, std::string_view name, const Value& input, Arguments arguments);

/// Returns the method of a string, a list or a mapping; undefined if it has none of that name. Methods that would
/// change a value fail when they are called, as in Jinja's sandbox.
Value MethodOf(const Value& of, const std::string& name);

/// Returns the functions that every template has: range, dict, namespace, raise_exception, strftime_now.
Dict GlobalFunctions();

}  // namespace millrace::jinja
