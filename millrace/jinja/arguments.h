// Reads the arguments of a function, filter or method by their names and places.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "millrace/jinja/python/value.h"

namespace millrace::jinja {

/// Takes parameters in the order in which the function declares them, then Finish() refuses what is left. Keeps the
/// first error.
class ArgumentReader {
 public:
  ArgumentReader(std::string_view function, Arguments arguments)
      : function_(function), arguments_(std::move(arguments)) {}

  /// Returns the argument of the next parameter; nothing if the call does not give it.
  std::optional<Value> Take(std::string_view parameter);
  /// As Take, for one that must be there: undefined otherwise, and an error.
  Value Require(std::string_view parameter);
  /// `fallback` if the call does not give it, or gives none.
  std::string Text(std::string_view parameter, std::string_view fallback);
  std::string RequireText(std::string_view parameter);
  std::int64_t Integer(std::string_view parameter, std::int64_t fallback);
  bool Flag(std::string_view parameter, bool fallback);
  /// Errors: kInvalidArgument if an argument had the wrong type, was missing, or none of the parameters is its own.
  Status Finish();

 private:
  void Refuse(std::string_view parameter, std::string_view wanted, const Value& given);

  const std::string function_;
  Arguments arguments_;
  std::size_t taken_ = 0;
  std::optional<Error> error_;
};

}  // namespace millrace::jinja
