// What SentencePiece does to a text before it segments it.
#pragma once

#include <string>
#include <string_view>

#include "millrace/tokenizer/sentencepiece/character_map.h"
#include "millrace/tokenizer/sentencepiece/sentencepiece_model.h"
#include "millrace/tokenizer/tables/byte_trie.h"

namespace millrace::tokenizer {

/// Character map, spaces, dummy prefix: the steps and their order are those of the library's Normalizer. Immutable.
class SpmNormalizer {
 public:
  SpmNormalizer() = default;
  /// `user_defined` (pieces that are taken from the text as they are) and the model's bytes need not live on.
  static Result<SpmNormalizer> Make(const SentencePieceModel& model, const std::vector<std::string>& user_defined);

  /// True when a text only gets its dummy prefix, and spaces only another name.
  bool trivial() const { return map_.empty() && user_defined_.empty() && !remove_extra_ && !suffix_ && escape_; }
  bool add_dummy_prefix() const { return dummy_prefix_; }
  bool remove_extra_whitespaces() const { return remove_extra_; }
  /// Whether a space and U+2581 are the same to the vocabulary. Normalized text then has spaces for both.
  bool escape_whitespaces() const { return escape_; }

  /// `prefix`: whether the dummy prefix is wanted, in models that have one.
  void Normalize(std::string_view text, bool prefix, std::string& normalized) const;

 private:
  /// The normalized beginning of a text and how much of the text it stands for.
  struct Step {
    std::string_view text;
    std::size_t consumed;
  };
  Step Next(std::string_view text) const;
  void Append(std::string_view part, std::string& normalized) const;

  bool dummy_prefix_ = true, remove_extra_ = false, escape_ = true, suffix_ = false;
  ByteTrie user_defined_;
  CharacterMap map_;
};

}  // namespace millrace::tokenizer
