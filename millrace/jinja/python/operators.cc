#include "millrace/jinja/python/operators.h"

#include <algorithm>
#include <cmath>

#include "millrace/jinja/python/text.h"
#include "millrace/jinja/python/work.h"

namespace millrace::jinja {
namespace {

constexpr std::int64_t kMaxRepeated = 16 * 1024 * 1024;

std::unexpected<Error> TooLarge() {
  return Fail(Code::kInvalidArgument, "a number does not fit 64 bits; it must lie between -2^63 and 2^63 - 1");
}

Result<Value> IntegerPower(std::int64_t base, std::int64_t exponent) {
  if (exponent < 0) return Value::Of(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  std::int64_t power = 1;
  for (std::int64_t i = 0; i < exponent; ++i) {
    if (__builtin_mul_overflow(power, base, &power)) return TooLarge();
    if (power == 0 || (power == 1 && base == 1)) break;
    if (base == -1) return Value::Of(exponent % 2 == 0 ? std::int64_t{1} : std::int64_t{-1});
  }
  return Value::Of(power);
}

Result<Value> CalculateIntegers(std::string_view operation, std::int64_t x, std::int64_t y) {
  std::int64_t result = 0;
  if (operation == "+") return __builtin_add_overflow(x, y, &result) ? Result<Value>(TooLarge()) : Value::Of(result);
  if (operation == "-") return __builtin_sub_overflow(x, y, &result) ? Result<Value>(TooLarge()) : Value::Of(result);
  if (operation == "*") return __builtin_mul_overflow(x, y, &result) ? Result<Value>(TooLarge()) : Value::Of(result);
  if (operation == "**") return IntegerPower(x, y);
  if (y == 0) return Fail(Code::kInvalidArgument, "division by zero; check the divisor first");
  if (operation == "/") return Value::Of(static_cast<double>(x) / static_cast<double>(y));
  if (y == -1) return operation == "%" ? Value::Of(std::int64_t{0}) : CalculateIntegers("-", 0, x);
  // Python rounds down, so that the rest has the sign of the divisor.
  const bool down = x % y != 0 && (x < 0) != (y < 0);
  return Value::Of(operation == "//" ? x / y - (down ? 1 : 0) : x % y + (down ? y : 0));
}

Result<Value> CalculateFloats(std::string_view operation, double x, double y) {
  if (operation == "+") return Value::Of(x + y);
  if (operation == "-") return Value::Of(x - y);
  if (operation == "*") return Value::Of(x * y);
  if (operation == "**") return Value::Of(std::pow(x, y));
  if (y == 0) return Fail(Code::kInvalidArgument, "division by zero; check the divisor first");
  if (operation == "/") return Value::Of(x / y);
  if (operation == "//") return Value::Of(std::floor(x / y));
  const double rest = std::fmod(x, y);
  return Value::Of(rest != 0 && (rest < 0) != (y < 0) ? rest + y : rest);
}

Result<Value> Repeat(const Value& value, std::int64_t count) {
  const std::int64_t times = std::max<std::int64_t>(count, 0);
  const auto fits = [&](std::size_t size) {
    return size == 0 || times <= kMaxRepeated / static_cast<std::int64_t>(size);
  };
  if (const std::string* text = value.text()) {
    if (!fits(text->size()))
      return Fail(Code::kResourceExhausted, "a string of {} bytes {} times is too long", text->size(), times);
    Work::HasRoom(text->size() * static_cast<std::size_t>(times));
    MR_TRY(Work::Check());
    std::string repeated;
    repeated.reserve(text->size() * static_cast<std::size_t>(times));
    for (std::int64_t i = 0; i < times && !text->empty(); ++i) repeated += *text;
    return value.markup() ? Value::OfMarkup(std::move(repeated)) : Value::Of(std::move(repeated));
  }
  const Sequence& sequence = *value.sequence();
  if (!fits(16 * sequence.items.size())) return Fail(Code::kResourceExhausted, "a list {} times is too long", times);
  Work::HasRoom(sequence.items.size() * sizeof(Value) * static_cast<std::size_t>(times));
  MR_TRY(Work::Check());
  List items;
  for (std::int64_t i = 0; i < times && !sequence.items.empty(); ++i) {
    items.insert(items.end(), sequence.items.begin(), sequence.items.end());
  }
  return sequence.tuple ? Value::OfTuple(std::move(items)) : Value::OfList(std::move(items));
}

}  // namespace

Result<Value> Calculate(std::string_view operation, const Value& left, const Value& right) {
  if (left.integer() && right.integer()) return CalculateIntegers(operation, left.AsInteger(), right.AsInteger());
  if (left.number() && right.number()) return CalculateFloats(operation, left.AsDouble(), right.AsDouble());
  const auto repeats = [](const Value& value) { return value.text() != nullptr || value.sequence() != nullptr; };
  if (operation == "*" && repeats(left) && right.integer()) return Repeat(left, right.AsInteger());
  if (operation == "*" && repeats(right) && left.integer()) return Repeat(right, left.AsInteger());
  if (operation == "+" && left.text() != nullptr && right.text() != nullptr) {
    Work::HasRoom(left.text()->size() + right.text()->size());
    MR_TRY(Work::Check());
    if (left.markup() || right.markup()) return Value::OfMarkup(MR_TRY(Escaped(left)) + MR_TRY(Escaped(right)));
    return Value::Of(*left.text() + *right.text());
  }
  const Sequence *x = left.sequence(), *y = right.sequence();
  if (operation == "+" && x != nullptr && y != nullptr && x->tuple == y->tuple) {
    Work::HasRoom((x->items.size() + y->items.size()) * sizeof(Value));
    MR_TRY(Work::Check());
    List items = x->items;
    items.insert(items.end(), y->items.begin(), y->items.end());
    return x->tuple ? Value::OfTuple(std::move(items)) : Value::OfList(std::move(items));
  }
  if (operation == "%" && left.text() != nullptr) {
    return Fail(Code::kUnsupported, "formatting with % is not supported");
  }
  for (const Value* value : {&left, &right}) {
    if (const auto* undefined = value->As<Undefined>()) {
      return Fail(Code::kInvalidArgument, "\"{}\" is undefined; test it with `is defined` first", undefined->name);
    }
  }
  return Fail(Code::kInvalidArgument,
              "{} and {} have no operator {}; convert one of them with a filter such as string or int", left.TypeName(),
              right.TypeName(), operation);
}

Result<Value> Negate(const Value& value) {
  if (value.integer()) return CalculateIntegers("-", 0, value.AsInteger());
  if (value.number()) return Value::Of(-value.AsDouble());
  return Fail(Code::kInvalidArgument, "{} has no negative; only a number can have one", value.TypeName());
}

Result<bool> Contains(const Value& container, const Value& item) {
  if (const std::string* text = container.text()) {
    if (item.text() == nullptr)
      return Fail(Code::kInvalidArgument, "{} cannot be in a string; only another string can be", item.TypeName());
    return FindFirst(*text, *item.text()) != std::string::npos;
  }
  if (const Dict* dict = container.dict()) {
    if (!Hashable(item)) {
      return Fail(Code::kInvalidArgument, "{} cannot be a key; keys must be texts, numbers, booleans, none or tuples",
                  item.TypeName());
    }
    return Find(*dict, item) != nullptr;
  }
  const List items = MR_TRY(Elements(container));
  return std::any_of(items.begin(), items.end(), [&](const Value& each) { return Equal(each, item); });
}

Result<Value> Slice(const Value& value, std::optional<std::int64_t> start, std::optional<std::int64_t> stop,
                    std::int64_t step) {
  if (step == 0) return Fail(Code::kInvalidArgument, "the step of a slice is 0; choose another");
  const std::string* text = value.text();
  const Sequence* sequence = value.sequence();
  if (text == nullptr && sequence == nullptr) {
    const auto* undefined = value.As<Undefined>();
    return Fail(Code::kInvalidArgument, "{} has no slices; only strings, lists and tuples have some",
                undefined != nullptr ? fmt::format("\"{}\" is undefined and", undefined->name) : value.TypeName());
  }
  const bool ascii = text != nullptr && IsAscii(*text);
  const std::vector<std::size_t> starts =
      text != nullptr && !ascii ? CharacterStarts(*text) : std::vector<std::size_t>();
  MR_TRY(Work::Check());
  const auto size = static_cast<std::int64_t>(ascii             ? text->size()
                                              : text != nullptr ? starts.size() - 1
                                                                : sequence->items.size());
  const std::int64_t least = step > 0 ? 0 : -1, most = step > 0 ? size : size - 1;
  const auto place = [&](std::optional<std::int64_t> given, std::int64_t fallback) {
    if (!given) return fallback;
    return std::clamp(*given < 0 ? std::max(*given, -size - 1) + size : *given, least, most);
  };
  const std::int64_t begin = place(start, step > 0 ? 0 : size - 1), end = place(stop, step > 0 ? size : -1);
  // A step beyond the size visits one element, as that of the size does.
  const std::int64_t stride = std::clamp(step, -size - 1, size + 1);
  std::string characters;
  List items;
  for (std::int64_t i = begin; step > 0 ? i < end : i > end; i += stride) {
    const auto at = static_cast<std::size_t>(i);
    if (!Work::HasRoom(characters.size() + items.size() * sizeof(Value))) return std::unexpected(Work::Check().error());
    if (ascii) {
      characters += (*text)[at];
    } else if (text != nullptr) {
      characters += std::string_view(*text).substr(starts[at], starts[at + 1] - starts[at]);
    } else {
      items.push_back(sequence->items[at]);
    }
  }
  if (value.markup()) return Value::OfMarkup(std::move(characters));
  if (text != nullptr) return Value::Of(std::move(characters));
  return sequence->tuple ? Value::OfTuple(std::move(items)) : Value::OfList(std::move(items));
}

}  // namespace millrace::jinja
