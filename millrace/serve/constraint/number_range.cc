#include "millrace/serve/constraint/number_range.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

namespace millrace::serve {
namespace {

using NodeId = Grammar::NodeId;

constexpr int kDigits = 18;  ///< before the point, and behind it
constexpr int kMaxMultiple = 100;
constexpr std::size_t kMaxDigits = 400;  ///< of a number in a schema: more than any double has before its point
constexpr NodeId kNone = -1;             ///< no text fits

int CompareMagnitudes(const Decimal& one, const Decimal& other) {
  if (one.whole.size() != other.whole.size()) return one.whole.size() < other.whole.size() ? -1 : 1;
  const int whole = one.whole.compare(other.whole);
  return whole != 0 ? whole : one.fraction.compare(other.fraction);
}

/// Numbers without a sign, between two bounds. While the digits of a text are those of a bound, the text is tight to
/// it: the next digit decides. A text that is tight to no bound may go on with any digits.
class UnsignedRange {
 public:
  struct Bounds {
    Decimal least;
    std::optional<Decimal> most;
    bool above_least = false, below_most = false;
  };
  /// Numbers are multiples of `multiple` / 10^`decimals`, with at most `decimals` digits behind the point.
  UnsignedRange(Bounds bounds, int multiple, int decimals, Grammar& grammar, NodeId next)
      : bounds_(std::move(bounds)), multiple_(multiple), decimals_(decimals), grammar_(grammar), next_(next) {}

  /// Returns kNone if no number fits.
  Result<NodeId> Add() {
    const int shortest = static_cast<int>(bounds_.least.whole.size());
    const int longest = bounds_.most ? static_cast<int>(bounds_.most->whole.size()) : kDigits;
    std::vector<NodeId> choices;
    for (const int length : {shortest, longest}) {
      const Tight tight{.least = length == shortest, .most = bounds_.most && length == longest};
      if (tight.least || tight.most) choices.push_back(MR_TRY(TightDigit(0, length, tight, 0)));
      if (shortest == longest) break;
    }
    // Lengths that neither bound has.
    const int begin = shortest + 1, end = bounds_.most ? longest - 1 : longest;
    if (begin <= end) {
      choices.push_back(MR_TRY(Digit(1, [&](int digit) { return FreeDigits(begin - 1, end - 1, digit % multiple_); })));
    }
    return AnyOf(choices);
  }

 private:
  struct Tight {
    bool least = false, most = false;
    auto operator<=>(const Tight&) const = default;
    explicit operator bool() const { return least || most; }
  };

  NodeId AnyOf(std::vector<NodeId> choices) {
    std::erase(choices, kNone);
    std::sort(choices.begin(), choices.end());
    choices.erase(std::unique(choices.begin(), choices.end()), choices.end());
    return choices.empty() ? kNone : grammar_.Choice(choices);
  }

  /// One digit, from `first` on, each with what goes on behind it.
  template <class Behind>
  Result<NodeId> Digit(int first, Behind behind) {
    MR_TRY(grammar_.Check());
    std::map<NodeId, ByteSet> digits;
    for (int digit = first; digit <= 9; ++digit) {
      const NodeId node = MR_TRY(behind(digit));
      if (node != kNone) digits[node].set(std::size_t{'0'} + static_cast<std::size_t>(digit));
    }
    std::vector<NodeId> choices;
    for (const auto& [node, bytes] : digits) choices.push_back(grammar_.Byte(bytes, node));
    return AnyOf(std::move(choices));
  }

  int Remainder(int of, int digit) const { return (of * 10 + digit) % multiple_; }

  /// Returns kNone if `digit` at `place` (by the digits of the bounds) leaves the range; what is tight behind it else.
  static std::optional<Tight> Narrow(Tight tight, char least, char most, int digit) {
    const char c = static_cast<char>('0' + digit);
    if ((tight.least && c < least) || (tight.most && c > most)) return std::nullopt;
    return Tight{.least = tight.least && c == least, .most = tight.most && c == most};
  }

  /// Digit `at` of `length` before the point.
  Result<NodeId> TightDigit(int at, int length, Tight tight, int remainder) {
    if (at == length) return Fraction(0, tight, remainder);
    if (at > 0 && !tight) return FreeDigits(length - at, length - at, remainder);
    return Digit(at == 0 && length > 1 ? 1 : 0, [&](int digit) -> Result<NodeId> {
      const auto place = static_cast<std::size_t>(at);
      const auto behind = Narrow(tight, tight.least ? bounds_.least.whole[place] : '0',
                                 tight.most ? bounds_.most->whole[place] : '9', digit);
      if (!behind) return kNone;
      return TightDigit(at + 1, length, *behind, Remainder(remainder, digit));
    });
  }

