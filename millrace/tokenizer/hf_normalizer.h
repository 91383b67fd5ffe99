// What a tokenizer.json of a Unigram model does to a text before words are found in it.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "millrace/tokenizer/character_map.h"
#include "millrace/tokenizer/graphemes.h"
#include "millrace/tokenizer/nfc.h"
#include "millrace/tokenizer/nfkc.h"

namespace millrace::tokenizer {

/// The steps of Hugging Face's normalizers, one after the other. Immutable; any thread.
class HfNormalizer {
 public:
  /// SentencePiece's rules as Hugging Face applies them: to clusters of less than 6 bytes as a whole, else to
  /// characters, and always the shortest rule, with which all of the cluster is replaced.
  struct Precompiled {
    CharacterMap map;
  };
  struct Replace {
    std::string from, to;
  };
  /// Runs of `least` spaces and more become `to`.
  struct ReplaceSpaces {
    std::size_t least = 2;
    std::string to;
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
  using Step = std::variant<Precompiled, Replace, ReplaceSpaces, Compose, ComposeCompatible, Decompose,
                            DecomposeCompatible, StripAccents, Lowercase, Strip>;

  explicit HfNormalizer(std::vector<Step> steps);

  /// Bytes that are no part of valid UTF-8 become U+FFFD.
  void Normalize(std::string_view text, std::string& normalized) const;

 private:
  std::string Apply(const Precompiled& step, std::string text) const;
  std::string Apply(const Replace& step, std::string text) const;
  std::string Apply(const ReplaceSpaces& step, std::string text) const;
  std::string Apply(const Compose& step, std::string text) const;
  std::string Apply(const ComposeCompatible& step, std::string text) const;
  std::string Apply(const Decompose& step, std::string text) const;
  std::string Apply(const DecomposeCompatible& step, std::string text) const;
  std::string Apply(const StripAccents& step, std::string text) const;
  std::string Apply(const Lowercase& step, std::string text) const;
  std::string Apply(const Strip& step, std::string text) const;

  std::vector<Step> steps_;
  Graphemes graphemes_;
  Nfkc nfkc_;
  CharacterTexts dropped_marks_, lower_case_;
};

}  // namespace millrace::tokenizer
