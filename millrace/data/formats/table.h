// Tables as text: a row is a record, and its fields stand between commas (CSV, RFC 4180) or tabs (TSV). The first row
// names the fields, or fields have numbers from 0. GLUE's tasks are published as TSV without quotes, where a quotation
// mark is part of a field.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/data/compression/compression.h"
#include "millrace/data/formats/syntax.h"
#include "millrace/data/records/data_object.h"

namespace millrace::data {

/// The dialect of a table: how rows are divided into fields. Plain data.
struct TableDialect {
  char delimiter = '\t';
  /// A field that begins with '"' goes on to the next '"' and may hold delimiters and newlines; '""' is a quotation
  /// mark in it. As in Python's csv module, quotation marks elsewhere are part of the field.
  bool quotes = false;
  bool has_header = true;  ///< the first row has the names of the fields

  /// REQUIRES: the layout is kCsv or kTsv.
  static TableDialect Of(const DataFormat& format);
};

/// Finds the ends of rows, in steps. A row ends with '\n' outside of quotes, and '\r' in front of it belongs to the
/// end. One thread.
class RowScanner {
 public:
  /// A byte order mark is expected only if `offset` is 0, the start of the data.
  RowScanner(const TableDialect& dialect, std::uint64_t offset) : dialect_(dialect), offset_(offset) {}

  /// Goes on with the bytes from `from`, where the call before ended. Returns one behind the end of the row, after
  /// which a row starts there; or nothing if the row goes on behind `bytes`.
  std::optional<std::size_t> Scan(std::string_view bytes, std::size_t from);
  /// Returns true if the bytes so far end inside of a quoted field.
  bool in_quotes() const { return place_ == Place::kQuoted; }

 private:
  enum class Place : std::uint8_t { kRowStart, kFieldStart, kPlain, kQuoted, kQuoteInQuoted };

  TableDialect dialect_;
  std::uint64_t offset_;  ///< of the next byte in the data
  Place place_ = Place::kRowStart;
};

/// Replaces `fields` by the fields of a row, but at most `most` of them. `row` is whole, without its end.
void SplitRow(std::string_view row, const TableDialect& dialect, std::size_t most, std::vector<std::string>& fields);

/// Returns the first row that is not empty, without its end and without a byte order mark. If the table has no header,
/// returns the numbers of the row's fields, as a header would name them. Blocks.
/// Errors: kUnsupported if the row is longer than 16 KiB; those of ReadRange and of decoders.
Result<std::string> ReadTableHeader(const DataObject& object, Compression compression, const TableDialect& dialect,
                                    object::Call call);

/// `header` is the result of ReadTableHeader. Empty lines are not records. A row with another number of fields than the
/// header becomes an object without fields, which is a broken record.
/// Errors of the splitter and of ToLines: kCorrupt, naming the line, if a quotation mark is not closed within
/// kMaxRecordBytes.
std::unique_ptr<const Syntax> MakeTableSyntax(const TableDialect& dialect, const std::string& header);

}  // namespace millrace::data
