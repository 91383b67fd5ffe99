#include "millrace/tokenizer/unicode/utf8.h"

#include <algorithm>

namespace millrace::tokenizer {

bool MayBecomeWhole(std::string_view bytes) {
  if (bytes.empty() || bytes.size() > 3) return false;
  auto lead = static_cast<std::uint8_t>(bytes[0]);
  std::size_t length = lead < 0xC2 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 1;
  if (length <= bytes.size()) return false;
  // Completes the bytes to the lowest and the highest character. If any completion is valid, one of these is.
  char low[4], high[4];
  std::fill(std::copy(bytes.begin(), bytes.end(), low), low + length, '\x80');
  std::fill(std::copy(bytes.begin(), bytes.end(), high), high + length, '\xBF');
  return DecodeUtf8(low, low + length).code != kInvalid || DecodeUtf8(high, high + length).code != kInvalid;
}

std::size_t UnfinishedEnd(std::string_view text) {
  for (std::size_t back = std::min<std::size_t>(3, text.size()); back > 0; --back) {
    if (MayBecomeWhole(text.substr(text.size() - back))) return back;
  }
  return 0;
}

}  // namespace millrace::tokenizer
