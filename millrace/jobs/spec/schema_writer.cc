#include "millrace/jobs/spec/schema_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "millrace/engine/config/families.h"

namespace millrace::jobs {
namespace {

/// Returns a duration in the largest unit that divides it: "10m".
std::string TextOf(Duration duration) {
  using std::chrono::milliseconds;
  constexpr std::pair<milliseconds, const char*> kUnits[] = {{std::chrono::hours(24), "d"},
                                                             {std::chrono::hours(1), "h"},
                                                             {std::chrono::minutes(1), "m"},
                                                             {std::chrono::seconds(1), "s"}};
  const auto count = std::chrono::duration_cast<milliseconds>(duration);
  for (const auto& [unit, name] : kUnits) {
    if (count % unit == milliseconds::zero()) return fmt::format("{}{}", count / unit, name);
  }
  return fmt::format("{}ms", count.count());
}

/// Returns the schema of an element of a list, whose keys go with nothing else.
Json ItemSchema(const std::vector<DeclaredKey>& keys) {
  Json schema = {{"type", "object"}, {"additionalProperties", false}};
  for (const DeclaredKey& key : keys) {
    schema["properties"][key.path.back()] = key.schema;
    if (key.required) schema["required"].push_back(key.path.back());
  }
  return schema;
}

}  // namespace

void SchemaWriter::Family(const Key& key, std::string& value) {
  Json words = Json::array();
  for (const engine::ModelFamily& family : engine::ModelFamilies()) {
    for (const std::string_view type : family.model_types) words.push_back(type);
  }
  Add(key, {{"enum", std::move(words)}, {"default", value}});
}

void SchemaWriter::Options(std::span<const std::string_view>, Json&) {
  // The options of all families, because a schema is for models of any family.
  std::vector<std::pair<std::string_view, std::vector<std::string>>> options;
  for (const engine::ModelFamily& family : engine::ModelFamilies()) {
    for (const std::string_view option : family.options) {
      auto found = std::ranges::find(options, option, [](const auto& each) { return each.first; });
      if (found == options.end()) found = options.insert(options.end(), {option, {}});
      for (const std::string_view type : family.model_types) found->second.emplace_back(type);
    }
  }
  for (auto& [option, types] : options) {
    SchemaWriter inner = *this;
    const bool holds = std::ranges::find(types, ModelSpec().family) != types.end();
    inner.only_.push_back({.key = "model.family", .values = types, .holds = holds});
    inner.all_.push_back(inner.only_.back());
    DeclaredKey key{.path = path_, .schema = {}, .only = inner.only_, .all = inner.all_};
    key.path.emplace_back(option);
    key.schema = {{"description", "As in the config.json of Hugging Face's library."}, {"x-since", kFirstVersion}};
    into_.push_back(std::move(key));
  }
}

void SchemaWriter::TimeLimit(const Key& key, std::optional<Duration>& value, std::string_view absent) {
  Json schema = {{"type", "string"}, {"pattern", fmt::format("^({}|[0-9.]+ ?(ms|s|m|h|d))$", absent)}};
  schema["default"] = value ? TextOf(*value) : std::string(absent);
  Add(key, std::move(schema), fmt::format("`{}`, or 1s … 7d", absent));
}

void SchemaWriter::ExactlyOne(std::initializer_list<std::string_view> keys) {
  Json choices = Json::array();
  for (const std::string_view key : keys) choices.push_back({{"required", Json::array({key})}});
  DeclaredKey rule{.path = path_, .schema = {{"oneOf", std::move(choices)}}, .only = {}, .all = all_};
  rule.required_below = required_below_;
  rule.required = true;
  rule.path.emplace_back();  // no key
  into_.push_back(std::move(rule));
}

void SchemaWriter::AddSources(const Key& key, bool required) {
  std::vector<DeclaredKey> keys;
  SchemaWriter inner(keys);
  data::DataSource source;
  VisitSource(inner, source);
  Json schema = {{"type", "array"}, {"minItems", 1}, {"items", ItemSchema(keys)}};
  Add(key, std::move(schema), required ? "list, at least one" : "list", required);
}

void SchemaWriter::MetricDefinitions(const Key& key, std::vector<MetricDefinition>& definitions) {
  const auto text = [](std::size_t most) { return Json{{"type", "string"}, {"minLength", 1}, {"maxLength", most}}; };
  Json item = {{"type", "object"}, {"additionalProperties", false}, {"required", Json::array({"Name", "Regex"})}};
  item["properties"] = {{"Name", text(kMaxMetricName)}, {"Regex", text(kMaxMetricRegex)}};
  Json schema = {{"type", "array"}, {"items", std::move(item)}, {"maxItems", kMaxMetricDefinitions}};
  if (definitions.empty()) schema["default"] = Json::array();
  Add(key, std::move(schema), "list of `{Name, Regex}`");
}

void SchemaWriter::Add(const Key& key, Json schema, std::string_view form, bool required) {
  Json whole = {{"description", key.sentence()}};
  whole.update(schema);
  if (!key.unit().empty()) whole["x-unit"] = key.unit();
  whole["x-since"] = key.since();
  const std::string_view written = key.form().empty() ? form : key.form();
  if (!written.empty()) whole["x-form"] = written;
  if (!key.unset().empty()) whole["x-unset"] = key.unset();
  if (is_alias_) whole["x-alias"] = true;
  DeclaredKey declared{.path = path_, .schema = std::move(whole), .only = only_, .all = all_};
  declared.path.emplace_back(key.name());
  declared.required_below = required_below_;
  declared.required = required;
  into_.push_back(std::move(declared));
}

}  // namespace millrace::jobs