  /// `fewest` to `most` digits before the point, and what follows.
  Result<NodeId> FreeDigits(int fewest, int most, int remainder) {
    const auto known = free_.find({fewest, most, remainder});
    if (known != free_.end()) return known->second;
    std::vector<NodeId> choices;
    if (fewest == 0) choices.push_back(MR_TRY(Fraction(0, {}, remainder)));
    if (most > 0) {
      choices.push_back(MR_TRY(Digit(
          0, [&](int digit) { return FreeDigits(std::max(0, fewest - 1), most - 1, Remainder(remainder, digit)); })));
    }
    return free_[{fewest, most, remainder}] = AnyOf(std::move(choices));
  }

  /// What follows `at` digits behind the point; 0: what follows the last digit before it.
  Result<NodeId> Fraction(int at, Tight tight, int remainder) {
    const auto known = fractions_.find({at, tight, remainder});
    if (known != fractions_.end()) return known->second;
    const auto place = static_cast<std::size_t>(at);
    std::vector<NodeId> choices;
    if (MayEnd(place, tight, remainder)) choices.push_back(next_);
    if (at < decimals_) {
      const NodeId digit = MR_TRY(Digit(0, [&](int value) -> Result<NodeId> {
        const auto of = [&](const std::string& digits) { return place < digits.size() ? digits[place] : '0'; };
        const auto behind =
            Narrow(tight, of(bounds_.least.fraction), bounds_.most ? of(bounds_.most->fraction) : '9', value);
        if (!behind) return kNone;
        return Fraction(at + 1, *behind, Remainder(remainder, value));
      }));
      if (digit != kNone) choices.push_back(at == 0 ? grammar_.Text(".", digit) : digit);
    }
    return fractions_[{at, tight, remainder}] = AnyOf(std::move(choices));
  }

  bool MayEnd(std::size_t at, Tight tight, int remainder) const {
    if (tight.least && (at < bounds_.least.fraction.size() || bounds_.above_least)) return false;
    if (tight.most && at >= bounds_.most->fraction.size() && bounds_.below_most) return false;
    for (auto place = static_cast<int>(at); place < decimals_ && multiple_ > 1; ++place) {
      remainder = Remainder(remainder, 0);
    }
    return remainder == 0;
  }

