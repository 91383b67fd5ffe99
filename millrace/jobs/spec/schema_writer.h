// A visitor that writes down what is declared of each key.
#pragma once

#include <cstdint>
#include <deque>
#include <initializer_list>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/base/json.h"
#include "millrace/jobs/spec/spec_fields.h"

namespace millrace::jobs {

/// A Condition, without the error.
struct KeyCondition {
  std::string key;
  std::vector<std::string> values;
  bool holds = true;  ///< in a job file with nothing but defaults
  bool operator==(const KeyCondition&) const = default;
};

/// One declaration of a key. Keys that mean something else under other conditions have several.
struct DeclaredKey {
  std::vector<std::string> path;
  Json schema;                     ///< of its value, without that of a section's keys
  std::vector<KeyCondition> only;  ///< beyond those of the section that it is in
  std::vector<KeyCondition> all;   ///< with those
  std::size_t required_below = 0;  ///< sections on the path that may be absent, though the key is required
  bool required = false;
  bool is_section = false;
};

/// Visits each key once, and where conditions choose between parts, all parts.
class SchemaWriter {
 public:
  explicit SchemaWriter(std::vector<DeclaredKey>& into) : into_(into) {}

  void Text(const Key& key, std::string& value, TextKind kind, bool required) {
    Json schema = {{"type", "string"}};
    if (required) schema["minLength"] = 1;
    if (!required || !value.empty()) schema["default"] = value;
    const char* form = kind == TextKind::kFolder ? "absolute path" : kind == TextKind::kPlain ? "text" : "URL";
    Add(key, std::move(schema), form, required && value.empty());
  }
  void Word(const Key& key, std::string& value, Choice choice) {
    Json schema = {{"enum", ListOf(choice.supported)}};
    schema["default"] = value;
    Add(key, std::move(schema));
  }
  void Family(const Key& key, std::string& value);
  void Options(std::span<const std::string_view> keys, Json& values);
  void Words(const Key& key, std::vector<std::string>& values, Choice choice) {
    Json schema = {{"type", "array"}, {"items", {{"enum", ListOf(choice.supported)}}}, {"minItems", 1}};
    schema["default"] = values;
    Add(key, std::move(schema));
  }
  void AllOrWords(const Key& key, std::vector<std::string>& values, std::span<const std::string_view> words) {
    Json list = {{"type", "array"}, {"items", {{"enum", ListOf(words)}}}};
    Json schema = {{"anyOf", Json::array({Json{{"type", "boolean"}}, std::move(list)})}};
    schema["default"] = values.size() == words.size();
    Add(key, std::move(schema));
  }
  void Texts(const Key& key, std::vector<std::string>& values) { Scalars(key, values, "list of texts"); }
  void Command(const Key& key, std::vector<std::string>& values) { Scalars(key, values, "list of texts"); }
  void TextMap(const Key& key, std::map<std::string, std::string>&) {
    Add(key, {{"type", "object"}, {"additionalProperties", Scalar()}, {"default", Json::object()}}, "map of texts");
  }
  void List(const Key& key, Json&) {
    Add(key, {{"type", "array"}, {"items", {{"type", "object"}}}, {"default", Json::array()}}, "list of maps");
  }
  template <class T>
  void Integer(const Key& key, T& value, std::int64_t least, std::int64_t most) {
    Json schema = Bounds(least, most);
    schema["default"] = value;
    Add(key, std::move(schema));
  }
  template <class T>
  void OptionalInteger(const Key& key, std::optional<T>&, std::int64_t least, std::int64_t most) {
    Add(key, Bounds(least, most));
  }
  void Number(const Key& key, double& value, double least, double most) {
    Add(key, {{"type", "number"}, {"minimum", least}, {"maximum", most}, {"default", value}});
  }
  void OptionalNumber(const Key& key, std::optional<double>&, double least, double most) {
    Add(key, {{"type", "number"}, {"minimum", least}, {"maximum", most}});
  }
  void TwoNumbers(const Key& key, double& first, double& second, double least, double most) {
    Json schema = Pair({{"type", "number"}, {"minimum", least}, {"maximum", most}});
    schema["default"] = Json::array({first, second});
    Add(key, std::move(schema));
  }
  void FirstAndLast(const Key& key, std::uint64_t&, std::uint64_t&) {
    Add(key, Pair({{"type", "integer"}, {"minimum", 1}}), "the first and the last", true);
  }
  void Bytes(const Key& key, std::uint64_t& value, std::uint64_t least) {
    Json schema = {{"type", Json::array({"string", "integer"})},
                   {"pattern", R"(^[0-9.]+ ?([KMGTP]?i?B?|[kmgtp]?b?)$)"}};
    schema["minimum"] = least;
    schema["default"] = value;
    Add(key, std::move(schema), "bytes, such as `100MB`");
  }
  void Flag(const Key& key, bool& value) { Add(key, {{"type", "boolean"}, {"default", value}}); }
  void OptionalFlag(const Key& key, std::optional<bool>&) { Add(key, {{"type", "boolean"}}); }
  void TimeLimit(const Key& key, std::optional<Duration>& value, std::string_view absent);
  template <class Fields>
  void Section(const Key& key, Fields fields) {
    Add(key, {{"type", "object"}}, "map");
    into_.back().is_section = true;
    SchemaWriter inner = Inside(key);
    fields(inner);
  }
  template <class T, class Fields>
  void OptionalSection(const Key& key, std::optional<T>&, Fields fields) {
    Add(key, {{"type", "object"}}, "map");
    into_.back().is_section = true;
    SchemaWriter inner = Inside(key);
    inner.required_below_ = inner.path_.size();
    T value{};
    fields(inner, value);
  }
  template <class Fields>
  void SectionOr(const Key& key, std::string_view word, bool&, Fields fields) {
    Add(key, {{"anyOf", Json::array({Json{{"enum", Json::array({word})}}, Json{{"type", "object"}}})}},
        fmt::format("`{}` or map", word));
    into_.back().is_section = true;
    SchemaWriter inner = Inside(key);
    fields(inner);
  }
  void TextOrTexts(const Key& key, std::vector<std::string>& values) {
    Json list = {{"type", "array"}, {"items", {{"type", "string"}}}, {"minItems", 1}};
    Json schema = {{"anyOf", Json::array({Json{{"type", "string"}}, std::move(list)})}};
    schema["default"] = values;
    Add(key, std::move(schema));
  }
  void Extent(const Key& key, int&, std::int64_t most) {
    Add(key, {{"anyOf", Json::array({Json{{"enum", Json::array({"auto"})}}, Bounds(1, most)})}, {"default", "auto"}});
  }
  void StagesOrSchedule(const Key& key, int& stages, engine::PipelineSchedule&, std::int64_t most) {
    Json words = {{"enum", Json::array({"simple", "interleaved"})}};
    words["x-alias"] = true;
    Add(key, {{"anyOf", Json::array({Bounds(1, most), std::move(words)})}, {"default", stages}});
  }
  template <class Fields>
  void Only(const Condition& condition, Fields fields) {
    KeyCondition added{.key = std::string(condition.key), .values = {}, .holds = condition.holds};
    for (const std::string_view value : condition.values) added.values.emplace_back(value);
    SchemaWriter inner = *this;
    inner.only_.push_back(added);
    inner.all_.push_back(std::move(added));
    fields(inner);
  }
  void ExactlyOne(std::initializer_list<std::string_view> keys);
  template <class Keys>
  void OnlyRead(Keys keys) {
    SchemaWriter inner = *this;
    inner.is_alias_ = true;
    keys(inner);
  }
  void Sources(const Key& key, std::vector<data::DataSource>&) { AddSources(key, true); }
  void OptionalSources(const Key& key, std::vector<data::DataSource>&) { AddSources(key, false); }
  void MetricDefinitions(const Key& key, std::vector<MetricDefinition>& definitions);
  void Neutral(const Key& key, std::string_view) { Add(key, {{"enum", Json::array({true})}, {"default", true}}); }
  void Refused(std::string_view, Code, std::string_view) {}

