// Unicode's normal forms as Hugging Face's tokenizers library makes them: composed (NFC, NFKC) and decomposed (NFD,
// NFKD).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/tokenizer/tables/code_point_map.h"
#include "millrace/tokenizer/tables/merge_table.h"
#include "millrace/tokenizer/unicode/character_replacements.h"

namespace millrace::tokenizer {

/// Made by tools/unicode_tables.py. Orders: a code point, shifted by 8 bits, and its combining class. Decomposed: a
/// code point, shifted by 3 bits, with the number of code points that follow, which it is taken apart to. Pairs: two
/// code points, and the one that they make.
extern const std::uint32_t kNfcOrders[], kNfcDecomposed[], kNfcPairs[];
extern const std::size_t kNfcOrdersCount, kNfcDecomposedCount, kNfcPairsCount;

/// Composes characters and their marks. Leaves invalid bytes as they are. Immutable; any thread.
class Nfc {
 public:
  Nfc();

  /// Returns the text in composed form. This is `text` itself if nothing changes, as for nearly all text, else
  /// `buffer`.
  std::string_view Normalize(std::string_view text, std::string& buffer) const;
  /// Appends the text in decomposed form (NFD).
  void Decompose(std::string_view text, std::string& to) const;

 private:
  struct Traits {
    std::uint8_t order = 0;        ///< the combining class
    bool joins = false;            ///< it may change, or compose with the character in front of it
    std::uint16_t decomposed = 0;  ///< the position of its decomposition in decomposed_; 0: it has none
  };
  struct CombiningMark {
    std::uint8_t order;
    std::uint32_t place;  ///< in the stretch: marks of one order keep their order
    char32_t code;
  };

  /// Returns the end of the first stretch behind `at` whose characters may join. `begin` becomes its first character.
  const char* FindStretch(std::string_view text, const char* at, const char*& begin) const;
  void ComposeStretch(std::string_view stretch, std::vector<CombiningMark>& marks, std::string& to) const;
  void DecomposeCharacter(char32_t code, std::vector<CombiningMark>& marks) const;
  static void Sort(std::vector<CombiningMark>& marks);
  /// Returns the composed character, or 0 if the two do not compose.
  char32_t Compose(char32_t left, char32_t right) const;

  CodePointMap<Traits> traits_;
  std::vector<char32_t> decomposed_{0};  ///< for each decomposition, its length and its code points
  MergeTable pairs_;
};

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
