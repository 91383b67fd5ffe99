#include "millrace/data/formats/tsv.h"

#include <algorithm>

#include "millrace/base/text.h"
#include "millrace/data/compression/object_beginning.h"
#include "millrace/data/formats/syntax.h"

namespace millrace::data {
namespace {

constexpr std::size_t kMaxHeaderBytes = 16 * kKiB;  // a guess: hundreds of columns

}  // namespace

TsvColumns::TsvColumns(const std::string& header) {
  for (std::string_view name : Split(header, '\t')) {
    std::string opening = openings_.empty() ? "{\"" : "\",\"";
    AppendEscaped(name, opening);
    openings_.push_back(opening + "\":\"");
  }
}

void TsvColumns::Append(std::string_view line, RecordLines& lines) const {
  const auto tabs = static_cast<std::size_t>(std::ranges::count(line, '\t'));
  if (tabs + 1 != openings_.size()) return lines.Append("{}");
  for (const std::string& opening : openings_) {
    const std::size_t tab = line.find('\t');
    lines.Append(opening);
    lines.AppendText(line.substr(0, tab));
    line.remove_prefix(tab == line.npos ? line.size() : tab + 1);
  }
  lines.Append("\"}");
}

Result<std::string> ReadTsvHeader(const DataObject& object, Compression compression, object::Call call) {
  const Buffer bytes = MR_TRY(ReadBeginning(object, compression, kMaxHeaderBytes, std::move(call)));
  std::string_view text = AsText(bytes);
  const std::size_t newline = text.find('\n');
  if (newline == text.npos && bytes.size() == kMaxHeaderBytes) {
    return Fail(Code::kUnsupported, "{}: the first line has no end within {} bytes, so it cannot name the fields",
                object.url, kMaxHeaderBytes);
  }
  text = text.substr(0, newline);
  if (text.ends_with('\r')) text.remove_suffix(1);
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  return std::string(text);
}

}  // namespace millrace::data
