// Unicode's composed form, NFC, and the decomposed one, NFD, as Hugging Face tokenizers make them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/tokenizer/tables/code_point_map.h"
#include "millrace/tokenizer/tables/merge_table.h"

namespace millrace::tokenizer {

extern const std::uint32_t kNfcOrders[], kNfcDecomposed[], kNfcPairs[];
extern const std::size_t kNfcOrdersCount, kNfcDecomposedCount, kNfcPairsCount;

/// Puts characters and their marks together. Immutable; any thread. Bytes that are no part of valid UTF-8 stay.
class Nfc {
 public:
  Nfc();

  /// The text in composed form: itself where it is that already, as nearly all text is, else `buffer`.
  std::string_view Normalize(std::string_view text, std::string& buffer) const;
  /// Appends the text taken apart, NFD.
  void Decompose(std::string_view text, std::string& to) const;

 private:
  /// Of a character: its combining class, whether it may change or merge with what is in front of it, and where in
  /// decomposed_ it stands taken apart (0: it does not come apart).
  struct Traits {
    std::uint8_t order = 0;
    bool joins = false;
    std::uint16_t decomposed = 0;
  };
  struct Mark {
    std::uint8_t order;
    std::uint32_t place;  ///< in the stretch: equal orders stay as they are
    char32_t code;
  };

  /// The end of the first stretch behind `at` whose characters may join; `begin` becomes its first character.
  const char* FindStretch(std::string_view text, const char* at, const char*& begin) const;
  void ComposeStretch(std::string_view stretch, std::vector<Mark>& marks, std::string& to) const;
  void TakeApart(char32_t code, std::vector<Mark>& marks) const;
  static void Sort(std::vector<Mark>& marks);
  /// 0: they do not make one.
  char32_t Compose(char32_t left, char32_t right) const;

  CodePointMap<Traits> traits_;
  std::vector<char32_t> decomposed_{0};  ///< a length, as many code points, the next length, …
  MergeTable pairs_;
};

}  // namespace millrace::tokenizer
