#include "millrace/tokenizer/nfkc.h"

#include "millrace/tokenizer/utf8.h"

namespace millrace::tokenizer {

Nfkc::Nfkc() : at_(0) {
  for (std::size_t i = 0; i < kCompatibleCount;) {
    const std::uint32_t length = kCompatible[i] & 31;
    at_.At(kCompatible[i] >> 5) = static_cast<std::uint16_t>(texts_.size());
    std::string& text = texts_.emplace_back();
    for (std::uint32_t part = 1; part <= length; ++part) AppendUtf8(kCompatible[i + part], text);
    i += 1 + length;
  }
}

std::string_view Nfkc::Normalize(std::string_view text, std::string& buffer) const {
  std::string apart;
  const char *done = text.data(), *end = done + text.size();
  for (const char* at = done; at != end;) {
    const Decoded character = DecodeUtf8(at, end);
    const std::uint16_t other = character.code == kInvalid ? std::uint16_t{0} : at_[character.code];
    if (other != 0) {
      apart.append(done, at) += texts_[other];
      done = at + character.length;
    }
    at += character.length;
  }
  if (done == text.data()) return nfc_.Normalize(text, buffer);
  apart.append(done, end);
  const std::string_view composed = nfc_.Normalize(apart, buffer);
  if (composed.data() == apart.data()) buffer = std::move(apart);
  return buffer;
}

}  // namespace millrace::tokenizer
