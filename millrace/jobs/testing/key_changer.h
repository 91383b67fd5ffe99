// A visitor for tests that changes the value of one key, whichever keys are declared.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/jobs/spec/spec_fields.h"

namespace millrace::jobs {

/// Changes the key that it visits as number `target`, from 0. Lists of sources, options of families and metric
/// definitions stay: what they hold is no single value.
class KeyChanger {
 public:
  explicit KeyChanger(int target) : target_(target) {}
  /// Returns the path of the changed key. Empty: there are fewer keys.
  const std::string& changed() const { return changed_; }

  void Text(std::string_view key, std::string& value, TextKind kind, bool) {
    if (!IsTarget(key)) return;
    value = kind == TextKind::kFolder ? "/changed/\"x\"" : kind == TextKind::kPlain ? "changed: #x" : "s3://changed/x";
  }
  void Word(std::string_view key, std::string& value, const Choice& choice) {
    if (!IsTarget(key)) return;
    const auto* const found = std::ranges::find(choice.supported, value);
    value = found + 1 >= choice.supported.end() ? *choice.supported.begin() : *(found + 1);
  }
  void Words(std::string_view key, std::vector<std::string>& values, const Choice& choice) {
    if (IsTarget(key)) values = {std::string(*(choice.supported.end() - 1))};
  }
  void AllOrWords(std::string_view key, std::vector<std::string>& values, std::span<const std::string_view> words) {
    if (IsTarget(key)) values = {std::string(words.back())};
  }
  void Texts(std::string_view key, std::vector<std::string>& values) { Command(key, values); }
  void TextOrTexts(std::string_view key, std::vector<std::string>& values) { Command(key, values); }
  void Command(std::string_view key, std::vector<std::string>& values) {
    if (IsTarget(key)) values = {"changed", "a: #\"b"};
  }
  void TextMap(std::string_view key, std::map<std::string, std::string>& values) {
    if (IsTarget(key)) values["changed/x"] = "a: #\"b";
  }
  void List(std::string_view key, Json&) { IsTarget(key); }
  template <class T>
  void Integer(std::string_view key, T& value, std::int64_t least, std::int64_t most) {
    if (IsTarget(key)) value = static_cast<T>(static_cast<std::int64_t>(value) < most ? value + 1 : least);
  }
  template <class T>
  void OptionalInteger(std::string_view key, std::optional<T>& value, std::int64_t least, std::int64_t) {
    if (IsTarget(key)) value = static_cast<T>(least + 1);
  }
  void Number(std::string_view key, double& value, double least, double most) {
    if (IsTarget(key)) value = value == most ? (least + most) / 2 : (value + most) / 2;
  }
  void OptionalNumber(std::string_view key, std::optional<double>& value, double least, double most) {
    if (IsTarget(key)) value = (least + most) / 3;
  }
  void TwoNumbers(std::string_view key, double& first, double& second, double least, double most) {
    if (!IsTarget(key)) return;
    first = (least + most) / 3;
    second = (least + most) / 7;
  }
  void FirstAndLast(std::string_view key, std::uint64_t& first, std::uint64_t& last) {
    if (!IsTarget(key)) return;
    first = 3;
    last = 5;
  }
  void Bytes(std::string_view key, std::uint64_t& value, std::uint64_t) {
    if (IsTarget(key)) value += 12'345;
  }
  void Flag(std::string_view key, bool& value) {
    if (IsTarget(key)) value = !value;
  }
  void TimeLimit(std::string_view key, std::optional<Duration>& value, std::string_view) {
    if (IsTarget(key)) value = std::chrono::milliseconds(90'001);
  }
  void Extent(std::string_view key, int& value, std::int64_t) {
    if (IsTarget(key)) value = 1;
  }
  void StagesOrSchedule(std::string_view key, int& stages, engine::PipelineSchedule&, std::int64_t) {
    if (IsTarget(key)) ++stages;
  }
  void Family(std::string_view key, std::string& value) {
    if (IsTarget(key)) value = "qwen2";
  }
  template <class Fields>
  void Section(std::string_view key, Fields fields) {
    const std::string outer = path_;
    path_ += std::string(key) + ".";
    fields(*this);
    path_ = outer;
  }
  template <class T, class Fields>
  void OptionalSection(std::string_view key, std::optional<T>& value, Fields fields) {
    if (value) Section(key, [&](KeyChanger& inner) { fields(inner, *value); });
  }
  template <class Fields>
  void SectionOr(std::string_view key, std::string_view, bool&, Fields fields) {
    Section(key, fields);
  }
  template <class Fields>
  void Only(const Condition& condition, Fields fields) {
    if (condition.holds) fields(*this);
  }
  void ExactlyOne(std::initializer_list<std::string_view>) {}
  template <class Keys>
  void OnlyRead(Keys) {}
  void Options(std::span<const std::string_view>, Json&) {}
  void Sources(std::string_view, std::vector<data::DataSource>&) {}
  void OptionalSources(std::string_view, std::vector<data::DataSource>&) {}
  void MetricDefinitions(std::string_view, std::vector<MetricDefinition>&) {}
  void Neutral(std::string_view, std::string_view) {}
  void Refused(std::string_view, Code, std::string_view) {}

 private:
  bool IsTarget(std::string_view key) {
    if (count_++ != target_) return false;
    changed_ = path_ + std::string(key);
    return true;
  }

  const int target_;
  int count_ = 0;
  std::string path_, changed_;
};

}  // namespace millrace::jobs
