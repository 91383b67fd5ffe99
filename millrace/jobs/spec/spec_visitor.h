// What the lists of keys (spec_fields.h, run_fields.h) ask of those who walk them.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string_view>

namespace millrace::jobs {

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

// A Visitor has these members. Each gets the key's name and a reference to its value:
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
//   - OnlyRead(f): keys that are read as other keys, and never printed
//   - Family(key, string&): a model_type of a family
//   - Options(keys, Json&): any of these keys, whose values are JSON
//   - Sources(key, vector<DataSource>&): at least one
//   - OptionalSources(key, vector<DataSource>&): at least one, or the key is absent
//   - MetricDefinitions(key, vector<MetricDefinition>&): any number of {Name, Regex}
//   - Neutral(key, value): a known key. This version supports only the value that changes nothing.
//   - Refused(key, code, why): a known key that must be absent here, or an empty list.

}  // namespace millrace::jobs
