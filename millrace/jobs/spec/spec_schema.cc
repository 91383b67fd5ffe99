#include "millrace/jobs/spec/spec_schema.h"

#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <utility>

#include "millrace/base/text.h"
#include "millrace/jobs/spec/foreign_words.h"
#include "millrace/jobs/spec/schema_writer.h"

namespace millrace::jobs {
namespace {

using Path = std::span<const std::string>;
using Conditions = std::vector<KeyCondition>;

std::vector<DeclaredKey> DeclaredKeys() {
  std::vector<DeclaredKey> keys;
  SchemaWriter writer(keys);
  Spec spec;
  VisitSpec(writer, spec);
  return keys;
}

std::string TextOf(Path path) {
  std::string text;
  for (const std::string& key : path) text += (text.empty() ? "" : ".") + key;
  return text;
}

/// Returns a schema that says `leaf` of the value at `path`. `required`: the keys from this one on must be there;
/// path.size(): none must.
Json At(Path path, Json leaf, std::size_t required) {
  for (std::size_t i = path.size(); i-- > 0;) {
    Json outer = Json::object();
    if (i >= required) outer["required"] = Json::array({path[i]});
    if (!leaf.empty()) outer["properties"][path[i]] = std::move(leaf);
    leaf = std::move(outer);
  }
  return leaf;
}

/// All declarations, by path. Borrows them.
class SchemaBuilder {
 public:
  explicit SchemaBuilder(const std::vector<DeclaredKey>& keys) : keys_(keys) {
    for (const DeclaredKey& key : keys) by_path_[TextOf(key.path)].push_back(&key);
  }

  Json Build() {
    Json schema = {{"$schema", "https://json-schema.org/draft/2020-12/schema"},
                   {"title", "Job file of Millrace"},
                   {"type", "object"}};
    schema.update(KeysOf({}));
    schema["allOf"] = Rules();
    for (const ForeignWord& word : ForeignWords()) {
      Json entry = {{"word", word.word}, {"programs", word.programs}, {"advice", word.advice}};
      if (!word.section.empty()) entry["section"] = word.section;
      if (!word.key.empty()) entry["key"] = word.key;
      schema["x-words"].push_back(std::move(entry));
    }
    return schema;
  }

 private:
  /// Returns what is said of the keys of a section, each by itself.
  Json KeysOf(Path section) {
    Json schema = {{"properties", Json::object()}, {"additionalProperties", false}};
    for (const DeclaredKey& key : keys_) {
      const bool is_in =
          key.path.size() == section.size() + 1 && std::ranges::equal(Path(key.path).first(section.size()), section);
      if (!is_in || key.path.back().empty() || schema["properties"].contains(key.path.back())) continue;
      schema["properties"][key.path.back()] = Property(by_path_[TextOf(key.path)]);
    }
    return schema;
  }

  Json Property(const std::vector<const DeclaredKey*>& declared) {
    const auto active = std::ranges::find_if(
        declared, [](const DeclaredKey* key) { return std::ranges::all_of(key->only, &KeyCondition::holds); });
    const DeclaredKey& first = active == declared.end() ? *declared.front() : **active;
    Json schema = first.schema;
    if (first.is_section) {
      const Json keys = KeysOf(first.path);
      (schema.contains("anyOf") ? schema["anyOf"].back() : schema).update(keys);
    }
    // Where declarations differ, the widest list of words; Rules() has what holds under which condition.
    for (const DeclaredKey* key : declared) {
      if (key->schema.contains("enum") && key->schema["enum"].size() > schema["enum"].size()) {
        schema["enum"] = key->schema["enum"];
      }
    }
    if (first.required) schema["x-required"] = true;
    if (const Json only = OnlyOf(declared); !only.empty()) schema["x-only"] = only;
    for (const DeclaredKey* key : declared) {
      if (!key->schema.contains("default") || key->schema["default"] == schema.value("default", Json())) continue;
      schema["x-defaults"].push_back({{"only", ToJson(key->only)}, {"default", key->schema["default"]}});
    }
    return schema;
  }

