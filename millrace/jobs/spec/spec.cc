#include "millrace/jobs/spec/spec.h"

#include <algorithm>
#include <cctype>
#include <map>

#include "millrace/base/config.h"
#include "millrace/base/json.h"
#include "millrace/base/text.h"
#include "millrace/engine/config/families.h"
#include "millrace/jobs/spec/spec_checks.h"
#include "millrace/jobs/spec/spec_fields.h"
#include "millrace/object/url.h"

namespace millrace::jobs {
namespace {

using config::Node;

std::string Join(std::initializer_list<std::string_view> words) {
  std::string text;
  for (std::string_view word : words) text += fmt::format("{}{}", text.empty() ? "" : ", ", word);
  return text;
}

bool Contains(std::initializer_list<std::string_view> words, std::string_view word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

/// Returns a YAML value as JSON. A scalar without quotes is what it looks like: null, true, a number or text.
Result<Json> JsonOf(const Node& node) {
  if (node.IsMap()) {
    Json object = Json::object();
    for (const std::string& key : node.Keys()) object[key] = MR_TRY(JsonOf(node[key]));
    return object;
  }
  if (node.IsSequence()) {
    Json list = Json::array();
    for (const Node& element : node.Elements()) list.push_back(MR_TRY(JsonOf(element)));
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
  SpecReader(const Node& node, Status& status) : node_(node), status_(status) {}

  void Text(std::string_view key, std::string& value, TextKind kind, bool required) {
    Node node = Member(key);
    if (!status_) return;
    if (!node) {
      if (required && value.empty()) Refuse(node.Invalid("is required"));
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
    Node node = Member(key);
    if (status_ && node) OneWord(node, value, choice);
  }

  void Family(std::string_view key, std::string& value) {
    Node node = Member(key);
    if (!status_ || !node) return;
    Take(node.String(), value);
    if (status_ && engine::FindFamily(value) == nullptr) {
      Refuse(node.Invalid(fmt::format("should be one of {}, not {}", engine::KnownModelTypes(), value)));
    }
  }

  void Options(std::span<const std::string_view> keys, Json& values) {
    for (const std::string_view key : keys) {
      const Node node = Member(key);
      if (status_ && node) Take(JsonOf(node), values[std::string(key)]);
    }
  }

  void Words(std::string_view key, std::vector<std::string>& values, Choice choice) {
    Node node = Member(key);
    if (!status_ || !node) return;
    if (!node.IsSequence() || node.Elements().empty())
      return Refuse(node.Invalid(fmt::format("should be a list of some of {}", Join(choice.supported))));
    values.clear();
    for (const Node& element : node.Elements()) {
      OneWord(element, values.emplace_back(), choice);
      if (!status_) return;
    }
  }

  void AllOrWords(std::string_view key, std::vector<std::string>& values, std::span<const std::string_view> words) {
    Node node = Member(key);
    if (!status_ || !node) return;
    values.clear();
    if (const auto flag = node.Bool()) {
      if (*flag) values.assign(words.begin(), words.end());
      return;
    }
    if (!node.IsSequence()) return Refuse(node.Invalid("should be true, false, or a list of some checks"));
    for (const Node& element : node.Elements()) {
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
    Node node = Member(key);
    if (!status_ || !node) return;
    if (!node.IsSequence()) return Refuse(node.Invalid("should be a list"));
    values.clear();
    for (const Node& element : node.Elements()) {
      Take(element.String(), values.emplace_back());
      if (!status_) return;
      if (!IsValidUtf8(values.back())) return Refuse(element.Invalid("is not UTF-8"));
    }
  }

  void TextMap(std::string_view key, std::map<std::string, std::string>& values) {
    const Node node = Member(key);
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
    const Node node = Member(key);
    if (!status_ || !node) return;
    if (!node.IsSequence()) return Refuse(node.Invalid("should be a list"));
    for (const Node& element : node.Elements()) {
      if (!element.IsMap()) return Refuse(element.Invalid("should be a map"));
    }
    Take(JsonOf(node), list);
  }

  template <class T>
  void Integer(std::string_view key, T& value, std::int64_t least, std::int64_t most) {
    Node node = Member(key);
    if (status_ && node) Take(node.Int(least, most), value);
  }
  template <class T>
  void OptionalInteger(std::string_view key, std::optional<T>& value, std::int64_t least, std::int64_t most) {
    Node node = Member(key);
    if (status_ && node) Take(node.Int(least, most), value.emplace());
  }
  void Number(std::string_view key, double& value, double least, double most) {
    Node node = Member(key);
    if (status_ && node) Take(node.Number(least, most), value);
  }
  void OptionalNumber(std::string_view key, std::optional<double>& value, double least, double most) {
    Node node = Member(key);
    if (status_ && node) Take(node.Number(least, most), value.emplace());
  }
  void Flag(std::string_view key, bool& value) {
    Node node = Member(key);
    if (status_ && node) Take(node.Bool(), value);
  }
  void OptionalFlag(std::string_view key, std::optional<bool>& value) {
    Node node = Member(key);
    if (status_ && node) Take(node.Bool(), value.emplace());
  }

  void TwoNumbers(std::string_view key, double& first, double& second, double least, double most) {
    Node node = Member(key);
    if (!status_ || !node) return;
    std::vector<Node> elements = node.Elements();
    if (elements.size() != 2) return Refuse(node.Invalid("should be two numbers, such as [0.9, 0.95]"));
    Take(elements[0].Number(least, most), first);
    if (status_) Take(elements[1].Number(least, most), second);
  }

  void FirstAndLast(std::string_view key, std::uint64_t& first, std::uint64_t& last) {
    const Node node = Member(key);
    if (!status_) return;
    if (!node) return Refuse(node_.Invalid(fmt::format("needs {}, such as [10, 12]", key)));
    const std::vector<Node> elements = node.Elements();
    if (elements.size() != 2) return Refuse(node.Invalid("should be the first and the last, such as [10, 12]"));
    Take(elements[0].Int(1, kAnyCount), first);
    if (status_) Take(elements[1].Int(1, kAnyCount), last);
    if (status_ && last < first) Refuse(node.Invalid("should be the first and the last, such as [10, 12]"));
  }

  void Bytes(std::string_view key, std::uint64_t& value, std::uint64_t least) {
    Node node = Member(key);
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
    Node node = Member(key);
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
    Node node = Member(key);
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
    const Node node = node_[key];
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
    const Node node = node_[key];
    if (!node.IsScalar()) return Section(key, fields);
    known_.push_back(key);
    const auto text = node.String();
    is_word = text && *text == word;
    if (!is_word && status_) Refuse(node.Invalid(fmt::format("should be {} or a map of keys", word)));
  }

  void Extent(std::string_view key, int& value, std::int64_t most) {
    Node node = Member(key);
    if (!status_ || !node) return;
    if (const auto text = node.String(); text && *text == "auto") {
      value = 0;
    } else {
      Take(node.Int(1, most), value);
    }
  }

  void StagesOrSchedule(std::string_view key, int& stages, engine::PipelineSchedule& schedule, std::int64_t most) {
    Node node = Member(key);
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

  /// Refuses keys that are other programs' words, and names ours.
  void RefuseWords(std::span<const ForeignWord> words) {
    if (!status_ || !node_.IsMap()) return;
    for (const std::string& key : node_.Keys()) {
      const ForeignWord* word = FindForeignWord(words, key);
      if (word == nullptr) continue;
      return Refuse(node_[key].Invalid(fmt::format("is a word of {}: {}", word->program, word->advice)));
    }
  }

  void Sources(std::string_view key, std::vector<data::DataSource>& sources) {
    Node node = Member(key);
    if (!status_) return;
    if (!node) return Refuse(node.Invalid("is required: where the training records are"));
    ReadSources(node, sources);
  }

  void OptionalSources(std::string_view key, std::vector<data::DataSource>& sources) {
    Node node = Member(key);
    if (status_ && node) ReadSources(node, sources);
  }

  void MetricDefinitions(std::string_view key, std::vector<MetricDefinition>& definitions) {
    const Node node = Member(key);
    if (!status_ || !node) return;
    if (!node.IsSequence()) return Refuse(node.Invalid("should be a list of {Name, Regex}"));
    const std::vector<Node> elements = node.Elements();
    if (elements.size() > kMostMetricDefinitions) {
      return Refuse(
          node.Invalid(fmt::format("has {} definitions; {} are the most", elements.size(), kMostMetricDefinitions)));
    }
    for (const Node& element : elements) {
      if (!element.IsMap()) return Refuse(element.Invalid("should be a map with Name and Regex"));
      SpecReader inner(element, status_);
      MetricDefinition definition;
      inner.ShortText("Name", definition.name, kMostMetricName);
      inner.ShortText("Regex", definition.regex, kMostMetricRegex);
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
    Node node = Member(key);
    if (!status_ || !node) return;
    auto text = node.String();
    if (text && *text == only) return;
    Refuse(node.Invalid(fmt::format("this version does only {}", only)).WithCode(Code::kUnsupported));
  }

  void Refused(std::string_view key, Code code, std::string_view why) {
    Node node = Member(key);
    if (!status_ || !node || (node.IsSequence() && node.Elements().empty())) return;
    Refuse(node.Invalid(why).WithCode(code));
  }

  /// Call it after the last key. Refuses all other keys of the map.
  void Finish() {
    if (status_) status_ = node_.RejectUnknown(known_);
  }

 private:
  void ReadSources(const Node& node, std::vector<data::DataSource>& sources) {
    if (!node.IsSequence() || node.Elements().empty()) {
      return Refuse(node.Invalid("should be a list with at least one {url, weight}"));
    }
    for (const Node& element : node.Elements()) {
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

  void OneWord(const Node& node, std::string& value, Choice choice) {
    auto word = node.String();
    if (!word) return Refuse(word.error());
    if (Contains(choice.unsupported, *word)) {
      return Refuse(
          node.Invalid(fmt::format("{} is not supported by this version; use {}", *word, Join(choice.supported)))
              .WithCode(Code::kUnsupported));
    }
    if (!Contains(choice.supported, *word)) {
      return Refuse(node.Invalid(fmt::format("should be one of {}, not {}", Join(choice.supported), *word)));
    }
    value = *std::move(word);
  }
  Node Member(std::string_view key) {
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

  Node node_;
  std::vector<std::string_view> known_;
  Status& status_;
};

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

}  // namespace

Result<Spec> Spec::Parse(std::string_view yaml, std::string file_name, const std::vector<std::string>& overrides,
                         SpecPurpose purpose) {
  config::Document document = MR_TRY(config::Document::Parse(yaml, std::move(file_name)));
  for (const std::string& assignment : overrides) MR_TRY(document.Set(assignment));
  Node root = document.Root();

  Spec spec;
  Status status;
  // The keys of `data` depend on the objective, which stands behind them. A wrong word is refused where it is read.
  if (auto objective = root["train"]["objective"].String()) {
    spec.data.dataset.objective = data::ParseObjective(*objective).value_or(data::Objective::kCausalLm);
  }
  // With a command of the user's own, there are no keys of ours for the training.
  const Node command = root["run"]["command"];
  if (command.IsSequence() && !command.Elements().empty()) spec.run.command.emplace_back();
  SpecReader reader(root, status);
  VisitSpec(reader, spec);
  reader.Finish();
  MR_TRY(std::move(status));

  MR_TRY(CheckSpec(root, spec, purpose));
  return spec;
}

int Spec::Classes() const {
  constexpr int kBinary = 2;
  const std::size_t named = data.dataset.classification.classes.size();
  return model.num_labels.value_or(named > 0 ? static_cast<int>(named) : kBinary);
}

std::string Spec::Render() const {
  std::string text;
  SpecPrinter printer(text, "");
  Spec copy = *this;
  VisitSpec(printer, copy);
  return text;
}

}  // namespace millrace::jobs
