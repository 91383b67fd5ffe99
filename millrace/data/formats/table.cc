#include "millrace/data/formats/table.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "millrace/base/text.h"
#include "millrace/data/compression/object_beginning.h"
#include "millrace/data/formats/record_lines.h"

namespace millrace::data {
namespace {

constexpr std::size_t kMaxHeaderBytes = 16 * kKiB;  // a guess: hundreds of columns

/// Removes the end of a row, '\n' or "\r\n", where it has one.
std::string_view WithoutEnd(std::string_view row) {
  if (row.ends_with('\n')) row.remove_suffix(1);
  if (row.ends_with('\r')) row.remove_suffix(1);
  return row;
}

/// Takes the first row off `rest`, which starts with a row at `offset` of the data. Returns it without its end.
Result<std::string_view> TakeRow(std::string_view& rest, const TableDialect& dialect, std::uint64_t offset) {
  RowScanner scanner(dialect, offset);
  const std::size_t end = scanner.Scan(rest, 0).value_or(rest.size());
  if (scanner.in_quotes()) return Fail(Code::kCorrupt, "the data end inside of quotation marks");
  std::string_view row = WithoutEnd(rest.substr(0, end));
  if (offset == 0 && row.starts_with(kByteOrderMark)) row.remove_prefix(kByteOrderMark.size());
  rest.remove_prefix(end);
  return row;
}

/// Appends a number to each name that stood in front of it already.
void MakeUnique(std::vector<std::string>& names) {
  std::set<std::string, std::less<>> taken(names.begin(), names.end()), used;
  for (std::string& name : names) {
    if (used.insert(name).second) continue;
    const std::string first = name;
    for (int number = 1; taken.contains(name); ++number) name = fmt::format("{}.{}", first, number);
    taken.insert(name);
    used.insert(name);
  }
}

/// Returns whether the first row of `text`, a table's beginning, ends with '\r' alone.
bool FirstRowEndsInCr(std::string_view text, TableDialect dialect) {
  const auto end_by = [&](char row_end) {
    dialect.row_end = row_end;
    return RowScanner(dialect, 0).Scan(text, 0).value_or(text.npos);
  };
  const std::size_t end = end_by('\r');
  return end < end_by('\n') && !text.substr(end).starts_with('\n');
}

/// Counts lines, so that errors can name them.
class RowSplitter final : public RecordSplitter {
 public:
  explicit RowSplitter(const TableDialect& dialect) : dialect_(dialect), scanner_(dialect, 0) {}

  Result<std::optional<std::size_t>> Find(std::string_view bytes, std::size_t at_least, bool at_end) override {
    while (scanned_ < bytes.size()) {
      const std::optional<std::size_t> end = scanner_.Scan(bytes, scanned_);
      scanned_ = end.value_or(bytes.size());
      if (!end) break;
      line_ += static_cast<std::uint64_t>(std::ranges::count(bytes.substr(row_, *end - row_), dialect_.row_end));
      row_ = *end;
      if (*end >= at_least) return *end;
    }
    if (scanner_.in_quotes() && (at_end || scanned_ - row_ > kMaxRecordBytes)) {
      return Fail(Code::kCorrupt, "line {}: a quotation mark in the row that begins there is not closed{}", line_,
                  at_end ? "" : fmt::format(" within {}", FormatBytes(kMaxRecordBytes)));
    }
    if (at_end) return bytes.size();
    return std::nullopt;
  }
  void Restart(std::uint64_t offset) override {
    scanner_ = RowScanner(dialect_, offset);
    row_ = scanned_ = 0;
  }

 private:
  const TableDialect dialect_;
  RowScanner scanner_;
  std::size_t row_ = 0, scanned_ = 0;
  std::uint64_t line_ = 1;  ///< where the row at row_ begins
};

class TableSyntax final : public Syntax {
 public:
  TableSyntax(const TableDialect& dialect, const std::string& header) : dialect_(dialect) {
    std::vector<std::string> names;
    SplitRow(header, dialect, header.size() + 1, names);
    MakeUnique(names);
    for (const std::string& name : names) {
      std::string opening = openings_.empty() ? "{\"" : "\",\"";
      AppendEscaped(name, opening);
      openings_.push_back(opening + "\":\"");
    }
  }

  std::unique_ptr<RecordSplitter> NewSplitter() const override { return std::make_unique<RowSplitter>(dialect_); }

  Result<Buffer> ToLines(Buffer records, std::uint64_t offset) const override {
    RecordLines lines;
    std::vector<std::string> fields;
    const std::string_view bytes = AsText(records);
    bool skips_header = offset == 0 && dialect_.has_header;
    for (std::string_view rest = bytes; !rest.empty();) {
      const std::string_view row = MR_TRY(TakeRow(rest, dialect_, offset + (bytes.size() - rest.size())));
      if (row.empty() || std::exchange(skips_header, false)) continue;
      SplitRow(row, dialect_, openings_.size() + 1, fields);
      if (fields.size() != openings_.size()) {
        lines.Append("{}");
      } else {
        for (std::size_t i = 0; i < fields.size(); ++i) {
          lines.Append(openings_[i]);
          lines.AppendText(fields[i]);
        }
        lines.Append("\"}");
      }
      MR_TRY(lines.EndRecord());
    }
    return lines.TakeLines();
  }

