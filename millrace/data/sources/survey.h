// What a data set is like: how long its records are, in which scripts, how many say the same.
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

/// Counts of lengths, in steps of a sixteenth: percentiles are that exact.
class LengthHistogram {
 public:
  void Add(std::uint64_t length);

  std::uint64_t count() const { return count_; }
  std::uint64_t longest() const { return longest_; }
  double mean() const { return count_ > 0 ? static_cast<double>(sum_) / static_cast<double>(count_) : 0; }
  /// The least length that `share` of all (0…1) do not exceed.
  std::uint64_t Quantile(double share) const;

  /// The lengths from `from` up to twice that.
  struct Row {
    std::uint64_t from = 0, to = 0, count = 0;
  };
  /// From the shortest that occur to the longest, without gaps.
  std::vector<Row> Rows() const;

  Json ToJson(std::string_view of) const;
  std::string ToText(std::string_view of) const;  ///< with bars, for a terminal
  std::string ToSvg(std::string_view of) const;   ///< a picture that needs nothing else

 private:
  static constexpr std::size_t kSteps = 16;  ///< between a length and its double
  struct Step {
    std::uint64_t first = 0, last = 0;
  };
  static Step StepAt(std::size_t at);
  std::string Summary(std::string_view of) const;

  std::array<std::uint64_t, kSteps * 62> counts_{};
  std::uint64_t count_ = 0, sum_ = 0, longest_ = 0;
};

/// What the text of documents is. Eight bytes a document.
class TextSurvey {
 public:
  void Add(std::string_view document);
  std::uint64_t documents() const { return hashes_.size(); }
  /// Documents whose text another one has already.
  std::uint64_t Duplicates() const;
  /// How many documents are mostly of each script ("Latin", "Han"; "none": no letters), the most frequent first.
  std::vector<std::pair<std::string_view, std::uint64_t>> Scripts() const;

 private:
  std::vector<std::uint64_t> hashes_;
  std::map<std::string_view, std::uint64_t> scripts_;
};

/// The script of most of the text's letters.
std::string_view ScriptOf(std::string_view text);

}  // namespace millrace::data
