#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "millrace/base/text.h"
#include "millrace/jinja/arguments.h"
#include "millrace/jinja/functions.h"
#include "millrace/jinja/python/stable_sort.h"
#include "millrace/jinja/python/text.h"
#include "millrace/jinja/python/work.h"

namespace millrace::jinja {
namespace {

struct FilterCall {
  Interpreter& interpreter;
  std::string_view name;
  const Value& input;
  Arguments arguments;
  ArgumentReader Reader() { return {name, std::move(arguments)}; }
};
using Filter = Result<Value> (*)(FilterCall&);

Status NoArguments(FilterCall& call) { return call.Reader().Finish(); }

/// Returns the member of an item that a path such as "function.name" or an index names.
Result<Value> MemberOf(Interpreter& interpreter, Value item, const Value& path) {
  if (path.text() == nullptr) return interpreter.Item(item, path);
  for (const std::string& part : SplitAt(*path.text(), ".", -1, false)) {
    std::int64_t index = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), index);
    const bool is_index = error == std::errc() && end == part.data() + part.size();
    item = MR_TRY(interpreter.Item(item, is_index ? Value::Of(index) : Value::Of(part)));
  }
  return item;
}

Result<List> ElementsOf(FilterCall& call) {
  List items = MR_TRY(Elements(call.input));
  MR_TRY(call.interpreter.Spend(static_cast<std::int64_t>(items.size())));
  return items;
}

/// As ElementsOf, but whatever counts as false has no elements.
Result<List> ElementsIfAny(FilterCall& call) { return call.input.Truthy() ? ElementsOf(call) : Result<List>(List()); }

template <auto change>
Result<Value> ChangeText(FilterCall& call) {
  MR_TRY(NoArguments(call));
  return Value::Of(MR_TRY(change(MR_TRY(Print(call.input)))));
}

Result<Value> Trim(FilterCall& call) {
  ArgumentReader reader = call.Reader();
  const auto characters = reader.Take("chars");
  MR_TRY(reader.Finish());
  const std::string text = MR_TRY(Print(call.input));
  const bool given = characters && characters->text() != nullptr;
  std::string trimmed(given ? Strip(text, Ends::kBoth, *characters->text()) : Strip(text, Ends::kBoth));
  return call.input.markup() ? Value::OfMarkup(std::move(trimmed)) : Value::Of(std::move(trimmed));
}

Result<Value> Length(FilterCall& call) {
  MR_TRY(NoArguments(call));
  if (const std::string* text = call.input.text()) return Value::Of(CountCharacters(*text));
  if (const Iteration* all = call.input.iteration(); all != nullptr && all->view.empty()) {
    return Fail(Code::kInvalidArgument, "the result of a filter has no length before `|list`");
  }
  return Value::Of(static_cast<std::int64_t>(MR_TRY(ElementsOf(call)).size()));
}

Result<Value> Default(FilterCall& call) {
  ArgumentReader reader = call.Reader();
  Value fallback = reader.Take("default_value").value_or(Value::Of(std::string()));
  const bool for_false = reader.Flag("boolean", false);
  MR_TRY(reader.Finish());
  return call.input.undefined() || (for_false && !call.input.Truthy()) ? fallback : call.input;
}

Result<Value> Join(FilterCall& call) {
  ArgumentReader reader = call.Reader();
  const std::string separator = reader.Text("d", "");
  const auto attribute = reader.Take("attribute");
  MR_TRY(reader.Finish());
  std::string joined;
  bool first = true;
  for (const Value& item : MR_TRY(ElementsOf(call))) {
    if (!std::exchange(first, false)) joined += separator;
    joined += attribute ? MR_TRY(Print(MR_TRY(MemberOf(call.interpreter, item, *attribute)))) : MR_TRY(Print(item));
    Work::HasRoom(joined.size() + separator.size());
    MR_TRY(Work::Check());
  }
  return Value::Of(std::move(joined));
}

Result<Value> ReplaceText(FilterCall& call) {
  ArgumentReader reader = call.Reader();
  const Value from = reader.Require("old"), to = reader.Require("new");
  const std::int64_t count = reader.Integer("count", -1);
  MR_TRY(reader.Finish());
  const std::string text = MR_TRY(Print(call.input));
  return Value::Of(Replace(text, from.ToText(), to.ToText(), count));
}

Result<Value> First(FilterCall& call) {
  MR_TRY(NoArguments(call));
  List items = MR_TRY(ElementsOf(call));
  return items.empty() ? Value::OfUndefined("the first element of nothing") : items.front();
}

