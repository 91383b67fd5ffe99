#include "millrace/serve/constraint/json_schema.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>

#include "millrace/base/text.h"
#include "millrace/serve/constraint/merge_schemas.h"
#include "millrace/serve/constraint/number_range.h"
#include "millrace/serve/constraint/regex.h"
#include "millrace/serve/constraint/string_formats.h"
#include "millrace/tokenizer/unicode/utf8.h"

namespace millrace::serve {
namespace {

using NodeId = Grammar::NodeId;

constexpr std::string_view kInteger = "-?(?:0|[1-9][0-9]{0,17})";
constexpr std::string_view kNumber = "-?(?:0|[1-9][0-9]{0,17})(?:\\.[0-9]{1,18})?(?:[eE][+-]?[0-9]{1,3})?";
constexpr int kMaxSpaces = 16;
constexpr std::int64_t kMaxCount = 1000;
constexpr std::size_t kMaxName = 256, kMaxNames = 16 * 1024;  ///< bytes of properties beside additionalProperties

/// Makes the parts of JSON, each in front of what follows it.
class JsonBuilder {
 public:
  JsonBuilder() {
    grammar.NewRule();  // 0: the whole text
    MakeSpace();
    MakeCharacter();
  }

  NodeId Space(NodeId next) { return grammar.Call(space_, next); }
  NodeId String(NodeId next) {
    const NodeId loop = grammar.Loop(grammar.Text("\"", next));
    grammar.SetOther(loop, grammar.Call(character_, loop));
    return grammar.Text("\"", loop);
  }
  /// A string of `least` to `most` characters; most < 0: any number.
  NodeId String(std::int64_t least, std::int64_t most, NodeId next) {
    const NodeId end = grammar.Text("\"", next);
    return grammar.Text("\"",
                        Repeat(least, most, end, [this](NodeId after) { return grammar.Call(character_, after); }));
  }
  /// `least` to `most` times what `add` puts in front of its argument.
  template <class AddOne>
  NodeId Repeat(std::int64_t least, std::int64_t most, NodeId next, AddOne add) {
    NodeId after = next;
    if (most < 0) {
      after = grammar.Loop(next);
      grammar.SetOther(after, add(after));
    }
    for (std::int64_t i = least; i < most; ++i) after = grammar.Choice(next, add(after));
    for (std::int64_t i = 0; i < least; ++i) after = add(after);
    return after;
  }
  NodeId Comma(NodeId next) { return Space(grammar.Text(",", Space(next))); }
  /// What follows the bracket that opens a list: `least` to `most` times what `add` puts in front of its argument, with
  /// commas between them, and `closed`. most < 0: any number.
  template <class AddOne>
  NodeId List(std::int64_t least, std::int64_t most, NodeId closed, AddOne add) {
    if (most == 0) return Space(closed);
    const NodeId others = Repeat(std::max<std::int64_t>(0, least - 1), most < 0 ? -1 : most - 1, Space(closed),
                                 [&](NodeId after) { return Comma(add(after)); });
    const NodeId some = add(others);
    return Space(least > 0 ? some : grammar.Choice(closed, some));
  }
  NodeId Colon(NodeId next) { return Space(grammar.Text(":", Space(next))); }
  /// A string without escapes that differs from all `names`.
  NodeId OtherString(const std::set<std::u32string>& names, NodeId next) {
    const NodeId end = grammar.Text("\"", next);
    const NodeId free = grammar.Loop(end);
    grammar.SetOther(free, grammar.Character({{0x20, '!'}, {'#', '['}, {']', 0x10FFFF}}, free));
    return grammar.Text("\"", Diverging(names, 0, end, free));
  }
  NodeId Pattern(std::string_view pattern, NodeId next) {
    // The patterns of this file are right.
    return AddRegex(pattern, RegexUse::kText, grammar, next).value_or(next);
  }
  /// The rule of any value.
  std::int32_t Value() {
    if (value_ < 0) MakeValue();
    return value_;
  }
  std::int32_t Object() {
    Value();
    return object_;
  }
  Grammar grammar;

