// The operators of Python on values.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "millrace/jinja/python/value.h"

namespace millrace::jinja {

/// Returns `left operation right` for "+", "-", "*", "/", "//", "%" and "**".
/// Errors: kInvalidArgument for types that do not have the operator, division by zero and integers beyond 64 bits;
/// kResourceExhausted for results of more than 16 MiB.
Result<Value> Calculate(std::string_view operation, const Value& left, const Value& right);
Result<Value> Negate(const Value& value);
/// Returns whether `container` has `item`.
Result<bool> Contains(const Value& container, const Value& item);
/// Returns value[start:stop:step]; nothing stands for what the slice leaves out.
Result<Value> Slice(const Value& value, std::optional<std::int64_t> start, std::optional<std::int64_t> stop,
                    std::int64_t step);

}  // namespace millrace::jinja
