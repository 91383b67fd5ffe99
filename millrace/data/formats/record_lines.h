// Collects the records of a frame as lines of JSON. Counts the bytes, so that no input can exceed the limits of a
// record and of a frame.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "millrace/base/bytes.h"
#include "millrace/base/result.h"
#include "millrace/data/records/broken_reason.h"
#include "millrace/data/records/frame.h"

namespace millrace::data {

/// Appends `text`, escaped as the inside of a JSON string. Bytes that are not UTF-8 stay, so that the parser of the
/// line finds them. Stops when `json` is longer than `most` bytes.
void AppendEscaped(std::string_view text, std::string& json, std::size_t most = static_cast<std::size_t>(-1));

/// A growing text of lines. If a record exceeds kMaxRecordBytes, keeps only that many bytes and one more, so that
/// readers find the record "too_long". Later bytes of such a record take no memory. One thread.
class RecordLines {
 public:
  /// `most` is the limit of all lines together.
  explicit RecordLines(std::uint64_t most = kMaxFrameContent) : most_(most) {}

  void Append(std::string_view json);
  void Append(char json) { Append(std::string_view(&json, 1)); }
  /// Appends `text`, escaped as the inside of a JSON string.
  void AppendText(std::string_view text);
  /// Returns true if the record is longer than a record may be. Appending more to it is of no use.
  bool is_full() const { return lines_.size() - begin_ > kMaxRecordBytes; }
  /// Bytes of the record so far.
  std::uint64_t record_bytes() const { return lines_.size() - begin_; }
  /// Ends the record. Errors: kUnsupported, saying which record of the frame it is, if the lines exceed the limit.
  Status EndRecord();

  std::uint64_t records() const { return records_; }
  /// Returns the bytes of memory in use.
  std::uint64_t capacity() const { return lines_.capacity(); }
  std::string_view text() const { return lines_; }
  /// Returns the lines and becomes empty.
  Buffer TakeLines();

 private:
  const std::uint64_t most_;
  std::string lines_;
  std::size_t begin_ = 0;  ///< of the record under way
  std::uint64_t records_ = 0;
};

}  // namespace millrace::data