 private:
  /// Strings that go on behind `length` characters that are those of all `names`.
  NodeId Diverging(const std::set<std::u32string>& names, std::size_t length, NodeId end, NodeId free) {
    std::map<char32_t, std::set<std::u32string>> behind;
    for (const std::u32string& name : names) {
      if (name.size() > length) behind[name[length]].insert(name);
    }
    std::vector<NodeId> choices;
    std::vector<std::pair<char32_t, char32_t>> others;
    char32_t begin = 0x20;
    const auto leave_out = [&](char32_t code) {
      if (code > begin) others.emplace_back(begin, code - 1);
      begin = static_cast<char32_t>(code + 1);
    };
    std::set<char32_t> left_out = {'"', '\\'};
    for (const auto& [code, those] : behind) {
      left_out.insert(code);
      choices.push_back(grammar.Character({{code, code}}, Diverging(those, length + 1, end, free)));
    }
    for (const char32_t code : left_out) leave_out(code);
    others.emplace_back(begin, 0x10FFFF);
    choices.push_back(grammar.Character(others, free));
    const bool is_name =
        std::any_of(names.begin(), names.end(), [&](const auto& name) { return name.size() == length; });
    if (!is_name) choices.push_back(end);
    return grammar.Choice(choices);
  }
  void MakeSpace() {
    space_ = grammar.NewRule();
    ByteSet bytes;
    for (const char c : {' ', '\n', '\t'}) bytes.set(static_cast<unsigned char>(c));
    const NodeId end = grammar.End();
    NodeId start = end;
    for (int i = 0; i < kMaxSpaces; ++i) start = grammar.Choice(end, grammar.Byte(bytes, start));
    grammar.SetRule(space_, start);
  }
  void MakeCharacter() {
    character_ = grammar.NewRule();
    const NodeId end = grammar.End();
    const NodeId plain = grammar.Character({{0x20, '!'}, {'#', '['}, {']', 0x10FFFF}}, end);
    const NodeId escape = Pattern("\\\\(?:[\"\\\\/bfnrt]|u[0-9a-fA-F]{4})", end);
    grammar.SetRule(character_, grammar.Choice(plain, escape));
  }
  void MakeValue() {
    value_ = grammar.NewRule();
    object_ = grammar.NewRule();
    const NodeId end = grammar.End();
    const auto listed = [&](std::string_view close, auto add_one) {
      // [ item, item … ]: an empty one, or items with commas between them.
      const NodeId closed = grammar.Text(close, end), last = Space(closed);
      const NodeId more = grammar.Loop(last);
      const NodeId item = add_one(more);
      grammar.SetOther(more, Space(grammar.Text(",", Space(item))));
      return Space(grammar.Choice(closed, item));
    };
    const NodeId object = grammar.Text("{", listed("}", [&](NodeId next) {
                                         return String(Space(grammar.Text(":", Space(grammar.Call(value_, next)))));
                                       }));
    const NodeId array = grammar.Text("[", listed("]", [&](NodeId next) { return grammar.Call(value_, next); }));
    grammar.SetRule(object_, object);
    grammar.SetRule(value_, grammar.Choice({String(end), Pattern(kNumber, end), grammar.Text("true", end),
                                            grammar.Text("false", end), grammar.Text("null", end), object, array}));
  }

  std::int32_t space_ = -1, character_ = -1, value_ = -1, object_ = -1;
};

class SchemaBuilder {
 public:
  explicit SchemaBuilder(const Json& root) : root_(root) {}

  Result<Grammar> Run() {
    const NodeId end = json_.Space(json_.grammar.End());
    const NodeId start = MR_TRY(Add(root_, "#", end));
    json_.grammar.SetRule(0, json_.Space(start));
    MR_TRY(json_.grammar.Check());
    return std::move(json_.grammar);
  }

 private:
  template <class... Arguments>
  static std::unexpected<Error> Wrong(const std::string& where, fmt::format_string<Arguments...> format,
                                      Arguments&&... arguments) {
    return Fail(Code::kInvalidArgument, "JSON schema, {}: {}", where,
                fmt::format(format, std::forward<Arguments>(arguments)...));
  }

  static std::unexpected<Error> At(const std::string& where, const Error& error) {
    return Fail(error.code(), "JSON schema, {}: {}", where, error.message());
  }

  /// Refuses keywords that would be ignored otherwise.
  static Status CheckKeywords(const Json& schema, const std::string& where,
                              const std::vector<std::string_view>& known) {
    for (const auto& [key, value] : schema.items()) {
      if (!IsAnnotation(key) && std::find(known.begin(), known.end(), key) == known.end()) {
        return Fail(Code::kUnsupported, "JSON schema, {}: \"{}\" is not supported here", where, key);
      }
    }
    return {};
  }

