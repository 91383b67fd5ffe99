// Unicode's compatibility forms NFKC and NFKD, as Hugging Face's tokenizers library makes them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "millrace/tokenizer/unicode/character_replacements.h"
#include "millrace/tokenizer/unicode/nfc.h"

namespace millrace::tokenizer {

/// Made by tools/unicode_tables.py. Compatible: a code point, shifted by 5 bits, and how many it is taken apart to;
/// then these. Marks: the first and the last of each range of combining marks.
extern const std::uint32_t kCompatible[], kCombiningMarks[];
extern const std::size_t kCompatibleCount, kCombiningMarksCount;

/// As Nfc, after replacing characters by their compatible ones (ﬁ, ①, ｱ). Immutable; any thread.
class Nfkc {
 public:
  Nfkc();

  const Nfc& nfc() const { return nfc_; }
  /// Returns `text` itself if nothing changes, else `buffer`.
  std::string_view Normalize(std::string_view text, std::string& buffer) const;
  /// Appends the text in decomposed form (NFKD).
  void Decompose(std::string_view text, std::string& to) const;

 private:
  Nfc nfc_;
  CharacterReplacements compatible_;
};

}  // namespace millrace::tokenizer