 private:
  SchemaWriter Inside(std::string_view key) const {
    SchemaWriter inner = *this;
    inner.path_.emplace_back(key);
    inner.only_.clear();
    return inner;
  }
  template <class List>
  static Json ListOf(const List& words) {
    Json list = Json::array();
    for (const std::string_view word : words) list.push_back(word);
    return list;
  }
  static Json Scalar() { return {{"type", Json::array({"string", "number", "boolean"})}}; }
  static Json Pair(Json of) { return {{"type", "array"}, {"items", std::move(of)}, {"minItems", 2}, {"maxItems", 2}}; }
  static Json Bounds(std::int64_t least, std::int64_t most) {
    Json schema = {{"type", "integer"}, {"minimum", least}};
    if (most != kAnyCount) schema["maximum"] = most;
    return schema;
  }
  void Scalars(const Key& key, const std::vector<std::string>& values, const char* form) {
    Json schema = {{"type", "array"}, {"items", Scalar()}};
    schema["default"] = values;
    Add(key, std::move(schema), form);
  }
  void AddSources(const Key& key, bool required);
  /// `form`: x-form, unless the key has one.
  void Add(const Key& key, Json schema, std::string_view form = "", bool required = false);

  std::vector<DeclaredKey>& into_;
  std::vector<std::string> path_;
  std::vector<KeyCondition> only_, all_;
  std::size_t required_below_ = 0;
  bool is_alias_ = false;
};

}  // namespace millrace::jobs
