#include "millrace/serve/constraint/merge_schemas.h"

#include <algorithm>
#include <array>
#include <map>
#include <string_view>

namespace millrace::serve {
namespace {

constexpr std::array<std::string_view, 5> kLargerHolds = {"minimum", "minLength", "minItems", "minProperties",
                                                          "exclusiveMinimum"};
constexpr std::array<std::string_view, 5> kSmallerHolds = {"maximum", "maxLength", "maxItems", "maxProperties",
                                                           "exclusiveMaximum"};

bool Has(const auto& list, const auto& element) { return std::find(list.begin(), list.end(), element) != list.end(); }

Json List(const Json& value) { return value.is_array() ? value : Json::array({value}); }

/// The types that both name. An integer is a number, too.
Json CommonTypes(const Json& one, const Json& other) {
  Json common = Json::array();
  const Json ones = List(one), others = List(other);
  for (const Json& type : ones) {
    if (Has(others, Json("number")) && type == "integer") common.push_back(type);
    if (type == "number" && !Has(others, type) && Has(others, Json("integer"))) common.push_back("integer");
    if (Has(others, type) && !Has(common, type)) common.push_back(type);
  }
  return common;
}

Json CommonValues(const Json& one, const Json& other) {
  Json common = Json::array();
  for (const Json& value : one) {
    if (std::find(other.begin(), other.end(), value) != other.end()) common.push_back(value);
  }
  return common;
}

/// Adds the members of `other`. What both have must hold twice.
void MergeProperties(Json& into, const Json& other) {
  std::map<std::string, Json> left;
  for (const auto& [name, schema] : other.items()) left[name] = schema;
  for (auto& [name, schema] : into.items()) {
    const auto same = left.find(name);
    if (same == left.end()) continue;
    if (schema != same->second) schema = {{"allOf", Json::array({schema, same->second})}};
    left.erase(same);
  }
  for (const auto& [name, schema] : other.items()) {
    if (left.contains(name)) into.push_back({name, schema});
  }
}

/// Returns whether each name of `some` is one of `all`.
bool Within(const Json& some, const Json& all) {
  std::map<std::string_view, bool> names;
  for (const auto& [name, schema] : all.items()) names[name] = true;
  return std::all_of(some.items().begin(), some.items().end(),
                     [&](const auto& member) { return names.contains(member.key()); });
}

Json PropertiesOf(const Json& schema) {
  const auto found = schema.find("properties");
  return found != schema.end() && found->is_object() ? *found : Json::object();
}

/// Whether a schema says something about members that it does not name.
bool LimitsOthers(const Json& schema) {
  const auto found = schema.find("additionalProperties");
  return (found != schema.end() && *found != true) || schema.contains("patternProperties");
}

}  // namespace

bool IsAnnotation(const std::string& keyword) {
  constexpr std::array<std::string_view, 19> kAnnotations = {
      "title",    "description",  "default",       "example",         "examples",        "$schema",    "$id",
      "$comment", "$defs",        "definitions",   "readOnly",        "writeOnly",       "deprecated", "strict",
      "$anchor",  "externalDocs", "discriminator", "contentEncoding", "contentMediaType"};
  return keyword.starts_with("x-") || Has(kAnnotations, keyword);
}

Result<Json> MergeSchemas(const Json& one, const Json& other, const std::string& where) {
  const bool named_alike =
      Within(PropertiesOf(one), PropertiesOf(other)) && Within(PropertiesOf(other), PropertiesOf(one));
  if ((LimitsOthers(one) && !Within(PropertiesOf(other), PropertiesOf(one))) ||
      (LimitsOthers(other) && !Within(PropertiesOf(one), PropertiesOf(other)))) {
    return Fail(Code::kUnsupported,
                "JSON schema, {}: additionalProperties beside a schema with other properties is not supported", where);
  }
  // Without prefixItems, items speaks of all items; with them, of those behind.
  const auto all_items = [](const Json& schema) { return schema.contains("items") && !schema.contains("prefixItems"); };
  if ((all_items(one) && other.contains("prefixItems")) || (all_items(other) && one.contains("prefixItems"))) {
    return Fail(Code::kUnsupported, "JSON schema, {}: items beside a schema with prefixItems is not supported", where);
  }
  Json merged = Json::object();
  for (const auto& [key, value] : one.items()) {
    if (!IsAnnotation(key)) merged[key] = value;
  }
  for (const auto& [key, value] : other.items()) {
    if (IsAnnotation(key)) continue;
    const auto found = merged.find(key);
    if (found == merged.end()) {
      merged[key] = value;
      continue;
    }
    Json& both = *found;
    if (key == "type") {
      both = CommonTypes(both, value);
      if (both.empty())
        return Fail(Code::kInvalidArgument, "JSON schema, {}: no type is allowed by both schemas", where);
    } else if (key == "enum" && both.is_array() && value.is_array()) {
      both = CommonValues(both, value);
    } else if (key == "required" && both.is_array() && value.is_array()) {
      for (const Json& name : value) {
        if (!Has(both, name)) both.push_back(name);
      }
    } else if (key == "properties" && both.is_object() && value.is_object()) {
      MergeProperties(both, value);
    } else if (key == "allOf" && both.is_array() && value.is_array()) {
      both.insert(both.end(), value.begin(), value.end());
    } else if (Has(kLargerHolds, key) && both.is_number() && value.is_number()) {
      both = std::max(both, value);
    } else if (Has(kSmallerHolds, key) && both.is_number() && value.is_number()) {
      both = std::min(both, value);
    } else if (both == value || value == true) {
      continue;
    } else if (both == true || (value == false && key == "additionalProperties")) {
      both = value;
    } else if (both == false && key == "additionalProperties") {
      continue;
    } else if (key == "items" || (key == "additionalProperties" && named_alike)) {
      both = {{"allOf", Json::array({both, value})}};
    } else {
      return Fail(Code::kUnsupported, "JSON schema, {}: two schemas that differ in \"{}\" cannot be joined", where,
                  key);
    }
  }
  return merged;
}

}  // namespace millrace::serve
