#include "millrace/jinja/python/value.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "millrace/jinja/python/stable_sort.h"
#include "millrace/jinja/python/text.h"
#include "millrace/jinja/python/work.h"

namespace millrace::jinja {
namespace {

std::string FloatText(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

/// Returns the text between quotes as Python writes it: in single ones, unless it has such and no double ones.
std::string QuotedText(std::string_view text) {
  const char quote = text.find('\'') != text.npos && text.find('"') == text.npos ? '"' : '\'';
  std::string quoted(1, quote);
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == quote || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (c == '\n') {
      quoted += "\\n";
    } else if (c == '\r') {
      quoted += "\\r";
    } else if (c == '\t') {
      quoted += "\\t";
    } else if (byte < 0x20 || byte == 0x7F) {
      quoted += fmt::format("\\x{:02x}", byte);
    } else {
      quoted += c;
    }
  }
  return quoted + quote;
}

std::string JsonText(std::string_view text, bool ascii) {
  std::string quoted = "\"";
  for (std::size_t at = 0; at < text.size();) {
    const auto [code, length] = CharacterAt(text, at);
    const std::string_view bytes = text.substr(at, length);
    at += length;
    switch (code) {
      case U'"':
        quoted += "\\\"";
        continue;
      case U'\\':
        quoted += "\\\\";
        continue;
      case U'\n':
        quoted += "\\n";
        continue;
      case U'\r':
        quoted += "\\r";
        continue;
      case U'\t':
        quoted += "\\t";
        continue;
      case U'\b':
        quoted += "\\b";
        continue;
      case U'\f':
        quoted += "\\f";
        continue;
      default:
        break;
    }
    if (code < 0x20 || (ascii && code >= 0x7F && code <= 0xFFFF)) {
      quoted += fmt::format("\\u{:04x}", static_cast<std::uint32_t>(code));
    } else if (ascii && code >= 0x10000 && code <= 0x10FFFF) {
      const auto above = static_cast<std::uint32_t>(code) - 0x10000;
      quoted += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (above >> 10), 0xDC00 + (above & 0x3FF));
    } else {
      quoted += bytes;
    }
  }
  return quoted + '"';
}

class JsonWriter {
 public:
  explicit JsonWriter(const DumpOptions& options)
      : options_(options),
        separator_(!options.item_separator.empty() ? options.item_separator
                   : options.indent >= 0           ? ","
                                                   : ", ") {}

  Status Write(const Value& value, int depth) {
    Work::Read(sizeof(Value));
    if (value.none()) return Put("null");
    if (const bool* boolean = value.As<bool>()) return Put(*boolean ? "true" : "false");
    if (const double* number = value.As<double>()) {
      if (std::isnan(*number)) return Put("NaN");
      if (std::isinf(*number)) return Put(*number > 0 ? "Infinity" : "-Infinity");
      return Put(FloatText(*number));
    }
    if (value.integer()) return Put(fmt::format("{}", value.AsInteger()));
    if (const std::string* text = value.text()) return Put(JsonText(*text, options_.ascii));
    if (const Sequence* sequence = value.sequence()) {
      return WriteAll('[', ']', sequence->items, depth, [&](const Value& item) { return Write(item, depth + 1); });
    }
    if (const Dict* dict = value.dict()) {
      Work::Read(dict->size() * sizeof(Dict::value_type));
      MR_TRY(Work::Check());
      Dict members = *dict;
      if (options_.sort_keys) {
        for (const auto& [key, member] : members) MR_TRY(Less(members.front().first, key));
        StableSort(members, [](const auto& a, const auto& b) { return Less(a.first, b.first).value_or(false); });
      }
      return WriteAll('{', '}', members, depth, [&](const auto& member) -> Status {
        const Value& key = member.first;
        if (!key.none() && !key.number() && key.text() == nullptr) {
          return Fail(Code::kInvalidArgument,
                      "a value of type {} cannot be a key in JSON; keys must be texts, numbers, booleans or none",
                      key.TypeName());
        }
        std::string name = key.text() != nullptr ? *key.text() : "";
        if (key.text() == nullptr) {
          JsonWriter writer(options_);
          MR_TRY(writer.Write(key, 0));
          name = writer.Take();
        }
        MR_TRY(Put(JsonText(name, options_.ascii)));
        MR_TRY(Put(options_.key_separator));
        return Write(member.second, depth + 1);
      });
    }
    return Fail(Code::kInvalidArgument,
                "tojson: {} has no form in JSON; only texts, numbers, booleans, none, lists and mappings have one",
                value.TypeName());
  }
  std::string Take() { return std::move(out_); }