  /// Returns the keywords that say more of a type.
  static std::vector<std::string_view> KeywordsOf(const std::string& type) {
    if (type == "string") return {"minLength", "maxLength", "pattern", "format"};
    if (type == "array") return {"items", "prefixItems", "minItems", "maxItems"};
    if (type == "object") {
      return {"properties",    "required",      "additionalProperties", "patternProperties",
              "propertyNames", "minProperties", "maxProperties"};
    }
    if (type == "integer" || type == "number") {
      return {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "format"};
    }
    return {};
  }

  /// Returns the type that the keywords of a schema without a type tell; empty if they tell none.
  static std::string TypeOfKeywords(const Json& schema) {
    for (const char* type : {"object", "array", "string", "number"}) {
      for (const std::string_view key : KeywordsOf(type)) {
        if (schema.contains(key)) return type;
      }
    }
    return {};
  }

  Result<NodeId> Add(const Json& schema, const std::string& where, NodeId next) {
    MR_TRY(json_.grammar.Check());
    if (schema.is_boolean() && schema.get<bool>()) return json_.grammar.Call(json_.Value(), next);
    if (schema.is_boolean()) return Wrong(where, "no value is allowed");
    if (!schema.is_object()) return Wrong(where, "a schema should be an object");
    if (++depth_ > 64) return Wrong(where, "schemas are too deep within each other; use $ref");
    NodeId start = MR_TRY(AddObjectSchema(schema, where, next));
    --depth_;
    return start;
  }

  /// Returns a schema without one keyword and without annotations.
  static Json Without(const Json& schema, std::string_view keyword) {
    Json rest = Json::object();
    for (const auto& [key, value] : schema.items()) {
      if (key != keyword && !IsAnnotation(key)) rest[key] = value;
    }
    return rest;
  }

  /// MergeSchemas(), with references of `other` followed. Counts as many parts as it looks at.
  Result<Json> Merge(const Json& one, const Json& other, const std::string& where) {
    const Json* target = &other;
    std::pair<std::string, const Json*> resolved;
    if (other.is_object() && other.contains("$ref")) {
      resolved = MR_TRY(Resolve(other, where));
      target = resolved.second;
    }
    if (*target == true) return one;
    if (!target->is_object()) return Wrong(where, "a schema should be an object");
    for (const Json* each : {&one, target}) {
      for (std::size_t i = each->size() + each->value("properties", Json::object()).size(); i > 0; --i) {
        MR_TRY(json_.grammar.Check());
      }
    }
    Json merged = MR_TRY(MergeSchemas(one, *target, where));
    // What stands beside the reference.
    if (target != &other) return MergeSchemas(merged, Without(other, "$ref"), where);
    return merged;
  }

  Result<NodeId> AddObjectSchema(const Json& schema, const std::string& where, NodeId next) {
    if (schema.contains("$ref")) {
      const Json rest = Without(schema, "$ref");
      if (rest.empty()) return AddReference(schema, where, next);
      const Json merged = MR_TRY(Merge(rest, {{"$ref", schema["$ref"]}}, where));
      return Add(merged, where, next);
    }
    for (const char* key : {"allOf", "anyOf", "oneOf"}) {
      if (schema.contains(key)) return AddCombination(key, schema, where, next);
    }
    if (schema.contains("enum") || schema.contains("const")) return AddConstants(schema, where, next);
    const auto type = schema.find("type");
    const std::string told = TypeOfKeywords(schema);
    if (type == schema.end()) {
      if (told.empty()) {
        MR_TRY(CheckKeywords(schema, where, {}));
        return json_.grammar.Call(json_.Value(), next);
      }
      MR_TRY(CheckKeywords(schema, where, KeywordsOf(told)));
      return AddType(told, schema, where, next);
    }
    std::vector<std::string_view> known = {"type"};
    for (const Json& one : type->is_array() ? *type : Json::array({*type})) {
      if (!one.is_string()) continue;
      for (const std::string_view key : KeywordsOf(one.get<std::string>())) known.push_back(key);
    }
    MR_TRY(CheckKeywords(schema, where, known));
    if (type->is_string()) return AddType(type->get<std::string>(), schema, where, next);
    if (!type->is_array() || type->empty()) return Wrong(where, "type should be a string or a list of strings");
    std::vector<NodeId> nodes;
    for (const Json& one : *type) {
      if (!one.is_string()) return Wrong(where, "type should be a string or a list of strings");
      nodes.push_back(MR_TRY(AddType(one.get<std::string>(), schema, where, next)));
    }
    return json_.grammar.Choice(nodes);
  }

