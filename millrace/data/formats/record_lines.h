// The records of a frame while they are made, as lines of JSON: counted, so that no input makes more than may be held.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "millrace/base/bytes.h"
#include "millrace/base/result.h"
#include "millrace/data/content/content.h"
#include "millrace/data/records/record_template.h"

namespace millrace::data {

/// Appends `text` as the inside of a JSON string. Bytes that are not UTF-8 stay as they are, so that whoever parses the
/// line finds them. Stops when `json` is longer than `most` bytes.
void AppendEscaped(std::string_view text, std::string& json, std::size_t most = static_cast<std::size_t>(-1));

/// A growing text of lines. A record that exceeds kMaxRecordBytes is kept up to the byte behind that, which makes it
/// "too_long" for whoever reads it; what is appended to it then takes no memory. One thread.
class RecordLines {
 public:
  /// Lines of more than `most` bytes together are an error.
  explicit RecordLines(std::uint64_t most = kMaxFrameContent) : most_(most) {}

  void Append(std::string_view json);
  void Append(char json) { Append(std::string_view(&json, 1)); }
  /// As the inside of a string.
  void AppendText(std::string_view text);
  /// The record is longer than a record may be: there is no use in making more of it.
  bool is_full() const { return lines_.size() - begin_ > kMaxRecordBytes; }
  /// Bytes of the record so far.
  std::uint64_t record_bytes() const { return lines_.size() - begin_; }
  /// Ends the record. Fails with kUnsupported, saying which record of the frame it was, when the lines exceed the
  /// limit.
  Status EndRecord();

  std::uint64_t records() const { return records_; }
  /// Bytes of memory that are taken.
  std::uint64_t capacity() const { return lines_.capacity(); }
  std::string_view text() const { return lines_; }
  /// The lines; nothing is left.
  Buffer Take();

 private:
  const std::uint64_t most_;
  std::string lines_;
  std::size_t begin_ = 0;  ///< of the record under way
  std::uint64_t records_ = 0;
};

}  // namespace millrace::data