 private:
  Status Put(std::string_view text) {
    Work::HasRoom(out_.size() + text.size());
    MR_TRY(Work::Check());
    out_ += text;
    return {};
  }
  Status Break(int depth) {
    if (options_.indent < 0) return {};
    const std::string spaces(static_cast<std::size_t>(options_.indent) * static_cast<std::size_t>(depth), ' ');
    return Put("\n" + spaces);
  }
  template <class Items, class WriteOne>
  Status WriteAll(char open, char close, const Items& items, int depth, WriteOne write) {
    MR_TRY(Put({&open, 1}));
    bool first = true;
    for (const auto& item : items) {
      if (!std::exchange(first, false)) MR_TRY(Put(separator_));
      MR_TRY(Break(depth + 1));
      MR_TRY(write(item));
    }
    if (!first) MR_TRY(Break(depth));
    return Put({&close, 1});
  }

  const DumpOptions& options_;
  const std::string separator_;
  std::string out_;
};

/// Returns -1, 0 or 1, or 2 for numbers that have no order.
int CompareNumbers(const Value& a, const Value& b) {
  if (a.integer() && b.integer()) {
    const std::int64_t x = a.AsInteger(), y = b.AsInteger();
    return x < y ? -1 : x > y ? 1 : 0;
  }
  const double x = a.AsDouble(), y = b.AsDouble();
  if (std::isnan(x) || std::isnan(y)) return 2;
  return x < y ? -1 : x > y ? 1 : 0;
}

/// Appends the representation of values, and stops where the rendering has no room for more.
class ReprWriter {
 public:
  void Write(const Value& value) {
    if (!Work::Read(sizeof(Value)) || !Work::HasRoom(out_.size() + (value.text() ? value.text()->size() : 0))) return;
    if (const Sequence* all = value.sequence()) {
      out_ += all->tuple ? '(' : '[';
      WriteAll(all->items);
      out_ += !all->tuple ? "]" : all->items.size() == 1 ? ",)" : ")";
    } else if (const Dict* members = value.dict()) {
      out_ += '{';
      bool first = true;
      for (const auto& [key, member] : *members) {
        if (!Separate(first)) return;
        Write(key);
        out_ += ": ";
        Write(member);
      }
      out_ += '}';
    } else if (const Iteration* view = value.iteration(); view != nullptr && !view->view.empty()) {
      out_ += view->view + "([";
      WriteAll(view->items);
      out_ += "])";
    } else {
      out_ += ScalarText(value);
    }
  }
  std::string Take() {
    Work::Read(out_.size());
    return std::move(out_);
  }

 private:
  static std::string ScalarText(const Value& value) {
    if (value.undefined()) return "Undefined";
    if (value.none()) return "None";
    if (const bool* boolean = value.As<bool>()) return *boolean ? "True" : "False";
    if (const double* number = value.As<double>()) return FloatText(*number);
    if (value.integer()) return fmt::format("{}", value.AsInteger());
    if (const std::string* string = value.text()) return QuotedText(*string);
    return fmt::format("<{}>", value.TypeName());
  }
  /// Returns whether there is room for one more item.
  bool Separate(bool& first) {
    if (!std::exchange(first, false)) out_ += ", ";
    return Work::HasRoom(out_.size());
  }
  void WriteAll(const List& items) {
    bool first = true;
    for (const Value& item : items) {
      if (!Separate(first)) return;
      Write(item);
    }
  }

  std::string out_;
};

}  // namespace

Value::Value(Variant value) : value_(std::move(value)) {
  if (const std::string* string = text()) Work::Make(string->size() + sizeof(Value) + sizeof(std::string));
  refers_ = name_space() != nullptr || callable() != nullptr || loop() != nullptr;
}

void Value::Hold(const Value& inner) {
  nesting_ = std::max(nesting_, inner.nesting_ + 1);
  refers_ = refers_ || inner.refers_;
}

Value Value::OfMarkup(std::string text) {
  Value value = Of(std::move(text));
  value.markup_ = true;
  return value;
}

Value Value::OfList(List items) {
  Work::Make(items.size() * sizeof(Value));
  Value value(Variant(std::make_shared<const Sequence>(Sequence{.items = std::move(items)})));
  for (const Value& item : value.sequence()->items) value.Hold(item);
  return value;
}

Value Value::OfTuple(List items) {
  Work::Make(items.size() * sizeof(Value));
  Value value(Variant(std::make_shared<const Sequence>(Sequence{.items = std::move(items), .tuple = true})));
  for (const Value& item : value.sequence()->items) value.Hold(item);
  return value;
}

