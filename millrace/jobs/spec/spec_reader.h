// The parser of job files: a visitor of all keys.
#pragma once

#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <ranges>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/base/config.h"
#include "millrace/base/json.h"
#include "millrace/base/text.h"
#include "millrace/engine/config/families.h"
#include "millrace/jobs/spec/foreign_words.h"
#include "millrace/jobs/spec/key_refuser.h"
#include "millrace/jobs/spec/spec_fields.h"
#include "millrace/object/url.h"

namespace millrace::jobs {

/// Returns the words with commas between them.
inline std::string JoinWords(std::initializer_list<std::string_view> words) {
  std::string text;
  for (std::string_view word : words) text += fmt::format("{}{}", text.empty() ? "" : ", ", word);
  return text;
}

inline bool HasWord(std::initializer_list<std::string_view> words, std::string_view word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

/// Returns a YAML value as JSON. A scalar without quotes is what it looks like: null, true, a number or text.
inline Result<Json> YamlToJson(const config::Node& node) {
  if (node.IsMap()) {
    Json object = Json::object();
    for (const std::string& key : node.Keys()) object[key] = MR_TRY(YamlToJson(node[key]));
    return object;
  }
  if (node.IsSequence()) {
    Json list = Json::array();
    for (const config::Node& element : node.Elements()) list.push_back(MR_TRY(YamlToJson(element)));
    return list;
  }
  if (!node.IsScalar()) return Json(nullptr);
  constexpr std::int64_t kAnyInteger = std::numeric_limits<std::int64_t>::max();
  constexpr double kAnyNumber = std::numeric_limits<double>::max();
  if (const auto integer = node.Int(-kAnyInteger, kAnyInteger)) return Json(*integer);
  if (const auto number = node.Number(-kAnyNumber, kAnyNumber)) return Json(*number);
  if (const auto flag = node.Bool()) return Json(*flag);
  std::string text = MR_TRY(node.String());
  if (!IsValidUtf8(text)) return Fail(node.Invalid("is not valid UTF-8"));
  return Json(std::move(text));
}

/// Fills a Spec from a map of the document. Stops at the first error, which `status` then holds.
class SpecReader {
 public:
  SpecReader(const config::Node& node, Status& status) : node_(node), status_(status) {}

  void Text(std::string_view key, std::string& value, TextKind kind, bool required) {
    config::Node node = Member(key);
    if (!status_) return;
    if (!node) {
      const bool is_tokenizer = key == "tokenizer";  // users expect that of the model that they start from
      if (required && value.empty()) {
        Refuse(node.Invalid(is_tokenizer
                                ? "is required: a tokenizer's file, or a model that has one, such as the URL of "
                                  "model.from"
                                : "is required"));
      }
      return;
    }
    Take(node.String(), value);
    if (!status_) return;
    if (!IsValidUtf8(value)) return Refuse(node.Invalid("is not valid UTF-8"));
    if (required && value.empty()) return Refuse(node.Invalid("must not be empty"));
    if (kind == TextKind::kFolder) {
      if (!value.empty() && !value.starts_with('/')) {
        Refuse(node.Invalid(fmt::format("should be an absolute path, such as /nvme/millrace, not {}", value)));
      }
    } else if (kind != TextKind::kPlain && !value.empty()) {
      std::string_view text = value;
      if (kind == TextKind::kData && text.starts_with('@')) text.remove_prefix(1);
      auto url = object::ParseUrl(text);
      if (!url) Refuse(node.Invalid(url.error().ToString()));
    }
  }

  void Word(std::string_view key, std::string& value, Choice choice) {
    config::Node node = Member(key);
    if (status_ && node) OneWord(node, value, choice);
  }

  void Family(std::string_view key, std::string& value) {
    config::Node node = Member(key);
    if (!status_ || !node) return;
    Take(node.String(), value);
    if (status_ && engine::FindFamily(value) == nullptr) {
      Refuse(node.Invalid(fmt::format("should be one of {}, not {}", engine::KnownModelTypes(), value)));
    }
  }

  void Options(std::span<const std::string_view> keys, Json& values) {
    for (const std::string_view key : keys) {
      const config::Node node = Member(key);
      if (status_ && node) Take(YamlToJson(node), values[std::string(key)]);
    }
  }

  void Words(std::string_view key, std::vector<std::string>& values, Choice choice) {
    config::Node node = Member(key);
    if (!status_ || !node) return;
    if (!node.IsSequence() || node.Elements().empty())
      return Refuse(node.Invalid(fmt::format("should be a list of some of {}", JoinWords(choice.supported))));
    values.clear();
    for (const config::Node& element : node.Elements()) {
      OneWord(element, values.emplace_back(), choice);
      if (!status_) return;
    }
  }

  void AllOrWords(std::string_view key, std::vector<std::string>& values, std::span<const std::string_view> words) {
    config::Node node = Member(key);
    if (!status_ || !node) return;
    values.clear();
    if (const auto flag = node.Bool()) {
      if (*flag) values.assign(words.begin(), words.end());
      return;
    }
    if (!node.IsSequence()) return Refuse(node.Invalid("should be true, false, or a list of some checks"));
    for (const config::Node& element : node.Elements()) {
      Take(element.String(), values.emplace_back());
      if (!status_) return;
      if (std::ranges::find(words, values.back()) == words.end()) {
        return Refuse(
            element.Invalid(fmt::format("should be one of {}, not {}", fmt::join(words, ", "), values.back())));
      }
    }
  }

  void Texts(std::string_view key, std::vector<std::string>& values) {
    Command(key, values);
    if (!status_ || std::ranges::find(values, "") == values.end()) return;
    Refuse(node_[key].Invalid("has an empty text"));
  }

  void Command(std::string_view key, std::vector<std::string>& values) {
    config::Node node = Member(key);
    if (!status_ || !node) return;
    if (!node.IsSequence()) return Refuse(node.Invalid("should be a list"));
    values.clear();
    for (const config::Node& element : node.Elements()) {
      Take(element.String(), values.emplace_back());
      if (!status_) return;
      if (!IsValidUtf8(values.back())) return Refuse(element.Invalid("is not UTF-8"));
    }
  }

  void TextMap(std::string_view key, std::map<std::string, std::string>& values) {
    const config::Node node = Member(key);
    if (!status_ || !node) return;
    if (!node.IsMap()) return Refuse(node.Invalid("should be a map of names and texts"));
    for (const std::string& name : node.Keys()) {
      std::string text;
      Take(node[name].String(), text);
      if (!status_) return;
      if (!IsValidUtf8(name) || !IsValidUtf8(text)) return Refuse(node[name].Invalid("is not valid UTF-8"));
      values[name] = std::move(text);
    }
  }

  void List(std::string_view key, Json& list) {
    const config::Node node = Member(key);
    if (!status_ || !node) return;
    if (!node.IsSequence()) return Refuse(node.Invalid("should be a list"));
    for (const config::Node& element : node.Elements()) {
      if (!element.IsMap()) return Refuse(element.Invalid("should be a map"));
    }
    Take(YamlToJson(node), list);
  }

  template <class T>
  void Integer(std::string_view key, T& value, std::int64_t least, std::int64_t most) {
    config::Node node = Member(key);
    if (status_ && node) Take(node.Int(least, most), value);
  }
  template <class T>
  void OptionalInteger(std::string_view key, std::optional<T>& value, std::int64_t least, std::int64_t most) {
    config::Node node = Member(key);
    if (status_ && node) Take(node.Int(least, most), value.emplace());
  }
  void Number(std::string_view key, double& value, double least, double most) {
    config::Node node = Member(key);
    if (status_ && node) Take(node.Number(least, most), value);
  }
  void OptionalNumber(std::string_view key, std::optional<double>& value, double least, double most) {
    config::Node node = Member(key);
    if (status_ && node) Take(node.Number(least, most), value.emplace());
  }
  void Flag(std::string_view key, bool& value) {
    config::Node node = Member(key);
    if (status_ && node) Take(node.Bool(), value);
  }
  void OptionalFlag(std::string_view key, std::optional<bool>& value) {
    config::Node node = Member(key);
    if (status_ && node) Take(node.Bool(), value.emplace());
  }

  void TwoNumbers(std::string_view key, double& first, double& second, double least, double most) {
    config::Node node = Member(key);
    if (!status_ || !node) return;
    std::vector<config::Node> elements = node.Elements();
    if (elements.size() != 2) return Refuse(node.Invalid("should be two numbers, such as [0.9, 0.95]"));
    Take(elements[0].Number(least, most), first);
    if (status_) Take(elements[1].Number(least, most), second);
  }

  void FirstAndLast(std::string_view key, std::uint64_t& first, std::uint64_t& last) {
    const config::Node node = Member(key);
    if (!status_) return;
    if (!node) return Refuse(node_.Invalid(fmt::format("needs {}, such as [10, 12]", key)));
    const std::vector<config::Node> elements = node.Elements();
    if (elements.size() != 2) return Refuse(node.Invalid("should be the first and the last, such as [10, 12]"));
    Take(elements[0].Int(1, kAnyCount), first);
    if (status_) Take(elements[1].Int(1, kAnyCount), last);
    if (status_ && last < first) Refuse(node.Invalid("should be the first and the last, such as [10, 12]"));
  }

  void Bytes(std::string_view key, std::uint64_t& value, std::uint64_t least) {
    config::Node node = Member(key);
    if (!status_ || !node) return;
    auto text = node.String();
    if (!text) return Refuse(text.error());
    auto bytes = ParseBytes(*text);
    if (!bytes || *bytes < least) {
      return Refuse(
          node.Invalid(fmt::format("should be {} or more, such as 100GB, not {}", FormatBytes(least), *text)));
    }
    value = *bytes;
  }

  void TimeLimit(std::string_view key, std::optional<Duration>& value, std::string_view absent) {
    config::Node node = Member(key);
    if (!status_ || !node) return;
    auto text = node.String();
    if (!text) return Refuse(text.error());
    if (*text == absent) return value.reset();
    auto duration = ParseDuration(*text);
    if (!duration || *duration < std::chrono::seconds(1) || *duration > std::chrono::days(7)) {
      return Refuse(
          node.Invalid(fmt::format("should be {} or a time from 1s to 7d, such as 90s, not {}", absent, *text)));
    }
    value = std::chrono::floor<std::chrono::milliseconds>(*duration);
  }

  template <class Fields>
  void Section(std::string_view key, Fields fields) {
    config::Node node = Member(key);
    if (!status_) return;
    SpecReader inner(node, status_);
    fields(inner);
    inner.Finish();
  }

  template <class T, class Fields>
  void OptionalSection(std::string_view key, std::optional<T>& value, Fields fields) {
    if (node_[key]) value.emplace();
    Section(key, [&](SpecReader& inner) {
      if (value) fields(inner, *value);
    });
  }

  void TextOrTexts(std::string_view key, std::vector<std::string>& values) {
    const config::Node node = node_[key];
    if (!node) return Texts(key, values);
    values.clear();
    if (!node.IsScalar()) {
      Texts(key, values);
      if (status_ && values.empty()) Refuse(node.Invalid("should be a name, or a list of names"));
      return;
    }
    known_.push_back(key);
    if (status_) Take(node.String(), values.emplace_back());
    if (status_ && values.back().empty()) Refuse(node.Invalid("should be a name, or a list of names"));
  }

  template <class Fields>
  void SectionOr(std::string_view key, std::string_view word, bool& is_word, Fields fields) {
    const config::Node node = node_[key];
    if (!node.IsScalar()) return Section(key, fields);
    known_.push_back(key);
    const auto text = node.String();
    is_word = text && *text == word;
    if (!is_word && status_) Refuse(node.Invalid(fmt::format("should be {} or a map of keys", word)));
  }

  void Extent(std::string_view key, int& value, std::int64_t most) {
    config::Node node = Member(key);
    if (!status_ || !node) return;
    if (const auto text = node.String(); text && *text == "auto") {
      value = 0;
    } else {
      Take(node.Int(1, most), value);
    }
  }

  void StagesOrSchedule(std::string_view key, int& stages, engine::PipelineSchedule& schedule, std::int64_t most) {
    config::Node node = Member(key);
    if (!status_ || !node) return;
    const auto text = node.String();
    if (!text || (*text != "simple" && *text != "interleaved")) return Take(node.Int(1, most), stages);
    const auto word = *text == "simple" ? engine::PipelineSchedule::kSimple : engine::PipelineSchedule::k1F1B;
    if (node_["schedule"] && schedule != word) {
      return Refuse(node.Invalid(fmt::format("{} is schedule: {} here, but schedule says {}", *text,
                                             PipelineScheduleName(word), PipelineScheduleName(schedule))));
    }
    schedule = word;
  }

  template <class Keys>
  void OnlyRead(Keys keys) {
    keys(*this);
  }

  template <class Fields>
  void Only(const Condition& condition, Fields fields) {
    if (condition.holds) return fields(*this);
    KeyRefuser refuser([&](std::string_view key) {
      refused_.push_back({std::string(key), fmt::format(fmt::runtime(condition.why), key)});
    });
    fields(refuser);
  }

  void ExactlyOne(std::initializer_list<std::string_view> keys) { exactly_one_.assign(keys); }

  void Sources(std::string_view key, std::vector<data::DataSource>& sources) {
    config::Node node = Member(key);
    if (!status_) return;
    if (!node) return Refuse(node.Invalid("is required: where the training records are"));
    ReadSources(node, sources);
  }

  void OptionalSources(std::string_view key, std::vector<data::DataSource>& sources) {
    config::Node node = Member(key);
    if (status_ && node) ReadSources(node, sources);
  }

  void MetricDefinitions(std::string_view key, std::vector<MetricDefinition>& definitions) {
    const config::Node node = Member(key);
    if (!status_ || !node) return;
    if (!node.IsSequence()) return Refuse(node.Invalid("should be a list of {Name, Regex}"));
    const std::vector<config::Node> elements = node.Elements();
    if (elements.size() > kMaxMetricDefinitions) {
      return Refuse(
          node.Invalid(fmt::format("has {} definitions; {} are the most", elements.size(), kMaxMetricDefinitions)));
    }
    for (const config::Node& element : elements) {
      if (!element.IsMap()) return Refuse(element.Invalid("should be a map with Name and Regex"));
      SpecReader inner(element, status_);
      MetricDefinition definition;
      inner.ShortText("Name", definition.name, kMaxMetricName);
      inner.ShortText("Regex", definition.regex, kMaxMetricRegex);
      inner.Finish();
      if (!status_) return;
      if (auto checked = CheckMetricRegex(definition.regex); !checked) {
        return Refuse(element["Regex"].Invalid(checked.error().message()));
      }
      if (std::ranges::find(definitions, definition.name, &MetricDefinition::name) != definitions.end()) {
        return Refuse(element["Name"].Invalid(fmt::format("{} has a definition already", definition.name)));
      }
      definitions.push_back(std::move(definition));
    }
  }

  void Neutral(std::string_view key, std::string_view only) {
    config::Node node = Member(key);
    if (!status_ || !node) return;
    auto text = node.String();
    if (text && *text == only) return;
    Refuse(node.Invalid(fmt::format("this version does only {}", only)).WithCode(Code::kUnsupported));
  }

  void Refused(std::string_view key, Code code, std::string_view why) {
    config::Node node = Member(key);
    if (!status_ || !node || (node.IsSequence() && node.Elements().empty())) return;
    Refuse(node.Invalid(why).WithCode(code));
  }

  /// Call it after the last key. Refuses keys that do not go with the others, and all other keys of the map.
  void Finish() {
    if (!status_) return;
    for (const RefusedKey& refused : refused_) {
      if (std::ranges::find(known_, refused.key) != known_.end()) continue;  // another value of the same key has it
      Refused(refused.key, Code::kInvalidArgument, refused.why);
      if (!status_) return;
    }
    RefuseOtherWords();
    if (status_) status_ = node_.RejectUnknown(known_);
    if (status_ && !exactly_one_.empty()) CheckExactlyOne();
  }

 private:
  struct RefusedKey {
    std::string key, why;
  };

  /// Refuses keys that are words of other programs or keys of another section, and names ours.
  void RefuseOtherWords() {
    if (!node_.IsMap()) return;
    for (const std::string& key : node_.Keys()) {
      if (std::ranges::find(known_, key) != known_.end()) continue;
      const std::string hint = KeyHint(node_.path(), key);
      if (!hint.empty()) return Refuse(node_[key].Invalid(hint));
    }
  }

  void CheckExactlyOne() {
    const auto given = [&](std::string_view key) { return static_cast<bool>(node_[key]); };
    if (std::ranges::count_if(exactly_one_, given) == 1) return;
    const auto last = std::ranges::find_if(exactly_one_ | std::views::reverse, given);
    const config::Node node = last != exactly_one_.rend() ? node_[*last] : node_;
    Refuse(node.Invalid(fmt::format("give exactly one of {}", fmt::join(exactly_one_, " and "))));
  }

  void ReadSources(const config::Node& node, std::vector<data::DataSource>& sources) {
    if (!node.IsSequence() || node.Elements().empty()) {
      return Refuse(node.Invalid("should be a list with at least one {url, weight}"));
    }
    for (const config::Node& element : node.Elements()) {
      if (!element.IsMap()) return Refuse(element.Invalid("should be a map with url and weight"));
      SpecReader inner(element, status_);
      VisitSource(inner, sources.emplace_back());
      inner.Finish();
      if (!status_) return;
    }
  }

  void ShortText(std::string_view key, std::string& value, std::size_t most) {
    Text(key, value, TextKind::kPlain, true);
    if (status_ && value.size() > most) {
      Refuse(node_[key].Invalid(fmt::format("has {} characters; {} are the most", value.size(), most)));
    }
  }

  void OneWord(const config::Node& node, std::string& value, Choice choice) {
    auto word = node.String();
    if (!word) return Refuse(word.error());
    if (HasWord(choice.unsupported, *word)) {
      return Refuse(
          node.Invalid(fmt::format("{} is not supported by this version; use {}", *word, JoinWords(choice.supported)))
              .WithCode(Code::kUnsupported));
    }
    if (!HasWord(choice.supported, *word)) {
      return Refuse(node.Invalid(fmt::format("should be one of {}, not {}", JoinWords(choice.supported), *word)));
    }
    value = *std::move(word);
  }
  config::Node Member(std::string_view key) {
    known_.push_back(key);
    return node_[key];
  }
  void Refuse(Error error) { status_ = std::unexpected(std::move(error)); }
  template <class From, class To>
  void Take(Result<From> result, To& into) {
    if (result) {
      into = static_cast<To>(*std::move(result));
    } else {
      Refuse(std::move(result).error());
    }
  }

  config::Node node_;
  std::vector<std::string_view> known_, exactly_one_;
  std::vector<RefusedKey> refused_;
  Status& status_;
};

}  // namespace millrace::jobs
