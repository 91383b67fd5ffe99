// From the bytes of one record to the text of one document.
#pragma once

#include <cstdint>
#include <expected>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/result.h"

namespace millrace::data {

/// Longer lines are no records.
inline constexpr std::uint64_t kMaxRecordBytes = 16ull << 20;
/// What a template or a layout may make of a record: one may name a field any number of times.
inline constexpr std::uint64_t kMaxDocumentBytes = 4 * kMaxRecordBytes;

/// Why a line is not a usable record.
enum class Broken : std::uint8_t { kNotJson, kNotUtf8, kMissingField, kNotText, kEmpty, kTooLong, kNotChat };
inline constexpr int kBrokenKinds = 7;
std::string_view BrokenName(Broken reason);  ///< "not_json", as in docs/formats/index.md
Result<Broken> ParseBroken(std::string_view name);

/// "{title}\n\t\t{text}\n\n": literal text and the names of string fields in braces; "{{" and "}}" are braces.
/// Immutable; any thread may read it.
class RecordTemplate {
 public:
  /// Fails with kInvalidArgument, naming the column, on a brace without its partner, on an empty name, when no field is
  /// named, and beyond 64 KiB.
  static Result<RecordTemplate> Parse(std::string_view text);

  const std::string& text() const { return text_; }
  const std::vector<std::string>& fields() const { return fields_; }

 private:
  friend class RecordParser;
  std::string text_;
  std::vector<std::string> literals_;  ///< one more than fields_: they alternate, a literal first
  std::vector<std::string> fields_;
};

/// Parses records of one template; keeps its buffers between calls. One thread at a time; the template must outlive it.
class RecordParser {
 public:
  explicit RecordParser(const RecordTemplate& record_template);
  RecordParser(RecordParser&&) noexcept;
  ~RecordParser();

  /// The document of `record` (without its newline), or why there is none. Valid until the next call. The verdict
  /// depends on the record's bytes and the template alone. A byte order mark in front is ignored.
  std::expected<std::string_view, Broken> Parse(std::string_view record);

 private:
  struct Rep;
  std::unique_ptr<Rep> rep_;
};

/// True for a line of white space alone, which is not a record at all.
bool IsBlank(std::string_view line);

}  // namespace millrace::data