Result<Value> Last(FilterCall& call) {
  MR_TRY(NoArguments(call));
  if (const Iteration* all = call.input.iteration(); all != nullptr && all->view.empty()) {
    return Fail(Code::kInvalidArgument, "the result of a filter has no last element before `|list`");
  }
  List items = MR_TRY(ElementsOf(call));
  return items.empty() ? Value::OfUndefined("the last element of nothing") : items.back();
}

Result<Value> ToList(FilterCall& call) {
  MR_TRY(NoArguments(call));
  return Value::OfList(MR_TRY(ElementsOf(call)));
}

Result<Value> Reverse(FilterCall& call) {
  MR_TRY(NoArguments(call));
  List items = MR_TRY(ElementsOf(call));
  std::reverse(items.begin(), items.end());
  if (call.input.text() == nullptr) return Value::OfIteration(std::move(items));
  std::string text;
  for (const Value& item : items) text += *item.text();
  return Value::Of(std::move(text));
}

Result<Value> Items(FilterCall& call) {
  MR_TRY(NoArguments(call));
  List items;
  if (call.input.undefined()) return Value::OfIteration({});
  const Dict* dict = call.input.dict();
  if (dict == nullptr) return Fail(Code::kInvalidArgument, "items wants a mapping, not {}", call.input.TypeName());
  for (const auto& [key, value] : *dict) items.push_back(Value::OfTuple({key, value}));
  return Value::OfIteration(std::move(items));
}

Result<Value> ToJsonText(FilterCall& call) {
  ArgumentReader reader = call.Reader();
  DumpOptions options;
  options.ascii = reader.Flag("ensure_ascii", false);
  options.indent = static_cast<int>(std::clamp<std::int64_t>(reader.Integer("indent", -1), -1, 16));
  if (const auto separators = reader.Take("separators"); separators && !separators->none()) {
    const Sequence* pair = separators->sequence();
    if (pair == nullptr || pair->items.size() != 2 || pair->items[0].text() == nullptr ||
        pair->items[1].text() == nullptr) {
      return Fail(Code::kInvalidArgument, "tojson: separators should be two strings");
    }
    options.item_separator = *pair->items[0].text();
    options.key_separator = *pair->items[1].text();
  }
  options.sort_keys = reader.Flag("sort_keys", false);
  MR_TRY(reader.Finish());
  return Value::Of(MR_TRY(ToJson(call.input, options)));
}

Result<Value> ToString(FilterCall& call) {
  MR_TRY(NoArguments(call));
  return call.input.markup() ? call.input : Value::Of(MR_TRY(Print(call.input)));
}

Result<Value> ToMarkup(FilterCall& call) {
  MR_TRY(NoArguments(call));
  return Value::OfMarkup(MR_TRY(Print(call.input)));
}

Result<Value> Escape(FilterCall& call) {
  MR_TRY(NoArguments(call));
  return Value::OfMarkup(MR_TRY(Escaped(call.input)));
}

std::unexpected<Error> NoNumber(const FilterCall& call) {
  return Fail(Code::kInvalidArgument, "{}: \"{}\" is undefined; test it with `is defined` first", call.name,
              call.input.As<Undefined>()->name);
}

Result<Value> ToInteger(FilterCall& call) {
  if (call.input.undefined()) return NoNumber(call);
  ArgumentReader reader = call.Reader();
  Value fallback = reader.Take("default").value_or(Value::Of(std::int64_t{0}));
  MR_TRY(reader.Finish());
  if (call.input.integer()) return Value::Of(call.input.AsInteger());
  double number = 0;
  if (call.input.number()) {
    number = call.input.AsDouble();
  } else {
    const std::string text = call.input.text() != nullptr ? std::string(Strip(*call.input.text(), Ends::kBoth)) : "";
    std::int64_t integer = 0;
    const char* end = text.data() + text.size();
    const char* begin = text.data() + (text.starts_with('+') ? 1 : 0);
    if (const auto parsed = std::from_chars(begin, end, integer); parsed.ec == std::errc() && parsed.ptr == end) {
      return Value::Of(integer);
    }
    if (const auto parsed = std::from_chars(begin, end, number); parsed.ec != std::errc() || parsed.ptr != end) {
      return fallback;
    }
  }
  if (!(std::abs(number) < 9e18)) return fallback;
  return Value::Of(static_cast<std::int64_t>(number));
}