  /// allOf is one schema that says what all say; anyOf and oneOf are a choice, each together with what stands beside.
  Result<NodeId> AddCombination(const std::string& key, const Json& schema, const std::string& where, NodeId next) {
    const Json& parts = schema[key];
    if (!parts.is_array() || parts.empty()) return Wrong(where, "{} should be a list of schemas", key);
    Json rest = Without(schema, key);
    if (key == "allOf") {
      if (rest.empty() && parts.size() == 1) return Add(parts[0], fmt::format("{}/allOf/0", where), next);
      for (std::size_t i = 0; i < parts.size(); ++i) {
        rest = MR_TRY(Merge(rest, parts[i], fmt::format("{}/allOf/{}", where, i)));
      }
      return Add(rest, where, next);
    }
    std::vector<NodeId> nodes;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const std::string place = fmt::format("{}/{}/{}", where, key, i);
      if (parts[i] == false) continue;
      if (rest.empty()) {
        nodes.push_back(MR_TRY(Add(parts[i], place, next)));
      } else {
        const Json merged = MR_TRY(Merge(rest, parts[i], place));
        nodes.push_back(MR_TRY(Add(merged, place, next)));
      }
    }
    if (nodes.empty()) return Wrong(where, "no value is allowed");
    return json_.grammar.Choice(nodes);
  }

  /// Follows a reference to a schema that is more than a reference. Returns its name and the schema.
  Result<std::pair<std::string, const Json*>> Resolve(const Json& schema, const std::string& where) {
    const Json* at = &schema;
    for (int followed = 0; followed < 64; ++followed) {
      const Json& reference = (*at)["$ref"];
      if (!reference.is_string() || !reference.get_ref<const std::string&>().starts_with('#')) {
        return Fail(Code::kUnsupported, "JSON schema, {}: $ref reaches out of the schema", where);
      }
      const auto& name = reference.get_ref<const std::string&>();
      try {
        at = &root_.at(Json::json_pointer(MR_TRY(PercentDecode(std::string_view(name).substr(1)))));
      } catch (const Json::exception&) {
        return Wrong(where, "there is no {}", name);
      }
      if (!at->is_object() || !at->contains("$ref") || !Without(*at, "$ref").empty()) return std::pair(name, at);
    }
    return Wrong(where, "its $ref refers to other references for ever");
  }

  Result<NodeId> AddReference(const Json& schema, const std::string& where, NodeId next) {
    const auto [name, target] = MR_TRY(Resolve(schema, where));
    const auto known = rules_.find(name);
    if (known != rules_.end()) return json_.grammar.Call(known->second, next);
    const std::int32_t rule = json_.grammar.NewRule();
    rules_.emplace(name, rule);
    const NodeId start = MR_TRY(Add(*target, name, json_.grammar.End()));
    json_.grammar.SetRule(rule, start);
    return json_.grammar.Call(rule, next);
  }

  static bool HasType(const Json& value, const std::string& type) {
    if (type == "integer") return value.is_number_integer();
    if (type == "number") return value.is_number();
    return type == value.type_name();
  }

  Result<NodeId> AddConstants(const Json& schema, const std::string& where, NodeId next) {
    MR_TRY(CheckKeywords(schema, where, {"enum", "const", "type"}));
    Json values = schema.contains("const") ? Json::array({schema["const"]}) : schema["enum"];
    if (!values.is_array() || values.empty()) return Wrong(where, "enum should be a list, and not empty");
    const Json listed = schema.value("enum", values);
    const Json types = schema.contains("type") && !schema["type"].is_array() ? Json::array({schema["type"]})
                                                                             : schema.value("type", Json::array());
    std::vector<NodeId> nodes;
    for (const Json& value : values) {
      const bool typed = types.empty() || std::any_of(types.begin(), types.end(), [&](const Json& type) {
                           return type.is_string() && HasType(value, type.get<std::string>());
                         });
      if (!typed || std::find(listed.begin(), listed.end(), value) == listed.end()) continue;
      nodes.push_back(json_.grammar.Text(DumpJson(value), next));
    }
    if (nodes.empty()) return Wrong(where, "no value of enum or const has its type");
    return json_.grammar.Choice(nodes);
  }

