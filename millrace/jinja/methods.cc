#include <algorithm>
#include <array>

#include "millrace/jinja/arguments.h"
#include "millrace/jinja/functions.h"
#include "millrace/jinja/python/text.h"
#include "millrace/jinja/python/work.h"

namespace millrace::jinja {
namespace {

using Method = Result<Value> (*)(const Value& self, std::string_view name, Arguments arguments);

Value TextValue(std::string_view text) { return Value::Of(std::string(Work::HasRoom(text.size()) ? text : "")); }

Value ListOfTexts(std::vector<std::string> texts) {
  List items;
  for (std::string& text : texts) items.push_back(Value::Of(std::move(text)));
  return Value::OfList(std::move(items));
}

template <Ends ends>
Result<Value> StripMethod(const Value& self, std::string_view name, Arguments arguments) {
  ArgumentReader reader(name, std::move(arguments));
  const auto characters = reader.Take("chars");
  MR_TRY(reader.Finish());
  if (!characters || characters->none()) return TextValue(Strip(*self.text(), ends));
  if (characters->text() == nullptr) return Fail(Code::kInvalidArgument, "{} wants a string", name);
  return TextValue(Strip(*self.text(), ends, *characters->text()));
}

template <bool from_right>
Result<Value> SplitMethod(const Value& self, std::string_view name, Arguments arguments) {
  ArgumentReader reader(name, std::move(arguments));
  const auto separator = reader.Take("sep");
  const std::int64_t most = reader.Integer("maxsplit", -1);
  MR_TRY(reader.Finish());
  if (!separator || separator->none()) return ListOfTexts(SplitWords(*self.text(), most, from_right));
  if (separator->text() == nullptr || separator->text()->empty()) {
    return Fail(Code::kInvalidArgument, "{} wants a separator that is a string, and not empty", name);
  }
  return ListOfTexts(SplitAt(*self.text(), *separator->text(), most, from_right));
}

/// startswith and endswith: one string, or a tuple of them.
template <bool at_end>
Result<Value> HasAffix(const Value& self, std::string_view name, Arguments arguments) {
  ArgumentReader reader(name, std::move(arguments));
  const Value affix = reader.Require("prefix");
  MR_TRY(reader.Finish());
  const auto has = [&](const std::string& text) {
    if (!Work::Read(std::min(text.size(), self.text()->size()))) return false;
    return at_end ? self.text()->ends_with(text) : self.text()->starts_with(text);
  };
  if (affix.text() != nullptr) return Value::Of(has(*affix.text()));
  const Sequence* all = affix.sequence();
  if (all == nullptr || !all->tuple)
    return Fail(Code::kInvalidArgument, "{} wants a string or a tuple of strings", name);
  return Value::Of(std::any_of(all->items.begin(), all->items.end(),
                               [&](const Value& each) { return each.text() != nullptr && has(*each.text()); }));
}

template <bool at_end>
Result<Value> RemoveAffix(const Value& self, std::string_view name, Arguments arguments) {
  ArgumentReader reader(name, std::move(arguments));
  const std::string affix = reader.RequireText("affix");
  MR_TRY(reader.Finish());
  std::string_view text = *self.text();
  if (at_end && text.ends_with(affix)) text.remove_suffix(affix.size());
  if (!at_end && text.starts_with(affix)) text.remove_prefix(affix.size());
  return TextValue(text);
}

template <auto change>
Result<Value> ChangeMethod(const Value& self, std::string_view name, Arguments arguments) {
  MR_TRY(ArgumentReader(name, std::move(arguments)).Finish());
  return Value::Of(MR_TRY(change(*self.text())));
}
Result<std::string> TitleOfWords(std::string_view text) { return Title(text, ""); }

Result<Value> ReplaceMethod(const Value& self, std::string_view name, Arguments arguments) {
  ArgumentReader reader(name, std::move(arguments));
  const std::string from = reader.RequireText("old"), to = reader.RequireText("new");
  const std::int64_t count = reader.Integer("count", -1);
  MR_TRY(reader.Finish());
  return Value::Of(Replace(*self.text(), from, to, count));
}

Result<Value> JoinMethod(const Value& self, std::string_view name, Arguments arguments) {
  ArgumentReader reader(name, std::move(arguments));
  const Value all = reader.Require("iterable");
  MR_TRY(reader.Finish());
  std::string joined;
  bool first = true;
  for (const Value& item : MR_TRY(Elements(all))) {
    if (item.text() == nullptr) return Fail(Code::kInvalidArgument, "join wants strings, not {}", item.TypeName());
    Work::HasRoom(joined.size() + self.text()->size() + item.text()->size());
    MR_TRY(Work::Check());
    if (!std::exchange(first, false)) joined += *self.text();
    joined += *item.text();
  }
  return Value::Of(std::move(joined));
}

/// find and rfind, index and rindex.
template <bool from_right, bool must>
Result<Value> FindMethod(const Value& self, std::string_view name, Arguments arguments) {
  ArgumentReader reader(name, std::move(arguments));
  const std::string wanted = reader.RequireText("sub");
  MR_TRY(reader.Finish());
  const std::size_t found = from_right ? FindLast(*self.text(), wanted) : FindFirst(*self.text(), wanted);
  if (found != std::string::npos) return Value::Of(CountCharacters(std::string_view(*self.text()).substr(0, found)));
  if (must) {
    return Fail(Code::kInvalidArgument, "{}: \"{}\" is not in the string; find and rfind give -1 instead", name,
                wanted);
  }
  return Value::Of(std::int64_t{-1});
}

Result<Value> CountMethod(const Value& self, std::string_view name, Arguments arguments) {
  ArgumentReader reader(name, std::move(arguments));
  const std::string wanted = reader.RequireText("sub");
  MR_TRY(reader.Finish());
  if (wanted.empty()) return Value::Of(CountCharacters(*self.text()) + 1);
  return Value::Of(static_cast<std::int64_t>(SplitAt(*self.text(), wanted, -1, false).size()) - 1);
}

Result<Value> SplitLinesMethod(const Value& self, std::string_view name, Arguments arguments) {
  ArgumentReader reader(name, std::move(arguments));
  const bool keep = reader.Flag("keepends", false);
  MR_TRY(reader.Finish());
  return ListOfTexts(SplitLines(*self.text(), keep));
}

template <bool from_right>
Result<Value> PartitionMethod(const Value& self, std::string_view name, Arguments arguments) {
  ArgumentReader reader(name, std::move(arguments));
  const std::string separator = reader.RequireText("sep");
  MR_TRY(reader.Finish());
  if (separator.empty()) return Fail(Code::kInvalidArgument, "{} wants a separator that is not empty", name);
  const std::string_view text = *self.text();
  const std::size_t found = from_right ? FindLast(text, separator) : FindFirst(text, separator);
  if (found == std::string_view::npos) {
    const Value none = TextValue("");
    return from_right ? Value::OfTuple({none, none, self}) : Value::OfTuple({self, none, none});
  }
  return Value::OfTuple(
      {TextValue(text.substr(0, found)), TextValue(separator), TextValue(text.substr(found + separator.size()))});
}

template <auto is>
Result<Value> OfCharacters(const Value& self, std::string_view name, Arguments arguments) {
  MR_TRY(ArgumentReader(name, std::move(arguments)).Finish());
  const std::string& text = *self.text();
  const bool ascii = IsAscii(text);
  MR_TRY(Work::Check());
  if (!ascii) {
    return Fail(Code::kUnsupported, "{} of characters beyond ASCII is not supported", name);
  }
  return Value::Of(!text.empty() && std::all_of(text.begin(), text.end(), is));
}
bool IsDecimal(char c) { return c >= '0' && c <= '9'; }
bool IsAlphabetic(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool IsAlphanumeric(char c) { return IsDecimal(c) || IsAlphabetic(c); }
bool IsBlank(char c) { return c == ' ' || (c >= '\t' && c <= '\r') || (c >= 0x1C && c <= 0x1F); }

template <bool small>
Result<Value> HasCase(const Value& self, std::string_view name, Arguments arguments) {
  MR_TRY(ArgumentReader(name, std::move(arguments)).Finish());
  const std::string other = MR_TRY(small ? Lower(*self.text()) : Upper(*self.text()));
  const bool letters = std::any_of(other.begin(), other.end(), IsAlphabetic);
  return Value::Of(letters && other == *self.text());
}

struct NamedMethod {
  std::string_view name;
  Method method;
};
constexpr std::array<NamedMethod, 31> kOfTexts = {{
    {"capitalize", ChangeMethod<Capitalize>},
    {"count", CountMethod},
    {"endswith", HasAffix<true>},
    {"find", FindMethod<false, false>},
    {"index", FindMethod<false, true>},
    {"isalnum", OfCharacters<IsAlphanumeric>},
    {"isalpha", OfCharacters<IsAlphabetic>},
    {"isdecimal", OfCharacters<IsDecimal>},
    {"isdigit", OfCharacters<IsDecimal>},
    {"islower", HasCase<true>},
    {"isnumeric", OfCharacters<IsDecimal>},
    {"isspace", OfCharacters<IsBlank>},
    {"isupper", HasCase<false>},
    {"join", JoinMethod},
    {"lower", ChangeMethod<Lower>},
    {"lstrip", StripMethod<Ends::kLeft>},
    {"partition", PartitionMethod<false>},
    {"removeprefix", RemoveAffix<false>},
    {"removesuffix", RemoveAffix<true>},
    {"replace", ReplaceMethod},
    {"rfind", FindMethod<true, false>},
    {"rindex", FindMethod<true, true>},
    {"rpartition", PartitionMethod<true>},
    {"rsplit", SplitMethod<true>},
    {"rstrip", StripMethod<Ends::kRight>},
    {"split", SplitMethod<false>},
    {"splitlines", SplitLinesMethod},
    {"startswith", HasAffix<false>},
    {"strip", StripMethod<Ends::kBoth>},
    {"title", ChangeMethod<TitleOfWords>},
    {"upper", ChangeMethod<Upper>},
}};

Result<Value> GetMethod(const Value& self, std::string_view name, Arguments arguments) {
  ArgumentReader reader(name, std::move(arguments));
  const Value key = reader.Require("key");
  Value fallback = reader.Take("default").value_or(Value::OfNone());
  MR_TRY(reader.Finish());
  if (!Hashable(key)) {
    return Fail(Code::kInvalidArgument, "{} cannot be a key; keys must be texts, numbers, booleans, none or tuples",
                key.TypeName());
  }
  const Value* found = Find(*self.dict(), key);
  return found != nullptr ? *found : fallback;
}

Result<Value> MembersMethod(const Value& self, std::string_view name, Arguments arguments) {
  MR_TRY(ArgumentReader(name, std::move(arguments)).Finish());
  List items;
  Work::HasRoom(self.dict()->size() * 3 * sizeof(Value));
  MR_TRY(Work::Check());
  for (const auto& [key, value] : *self.dict()) {
    items.push_back(name == "keys" ? key : name == "values" ? value : Value::OfTuple({key, value}));
  }
  return Value::OfIteration(std::move(items), fmt::format("dict_{}", name));
}

Result<Value> CopyMethod(const Value& self, std::string_view name, Arguments arguments) {
  MR_TRY(ArgumentReader(name, std::move(arguments)).Finish());
  return self;
}

constexpr std::array<NamedMethod, 5> kOfDicts = {{
    {"copy", CopyMethod},
    {"get", GetMethod},
    {"items", MembersMethod},
    {"keys", MembersMethod},
    {"values", MembersMethod},
}};

Result<Value> CountItem(const Value& self, std::string_view name, Arguments arguments) {
  ArgumentReader reader(name, std::move(arguments));
  const Value wanted = reader.Require("value");
  MR_TRY(reader.Finish());
  const List& items = self.sequence()->items;
  return Value::Of(static_cast<std::int64_t>(
      std::count_if(items.begin(), items.end(), [&](const Value& each) { return Equal(each, wanted); })));
}

Result<Value> IndexOfItem(const Value& self, std::string_view name, Arguments arguments) {
  ArgumentReader reader(name, std::move(arguments));
  const Value wanted = reader.Require("value");
  MR_TRY(reader.Finish());
  const List& items = self.sequence()->items;
  const auto found = std::find_if(items.begin(), items.end(), [&](const Value& each) { return Equal(each, wanted); });
  if (found == items.end())
    return Fail(Code::kInvalidArgument, "index: {} is not in the list; test it with `in` first", wanted.Repr());
  return Value::Of(static_cast<std::int64_t>(found - items.begin()));
}

constexpr std::array<NamedMethod, 2> kOfSequences = {{{"count", CountItem}, {"index", IndexOfItem}}};

constexpr std::array<std::string_view, 11> kChangers = {"append", "clear",   "extend", "insert",     "pop",   "popitem",
                                                        "remove", "reverse", "sort",   "setdefault", "update"};

Result<Value> Refuse(const Value& self, std::string_view name, Arguments) {
  return Fail(Code::kInvalidArgument,
              "{}() would change {}, which templates may not; build a new one, or set a member of a namespace", name,
              self.TypeName());
}

template <std::size_t n>
Value Lookup(const Value& of, const std::string& name, const std::array<NamedMethod, n>& methods, bool changes) {
  const auto found = std::find_if(methods.begin(), methods.end(), [&](const auto& each) { return each.name == name; });
  Method method = found != methods.end() ? found->method : nullptr;
  if (method == nullptr && changes && std::find(kChangers.begin(), kChangers.end(), name) != kChangers.end())
    method = Refuse;
  if (method == nullptr) return Value::OfUndefined(name);
  return Value::OfCallable(
      name, [of, name, method](Interpreter&, Arguments arguments) { return method(of, name, std::move(arguments)); });
}

}  // namespace

Value MethodOf(const Value& of, const std::string& name) {
  if (of.text() != nullptr) return Lookup(of, name, kOfTexts, false);
  if (of.dict() != nullptr) return Lookup(of, name, kOfDicts, true);
  if (const Sequence* sequence = of.sequence()) return Lookup(of, name, kOfSequences, !sequence->tuple);
  return Value::OfUndefined(name);
}

}  // namespace millrace::jinja
