#include "millrace/data/formats/syntax.h"

#include <algorithm>
#include <array>

#include "millrace/data/compression/object_beginning.h"
#include "millrace/data/formats/json_array.h"
#include "millrace/data/formats/json_objects.h"
#include "millrace/data/formats/record_lines.h"
#include "millrace/data/formats/table.h"
#include "millrace/data/formats/tar.h"
#include "millrace/data/records/record_template.h"

namespace millrace::data {
namespace {

constexpr std::string_view kOpen = "{\"text\":\"", kClose = "\"}";
constexpr std::size_t kLooksAtBytes = 64 * kKiB;  // a guess: longer than nearly all lines

/// The length of each byte inside a JSON string.
constexpr std::array<std::uint8_t, 256> kEscapedBytes = [] {
  std::array<std::uint8_t, 256> bytes{};
  bytes.fill(1);
  for (int c = 0; c < 0x20; ++c) bytes[c] = 6;
  for (char c : {'"', '\\', '\n', '\r', '\t', '\b', '\f'}) bytes[static_cast<unsigned char>(c)] = 2;
  return bytes;
}();

std::size_t EscapedSize(std::string_view text) {
  std::size_t size = 0;
  for (char c : text) size += kEscapedBytes[static_cast<unsigned char>(c)];
  return size;
}

Status AppendDocument(std::string_view text, RecordLines& lines) {
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  lines.Append(kOpen);
  lines.AppendText(text);
  lines.Append(kClose);
  return lines.EndRecord();
}

class LineSplitter final : public RecordSplitter {
 public:
  explicit LineSplitter(char line_end = '\n') : line_end_(line_end) {}

  Result<std::optional<std::size_t>> Find(std::string_view bytes, std::size_t at_least, bool at_end) override {
    const std::size_t newline = bytes.find(line_end_, std::max(searched_, at_least - 1));
    if (newline != bytes.npos) return newline + 1;
    searched_ = bytes.size();
    if (at_end) return bytes.size();
    return std::nullopt;
  }
  void Restart(std::uint64_t) override { searched_ = 0; }

 private:
  const char line_end_;
  std::size_t searched_ = 0;
};

class JsonLines final : public Syntax {
 public:
  std::unique_ptr<RecordSplitter> NewSplitter() const override { return std::make_unique<LineSplitter>(); }
  Result<Buffer> ToLines(Buffer records, std::uint64_t) const override {
    if (records.empty() || AsText(records).ends_with('\n')) return records;
    Buffer ended(records.size() + 1);
    std::memcpy(ended.data(), records.data(), records.size());
    ended.data()[records.size()] = std::byte{'\n'};
    return ended;
  }
};

class TextLines final : public Syntax {
 public:
  explicit TextLines(char line_end) : line_end_(line_end) {}
  std::unique_ptr<RecordSplitter> NewSplitter() const override { return std::make_unique<LineSplitter>(line_end_); }
  Result<Buffer> ToLines(Buffer records, std::uint64_t) const override {
    RecordLines lines;
    std::string_view rest = AsText(records);
    while (!rest.empty()) {
      const std::size_t newline = rest.find(line_end_);
      std::string_view line = rest.substr(0, newline);
      rest.remove_prefix(newline == rest.npos ? rest.size() : newline + 1);
      if (line.ends_with('\r')) line.remove_suffix(1);
      if (!IsBlank(line)) MR_TRY(AppendDocument(line, lines));
    }
    return lines.TakeLines();
  }

 private:
  const char line_end_;
};

/// Cuts a text that is longer than a record between two lines, so that each part fills a record.
class TextSplitter final : public RecordSplitter {
 public:
  Result<std::optional<std::size_t>> Find(std::string_view bytes, std::size_t at_least, bool at_end) override {
    while (true) {
      const std::size_t newline = bytes.find('\n', searched_);
      if (newline == bytes.npos && !at_end) {
        searched_ = bytes.size();
        return std::nullopt;
      }
      const std::size_t end = newline == bytes.npos ? bytes.size() : newline + 1;
      const std::size_t more = EscapedSize(bytes.substr(line_, end - line_));
      if (line_ > part_ && escaped_ + more > kRoom) {
        part_ = line_;
        escaped_ = 0;
        if (part_ >= at_least) return part_;
      }
      escaped_ += more;
      line_ = searched_ = end;
      if (end == bytes.size() && at_end) return end;
    }
  }
  void Restart(std::uint64_t) override { *this = TextSplitter(); }

 private:
  static constexpr std::size_t kRoom = kMaxRecordBytes - kOpen.size() - kClose.size();
  std::size_t part_ = 0;     ///< where the document being filled starts
  std::size_t line_ = 0;     ///< lines before here have been counted
  std::size_t escaped_ = 0;  ///< of the document so far
  std::size_t searched_ = 0;
};

class Text final : public Syntax {
 public:
  std::unique_ptr<RecordSplitter> NewSplitter() const override { return std::make_unique<TextSplitter>(); }
  Result<Buffer> ToLines(Buffer records, std::uint64_t) const override {
    RecordLines lines;
    TextSplitter splitter;
    for (std::string_view rest = AsText(records); !rest.empty(); splitter.Restart(0)) {
      const std::size_t end = *MR_TRY(splitter.Find(rest, 1, true));
      if (!IsBlank(rest.substr(0, end))) MR_TRY(AppendDocument(rest.substr(0, end), lines));
      rest.remove_prefix(end);
    }
    return lines.TakeLines();
  }
};

}  // namespace

Result<bool> LinesEndInCr(const DataObject& object, Compression compression, object::Call call) {
  const Buffer bytes = MR_TRY(ReadBeginning(object, compression, kLooksAtBytes, std::move(call)));
  return AsText(bytes).contains('\r') && !AsText(bytes).contains('\n');
}

Buffer ToBuffer(std::string_view text) {
  Buffer bytes(text.size());
  if (!text.empty()) std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

std::unique_ptr<const Syntax> MakeSyntax(const DataFormat& format) {
  switch (format.layout) {
    case RecordLayout::kJson:
      return MakeJsonArraySyntax(format.field);
    case RecordLayout::kObjects:
      return MakeJsonObjectsSyntax();
    case RecordLayout::kLines:
      return std::make_unique<TextLines>(format.cr_ends ? '\r' : '\n');
    case RecordLayout::kText:
      return std::make_unique<Text>();
    case RecordLayout::kCsv:
    case RecordLayout::kTsv:
      return MakeTableSyntax(TableDialect::Of(format), format.field);
    case RecordLayout::kTar:
      return MakeTarSyntax();
    default:
      return std::make_unique<JsonLines>();
  }
}

}  // namespace millrace::data
