// Values of templates, with the semantics of Python.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "millrace/base/json.h"
#include "millrace/base/result.h"

namespace millrace::jinja {

class Value;
using List = std::vector<Value>;
/// A dictionary in the order of insertion; no key is there twice.
using Dict = std::vector<std::pair<Value, Value>>;

/// The value that a template reads where there is nothing. Prints as nothing; has no attributes.
struct Undefined {
  std::string name;  ///< for messages
};
struct None {};
/// A list or a tuple, which differ only in how they print.
struct Sequence {
  List items;
  bool tuple = false;
};
/// A value that a loop can visit, without positions: the result of a filter that works as it is read, or a view of a
/// mapping.
struct Iteration {
  List items;
  std::string view = {};  ///< "dict_items" and the like; empty: of a filter, which counts as true and has no length
};
/// The only value that a template can change: {% set ns.x = … %}.
struct Namespace {
  Dict members;
};

struct Arguments {
  List positional;
  std::vector<std::pair<std::string, Value>> named;
};
class Interpreter;
struct Callable {
  std::string name;
  std::function<Result<Value>(Interpreter&, Arguments)> call;
};

/// The loop of a {% for %}, as its body sees it.
struct Loop {
  std::shared_ptr<const Sequence> items;
  std::int64_t index = 0;  ///< from 0
};

/// A value. Copies share lists, dicts and strings, which never change. Strings are UTF-8, except for bytes that the
/// variables had.
class Value {
 public:
  using Text = std::shared_ptr<const std::string>;
  using Variant =
      std::variant<Undefined, None, bool, std::int64_t, double, Text, std::shared_ptr<const Sequence>,
                   std::shared_ptr<const Dict>, std::shared_ptr<const Iteration>, std::shared_ptr<Namespace>,
                   std::shared_ptr<const Callable>, std::shared_ptr<const Loop>>;

  Value() : value_(Undefined{}) {}
  explicit Value(Variant value);
  static Value OfNone() { return Value(Variant(None{})); }
  static Value Of(bool value) { return Value(Variant(value)); }
  static Value Of(std::int64_t value) { return Value(Variant(value)); }
  static Value Of(double value) { return Value(Variant(value)); }
  static Value Of(std::string text) { return Value(Variant(std::make_shared<const std::string>(std::move(text)))); }
  /// Text that counts as HTML already, as markupsafe's Markup: what is added to it is escaped.
  static Value OfMarkup(std::string text);
  static Value OfList(List items);
  static Value OfTuple(List items);
  static Value OfDict(Dict members);
  static Value OfIteration(List items, std::string view = {});
  static Value OfUndefined(std::string name) { return Value(Variant(Undefined{std::move(name)})); }
  static Value OfCallable(std::string name, std::function<Result<Value>(Interpreter&, Arguments)> call) {
    return Value(Variant(std::make_shared<const Callable>(Callable{std::move(name), std::move(call)})));
  }
  /// Errors: kInvalidArgument on an integer of more than 64 bits.
  static Result<Value> FromJson(const Json& json);

  template <class T>
  const T* As() const {
    return std::get_if<T>(&value_);
  }
  bool undefined() const { return As<Undefined>() != nullptr; }
  bool none() const { return As<None>() != nullptr; }
  bool number() const { return integer() || As<double>() != nullptr; }
  bool integer() const { return As<std::int64_t>() != nullptr || As<bool>() != nullptr; }
  const std::string* text() const {
    const auto* text = As<Text>();
    return text != nullptr ? text->get() : nullptr;
  }
  const Sequence* sequence() const { return Pointer<const Sequence>(); }
  const Iteration* iteration() const { return Pointer<const Iteration>(); }
  const Dict* dict() const { return Pointer<const Dict>(); }
  Namespace* name_space() const { return Pointer<Namespace>(); }
  const Callable* callable() const { return Pointer<const Callable>(); }
  const Loop* loop() const { return Pointer<const Loop>(); }
  /// REQUIRES: a number for which integer() is true.
  std::int64_t AsInteger() const;
  double AsDouble() const;  ///< of a number

  /// Returns how many lists, mappings and the like lie within each other at the deepest place; 0 for other values.
  int nesting() const { return nesting_; }
  /// Returns whether the value is or has a namespace, a function or a loop, which may refer to other values.
  bool refers() const { return refers_; }
  bool markup() const { return markup_; }
  bool Truthy() const;
  /// Returns Python's str(). Print() is for templates.
  std::string ToText() const;
  /// Returns Python's repr(): how it prints within a list.
  std::string Repr() const;
  /// Returns "a string", for messages.
  std::string_view TypeName() const;

 private:
  template <class T>
  T* Pointer() const {
    const auto* pointer = As<std::shared_ptr<T>>();
    return pointer != nullptr ? pointer->get() : nullptr;
  }
  void Hold(const Value& inner);

  Variant value_;
  int nesting_ = 0;
  bool refers_ = false;
  bool markup_ = false;
};

// What follows counts its work, and stops early with any result where the rendering may not do more (Work).

/// Returns the value's text, as {{ value }} and filters of texts use it.
/// Errors: kUnsupported for what prints as an object of Python: functions, results of filters before `|list`;
/// kResourceExhausted beyond the limits of a rendering.
Result<std::string> Print(const Value& value);
/// Returns the value as Markup: its own text if it is that, or else Print() with &, <, >, ' and " escaped.
Result<std::string> Escaped(const Value& value);
/// Returns whether a mapping can have the value as a key.
bool Hashable(const Value& value);
bool Equal(const Value& a, const Value& b);
/// Returns whether a < b. Errors: kInvalidArgument for types that have no order.
Result<bool> Less(const Value& a, const Value& b);
/// Returns the value of a key, or null.
const Value* Find(const Dict& dict, const Value& key);
const Value* Find(const Dict& dict, std::string_view key);
void Assign(Dict& dict, const Value& key, Value value);
/// Returns what a loop over the value visits: elements, keys or characters.
/// Errors: kInvalidArgument if it has none.
Result<List> Elements(const Value& value);

struct DumpOptions {
  bool ascii = false;
  bool sort_keys = false;
  int indent = -1;                                        ///< below 0: one line
  std::string item_separator = "", key_separator = ": ";  ///< the first is ", " or, with an indent, "," if empty
};
/// Returns Python's json.dumps(). Errors: kInvalidArgument for values that JSON does not have.
Result<std::string> ToJson(const Value& value, const DumpOptions& options);

}  // namespace millrace::jinja
