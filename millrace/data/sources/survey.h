// Describes a data set to people: how long its records are, in which scripts, and how many are duplicates.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/base/json.h"

namespace millrace::data {

/// Counts lengths in steps of a sixteenth of a power of two. Percentiles have that precision.
class LengthHistogram {
 public:
  void Add(std::uint64_t length);

  std::uint64_t count() const { return count_; }
  std::uint64_t longest() const { return longest_; }
  double mean() const { return count_ > 0 ? static_cast<double>(sum_) / static_cast<double>(count_) : 0; }
  /// Returns the least length that `share` of all lengths do not exceed. REQUIRES: 0 <= share <= 1.
  std::uint64_t Quantile(double share) const;

  /// A bar of the histogram: lengths from `from` to `to`, which is about twice as much.
  struct Bar {
    std::uint64_t from = 0, to = 0, count = 0;
  };
  /// Returns the bars from the shortest length to the longest, without gaps.
  std::vector<Bar> Bars() const;

  Json ToJson(std::string_view of) const;
  std::string ToText(std::string_view of) const;  ///< for a terminal
  std::string ToSvg(std::string_view of) const;   ///< a picture without outside references

 private:
  static constexpr std::size_t kSteps = 16;  ///< steps between a length and its double
  struct Step {
    std::uint64_t first = 0, last = 0;
  };
  static Step StepAt(std::size_t at);
  std::string Summary(std::string_view of) const;

  std::array<std::uint64_t, kSteps * 62> counts_{};
  std::uint64_t count_ = 0, sum_ = 0, longest_ = 0;
};

/// Counts duplicates and scripts of documents. Takes eight bytes a document.
class TextSurvey {
 public:
  void Add(std::string_view document);
  std::uint64_t documents() const { return hashes_.size(); }
  /// Returns the number of documents whose text an earlier one has.
  std::uint64_t Duplicates() const;
  /// Returns how many documents are mostly of each script ("Latin", "Han"; "none": no letters), most frequent first.
  std::vector<std::pair<std::string_view, std::uint64_t>> Scripts() const;

 private:
  std::vector<std::uint64_t> hashes_;
  std::map<std::string_view, std::uint64_t> scripts_;
};

/// Returns the names that ScriptOf() returns, but for "none", in alphabetical order.
std::vector<std::string_view> ScriptNames();
/// Returns the script of most letters of the text; "none" if it has no letters.
std::string_view ScriptOf(std::string_view text);

}  // namespace millrace::data