Result<Value> ToFloat(FilterCall& call) {
  if (call.input.undefined()) return NoNumber(call);
  ArgumentReader reader = call.Reader();
  Value fallback = reader.Take("default").value_or(Value::Of(0.0));
  MR_TRY(reader.Finish());
  if (call.input.number()) return Value::Of(call.input.AsDouble());
  const std::string text = call.input.text() != nullptr ? std::string(Strip(*call.input.text(), Ends::kBoth)) : "";
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() ? Value::Of(number) : fallback;
}

Result<Value> Absolute(FilterCall& call) {
  MR_TRY(NoArguments(call));
  if (call.input.integer()) return Value::Of(std::abs(call.input.AsInteger()));
  if (call.input.number()) return Value::Of(std::abs(call.input.AsDouble()));
  return Fail(Code::kInvalidArgument, "abs wants a number, not {}", call.input.TypeName());
}

Result<Value> Round(FilterCall& call) {
  ArgumentReader reader = call.Reader();
  const std::int64_t precision = std::clamp<std::int64_t>(reader.Integer("precision", 0), -15, 15);
  const std::string method = reader.Text("method", "common");
  MR_TRY(reader.Finish());
  if (!call.input.number()) return Fail(Code::kInvalidArgument, "round wants a number, not {}", call.input.TypeName());
  const double scale = std::pow(10.0, static_cast<double>(precision)), scaled = call.input.AsDouble() * scale;
  if (method == "ceil") return Value::Of(std::ceil(scaled) / scale);
  if (method == "floor") return Value::Of(std::floor(scaled) / scale);
  if (method != "common") return Fail(Code::kInvalidArgument, "round: method should be common, ceil or floor");
  const double rounded = std::nearbyint(scaled) / scale;
  return call.input.integer() ? Value::Of(static_cast<std::int64_t>(rounded)) : Value::Of(rounded);
}

/// Returns the items that `keeps` is true for. `attribute`: judges that member of each.
Result<Value> Choose(FilterCall& call, bool with_attribute, bool keeps) {
  Arguments arguments = std::move(call.arguments);
  const auto take_first = [&]() -> std::optional<Value> {
    if (arguments.positional.empty()) return std::nullopt;
    Value first = arguments.positional.front();
    arguments.positional.erase(arguments.positional.begin());
    return first;
  };
  std::optional<Value> attribute;
  if (with_attribute) {
    attribute = take_first();
    if (!attribute) return Fail(Code::kInvalidArgument, "{} wants the name of a member", call.name);
  }
  const std::optional<Value> test = take_first();
  if (test && test->text() == nullptr) return Fail(Code::kInvalidArgument, "{} wants the name of a test", call.name);
  List kept;
  for (const Value& item : MR_TRY(ElementsIfAny(call))) {
    const Value judged = attribute ? MR_TRY(MemberOf(call.interpreter, item, *attribute)) : item;
    const bool holds = test ? MR_TRY(call.interpreter.Test(*test->text(), judged, arguments)) : judged.Truthy();
    if (holds == keeps) kept.push_back(item);
  }
  return Value::OfIteration(std::move(kept));
}
Result<Value> Select(FilterCall& call) { return Choose(call, false, true); }
Result<Value> Reject(FilterCall& call) { return Choose(call, false, false); }
Result<Value> SelectMember(FilterCall& call) { return Choose(call, true, true); }
Result<Value> RejectMember(FilterCall& call) { return Choose(call, true, false); }

Result<Value> Map(FilterCall& call) {
  Arguments arguments = std::move(call.arguments);
  List mapped;
  if (arguments.positional.empty()) {
    ArgumentReader reader("map", std::move(arguments));
    const Value attribute = reader.Require("attribute");
    const auto fallback = reader.Take("default");
    MR_TRY(reader.Finish());
    for (const Value& item : MR_TRY(ElementsIfAny(call))) {
      Value member = MR_TRY(MemberOf(call.interpreter, item, attribute));
      if (member.undefined() && fallback) member = *fallback;
      mapped.push_back(std::move(member));
    }
    return Value::OfIteration(std::move(mapped));
  }
  const Value name = arguments.positional.front();
  if (name.text() == nullptr) return Fail(Code::kInvalidArgument, "map wants the name of a filter");
  arguments.positional.erase(arguments.positional.begin());
  for (const Value& item : MR_TRY(ElementsIfAny(call))) {
    mapped.push_back(MR_TRY(call.interpreter.Filter(*name.text(), item, arguments)));
  }
  return Value::OfIteration(std::move(mapped));
}

