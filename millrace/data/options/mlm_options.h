// The options by which text becomes samples of BERT's pre-training.
#pragma once

#include <cstdint>
#include <optional>

namespace millrace::data {

/// Plain data. The defaults are those of BERT's create_pretraining_data.py (Devlin et al., 2018). Samples that are
/// stored with their masks ignore all of them.
struct MlmOptions {
  double probability = 0.15;  ///< share of a row's tokens that are to be predicted, in (0, 1)
  /// The most tokens of a row that are to be predicted. Nothing: probability · sequence_length, rounded up.
  std::optional<std::uint32_t> max_predictions;
  bool whole_word = false;       ///< mask all pieces of a word or none
  bool next_sentence = true;     ///< rows are pairs of texts; half of them are random
  double short_sequences = 0.1;  ///< share of the rows that are cut to a random length
  bool operator==(const MlmOptions&) const = default;
};

}  // namespace millrace::data
