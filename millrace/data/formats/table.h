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
  char row_end = '\n';     ///< or '\r', as Excel's "CSV (Macintosh)" has it

  /// REQUIRES: the layout is kCsv or kTsv.
  static TableDialect Of(const DataFormat& format);
};

/// Finds the ends of rows, in steps. A row ends with the dialect's row_end outside of quotes, and '\r' in front of '\n'
/// belongs to the end. One thread.
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

struct TableHeader {
  std::string row;       ///< the first row that is not empty, without its end and without a byte order mark
  bool cr_ends = false;  ///< it ends with '\r' alone
};

/// Reads the first row. If the table has no header, `row` has the numbers of its fields, as a header would name them.
/// REQUIRES: the layout is kCsv or kTsv. Blocks.
/// Errors: kUnsupported if the row is longer than 16 KiB; those of ReadRange and of decoders.
Result<TableHeader> ReadTableHeader(const DataObject& object, const DataFormat& format, object::Call call);

/// `header` is the row of ReadTableHeader. Of equal names, those behind the first get a number, as in pandas: "text",
/// "text.1". Empty lines are not records. A row with another number of fields than the
/// header becomes an object without fields, which is a broken record.
/// Errors of the splitter and of ToLines: kCorrupt, naming the line, if a quotation mark is not closed within
/// kMaxRecordBytes.
std::unique_ptr<const Syntax> MakeTableSyntax(const TableDialect& dialect, const std::string& header);

}  // namespace millrace::data