  Result<NodeId> AddType(const std::string& type, const Json& schema, const std::string& where, NodeId next) {
    Grammar& grammar = json_.grammar;
    if (type == "null") return grammar.Text("null", next);
    if (type == "boolean") return grammar.Choice(grammar.Text("true", next), grammar.Text("false", next));
    if (type == "integer" || type == "number") return AddNumber(type, schema, where, next);
    if (type == "string") return AddString(schema, where, next);
    if (type == "array") return AddArray(schema, where, next);
    if (type == "object") return AddObject(schema, where, next);
    return Wrong(where, "unknown type \"{}\"", type);
  }

  static Result<std::int64_t> Count(const Json& schema, const char* key, std::int64_t fallback,
                                    const std::string& where) {
    const auto found = schema.find(key);
    if (found == schema.end()) return fallback;
    if (!found->is_number() || *found < 0 || *found > kMaxCount ||
        found->get<double>() != std::floor(found->get<double>())) {
      return Wrong(where, "{} should be a whole number from 0 to {}", key, kMaxCount);
    }
    return found->get<std::int64_t>();
  }

  static Result<std::optional<Decimal>> DecimalAt(const Json& schema, const char* key, const std::string& where) {
    const auto found = schema.find(key);
    if (found == schema.end()) return std::optional<Decimal>();
    if (!found->is_number()) return Wrong(where, "{} should be a number", key);
    return std::optional(MR_TRY(ParseDecimal(DumpJson(*found))));
  }

  /// Reads one end of a range: a bound that is allowed, one that is not, or both. In draft 4, `exclusive` is a boolean.
  static Status ReadBound(const Json& schema, const char* key, const char* exclusive, int sign,
                          const std::string& where, std::optional<Decimal>& bound, bool& excluded) {
    bound = MR_TRY(DecimalAt(schema, key, where));
    const auto strict = schema.find(exclusive);
    if (strict == schema.end()) return {};
    if (strict->is_boolean()) {
      excluded = strict->get<bool>();
      return {};
    }
    const auto other = MR_TRY(DecimalAt(schema, exclusive, where));
    if (bound && Compare(*bound, *other) * sign > 0) return {};
    bound = other;
    excluded = true;
    return {};
  }

