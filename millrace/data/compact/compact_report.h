// The report of a compaction: the records that it kept and removed, with reasons.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/json.h"
#include "millrace/data/compact/record_judge.h"

namespace millrace::data {

/// Removed records that a report names for each reason. A guess: a few show what a filter does.
inline constexpr std::size_t kRemovalExamples = 5;

struct RecordCount {
  std::uint64_t records = 0;
  std::uint64_t bytes = 0;  ///< of their lines of JSON, with newlines
  void Add(std::uint64_t record_bytes) {
    ++records;
    bytes += record_bytes;
  }
};

/// A record that was removed.
struct RemovalExample {
  std::string source;                ///< URL of its object
  std::uint64_t line = 0;            ///< of the object, from 1; in formats without lines, the number of the record
  std::string broken;                ///< of a broken record: why, as "not_json"
  std::string earlier;               ///< of a duplicate: source and line of the record that stays
  std::optional<double> similarity;  ///< of a near duplicate, as the signatures estimate it
  std::string text;                  ///< the beginning of its text
};

struct CompactedShard {
  std::string name;
  RecordCount kept;
  std::uint64_t stored_bytes = 0;  ///< of the object
};

/// The counts of one compaction. They depend on the input and the options alone.
struct CompactReport {
  std::uint64_t objects = 0;
  std::uint64_t object_bytes = 0;  ///< as they are stored
  RecordCount read, kept;
  std::array<RecordCount, kRemovalReasons> removed{};
  std::array<std::vector<RemovalExample>, kRemovalReasons> examples;
  std::vector<CompactedShard> shards;
  std::uint64_t index_bytes = 0;  ///< memory that digests, signatures and held-out runs take at the end

  /// Returns report.json. `options` are part of the report.
  Json ToJson(const Json& options) const;
};

/// Returns a report of ToJson() as a table for a terminal. REQUIRES: `report` has the members that ToJson() writes.
std::string CompactReportText(const Json& report);

/// Returns the first 60 characters of a text on one line.
std::string Excerpt(std::string_view text);

}  // namespace millrace::data