  const Bounds bounds_;
  const int multiple_, decimals_;
  Grammar& grammar_;
  const NodeId next_;
  std::map<std::tuple<int, int, int>, NodeId> free_;
  std::map<std::tuple<int, Tight, int>, NodeId> fractions_;
};

/// The multiple as a whole number, and how many digits it has behind its point.
Result<std::pair<int, int>> ScaledMultiple(const Decimal& multiple) {
  std::string digits = multiple.whole + multiple.fraction;
  digits.erase(0, std::min(digits.find_first_not_of('0'), digits.size()));
  int scaled = 0;
  if (digits.size() <= 3) std::from_chars(digits.data(), digits.data() + digits.size(), scaled);
  if (multiple.negative || digits.empty()) return Fail(Code::kInvalidArgument, "multipleOf should be above 0");
  if (scaled == 0 || scaled > kMaxMultiple || multiple.fraction.size() > kDigits) {
    return Fail(Code::kUnsupported, "multipleOf of more than {}, without its point, is not supported", kMaxMultiple);
  }
  return std::pair(scaled, static_cast<int>(multiple.fraction.size()));
}

}  // namespace

Result<Decimal> ParseDecimal(std::string_view text) {
  Decimal decimal{.negative = text.starts_with('-')};
  if (decimal.negative) text.remove_prefix(1);
  int exponent = 0;
  if (const std::size_t e = text.find_first_of("eE"); e != text.npos) {
    std::string_view digits = text.substr(e + 1);
    if (digits.starts_with('+')) digits.remove_prefix(1);
    std::from_chars(digits.data(), digits.data() + digits.size(), exponent);
    text = text.substr(0, e);
  }
  const std::size_t point = std::min(text.find('.'), text.size());
  std::string digits(text.substr(0, point));
  const std::string_view behind = text.substr(std::min(point + 1, text.size()));
  digits += behind;
  // The place of the point among the digits. Zeros are added where it stands outside of them.
  auto place = static_cast<std::int64_t>(point) + exponent;
  if (std::max<std::int64_t>(std::abs(place), std::ssize(digits)) > std::int64_t{kMaxDigits}) {
    return Fail(Code::kUnsupported, "a number of more than {} digits is not supported", kMaxDigits);
  }
  if (place < 0) digits.insert(0, static_cast<std::size_t>(-place), '0');
  place = std::max<std::int64_t>(place, 0);
  if (place > std::ssize(digits)) digits.append(static_cast<std::size_t>(place - std::ssize(digits)), '0');
  decimal.whole = digits.substr(0, static_cast<std::size_t>(place));
  decimal.fraction = digits.substr(static_cast<std::size_t>(place));
  decimal.whole.erase(0, std::min(decimal.whole.find_first_not_of('0'), decimal.whole.size()));
  if (decimal.whole.empty()) decimal.whole = "0";
  decimal.fraction.erase(decimal.fraction.find_last_not_of('0') + 1);
  if (decimal.is_zero()) decimal.negative = false;
  return decimal;
}

int Compare(const Decimal& one, const Decimal& other) {
  if (one.negative != other.negative) return one.negative ? -1 : 1;
  return one.negative ? CompareMagnitudes(other, one) : CompareMagnitudes(one, other);
}

Result<Grammar::NodeId> AddNumberRange(const NumberRange& range, Grammar& grammar, Grammar::NodeId next) {
  int multiple = 1, decimals = kDigits;
  if (range.multiple_of) std::tie(multiple, decimals) = MR_TRY(ScaledMultiple(*range.multiple_of));
  // An integer is a multiple of m / 10^n if its digits with n zeros behind them are a multiple of m.
  int scale = 0;
  if (range.integers) scale = std::exchange(decimals, 0);
  if (range.integers && range.multiple_of) {
    int zeros = 1;
    for (int i = 0; i < scale && i < kMaxMultiple; ++i) zeros = zeros * 10 % multiple;
    // m divides n * zeros exactly if m / gcd(m, zeros) divides n. `zeros` is 10^scale modulo m.
    multiple /= std::gcd(multiple, zeros);
  }
  NumberRange wanted = range;
  for (const auto* bound : {&wanted.least, &wanted.most}) {
    if (*bound && (*bound)->fraction.size() > kDigits) {
      return Fail(Code::kUnsupported, "a bound with more than {} digits behind the point is not supported", kDigits);
    }
  }
  // No number has more digits, so that such a bound holds for all or for none.
  const auto beyond = [](const std::optional<Decimal>& bound) { return bound && bound->whole.size() > kDigits; };
  const bool none = (beyond(wanted.least) && !wanted.least->negative) || (beyond(wanted.most) && wanted.most->negative);
  if (beyond(wanted.least)) wanted.least.reset();
  if (beyond(wanted.most)) wanted.most.reset();
  NodeId start = kNone;
  const auto add = [&](UnsignedRange::Bounds bounds, std::string_view sign) -> Status {
    if (bounds.most && CompareMagnitudes(bounds.least, *bounds.most) > 0) return {};
    const NodeId node = MR_TRY(UnsignedRange(std::move(bounds), multiple, decimals, grammar, next).Add());
    if (node == kNone) return {};
    const NodeId with_sign = grammar.Text(sign, node);
    start = start == kNone ? with_sign : grammar.Choice(start, with_sign);
    return {};
  };
  const auto negated = [](Decimal decimal) {
    decimal.negative = false;
    return decimal;
  };
  if (!none && !(wanted.most && wanted.most->negative)) {
    const bool from_zero = !wanted.least || wanted.least->negative;
    MR_TRY(add({.least = from_zero ? Decimal{} : *wanted.least,
                .most = wanted.most,
                .above_least = !from_zero && wanted.above_least,
                .below_most = wanted.below_most},
               ""));
  }
  if (!none && !(wanted.least && !wanted.least->negative)) {
    const bool to_zero = !wanted.most || !wanted.most->negative;
    MR_TRY(add({.least = to_zero ? Decimal{} : negated(*wanted.most),
                .most = wanted.least ? std::optional(negated(*wanted.least)) : std::nullopt,
                .above_least = to_zero || wanted.below_most,
                .below_most = wanted.above_least},
               "-"));
  }
  if (start == kNone)
    return Fail(Code::kInvalidArgument, "no number fits its bounds; change minimum, maximum or multipleOf");
  return start;
}

}  // namespace millrace::serve