/// Returns what is compared: letters of any size are equal unless `case_sensitive`.
Result<Value> Comparable(const Value& value, bool case_sensitive) {
  if (case_sensitive || value.text() == nullptr) return value;
  return Value::Of(MR_TRY(Lower(*value.text())));
}

/// Sorts pairs of a key and a value by their keys, which must have an order.
Status SortByKey(std::vector<std::pair<Value, Value>>& keyed, bool reverse) {
  for (const auto& [key, value] : keyed) MR_TRY(Less(keyed.front().first, key));
  StableSort(keyed, [reverse](const auto& a, const auto& b) {
    return (reverse ? Less(b.first, a.first) : Less(a.first, b.first)).value_or(false);
  });
  return {};
}

Result<Value> Sort(FilterCall& call) {
  ArgumentReader reader = call.Reader();
  const bool reverse = reader.Flag("reverse", false), case_sensitive = reader.Flag("case_sensitive", false);
  const auto attribute = reader.Take("attribute");
  MR_TRY(reader.Finish());
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& item : MR_TRY(ElementsOf(call))) {
    const Value judged = attribute && !attribute->none() ? MR_TRY(MemberOf(call.interpreter, item, *attribute)) : item;
    Value key = MR_TRY(Comparable(judged, case_sensitive));
    keyed.emplace_back(std::move(key), item);
  }
  MR_TRY(SortByKey(keyed, reverse));
  List sorted;
  for (auto& [key, item] : keyed) sorted.push_back(std::move(item));
  return Value::OfList(std::move(sorted));
}

Result<Value> SortDict(FilterCall& call) {
  ArgumentReader reader = call.Reader();
  const bool case_sensitive = reader.Flag("case_sensitive", false);
  const std::string by = reader.Text("by", "key");
  const bool reverse = reader.Flag("reverse", false);
  MR_TRY(reader.Finish());
  const Dict* dict = call.input.dict();
  if (dict == nullptr) return Fail(Code::kInvalidArgument, "dictsort wants a mapping, not {}", call.input.TypeName());
  if (by != "key" && by != "value") return Fail(Code::kInvalidArgument, "dictsort: by should be key or value");
  MR_TRY(call.interpreter.Spend(static_cast<std::int64_t>(dict->size())));
  std::vector<std::pair<Value, Value>> keyed;
  for (const auto& [key, value] : *dict) {
    Value order = MR_TRY(Comparable(by == "key" ? key : value, case_sensitive));
    keyed.emplace_back(std::move(order), Value::OfTuple({key, value}));
  }
  MR_TRY(SortByKey(keyed, reverse));
  List sorted;
  for (auto& [key, item] : keyed) sorted.push_back(std::move(item));
  return Value::OfList(std::move(sorted));
}

Result<Value> Unique(FilterCall& call) {
  ArgumentReader reader = call.Reader();
  const bool case_sensitive = reader.Flag("case_sensitive", false);
  const auto attribute = reader.Take("attribute");
  MR_TRY(reader.Finish());
  List unique, seen;
  for (const Value& item : MR_TRY(ElementsOf(call))) {
    const Value judged = attribute && !attribute->none() ? MR_TRY(MemberOf(call.interpreter, item, *attribute)) : item;
    Value key = MR_TRY(Comparable(judged, case_sensitive));
    if (!Hashable(key)) {
      return Fail(Code::kInvalidArgument,
                  "unique: {} has no hash; the elements must be texts, numbers, booleans, none or tuples",
                  key.TypeName());
    }
    MR_TRY(call.interpreter.Spend(static_cast<std::int64_t>(seen.size())));
    if (std::any_of(seen.begin(), seen.end(), [&](const Value& each) { return Equal(each, key); })) continue;
    seen.push_back(std::move(key));
    unique.push_back(item);
  }
  return Value::OfIteration(std::move(unique));
}

Result<Value> Extreme(FilterCall& call, bool largest) {
  ArgumentReader reader = call.Reader();
  const bool case_sensitive = reader.Flag("case_sensitive", false);
  const auto attribute = reader.Take("attribute");
  MR_TRY(reader.Finish());
  Value best = Value::OfUndefined("the extreme of nothing"), best_key;
  bool first = true;
  for (const Value& item : MR_TRY(ElementsOf(call))) {
    const Value judged = attribute && !attribute->none() ? MR_TRY(MemberOf(call.interpreter, item, *attribute)) : item;
    Value key = MR_TRY(Comparable(judged, case_sensitive));
    if (!std::exchange(first, false) && !MR_TRY(largest ? Less(best_key, key) : Less(key, best_key))) continue;
    best = item;
    best_key = std::move(key);
  }
  return best;
}
Result<Value> Least(FilterCall& call) { return Extreme(call, false); }
Result<Value> Greatest(FilterCall& call) { return Extreme(call, true); }