Value Value::OfIteration(List items, std::string view) {
  Work::Make(items.size() * sizeof(Value));
  Value value(
      Variant(std::make_shared<const Iteration>(Iteration{.items = std::move(items), .view = std::move(view)})));
  for (const Value& item : value.iteration()->items) value.Hold(item);
  return value;
}

Value Value::OfDict(Dict members) {
  Work::Make(members.size() * sizeof(Dict::value_type));
  Value value(Variant(std::make_shared<const Dict>(std::move(members))));
  for (const auto& [key, member] : *value.dict()) {
    value.Hold(key);
    value.Hold(member);
  }
  return value;
}

Result<Value> Value::FromJson(const Json& json) {
  switch (json.type()) {
    case Json::value_t::boolean:
      return Of(json.get<bool>());
    case Json::value_t::number_integer:
      return Of(json.get<std::int64_t>());
    case Json::value_t::number_unsigned: {
      const auto number = json.get<std::uint64_t>();
      if (number <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
        return Of(static_cast<std::int64_t>(number));
      }
      return Fail(Code::kInvalidArgument, "the number {} has more than 63 bits; write larger numbers as texts", number);
    }
    case Json::value_t::number_float:
      return Of(json.get<double>());
    case Json::value_t::string:
      return Of(json.get<std::string>());
    case Json::value_t::array: {
      List items;
      items.reserve(json.size());
      for (const Json& item : json) items.push_back(MR_TRY(FromJson(item)));
      return OfList(std::move(items));
    }
    case Json::value_t::object: {
      Dict members;
      members.reserve(json.size());
      for (const auto& [key, member] : json.items()) {
        Value value = MR_TRY(FromJson(member));
        members.emplace_back(Of(key), std::move(value));
      }
      return OfDict(std::move(members));
    }
    default:
      return OfNone();
  }
}

std::int64_t Value::AsInteger() const {
  if (const bool* boolean = As<bool>()) return *boolean ? 1 : 0;
  return *As<std::int64_t>();
}

double Value::AsDouble() const {
  if (const double* number = As<double>()) return *number;
  return static_cast<double>(AsInteger());
}

bool Value::Truthy() const {
  if (undefined() || none()) return false;
  if (const double* number = As<double>()) return *number != 0;
  if (integer()) return AsInteger() != 0;
  if (const std::string* string = text()) return !string->empty();
  if (const Sequence* items = sequence()) return !items->items.empty();
  if (const Dict* members = dict()) return !members->empty();
  if (const Iteration* all = iteration()) return all->view.empty() || !all->items.empty();
  return true;
}

std::string Value::ToText() const {
  if (const std::string* string = text()) return Work::Read(string->size()) ? *string : "";
  return undefined() ? "" : Repr();
}

std::string Value::Repr() const {
  ReprWriter writer;
  writer.Write(*this);
  return writer.Take();
}

std::string_view Value::TypeName() const {
  if (undefined()) return "an undefined value";
  if (none()) return "none";
  if (As<bool>() != nullptr) return "a boolean";
  if (As<double>() != nullptr) return "a float";
  if (integer()) return "an integer";
  if (text() != nullptr) return "a string";
  if (const Sequence* items = sequence()) return items->tuple ? "a tuple" : "a list";
  if (dict() != nullptr) return "a mapping";
  if (iteration() != nullptr) return "the result of a filter or of items()";
  if (name_space() != nullptr) return "a namespace";
  return loop() != nullptr ? "a loop" : "a function";
}

Result<std::string> Print(const Value& value) {
  const bool lazy = value.iteration() != nullptr && value.iteration()->view.empty();
  if (lazy || value.refers()) {
    return Fail(Code::kUnsupported, "{} has no text{}", value.TypeName(), lazy ? "; `|list` makes a list of it" : "");
  }
  std::string text = value.ToText();
  MR_TRY(Work::Check());
  return text;
}

Result<std::string> Escaped(const Value& value) {
  std::string text = MR_TRY(Print(value));
  if (value.markup()) return text;
  std::string escaped;
  for (const char c : text) {
    constexpr std::string_view kSpecial = "&<>'\"";
    constexpr std::array<std::string_view, 5> kEntities = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    const std::size_t special = kSpecial.find(c);
    escaped += special == kSpecial.npos ? std::string_view(&c, 1) : kEntities[special];
  }
  Work::HasRoom(escaped.size());
  MR_TRY(Work::Check());
  return escaped;
}

