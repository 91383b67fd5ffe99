// The syntax of a format: divides decoded bytes into records, and turns the records into lines of JSON.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "millrace/base/bytes.h"
#include "millrace/base/result.h"
#include "millrace/data/formats/format.h"
#include "millrace/data/records/broken_reason.h"

namespace millrace::data {

/// The UTF-8 byte order mark. Files may start with it. It is not part of the first record.
inline constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
inline constexpr std::string_view kJsonBlank = " \t\r\n";
inline constexpr std::size_t kMaxJsonNesting = kMaxRecordBytes;  ///< deeper JSON is longer than a record may be

/// Finds where records end, in one pass over data that arrive in steps. One thread.
class RecordSplitter {
 public:
  virtual ~RecordSplitter() = default;
  /// Returns the first end of a record at or behind `at_least`, or nothing if it lies behind `bytes`. `bytes` start
  /// with a record. They are the bytes of the call before, and more. With `at_end` nothing follows, and the last record
  /// ends there. REQUIRES: at_least > 0; it may only grow from call to call. Errors: kCorrupt, naming the byte of the
  /// data, if they break the rules of the format.
  virtual Result<std::optional<std::size_t>> Find(std::string_view bytes, std::size_t at_least, bool at_end) = 0;
  /// From now on, `bytes` start with the record at `offset` of the data. Find returned the end of the record before.
  virtual void Restart(std::uint64_t offset) = 0;
};

/// A layout that is read as a stream. Immutable; any thread may call it.
class Syntax {
 public:
  virtual ~Syntax() = default;
  virtual std::unique_ptr<RecordSplitter> NewSplitter() const = 0;
  /// Returns whole records as lines of JSON. `offset` is where they start in the data. Any offset but 0 will do for
  /// records that are known to be readable.
  /// Errors: kCorrupt as RecordSplitter::Find.
  virtual Result<Buffer> ToLines(Buffer records, std::uint64_t offset) const = 0;
  /// Returns what is wrong with the form of one record, for messages. Empty: nothing.
  virtual std::string DescribeForm(std::string_view /*record*/) const { return ""; }
};

/// REQUIRES: the layout is kJsonLines, kJson, kObjects, kLines, kText, kCsv, kTsv or kTar.
std::unique_ptr<const Syntax> MakeSyntax(const DataFormat& format);

/// Returns whether the lines of a text end with '\r' alone, as far as its first 64 KiB tell. Blocks.
/// Errors: those of ReadBeginning (object_beginning.h).
Result<bool> LinesEndInCr(const DataObject& object, Compression compression, object::Call call);

/// Returns a copy of a string's bytes.
Buffer ToBuffer(std::string_view text);

}  // namespace millrace::data
