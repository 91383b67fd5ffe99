// The normalization of a text before a tokenizer.json splits it into words.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "millrace/tokenizer/huggingface/regex.h"
#include "millrace/tokenizer/sentencepiece/character_map.h"
#include "millrace/tokenizer/unicode/graphemes.h"
#include "millrace/tokenizer/unicode/nfc.h"

namespace millrace::tokenizer {

/// Runs the steps of Hugging Face's normalizers, one after another. Immutable; any thread.
class HfNormalizer {
 public:
  /// SentencePiece's rules as Hugging Face applies them: to a whole cluster if it has less than 6 bytes, else to each
  /// of its characters. The shortest rule that matches replaces all of the cluster or character.
  struct Precompiled {
    CharacterMap map;
  };
  struct Replace {
    std::string from, to;
  };
  struct ReplaceMatches {
    Regex regex;
    std::string to;
  };
  struct Prepend {
    std::string text;  ///< not empty
  };
  struct Compose {};              ///< NFC
  struct ComposeCompatible {};    ///< NFKC
  struct Decompose {};            ///< NFD
  struct DecomposeCompatible {};  ///< NFKD
  struct StripAccents {};         ///< leaves combining marks out
  struct Lowercase {};
  struct Strip {
    bool left = true, right = true;
  };
  struct Nmt {};             ///< leaves control characters out; others become spaces
  struct BertClean {};       ///< the same, as BERT does it
  struct BertChinese {};     ///< puts spaces around Chinese characters
  struct BertAccents {};     ///< leaves accents out of decomposed text
  struct ToByteAlphabet {};  ///< writes each byte as a character (see byte_alphabet.h)
  using Step = std::variant<Precompiled, Replace, ReplaceMatches, Prepend, Compose, ComposeCompatible, Decompose,
                            DecomposeCompatible, StripAccents, Lowercase, Strip, Nmt, BertClean, BertChinese,
                            BertAccents, ToByteAlphabet>;

  explicit HfNormalizer(std::vector<Step> steps);

  /// Sets `normalized` to the normalized text. Invalid bytes become U+FFFD.
  void Normalize(std::string_view text, std::string& normalized) const;
  /// As Normalize(). Returns how many bytes at the beginning of `normalized` the library aligns with the first
  /// character of the text.
  std::size_t NormalizeFirst(std::string_view text, std::string& normalized) const;

 private:
  std::string Apply(const Precompiled& step, std::string text) const;
  std::string Apply(const Replace& step, std::string text) const;
  std::string Apply(const ReplaceMatches& step, std::string text) const;
  std::string Apply(const Prepend& step, std::string text) const;
  std::string Apply(const Compose& step, std::string text) const;
  std::string Apply(const ComposeCompatible& step, std::string text) const;
  std::string Apply(const Decompose& step, std::string text) const;
  std::string Apply(const DecomposeCompatible& step, std::string text) const;
  std::string Apply(const StripAccents& step, std::string text) const;
  std::string Apply(const Lowercase& step, std::string text) const;
  std::string Apply(const Strip& step, std::string text) const;
  std::string Apply(const Nmt& step, std::string text) const;
  std::string Apply(const BertClean& step, std::string text) const;
  std::string Apply(const BertChinese& step, std::string text) const;
  std::string Apply(const BertAccents& step, std::string text) const;
  std::string Apply(const ToByteAlphabet& step, std::string text) const;

  /// Calls visit(from, to) for each part of `text`, in order, and its replacement by `step`. Stops, and returns false,
  /// when a call returns false.
  template <class Visit>
  bool ForEachPart(const Precompiled& step, std::string_view text, Visit visit) const;
  /// Calls edit(begin, end, text) for each replacement of `step` in `text`, in order.
  template <class Edit>
  static void ForEachMatch(const Replace& step, std::string_view text, Edit edit);
  template <class Edit>
  static void ForEachMatch(const ReplaceMatches& step, std::string_view text, Edit edit);
  /// Returns the number of bytes at the beginning of `after` stem from the first `head` bytes of `before`.
  std::size_t HeadAfter(const Step& step, std::string_view before, std::size_t head, std::string_view after) const;
  std::size_t HeadAfter(const Precompiled& step, std::string_view before, std::size_t head) const;

  std::vector<Step> steps_;
  Graphemes graphemes_;
  Nfkc nfkc_;
  CharacterReplacements dropped_marks_, lower_case_;
  CodePointMap<std::uint8_t> bert_classes_;
};

}  // namespace millrace::tokenizer
