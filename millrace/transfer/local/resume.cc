#include "millrace/transfer/local/resume.h"

#include "millrace/base/hash/crc.h"

namespace millrace::transfer {

bool WorthKeeping(Code code) {
  switch (code) {
    case Code::kCancelled:
    case Code::kUnavailable:
    case Code::kDeadlineExceeded:
    case Code::kNoSpace:
    case Code::kIo:
      return true;
    default:
      return false;
  }
}

std::string JournalLine(std::string_view text) { return fmt::format("{} {:08x}\n", text, Crc32c(AsBytes(text))); }

std::optional<std::string_view> TextOfLine(std::string_view line) {
  std::size_t space = line.rfind(' ');
  if (space == line.npos) return std::nullopt;
  std::string_view text = line.substr(0, space);
  std::string whole = JournalLine(text);
  if (line != std::string_view(whole).substr(0, whole.size() - 1)) return std::nullopt;
  return text;
}

}  // namespace millrace::transfer
