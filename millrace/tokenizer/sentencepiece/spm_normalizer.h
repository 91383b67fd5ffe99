// The normalization of a text before SentencePiece segments it.
#pragma once

#include <string>
#include <string_view>

#include "millrace/tokenizer/sentencepiece/character_map.h"
#include "millrace/tokenizer/sentencepiece/sentencepiece_model.h"
#include "millrace/tokenizer/tables/byte_trie.h"

namespace millrace::tokenizer {

/// Applies the character map, the rules for spaces and the dummy prefix, in the order of the library's Normalizer.
/// Immutable; any thread.
class SpmNormalizer {
 public:
  SpmNormalizer() = default;
  /// Keeps the text of `user_defined` pieces as it is. Its arguments need not outlive the call.
  static Result<SpmNormalizer> Make(const SentencePieceModel& model, const std::vector<std::string>& user_defined);

  /// Returns whether a text only gets its dummy prefix, and its spaces only become U+2581.
  bool trivial() const { return map_.empty() && user_defined_.empty() && !remove_extra_ && !suffix_ && escape_; }
  bool add_dummy_prefix() const { return dummy_prefix_; }
  bool remove_extra_whitespaces() const { return remove_extra_; }
  /// Returns whether the vocabulary treats a space and U+2581 alike. Normalized text then has spaces for both.
  bool escape_whitespaces() const { return escape_; }

  /// Sets `normalized` to the normalized text. Adds the dummy prefix if `prefix` and the model has one.
  void Normalize(std::string_view text, bool prefix, std::string& normalized) const;

 private:
  /// The normalized beginning of a text, and the bytes of the text that it stands for.
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
