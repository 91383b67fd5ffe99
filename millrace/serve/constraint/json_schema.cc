#include "millrace/serve/constraint/json_schema.h"

#include <algorithm>
#include <array>
#include <map>

#include "millrace/serve/constraint/regex.h"

namespace millrace::serve {
namespace {

using NodeId = Grammar::NodeId;

constexpr std::string_view kInteger = "-?(?:0|[1-9][0-9]{0,17})";
constexpr std::string_view kNumber = "-?(?:0|[1-9][0-9]{0,17})(?:\\.[0-9]{1,18})?(?:[eE][+-]?[0-9]{1,3})?";
constexpr int kMaxSpaces = 16;
constexpr std::int64_t kMaxCount = 1000;

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
  NodeId Pattern(std::string_view pattern, NodeId next) {
    // The patterns of this file are right.
    return AddRegex(pattern, false, grammar, next).value_or(next);
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
  using Names = std::vector<std::string>;

  template <class... Arguments>
  static std::unexpected<Error> Wrong(const std::string& where, fmt::format_string<Arguments...> format,
                                      Arguments&&... arguments) {
    return Fail(Code::kInvalidArgument, "JSON schema, {}: {}", where,
                fmt::format(format, std::forward<Arguments>(arguments)...));
  }

  /// Refuses keywords that would be ignored otherwise.
  static Status CheckKeywords(const Json& schema, const std::string& where,
                              const std::vector<std::string_view>& known) {
    constexpr std::array<std::string_view, 14> kAnnotations = {
        "title",    "description", "default",     "example",  "examples",  "$schema",    "$id",
        "$comment", "$defs",       "definitions", "readOnly", "writeOnly", "deprecated", "strict"};
    for (const auto& [key, value] : schema.items()) {
      if (key.starts_with("x-") || std::find(kAnnotations.begin(), kAnnotations.end(), key) != kAnnotations.end())
        continue;
      if (std::find(known.begin(), known.end(), key) == known.end()) {
        return Fail(Code::kUnsupported, "JSON schema, {}: \"{}\" is not supported here", where, key);
      }
    }
    return {};
  }

  /// Returns the keywords that say more of a type.
  static std::vector<std::string_view> KeywordsOf(const std::string& type) {
    if (type == "string") return {"minLength", "maxLength", "pattern"};
    if (type == "array") return {"items", "prefixItems", "minItems", "maxItems"};
    if (type == "object") return {"properties", "required", "additionalProperties"};
    return {};
  }

  Result<NodeId> Add(const Json& schema, const std::string& where, NodeId next) {
    MR_TRY(json_.grammar.Check());
    if (schema.is_boolean() && schema.get<bool>()) return json_.grammar.Call(json_.Value(), next);
    if (!schema.is_object()) return Wrong(where, "a schema should be an object");
    if (++depth_ > 64) return Wrong(where, "schemas are too deep within each other; use $ref");
    NodeId start = MR_TRY(AddObjectSchema(schema, where, next));
    --depth_;
    return start;
  }

  Result<NodeId> AddObjectSchema(const Json& schema, const std::string& where, NodeId next) {
    if (schema.contains("$ref")) return AddReference(schema, where, next);
    if (schema.contains("enum") || schema.contains("const")) return AddConstants(schema, where, next);
    for (const char* key : {"anyOf", "oneOf", "allOf"}) {
      if (!schema.contains(key)) continue;
      MR_TRY(CheckKeywords(schema, where, {key, "type"}));
      const Json& choices = schema[key];
      if (!choices.is_array() || choices.empty()) return Wrong(where, "{} should be a list of schemas", key);
      if (std::string_view(key) == "allOf" && choices.size() > 1) {
        return Fail(Code::kUnsupported, "JSON schema, {}: allOf of several schemas is not supported", where);
      }
      std::vector<NodeId> nodes;
      for (std::size_t i = 0; i < choices.size(); ++i) {
        nodes.push_back(MR_TRY(Add(choices[i], fmt::format("{}/{}/{}", where, key, i), next)));
      }
      return json_.grammar.Choice(nodes);
    }
    const auto type = schema.find("type");
    if (type == schema.end()) {
      // Without a type, the keywords tell it.
      const bool object = schema.contains("properties"),
                 array = schema.contains("items") || schema.contains("prefixItems");
      if (object || array) {
        const std::string untold = object ? "object" : "array";
        MR_TRY(CheckKeywords(schema, where, KeywordsOf(untold)));
        return AddType(untold, schema, where, next);
      }
      MR_TRY(CheckKeywords(schema, where, {}));
      return json_.grammar.Call(json_.Value(), next);
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

  Result<NodeId> AddReference(const Json& schema, const std::string& where, NodeId next) {
    MR_TRY(CheckKeywords(schema, where, {"$ref"}));
    const Json& reference = schema["$ref"];
    if (!reference.is_string() || !reference.get_ref<const std::string&>().starts_with('#')) {
      return Fail(Code::kUnsupported, "JSON schema, {}: $ref reaches out of the schema", where);
    }
    const std::string name = reference.get<std::string>();
    const auto known = rules_.find(name);
    if (known != rules_.end()) return json_.grammar.Call(known->second, next);
    const Json* target = nullptr;
    try {
      target = &root_.at(Json::json_pointer(name.substr(1)));
    } catch (const Json::exception&) {
      return Wrong(where, "there is no {}", name);
    }
    const std::int32_t rule = json_.grammar.NewRule();
    rules_.emplace(name, rule);
    const NodeId start = MR_TRY(Add(*target, name, json_.grammar.End()));
    // A rule that begins with itself would have no text.
    if (target->is_object() && target->contains("$ref")) return Wrong(where, "{} refers to another reference", name);
    json_.grammar.SetRule(rule, start);
    return json_.grammar.Call(rule, next);
  }

  Result<NodeId> AddConstants(const Json& schema, const std::string& where, NodeId next) {
    MR_TRY(CheckKeywords(schema, where, {"enum", "const", "type"}));
    const Json values = schema.contains("const") ? Json::array({schema["const"]}) : schema["enum"];
    if (!values.is_array() || values.empty()) return Wrong(where, "enum should be a list, and not empty");
    std::vector<NodeId> nodes;
    for (const Json& value : values) nodes.push_back(json_.grammar.Text(DumpJson(value), next));
    return json_.grammar.Choice(nodes);
  }

  Result<NodeId> AddType(const std::string& type, const Json& schema, const std::string& where, NodeId next) {
    Grammar& grammar = json_.grammar;
    if (type == "null") return grammar.Text("null", next);
    if (type == "boolean") return grammar.Choice(grammar.Text("true", next), grammar.Text("false", next));
    if (type == "integer") return json_.Pattern(kInteger, next);
    if (type == "number") return json_.Pattern(kNumber, next);
    if (type == "string") return AddString(schema, where, next);
    if (type == "array") return AddArray(schema, where, next);
    if (type == "object") return AddObject(schema, where, next);
    return Wrong(where, "unknown type \"{}\"", type);
  }

  static Result<std::int64_t> Count(const Json& schema, const char* key, std::int64_t fallback,
                                    const std::string& where) {
    const auto found = schema.find(key);
    if (found == schema.end()) return fallback;
    if (!found->is_number_integer() || *found < 0 || *found > kMaxCount) {
      return Wrong(where, "{} should be from 0 to {}", key, kMaxCount);
    }
    return found->get<std::int64_t>();
  }

  Result<NodeId> AddString(const Json& schema, const std::string& where, NodeId next) {
    const std::int64_t least = MR_TRY(Count(schema, "minLength", 0, where));
    const std::int64_t most = MR_TRY(Count(schema, "maxLength", -1, where));
    if (most >= 0 && most < least) return Wrong(where, "maxLength is below minLength");
    const auto pattern = schema.find("pattern");
    if (pattern == schema.end()) return least == 0 && most < 0 ? json_.String(next) : json_.String(least, most, next);
    if (least != 0 || most >= 0) {
      return Fail(Code::kUnsupported, "JSON schema, {}: pattern beside minLength or maxLength is not supported", where);
    }
    if (!pattern->is_string()) return Wrong(where, "pattern should be a string");
    auto text = AddRegex(pattern->get_ref<const std::string&>(), true, json_.grammar, json_.grammar.Text("\"", next));
    if (!text) return std::unexpected(text.error().Context(fmt::format("JSON schema, {}", where)));
    return json_.grammar.Text("\"", *text);
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
    // The rule of one item, so that a long list does not repeat its schema.
    const std::int32_t item = grammar.NewRule();
    if (!ends) grammar.SetRule(item, MR_TRY(Add(items, where + "/items", grammar.End())));
    if (ends) grammar.SetRule(item, grammar.End());
    const NodeId closed = grammar.Text("]", next), last = json_.Space(closed);
    const auto comma = [&](NodeId after) { return json_.Space(grammar.Text(",", json_.Space(after))); };
    // From the end: the items behind the prefix, and then those of the prefix, each of which may be the last.
    const auto behind = [&](std::int64_t done) {
      const std::int64_t more_least = std::max<std::int64_t>(0, least - done);
      return json_.Repeat(more_least, most < 0 ? -1 : most - done, last,
                          [&](NodeId after) { return comma(grammar.Call(item, after)); });
    };
    if (prefix == 0) {
      if (most == 0) return grammar.Text("[", json_.Space(closed));
      const NodeId some = grammar.Call(item, behind(1));
      return grammar.Text("[", json_.Space(least > 0 ? some : grammar.Choice(closed, some)));
    }
    NodeId rest = ends || (most >= 0 && most <= prefix) ? last : behind(prefix);
    for (std::int64_t i = std::min(prefix, most < 0 ? prefix : most); i-- > 0;) {
      NodeId one = MR_TRY(Add(first[static_cast<std::size_t>(i)], fmt::format("{}/prefixItems/{}", where, i), rest));
      if (i == 0) return grammar.Text("[", json_.Space(least > 0 ? one : grammar.Choice(closed, one)));
      rest = i >= least ? grammar.Choice(last, comma(one)) : comma(one);
    }
    return grammar.Text("[", json_.Space(closed));
  }

  Result<NodeId> AddObject(const Json& schema, const std::string& where, NodeId next) {
    Grammar& grammar = json_.grammar;
    const Json properties = schema.value("properties", Json::object());
    const Json required = schema.value("required", Json::array());
    if (!properties.is_object() || !required.is_array()) {
      return Wrong(where, "properties should be an object, and required a list of names");
    }
    if (properties.empty() && !schema.contains("properties") &&
        schema.value("additionalProperties", Json(true)) != false) {
      MR_TRY(CheckKeywords(schema, where, {"type", "additionalProperties"}));
      if (schema.value("additionalProperties", Json(true)) == true) return grammar.Call(json_.Object(), next);
    }
    if (schema.contains("additionalProperties") && schema["additionalProperties"].is_object()) {
      return Fail(Code::kUnsupported, "JSON schema, {}: a schema in additionalProperties is not supported", where);
    }
    Names names;
    for (const auto& [name, member] : properties.items()) names.push_back(name);
    for (const Json& name : required) {
      if (!name.is_string() || !properties.contains(name.get<std::string>())) {
        return Wrong(where, "{} is required, but is none of the properties", DumpJson(name));
      }
    }
    const auto is_required = [&](const std::string& name) {
      return std::find(required.begin(), required.end(), Json(name)) != required.end();
    };
    // From the last property to the first: `begun` follows when some property stands before, `fresh` when none does.
    const NodeId closed = grammar.Text("}", next);
    NodeId begun = json_.Space(closed), fresh = closed;
    for (auto name = names.rbegin(); name != names.rend(); ++name) {
      const std::string place = fmt::format("{}/properties/{}", where, *name);
      const NodeId value = MR_TRY(Add(properties[*name], place, begun));
      const NodeId member = grammar.Text(DumpJson(*name), json_.Space(grammar.Text(":", json_.Space(value))));
      const NodeId behind_comma = json_.Space(grammar.Text(",", json_.Space(member)));
      begun = is_required(*name) ? behind_comma : grammar.Choice(behind_comma, begun);
      fresh = is_required(*name) ? member : grammar.Choice(member, fresh);
    }
    return grammar.Text("{", json_.Space(fresh));
  }

  const Json& root_;
  JsonBuilder json_;
  std::map<std::string, std::int32_t> rules_;  ///< by $ref
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
