// Regular expressions that texts must match, or must not match.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "millrace/base/result.h"

namespace millrace::data {

/// Expressions of RE2, whose time is linear in the length of a text. They match anywhere in it. Immutable; any thread
/// may call any method.
class TextPatterns {
 public:
  /// Errors: kInvalidArgument, with the expression and what is wrong with it.
  static Result<TextPatterns> Compile(std::span<const std::string> wanted, std::span<const std::string> unwanted);
  TextPatterns(TextPatterns&&) noexcept;
  TextPatterns& operator=(TextPatterns&&) noexcept;
  ~TextPatterns();

  /// Returns true if each of the wanted expressions matches.
  bool HasAllWanted(std::string_view text) const;
  /// Returns true if one of the unwanted expressions matches.
  bool HasUnwanted(std::string_view text) const;

 private:
  struct Rep;
  explicit TextPatterns(std::unique_ptr<const Rep> rep);
  std::unique_ptr<const Rep> rep_;
};

}  // namespace millrace::data
