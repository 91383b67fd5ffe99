#include "millrace/data/formats/record_lines.h"

#include <array>
#include <cstring>

#include "millrace/base/text.h"

namespace millrace::data {
namespace {

/// The escape of each byte in a JSON string, behind a backslash. 'u': four hexadecimal digits follow. NUL: not escaped.
constexpr std::array<char, 256> kEscapes = [] {
  std::array<char, 256> escapes{};
  for (int c = 0; c < 0x20; ++c) escapes[c] = 'u';
  escapes['\n'] = 'n';
  escapes['\r'] = 'r';
  escapes['\t'] = 't';
  escapes['\b'] = 'b';
  escapes['\f'] = 'f';
  escapes['"'] = '"';
  escapes['\\'] = '\\';
  return escapes;
}();

}  // namespace

void AppendEscaped(std::string_view text, std::string& json, std::size_t most) {
  constexpr std::string_view kHex = "0123456789abcdef";
  if (json.size() > most) return;
  if (text.size() > most - json.size()) text = text.substr(0, most - json.size() + 1);
  std::size_t plain = 0;
  for (std::size_t i = 0; i < text.size() && json.size() <= most; ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (kEscapes[c] == '\0') continue;
    json.append(text, plain, i - plain);
    plain = i + 1;
    json += '\\';
    json += kEscapes[c];
    if (kEscapes[c] != 'u') continue;
    json += "00";
    json += kHex[c >> 4];
    json += kHex[c & 15];
  }
  json.append(text, plain);
}

void RecordLines::Append(std::string_view json) {
  if (is_full()) return;
  lines_.append(json, 0, kMaxRecordBytes + 1 - record_bytes());
}

void RecordLines::AppendText(std::string_view text) {
  if (is_full()) return;
  const std::size_t most = begin_ + kMaxRecordBytes;
  AppendEscaped(text, lines_, most);
  if (lines_.size() > most + 1) lines_.resize(most + 1);
}

Status RecordLines::EndRecord() {
  lines_ += '\n';
  begin_ = lines_.size();
  ++records_;
  if (lines_.size() <= most_) return {};
  return Fail(Code::kUnsupported,
              "with its record {} a piece that is read as one holds more than {} as JSON, and no more can be held; "
              "write smaller pieces, or leave the object out",
              records_, FormatBytes(most_));
}

Buffer RecordLines::TakeLines() {
  Buffer bytes(lines_.size());
  if (!lines_.empty()) std::memcpy(bytes.data(), lines_.data(), lines_.size());
  lines_ = std::string();
  begin_ = 0;
  return bytes;
}

}  // namespace millrace::data
