// `millrace job render`: a visitor of all keys.
#pragma once

#include <fmt/ranges.h>

#include <algorithm>
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

/// Prints a Spec as YAML that SpecReader reads back. Text is in double quotes with JSON's escapes, which YAML shares.
class SpecPrinter {
 public:
  SpecPrinter(std::string& out, std::string indent) : out_(out), indent_(std::move(indent)) {}

  void Text(std::string_view key, std::string& value, TextKind, bool) { Line(key, DumpJson(value)); }
  void Word(std::string_view key, std::string& value, const Choice&) { Line(key, value); }
  void Words(std::string_view key, std::vector<std::string>& values, const Choice&) {
    Line(key, fmt::format("[{}]", fmt::join(values, ", ")));
  }
  void AllOrWords(std::string_view key, std::vector<std::string>& values, std::span<const std::string_view> words) {
    if (std::ranges::equal(values, words)) return Line(key, "true");
    Line(key, values.empty() ? "false" : fmt::format("[{}]", fmt::join(values, ", ")));
  }
  void Command(std::string_view key, std::vector<std::string>& values) { Texts(key, values); }
  void Texts(std::string_view key, std::vector<std::string>& values) {
    std::vector<std::string> quoted;
    for (const std::string& value : values) quoted.push_back(DumpJson(value));
    Line(key, fmt::format("[{}]", fmt::join(quoted, ", ")));
  }
  void TextMap(std::string_view key, std::map<std::string, std::string>& values) {
    Json object = Json::object();
    for (const auto& [name, text] : values) object[name] = text;
    Line(key, DumpJson(object));
  }
  void List(std::string_view key, Json& list) { Line(key, DumpJson(list)); }
  void Family(std::string_view key, std::string& value) { Line(key, value); }
  void Options(std::span<const std::string_view>, Json& values) {
    for (const auto& [key, value] : values.items()) Line(key, DumpJson(value));
  }
  template <class T>
  void Integer(std::string_view key, T& value, std::int64_t, std::int64_t) {
    Line(key, fmt::format("{}", value));
  }
  template <class T>
  void OptionalInteger(std::string_view key, std::optional<T>& value, std::int64_t, std::int64_t) {
    if (value) Line(key, fmt::format("{}", *value));
  }
  void Number(std::string_view key, double& value, double, double) { Line(key, fmt::format("{}", value)); }
  void OptionalNumber(std::string_view key, std::optional<double>& value, double, double) {
    if (value) Line(key, fmt::format("{}", *value));
  }
  void Flag(std::string_view key, bool& value) { Line(key, value ? "true" : "false"); }
  void OptionalFlag(std::string_view key, std::optional<bool>& value) {
    if (value) Line(key, *value ? "true" : "false");
  }
  void TwoNumbers(std::string_view key, double& first, double& second, double, double) {
    Line(key, fmt::format("[{}, {}]", first, second));
  }
  void FirstAndLast(std::string_view key, std::uint64_t& first, std::uint64_t& last) {
    Line(key, fmt::format("[{}, {}]", first, last));
  }
  void Bytes(std::string_view key, std::uint64_t& value, std::uint64_t) { Line(key, fmt::format("{}", value)); }
  void TimeLimit(std::string_view key, std::optional<Duration>& value, std::string_view absent) {
    Line(key, value ? fmt::format("{}ms", *value / std::chrono::milliseconds(1)) : std::string(absent));
  }
  template <class Fields>
  void Section(std::string_view key, Fields fields) {
    Line(key, "");
    SpecPrinter inner(out_, indent_ + "  ");
    fields(inner);
  }
  template <class T, class Fields>
  void OptionalSection(std::string_view key, std::optional<T>& value, Fields fields) {
    if (value) Section(key, [&](SpecPrinter& inner) { fields(inner, *value); });
  }
  void TextOrTexts(std::string_view key, std::vector<std::string>& values) { Texts(key, values); }
  template <class Fields>
  void SectionOr(std::string_view key, std::string_view, bool&, Fields fields) {
    Section(key, fields);
  }
  void Extent(std::string_view key, int& value, std::int64_t) {
    Line(key, value == 0 ? "auto" : fmt::format("{}", value));
  }
  void StagesOrSchedule(std::string_view key, int& stages, engine::PipelineSchedule&, std::int64_t) {
    Line(key, fmt::format("{}", stages));
  }
  template <class Fields>
  void Only(const Condition& condition, Fields fields) {
    if (condition.holds) fields(*this);
  }
  void ExactlyOne(std::initializer_list<std::string_view>) {}
  template <class Keys>
  void OnlyRead(Keys) {}
  void Sources(std::string_view key, std::vector<data::DataSource>& sources) {
    Line(key, "");
    for (data::DataSource& source : sources) {
      SpecPrinter inner(out_, indent_ + "    ");
      std::size_t start = out_.size();
      VisitSource(inner, source);
      out_[start + indent_.size() + 2] = '-';
    }
  }
  void OptionalSources(std::string_view key, std::vector<data::DataSource>& sources) {
    if (!sources.empty()) Sources(key, sources);
  }
  void MetricDefinitions(std::string_view key, std::vector<MetricDefinition>& definitions) {
    Json list = Json::array();
    for (const MetricDefinition& each : definitions) list.push_back({{"Name", each.name}, {"Regex", each.regex}});
    Line(key, DumpJson(list));
  }
  void Neutral(std::string_view key, std::string_view only) { Line(key, only); }
  void Refused(std::string_view, Code, std::string_view) {}

 private:
  void Line(std::string_view key, std::string_view value) {
    out_ += fmt::format("{}{}:{}{}\n", indent_, key, value.empty() ? "" : " ", value);
  }

  std::string& out_;
  const std::string indent_;
};

}  // namespace millrace::jobs