bool Hashable(const Value& value) {
  if (!Work::Read(sizeof(Value))) return false;
  if (value.dict() != nullptr || value.iteration() != nullptr) return false;
  const Sequence* sequence = value.sequence();
  return sequence == nullptr ||
         (sequence->tuple && std::all_of(sequence->items.begin(), sequence->items.end(), Hashable));
}

bool Equal(const Value& a, const Value& b) {
  if (!Work::Read(sizeof(Value))) return false;
  if (a.number() && b.number()) return CompareNumbers(a, b) == 0;
  if (a.text() != nullptr && b.text() != nullptr) {
    return a.text()->size() == b.text()->size() && Work::Read(a.text()->size()) && *a.text() == *b.text();
  }
  if (a.undefined() || a.none()) return a.undefined() ? b.undefined() : b.none();
  if (const Sequence *x = a.sequence(), *y = b.sequence(); x != nullptr && y != nullptr) {
    return x->tuple == y->tuple &&
           std::equal(x->items.begin(), x->items.end(), y->items.begin(), y->items.end(), Equal);
  }
  if (const Dict *x = a.dict(), *y = b.dict(); x != nullptr && y != nullptr) {
    return x->size() == y->size() && std::all_of(x->begin(), x->end(), [&](const auto& member) {
             const Value* other = Find(*y, member.first);
             return other != nullptr && Equal(member.second, *other);
           });
  }
  if (a.name_space() != nullptr) return a.name_space() == b.name_space();
  return a.callable() != nullptr && a.callable() == b.callable();
}

Result<bool> Less(const Value& a, const Value& b) {
  Work::Read(sizeof(Value));
  if (a.text() != nullptr && b.text() != nullptr) Work::Read(std::min(a.text()->size(), b.text()->size()));
  MR_TRY(Work::Check());
  if (a.number() && b.number()) return CompareNumbers(a, b) == -1;
  if (a.text() != nullptr && b.text() != nullptr) return *a.text() < *b.text();
  if (const Sequence *x = a.sequence(), *y = b.sequence(); x != nullptr && y != nullptr && x->tuple == y->tuple) {
    for (std::size_t i = 0; i < std::min(x->items.size(), y->items.size()); ++i) {
      MR_TRY(Work::Check());
      if (!Equal(x->items[i], y->items[i])) return Less(x->items[i], y->items[i]);
    }
    return x->items.size() < y->items.size();
  }
  return Fail(Code::kInvalidArgument,
              "{} and {} have no order; only two numbers, two texts or two lists can be compared", a.TypeName(),
              b.TypeName());
}

const Value* Find(const Dict& dict, const Value& key) {
  const auto found =
      std::find_if(dict.begin(), dict.end(), [&](const auto& member) { return Equal(member.first, key); });
  return found != dict.end() ? &found->second : nullptr;
}

const Value* Find(const Dict& dict, std::string_view key) {
  const auto found = std::find_if(dict.begin(), dict.end(), [&](const auto& member) {
    return member.first.text() != nullptr && *member.first.text() == key;
  });
  return found != dict.end() ? &found->second : nullptr;
}

void Assign(Dict& dict, const Value& key, Value value) {
  const auto found =
      std::find_if(dict.begin(), dict.end(), [&](const auto& member) { return Equal(member.first, key); });
  if (found != dict.end()) {
    found->second = std::move(value);
  } else {
    dict.emplace_back(key, std::move(value));
  }
}

Result<List> Elements(const Value& value) {
  if (value.undefined()) return List();
  const auto copied = [](const List& items) -> Result<List> {
    Work::Read(items.size() * sizeof(Value));
    MR_TRY(Work::Check());
    return items;
  };
  if (const Sequence* sequence = value.sequence()) return copied(sequence->items);
  if (const Iteration* iteration = value.iteration()) return copied(iteration->items);
  if (const Dict* dict = value.dict()) {
    Work::Read(dict->size() * sizeof(Dict::value_type));
    MR_TRY(Work::Check());
    List keys;
    for (const auto& [key, member] : *dict) keys.push_back(key);
    return keys;
  }
  if (const std::string* text = value.text()) {
    List characters;
    for (std::size_t at = 0; at < text->size();) {
      const std::size_t length = CharacterAt(*text, at).length;
      characters.push_back(Value::Of(text->substr(at, length)));
      MR_TRY(Work::Check());
      at += length;
    }
    return characters;
  }
  return Fail(Code::kInvalidArgument, "{} has no elements; only lists, mappings and texts have some", value.TypeName());
}

Result<std::string> ToJson(const Value& value, const DumpOptions& options) {
  JsonWriter writer(options);
  MR_TRY(writer.Write(value, 0));
  return writer.Take();
}

}  // namespace millrace::jinja