Result<Value> Sum(FilterCall& call) {
  ArgumentReader reader = call.Reader();
  const auto attribute = reader.Take("attribute");
  const auto start = reader.Take("start");
  MR_TRY(reader.Finish());
  double sum = start && start->number() ? start->AsDouble() : 0;
  bool whole = !start || start->integer();
  for (const Value& item : MR_TRY(ElementsOf(call))) {
    const Value number = attribute && !attribute->none() ? MR_TRY(MemberOf(call.interpreter, item, *attribute)) : item;
    if (!number.number()) return Fail(Code::kInvalidArgument, "sum wants numbers, not {}", number.TypeName());
    whole = whole && number.integer();
    sum += number.AsDouble();
  }
  return whole && std::abs(sum) < 9e15 ? Value::Of(static_cast<std::int64_t>(sum)) : Value::Of(sum);
}

Result<Value> Indent(FilterCall& call) {
  ArgumentReader reader = call.Reader();
  const Value width = reader.Take("width").value_or(Value::Of(std::int64_t{4}));
  const bool first = reader.Flag("first", false), blank = reader.Flag("blank", false);
  MR_TRY(reader.Finish());
  if (width.text() == nullptr && !width.integer())
    return Fail(Code::kInvalidArgument, "indent: width should be a number or a string");
  const std::string indent =
      width.text() != nullptr
          ? *width.text()
          : std::string(static_cast<std::size_t>(std::clamp<std::int64_t>(width.AsInteger(), 0, 1000)), ' ');
  if (call.input.text() == nullptr)
    return Fail(Code::kInvalidArgument, "indent wants a string, not {}", call.input.TypeName());
  const std::string& text = *call.input.text();
  std::vector<std::string> lines = SplitLines(text, false);
  if (text.empty() || text.ends_with('\n')) lines.emplace_back();
  std::string indented;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) indented += '\n';
    Work::HasRoom(indented.size() + indent.size() + lines[i].size());
    MR_TRY(Work::Check());
    if (i == 0 ? first : blank || !lines[i].empty()) indented += indent;
    indented += lines[i];
  }
  return Value::Of(std::move(indented));
}

Result<std::string> UpperText(const std::string& text) { return Upper(text); }
Result<std::string> LowerText(const std::string& text) { return Lower(text); }
Result<std::string> CapitalText(const std::string& text) { return Capitalize(text); }
Result<std::string> TitleText(const std::string& text) { return Title(text, "-([{< \t\n\r\f\v"); }

struct NamedFilter {
  std::string_view name;
  Filter filter;
};
constexpr std::array<NamedFilter, 37> kFilters = {{
    {"abs", Absolute},
    {"capitalize", ChangeText<CapitalText>},
    {"count", Length},
    {"d", Default},
    {"default", Default},
    {"dictsort", SortDict},
    {"e", Escape},
    {"escape", Escape},
    {"first", First},
    {"float", ToFloat},
    {"indent", Indent},
    {"int", ToInteger},
    {"items", Items},
    {"join", Join},
    {"last", Last},
    {"length", Length},
    {"list", ToList},
    {"lower", ChangeText<LowerText>},
    {"map", Map},
    {"max", Greatest},
    {"min", Least},
    {"reject", Reject},
    {"rejectattr", RejectMember},
    {"replace", ReplaceText},
    {"reverse", Reverse},
    {"round", Round},
    {"safe", ToMarkup},
    {"select", Select},
    {"selectattr", SelectMember},
    {"sort", Sort},
    {"string", ToString},
    {"sum", Sum},
    {"title", ChangeText<TitleText>},
    {"tojson", ToJsonText},
    {"trim", Trim},
    {"unique", Unique},
    {"upper", ChangeText<UpperText>},
}};

}  // namespace

Result<Value> ApplyFilter(Interpreter& interpreter, std::string_view name, const Value& input, Arguments arguments) {
  const auto found =
      std::find_if(kFilters.begin(), kFilters.end(), [&](const auto& each) { return each.name == name; });
  if (found == kFilters.end()) return Fail(Code::kUnsupported, "the filter \"{}\" is not supported", name);
  FilterCall call{interpreter, name, input, std::move(arguments)};
  return found->filter(call);
}

}  // namespace millrace::jinja
