// Makes the text of a document from the bytes of a record.
#pragma once

#include <cstdint>
#include <expected>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/data/records/broken_reason.h"

namespace millrace::data {

/// The longest text that a template or a layout makes of a record. A template may name a field any number of times, so
/// a document can be longer than its record. Four times as long is a guess.
inline constexpr std::uint64_t kMaxDocumentBytes = 4 * kMaxRecordBytes;

/// "{title}\n\t\t{text}\n\n": literal text and the names of string fields in braces; "{{" and "}}" are braces.
/// "{body.text}" is the field "text" of the object in the field "body".
/// Immutable; any thread may read it.
class RecordTemplate {
 public:
  /// Errors: kInvalidArgument, naming the column, if a brace has no partner, a name is empty, no field is named, or the
  /// text exceeds 64 KiB.
  static Result<RecordTemplate> Parse(std::string_view text);

  const std::string& text() const { return text_; }
  const std::vector<std::string>& fields() const { return fields_; }

 private:
  friend class RecordParser;
  std::string text_;
  std::vector<std::string> literals_;  ///< one more than fields_; they alternate, and a literal is first
  std::vector<std::string> fields_;
};

/// Parses records by one template. Keeps its buffers between calls. One thread at a time. The template must outlive it.
class RecordParser {
 public:
  /// With `keeps_empty`, a record whose fields are all empty is an empty document, and not kEmpty.
  explicit RecordParser(const RecordTemplate& record_template, bool keeps_empty = false);
  RecordParser(RecordParser&&) noexcept;
  ~RecordParser();

  /// Returns the document of `record`, which has no newline at its end, or why it is broken. Valid until the next call.
  /// The result depends on the record's bytes and the template alone. Ignores a byte order mark at the start.
  std::expected<std::string_view, BrokenReason> Parse(std::string_view record);

 private:
  struct Rep;
  std::unique_ptr<Rep> rep_;
};

/// Returns true for a line of white space alone. Such a line is not a record, and not a broken one.
bool IsBlank(std::string_view line);

}  // namespace millrace::data
