// The form in which the keys of the job file are declared (spec_fields.h, run_fields.h), and the interface of visitors
// that walk the declarations: the parser, `job render`, and the schema from which the guide, editors and Python know
// the keys.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace millrace::jobs {

/// The version that had the first keys.
inline constexpr std::string_view kFirstVersion = "0.1.0";

/// The name of a key, and what its type, range and default do not say. The texts are literals: a Key borrows them.
class Key {
 public:
  /// `sentence`: what the key means, in Markdown, without links.
  constexpr Key(const char* name, const char* sentence) : name_(name), sentence_(sentence) {}

  /// Sets what a number counts: "steps".
  constexpr Key In(std::string_view unit) const {
    Key key = *this;
    key.unit_ = unit;
    return key;
  }
  /// Sets the version that first had the key.
  constexpr Key Since(std::string_view version) const {
    Key key = *this;
    key.since_ = version;
    return key;
  }
  /// Sets what may stand there, in Markdown, where the type does not say it: "a divisor of `num_heads`".
  constexpr Key Form(std::string_view form) const {
    Key key = *this;
    key.form_ = form;
    return key;
  }
  /// Sets what holds without the key, in Markdown, where that is not its default: "the user's cache".
  constexpr Key Unset(std::string_view meaning) const {
    Key key = *this;
    key.unset_ = meaning;
    return key;
  }

  constexpr std::string_view name() const { return name_; }
  constexpr std::string_view sentence() const { return sentence_; }
  constexpr std::string_view unit() const { return unit_; }
  constexpr std::string_view since() const { return since_; }
  constexpr std::string_view form() const { return form_; }
  constexpr std::string_view unset() const { return unset_; }
  // NOLINTNEXTLINE(google-explicit-constructor): those who need no more than the name take a string_view.
  constexpr operator std::string_view() const { return name_; }

 private:
  std::string_view name_, sentence_, unit_, since_ = kFirstVersion, form_, unset_;
};

/// The values of another key that a key goes with.
struct Condition {
  bool holds = true;
  std::string_view key;                  ///< path of the other key: "train.objective"
  std::vector<std::string_view> values;  ///< its words; kIsAbsent or kIsGiven alone
  std::string why;  ///< the error where it does not hold; "{}" stands for the name of the refused key
};
inline constexpr std::string_view kIsAbsent = "(absent)", kIsGiven = "(given)";

inline constexpr std::int64_t kAnyCount = std::numeric_limits<std::int64_t>::max();

/// The words that a key may have, and words that it may have only in other versions.
struct Choice {
  std::initializer_list<std::string_view> supported, unsupported;
};

/// The form of a key's text.
enum class TextKind {
  kPlain,
  kUrl,
  kData,    ///< a URL, or '@' and the URL of a list of URLs
  kFolder,  ///< an absolute path of a folder or a file
};

// A Visitor has these members. Each gets the Key and a reference to its value. Those that need only the name take it as
// a string_view:
//   - Text(key, string&, TextKind, required)
//   - Word(key, string&, Choice)
//   - Words(key, vector<string>&, Choice): at least one word
//   - AllOrWords(key, vector<string>&, words): true for all words, false for none, or a list of some
//   - Texts(key, vector<string>&): any number of texts
//   - Command(key, vector<string>&): any number of texts, which may be empty
//   - TextMap(key, map<string, string>&): any number of texts with names
//   - List(key, Json&): a list of maps, whose content is JSON
//   - Integer(key, integer&, least, most)
//   - Number(key, double&, least, most)
//   - OptionalInteger(key, optional&, least, most)
//   - OptionalNumber(key, optional&, least, most)
//   - TwoNumbers(key, double&, double&, least, most)
//   - FirstAndLast(key, uint64&, uint64&): two numbers from 1, the second not below the first; required
//   - Bytes(key, uint64&, least)
//   - Flag(key, bool&)
//   - OptionalFlag(key, optional&)
//   - TimeLimit(key, optional<Duration>&, the word for nothing)
//   - Section(key, f)
//   - OptionalSection(key, optional&, f): f gets the value, too
//   - TextOrTexts(key, vector<string>&): a text, or at least one in a list
//   - SectionOr(key, word, flag&, f): a section, or the word, which sets the flag
//   - Extent(key, integer&, most): a number of ranks, or "auto" for 0
//   - StagesOrSchedule(key, integer&, PipelineSchedule&, most): a number of stages, or a schedule in SageMaker's words
//   - Only(condition, f): keys that are refused unless the condition holds. f(visitor) may be called in any case, so it
//     changes nothing but by the visitor. A key may stand in several of them
//   - ExactlyOne(keys): one of these keys is given, and the others are not
//   - OnlyRead(f): keys that are read as other keys, and never printed
//   - Family(key, string&): a model_type of a family
//   - Options(keys, Json&): any of these keys, whose values are JSON
//   - Sources(key, vector<DataSource>&): at least one
//   - OptionalSources(key, vector<DataSource>&): at least one, or the key is absent
//   - MetricDefinitions(key, vector<MetricDefinition>&): any number of {Name, Regex}
//   - Neutral(key, value): a known key. This version supports only the value that changes nothing.
//   - Refused(key, code, why): a known key that must be absent here, or an empty list.

}  // namespace millrace::jobs