  Result<NodeId> AddNumber(const std::string& type, const Json& schema, const std::string& where, NodeId next) {
    NumberRange range{.integers = type == "integer"};
    MR_TRY(ReadBound(schema, "minimum", "exclusiveMinimum", 1, where, range.least, range.above_least));
    MR_TRY(ReadBound(schema, "maximum", "exclusiveMaximum", -1, where, range.most, range.below_most));
    range.multiple_of = MR_TRY(DecimalAt(schema, "multipleOf", where));
    const std::string format = MR_TRY(FormatOf(schema, where));
    if (format == "int32") {
      const Decimal least{.negative = true, .whole = "2147483648"}, most{.whole = "2147483647"};
      if (!range.least || Compare(*range.least, least) < 0) range.least = least, range.above_least = false;
      if (!range.most || Compare(*range.most, most) > 0) range.most = most, range.below_most = false;
    } else if (!format.empty() && format != "int64" && format != "float" && format != "double") {
      return Fail(Code::kUnsupported, "JSON schema, {}: \"format\" of {} is not supported for numbers", where, format);
    }
    if (!range.least && !range.most && !range.multiple_of)
      return json_.Pattern(range.integers ? kInteger : kNumber, next);
    // A rule, so that a range that is used often is there once.
    std::string key = type;
    for (const char* part : {"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "multipleOf", "format"}) {
      key += ' ' + (schema.contains(part) ? DumpJson(schema[part]) : "");
    }
    const auto known = rules_.find(key);
    if (known != rules_.end()) return json_.grammar.Call(known->second, next);
    auto start = AddNumberRange(range, json_.grammar, json_.grammar.End());
    if (!start) return At(where, start.error());
    const std::int32_t rule = rules_[key] = json_.grammar.NewRule();
    json_.grammar.SetRule(rule, *start);
    return json_.grammar.Call(rule, next);
  }

  static Result<std::string> FormatOf(const Json& schema, const std::string& where) {
    const auto found = schema.find("format");
    if (found == schema.end()) return std::string();
    if (!found->is_string()) return Wrong(where, "format should be a string");
    return found->get<std::string>();
  }

  Result<NodeId> AddString(const Json& schema, const std::string& where, NodeId next) {
    const std::int64_t least = MR_TRY(Count(schema, "minLength", 0, where));
    const std::int64_t most = MR_TRY(Count(schema, "maxLength", -1, where));
    if (most >= 0 && most < least) return Wrong(where, "maxLength is below minLength");
    std::string format = MR_TRY(FormatOf(schema, where));
    if (IsFormatWithoutRule(format)) format.clear();
    const auto pattern = schema.find("pattern");
    const int rules = (least != 0 || most >= 0 ? 1 : 0) + (format.empty() ? 0 : 1) + (pattern == schema.end() ? 0 : 1);
    if (rules == 0) return json_.String(next);
    if (rules > 1) {
      return Fail(Code::kUnsupported,
                  "JSON schema, {}: only one of pattern, format, and minLength with maxLength is supported", where);
    }
    if (!format.empty()) return AddFormat(format, where, next);
    if (pattern == schema.end()) return json_.String(least, most, next);
    if (!pattern->is_string()) return Wrong(where, "pattern should be a string");
    return AddPattern(pattern->get_ref<const std::string&>(), where, next);
  }

  Result<NodeId> AddPattern(const std::string& pattern, const std::string& where, NodeId next) {
    auto text = AddRegex(pattern, RegexUse::kJsonPattern, json_.grammar, json_.grammar.Text("\"", next));
    if (!text) return At(where, text.error());
    return json_.grammar.Text("\"", *text);
  }

  Result<NodeId> AddFormat(const std::string& format, const std::string& where, NodeId next) {
    const auto regex = RegexOfFormat(format);
    if (!regex) return Fail(Code::kUnsupported, "JSON schema, {}: \"format\" of {} is not supported", where, format);
    const auto [known, added] = rules_.try_emplace("format " + format, 0);
    if (added) {
      Grammar& grammar = json_.grammar;
      known->second = grammar.NewRule();
      const NodeId text = MR_TRY(AddRegex(*regex, RegexUse::kJsonString, grammar, grammar.Text("\"", grammar.End())));
      grammar.SetRule(known->second, grammar.Text("\"", text));
    }
    return json_.grammar.Call(known->second, next);
  }

  /// Returns the rule of one schema, so that what repeats does not repeat its grammar.
  Result<std::int32_t> RuleOf(const Json& schema, const std::string& where) {
    const std::int32_t rule = json_.grammar.NewRule();
    json_.grammar.SetRule(rule, MR_TRY(Add(schema, where, json_.grammar.End())));
    return rule;
  }

  Result<NodeId> AddArray(const Json& schema, const std::string& where, NodeId next) {
    Grammar& grammar = json_.grammar;
    const Json first = schema.value("prefixItems", Json::array());
    const Json items = schema.value("items", Json(first.empty()));
    if (!first.is_array()) return Wrong(where, "prefixItems should be a list of schemas");
    const bool ends = items.is_boolean() && !items.get<bool>();
    const auto prefix = static_cast<std::int64_t>(first.size());
    const std::int64_t least = MR_TRY(Count(schema, "minItems", 0, where));
    std::int64_t most = MR_TRY(Count(schema, "maxItems", -1, where));
    if (ends) most = most < 0 ? prefix : std::min(most, prefix);
    if (most >= 0 && most < least) return Wrong(where, "maxItems is below minItems");
    const std::int32_t item = ends ? -1 : MR_TRY(RuleOf(items, where + "/items"));
    const NodeId closed = grammar.Text("]", next);
    const auto add_item = [&](NodeId after) { return grammar.Call(item, after); };
    if (prefix == 0) return grammar.Text("[", json_.List(least, most, closed, add_item));
    // From the end: the items behind the prefix, and then those of the prefix, each of which may be the last.
    const NodeId last = json_.Space(closed);
    NodeId rest = last;
    if (!ends && (most < 0 || most > prefix)) {
      rest = json_.Repeat(std::max<std::int64_t>(0, least - prefix), most < 0 ? -1 : most - prefix, last,
                          [&](NodeId after) { return json_.Comma(add_item(after)); });
    }
    for (std::int64_t i = std::min(prefix, most < 0 ? prefix : most); i-- > 0;) {
      NodeId one = MR_TRY(Add(first[static_cast<std::size_t>(i)], fmt::format("{}/prefixItems/{}", where, i), rest));
      if (i == 0) return grammar.Text("[", json_.Space(least > 0 ? one : grammar.Choice(closed, one)));
      rest = i >= least ? grammar.Choice(last, json_.Comma(one)) : json_.Comma(one);
    }
    return grammar.Text("[", json_.Space(closed));
  }

  struct Property {
    std::string name;
    const Json* schema;
    bool required;
  };

  /// Returns the properties of an object schema that may be there, in its order, and behind them those that are
  /// required without being named.
  Result<std::vector<Property>> PropertiesOf(const Json& schema, const std::string& where) {
    static const Json any = true, none = Json::object();
    const auto named = schema.find("properties");
    const Json& properties = named == schema.end() ? none : *named;
    const Json required = schema.value("required", Json::array());
    const bool all_strings = required.is_array() &&
                             std::all_of(required.begin(), required.end(), [](const Json& n) { return n.is_string(); });
    if (!properties.is_object() || !all_strings) {
      return Wrong(where, "properties should be an object, and required a list of names");
    }
    std::set<std::string> wanted(required.begin(), required.end());
    std::vector<Property> all;
    for (const auto& [name, one] : properties.items()) {
      const bool is_wanted = wanted.erase(name) > 0;
      if (one == false && is_wanted) return Wrong(where, "\"{}\" is required, and no value is allowed", name);
      if (one != false) all.push_back({name, &one, is_wanted});
    }
    const auto others = schema.find("additionalProperties");
    for (const Json& name : required) {
      if (wanted.erase(name.get<std::string>()) == 0) continue;
      if (others != schema.end() && *others == false) {
        return Wrong(where, "{} is required, but is none of the properties", DumpJson(name));
      }
      all.push_back({name.get<std::string>(), others == schema.end() ? &any : &*others, true});
    }
    return all;
  }

  Result<NodeId> AddObject(const Json& schema, const std::string& where, NodeId next) {
    Grammar& grammar = json_.grammar;
    for (const char* key : {"patternProperties", "propertyNames", "minProperties", "maxProperties"}) {
      if (!schema.contains(key)) continue;
      if (schema.contains("properties") || schema.contains("required")) {
        return Fail(Code::kUnsupported, "JSON schema, {}: \"{}\" beside properties is not supported", where, key);
      }
      return AddMap(schema, where, next);
    }
    const auto others = schema.find("additionalProperties");
    const bool any_others = others == schema.end() || *others == true;
    const bool names_none = !schema.contains("properties") && !schema.contains("required");
    if (names_none && any_others) return grammar.Call(json_.Object(), next);
    if (names_none && others->is_object()) return AddMap(schema, where, next);
    const std::vector<Property> properties = MR_TRY(PropertiesOf(schema, where));
    // From the last property to the first: `begun` follows when some property stands before, `fresh` when none does.
    const NodeId closed = grammar.Text("}", next);
    NodeId begun = json_.Space(closed), fresh = closed;
    if (!any_others && others->is_object()) {
      const auto names = MR_TRY(NamesToAvoid(schema, properties, where));
      const std::int32_t value = MR_TRY(RuleOf(*others, where + "/additionalProperties"));
      const NodeId more = grammar.Loop(begun);
      const NodeId member = json_.OtherString(names, json_.Colon(grammar.Call(value, more)));
      grammar.SetOther(more, json_.Comma(member));
      begun = more;
      fresh = grammar.Choice(closed, member);
    }
    for (auto property = properties.rbegin(); property != properties.rend(); ++property) {
      const std::string place = fmt::format("{}/properties/{}", where, property->name);
      const NodeId value = MR_TRY(Add(*property->schema, place, begun));
      const NodeId member = grammar.Text(DumpJson(property->name), json_.Colon(value));
      begun = property->required ? json_.Comma(member) : grammar.Choice(json_.Comma(member), begun);
      fresh = property->required ? member : grammar.Choice(member, fresh);
    }
    return grammar.Text("{", json_.Space(fresh));
  }

  /// Returns the names that members beside `properties` must not have. A name that is written with escapes is left out:
  /// it cannot be one of a string without them.
  static Result<std::set<std::u32string>> NamesToAvoid(const Json& schema, const std::vector<Property>& properties,
                                                       const std::string& where) {
    std::vector<std::string> all;
    const Json named = schema.value("properties", Json::object());
    for (const auto& [name, one] : named.items()) all.push_back(name);
    for (const Property& property : properties) all.push_back(property.name);
    std::set<std::u32string> names;
    std::size_t total = 0;
    for (const std::string& name : all) {
      total += name.size();
      if (name.size() > kMaxName || total > kMaxNames) {
        return Fail(Code::kResourceExhausted,
                    "JSON schema, {}: names beside additionalProperties take more than {} bytes, or one of them {}",
                    where, kMaxNames, kMaxName);
      }
      if (DumpJson(name).size() != name.size() + 2) continue;
      std::u32string characters;
      for (std::size_t at = 0; at < name.size();) {
        const auto [code, length] = tokenizer::DecodeUtf8(name.data() + at, name.data() + name.size());
        characters += code;
        at += length;
      }
      names.insert(std::move(characters));
    }
    return names;
  }

  /// An object whose members are alike: their names fit a pattern, a schema, or are any strings.
  Result<NodeId> AddMap(const Json& schema, const std::string& where, NodeId next) {
    Grammar& grammar = json_.grammar;
    const std::int64_t least = MR_TRY(Count(schema, "minProperties", 0, where));
    const std::int64_t most = MR_TRY(Count(schema, "maxProperties", -1, where));
    if (most >= 0 && most < least) return Wrong(where, "maxProperties is below minProperties");
    const Json others = schema.value("additionalProperties", Json(true));
    const auto patterns = schema.find("patternProperties");
    const auto names = schema.find("propertyNames");
    const std::int32_t name = grammar.NewRule();
    NodeId text = 0;
    Json value = others;
    if (patterns != schema.end()) {
      // Members that fit no pattern are left out, as everywhere. A name that fits two would need a value that fits
      // both.
      if (!patterns->is_object() || patterns->size() != 1 || names != schema.end() || others.is_object()) {
        return Fail(Code::kUnsupported,
                    "JSON schema, {}: only one of patternProperties, without propertyNames, is supported", where);
      }
      text = MR_TRY(AddPattern(patterns->begin().key(), where, grammar.End()));
      value = patterns->begin().value();
    } else if (names != schema.end() && names->is_object()) {
      MR_TRY(CheckKeywords(*names, where + "/propertyNames", {"type", "minLength", "maxLength", "pattern", "format"}));
      text = MR_TRY(AddString(*names, where + "/propertyNames", grammar.End()));
    } else if (names == schema.end() || *names == true) {
      text = json_.String(grammar.End());
    } else {
      return Fail(Code::kUnsupported, "JSON schema, {}: propertyNames should be a schema of strings", where);
    }
    if (value == false) {
      if (least > 0) return Wrong(where, "no member is allowed, and minProperties wants {}", least);
      return grammar.Text("{", json_.Space(grammar.Text("}", next)));
    }
    grammar.SetRule(name, text);
    const std::int32_t rule =
        MR_TRY(RuleOf(value, where + (patterns != schema.end() ? "/patternProperties" : "/additionalProperties")));
    const NodeId members = json_.List(least, most, grammar.Text("}", next), [&](NodeId after) {
      return grammar.Call(name, json_.Colon(grammar.Call(rule, after)));
    });
    return grammar.Text("{", members);
  }

  const Json& root_;
  JsonBuilder json_;
  std::map<std::string, std::int32_t> rules_;  ///< by $ref, or by what else they say
  int depth_ = 0;
};

}  // namespace

Grammar JsonObjectGrammar() {
  JsonBuilder json;
  json.grammar.SetRule(0, json.Space(json.grammar.Call(json.Object(), json.Space(json.grammar.End()))));
  return std::move(json.grammar);
}

Result<Grammar> JsonSchemaGrammar(const Json& schema) { return SchemaBuilder(schema).Run(); }

}  // namespace millrace::serve
