#include "millrace/xml/xml.h"

#include <fmt/format.h>

namespace millrace::xml {

void AppendEscaped(std::string_view text, std::string& out) {
  for (char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        // Unescaped line ends and tabs are normalized by XML readers.
        if (static_cast<unsigned char>(c) < 0x20) {
          out += fmt::format("&#x{:x};", static_cast<unsigned char>(c));
        } else {
          out += c;
        }
    }
  }
}

bool Fits(std::string_view text) {
  for (char c : text) {
    if (static_cast<unsigned char>(c) < 0x20 && c != '\t' && c != '\n' && c != '\r') return false;
  }
  // XML excludes U+FFFE and U+FFFF, too.
  return text.find("\xEF\xBF\xBE") == text.npos && text.find("\xEF\xBF\xBF") == text.npos;
}

std::string Unquote(std::string_view etag) {
  if (etag.size() >= 2 && etag.front() == '"' && etag.back() == '"') etag = etag.substr(1, etag.size() - 2);
  return std::string(etag);
}

Writer::Writer(std::string_view root, std::string_view name_space) : root_(root) {
  out_ = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<";
  out_ += root;
  if (!name_space.empty()) out_.append(" xmlns=\"").append(name_space).append("\"");
  out_ += '>';
}

Writer& Writer::Open(std::string_view name) {
  out_.append("<").append(name).append(">");
  return *this;
}

Writer& Writer::Close(std::string_view name) {
  out_.append("</").append(name).append(">");
  return *this;
}

Writer& Writer::Text(std::string_view name, std::string_view value) {
  Open(name);
  AppendEscaped(value, out_);
  return Close(name);
}

Writer& Writer::Number(std::string_view name, std::uint64_t value) { return Text(name, std::to_string(value)); }

std::string Writer::Finish() {
  Close(root_);
  return std::move(out_);
}

}  // namespace millrace::xml
