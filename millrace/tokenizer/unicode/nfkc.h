// Unicode's compatible forms, NFKC and NFKD, as Hugging Face tokenizers make them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "millrace/tokenizer/unicode/character_texts.h"
#include "millrace/tokenizer/unicode/nfc.h"

namespace millrace::tokenizer {

extern const std::uint32_t kCompatible[], kCombiningMarks[];
extern const std::size_t kCompatibleCount, kCombiningMarksCount;

/// NFC of a text in which characters that are others in another form (ﬁ, ①, ｱ) are taken apart. Immutable; any thread.
class Nfkc {
 public:
  Nfkc();

  const Nfc& nfc() const { return nfc_; }
  /// The text itself where it is so already, else `buffer`.
  std::string_view Normalize(std::string_view text, std::string& buffer) const;
  /// Appends the text with all taken apart, NFKD.
  void Decompose(std::string_view text, std::string& to) const;

 private:
  Nfc nfc_;
  CharacterTexts compatible_;
};

}  // namespace millrace::tokenizer
