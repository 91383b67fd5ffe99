#include "millrace/tokenizer/unicode/nfkc.h"

#include <utility>

#include "millrace/tokenizer/unicode/utf8.h"

namespace millrace::tokenizer {

Nfkc::Nfkc() {
  for (std::size_t i = 0; i < kCompatibleCount;) {
    const std::uint32_t length = kCompatible[i] & 31;
    std::string text;
    for (std::uint32_t part = 1; part <= length; ++part) AppendUtf8(kCompatible[i + part], text);
    compatible_.Set(kCompatible[i] >> 5, std::move(text));
    i += 1 + length;
  }
}

std::string_view Nfkc::Normalize(std::string_view text, std::string& buffer) const {
  std::string apart;
  if (!compatible_.Replace(text, apart)) return nfc_.Normalize(text, buffer);
  const std::string_view composed = nfc_.Normalize(apart, buffer);
  if (composed.data() == apart.data()) buffer = std::move(apart);
  return buffer;
}

void Nfkc::Decompose(std::string_view text, std::string& to) const {
  std::string apart;
  nfc_.Decompose(compatible_.Replace(text, apart) ? apart : text, to);
}

}  // namespace millrace::tokenizer