  std::string DescribeForm(std::string_view record) const override {
    std::vector<std::string> fields;
    SplitRow(WithoutEnd(record), dialect_, record.size() + 1, fields);
    if (fields.size() == openings_.size()) return "";
    return fmt::format("{} fields instead of {}", fields.size(), openings_.size());
  }

 private:
  const TableDialect dialect_;
  std::vector<std::string> openings_;  ///< the JSON in front of each value
};

}  // namespace

TableDialect TableDialect::Of(const DataFormat& format) {
  const bool csv = format.layout == RecordLayout::kCsv;
  const char usual = csv ? ',' : '\t';
  return {.delimiter = format.delimiter != 0 ? format.delimiter : usual,
          .quotes = csv || format.quotes,
          .has_header = format.has_header,
          .row_end = format.cr_ends ? '\r' : '\n'};
}

std::optional<std::size_t> RowScanner::Scan(std::string_view bytes, std::size_t from) {
  if (place_ == Place::kRowStart || !dialect_.quotes) {
    // Most rows have no quotation marks: then two searches are enough.
    const std::size_t newline = bytes.find(dialect_.row_end, from);
    if (newline != bytes.npos &&
        (!dialect_.quotes || std::memchr(bytes.data() + from, '"', newline - from) == nullptr)) {
      offset_ += newline + 1 - from;
      place_ = Place::kRowStart;
      return newline + 1;
    }
    if (!dialect_.quotes) {
      offset_ += bytes.size() - from;
      place_ = Place::kPlain;
      return std::nullopt;
    }
  }
  for (std::size_t i = from; i < bytes.size(); ++i, ++offset_) {
    const char c = bytes[i];
    switch (place_) {
      case Place::kRowStart:
        if (offset_ < kByteOrderMark.size() && kByteOrderMark[offset_] == c) continue;
        [[fallthrough]];
      case Place::kFieldStart:
        if (c == '"') {
          place_ = Place::kQuoted;
          continue;
        }
        break;
      case Place::kPlain:
        break;
      case Place::kQuoted:
        if (c == '"') place_ = Place::kQuoteInQuoted;
        continue;
      case Place::kQuoteInQuoted:
        if (c == '"') {
          place_ = Place::kQuoted;
          continue;
        }
        break;
    }
    if (c == dialect_.row_end) {
      ++offset_;
      place_ = Place::kRowStart;
      return i + 1;
    }
    place_ = c == dialect_.delimiter ? Place::kFieldStart : Place::kPlain;
  }
  return std::nullopt;
}

void SplitRow(std::string_view row, const TableDialect& dialect, std::size_t most, std::vector<std::string>& fields) {
  std::size_t count = 0;
  while (count < most) {
    if (count == fields.size()) fields.emplace_back();
    std::string& field = fields[count++];
    field.clear();
    if (dialect.quotes && row.starts_with('"')) {
      row.remove_prefix(1);
      while (true) {
        const std::size_t quote = row.find('"');
        field += row.substr(0, quote);
        row.remove_prefix(quote == row.npos ? row.size() : quote + 1);
        if (!row.starts_with('"')) break;
        field += '"';
        row.remove_prefix(1);
      }
    }
    const std::size_t delimiter = row.find(dialect.delimiter);
    field += row.substr(0, delimiter);
    if (delimiter == row.npos) break;
    row.remove_prefix(delimiter + 1);
  }
  fields.resize(count);
}

Result<TableHeader> ReadTableHeader(const DataObject& object, const DataFormat& format, object::Call call) {
  const Buffer bytes = MR_TRY(ReadBeginning(object, format.compression, kMaxHeaderBytes, std::move(call)));
  const std::string_view text = AsText(bytes);
  TableDialect dialect = TableDialect::Of(format);
  const bool cr_ends = format.cr_ends || FirstRowEndsInCr(text, dialect);
  if (cr_ends) dialect.row_end = '\r';
  std::string_view rest = text, row;
  while (row.empty() && !rest.empty()) {
    RowScanner scanner(dialect, text.size() - rest.size());
    if (!scanner.Scan(rest, 0) && bytes.size() == kMaxHeaderBytes) {
      return Fail(Code::kUnsupported, "{}: the first row has no end within {} bytes, so it cannot name the fields",
                  object.url, kMaxHeaderBytes);
    }
    auto first = TakeRow(rest, dialect, text.size() - rest.size());
    if (!first) return Fail(first.error().Context(object.url));
    row = *first;
  }
  if (dialect.has_header || row.empty()) return TableHeader{std::string(row), cr_ends};
  std::vector<std::string> fields;
  SplitRow(row, dialect, row.size() + 1, fields);
  std::string numbers;
  for (std::size_t i = 0; i < fields.size(); ++i) {
    if (i > 0) numbers += dialect.delimiter;
    numbers += std::to_string(i);
  }
  return TableHeader{numbers, cr_ends};
}

std::unique_ptr<const Syntax> MakeTableSyntax(const TableDialect& dialect, const std::string& header) {
  return std::make_unique<TableSyntax>(dialect, header);
}

}  // namespace millrace::data