  static Json ToJson(const Conditions& conditions) {
    Json list = Json::array();
    for (const KeyCondition& each : conditions) list.push_back({{"key", each.key}, {"values", each.values}});
    return list;
  }

  /// Returns the conditions that all declarations of a key share, or its values under any of them.
  Json OnlyOf(const std::vector<const DeclaredKey*>& declared) {
    Conditions merged = declared.front()->only;
    for (const DeclaredKey* key : declared) {
      for (std::size_t i = 0; i < merged.size(); ++i) {
        if (i >= key->only.size() || key->only[i].key != merged[i].key) {
          merged.resize(i);
          break;
        }
        for (const std::string& value : key->only[i].values) {
          if (std::ranges::find(merged[i].values, value) == merged[i].values.end()) merged[i].values.push_back(value);
        }
      }
    }
    std::erase_if(merged, [&](const KeyCondition& each) {
      const auto other = by_path_.find(each.key);
      return other != by_path_.end() &&
             other->second.front()->schema.value("enum", Json()).size() == each.values.size();
    });
    return ToJson(merged);
  }

  /// Returns a schema of job files in which a condition holds.
  Json Holds(const KeyCondition& condition) {
    std::vector<std::string> path;
    for (const std::string_view key : Split(condition.key, '.')) path.emplace_back(key);
    const Json is_something = {{"not", {{"enum", Json::array({"", Json::array()})}}}};
    if (condition.values.front() == kIsGiven) return At(path, is_something, 0);
    if (condition.values.front() == kIsAbsent) return {{"not", At(path, is_something, 0)}};
    const Json& other = by_path_.at(condition.key).front()->schema;
    const bool by_default = std::ranges::find(condition.values, other.value("default", "")) != condition.values.end();
    return At(path, {{"enum", condition.values}}, by_default ? path.size() : 0);
  }
  Json AllHold(const Conditions& conditions) {
    Json all = Json::array();
    for (const KeyCondition& each : conditions) all.push_back(Holds(each));
    return all.size() == 1 ? all.front() : Json{{"allOf", std::move(all)}};
  }

  /// Returns what several keys together must satisfy, as schemas of the whole file.
  Json Rules() {
    Json rules = Json::array();
    std::set<std::string> seen;
    for (const DeclaredKey& key : keys_) {
      if (key.required) rules.push_back(Requirement(key));
      const std::string path = TextOf(key.path);
      const auto& declared = by_path_[path];
      if (key.path.back().empty() || key.only.empty() || !seen.insert(path).second) continue;
      Json any = Json::array();
      for (const DeclaredKey* each : declared) {
        any.push_back(AllHold(each->only));
        if (each->schema.value("enum", Json()) != key.schema.value("enum", Json())) {
          rules.push_back(
              {{"if", any.back()}, {"then", At(each->path, {{"enum", each->schema["enum"]}}, each->path.size())}});
        }
      }
      rules.push_back({{"if", any.size() == 1 ? any.front() : Json{{"anyOf", std::move(any)}}},
                       {"else", At(key.path, false, key.path.size())}});
    }
    return rules;
  }

  /// Returns the rule that a key must be there, and the sections that it is in.
  Json Requirement(const DeclaredKey& key) {
    const bool is_rule = key.path.back().empty();  // of the section itself
    const Path path = is_rule ? Path(key.path).first(key.path.size() - 1) : Path(key.path);
    Json must = At(path, is_rule ? key.schema : Json::object(), key.required_below);
    return key.all.empty() ? must : Json{{"if", AllHold(key.all)}, {"then", std::move(must)}};
  }

  const std::vector<DeclaredKey>& keys_;
  std::map<std::string, std::vector<const DeclaredKey*>> by_path_;
};

}  // namespace

Json JobSchema() { return SchemaBuilder(DeclaredKeys()).Build(); }

std::vector<std::string> KeysNamed(std::string_view name) {
  std::vector<std::string> paths;
  for (const DeclaredKey& key : DeclaredKeys()) {
    std::string path = TextOf(key.path);
    if (key.path.back() == name && !key.is_section && std::ranges::find(paths, path) == paths.end()) {
      paths.push_back(std::move(path));
    }
  }
  return paths;
}

}  // namespace millrace::jobs
