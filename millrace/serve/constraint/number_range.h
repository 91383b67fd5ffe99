// Numbers between bounds as grammars.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "millrace/base/result.h"
#include "millrace/serve/constraint/grammar.h"

namespace millrace::serve {

/// A decimal number, exactly.
struct Decimal {
  bool negative = false;
  std::string whole = "0";    ///< digits before the point, without leading zeros
  std::string fraction = {};  ///< digits behind the point, without trailing zeros

  bool is_zero() const { return whole == "0" && fraction.empty(); }
};

/// Parses a number as JSON writes it.
/// Errors: kUnsupported if it has more than 400 digits.
Result<Decimal> ParseDecimal(std::string_view text);

/// Returns a negative, zero or positive number if `one` is below, equal to or above `other`.
int Compare(const Decimal& one, const Decimal& other);

/// The numbers that are allowed.
struct NumberRange {
  std::optional<Decimal> least, most;
  bool above_least = false, below_most = false;  ///< the bound itself is not allowed
  std::optional<Decimal> multiple_of;            ///< positive
  bool integers = false;
};

/// Adds the numbers of a range in front of `next`, as JSON writes them: with at most 18 digits before and behind the
/// point, without an exponent, and zero without a sign.
/// Errors: kInvalidArgument if there is no such number; kUnsupported if a bound has more digits behind the point, or if
/// multiple_of without its point is above 100; kResourceExhausted if the grammar becomes too large.
Result<Grammar::NodeId> AddNumberRange(const NumberRange& range, Grammar& grammar, Grammar::NodeId next);

}  // namespace millrace::serve
