// Samples of BERT's pre-training in the layout of NVIDIA's create_pretraining_data.py, for tests.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "millrace/base/hash/random.h"
#include "millrace/data/hdf5/testing.h"

namespace millrace::train {

/// Tokens are of a vocabulary of 16: five special ones, then words, as kBertVocabulary (train/testing/bert_runs.h).
struct NvidiaShard {
  std::uint64_t seed = 1;
  std::uint64_t samples = 64;
  int length = 32;
  int predictions = 5;      ///< at most, of a sample
  bool some_empty = false;  ///< one sample in four has no hidden token
};

/// Returns the bytes of a shard: [CLS] a [SEP] b [SEP], where the words of b follow a by a rule or are random.
inline std::string NvidiaShardBytes(const NvidiaShard& shard) {
  constexpr int kCls = 2, kSep = 3, kMask = 4, kFirstWord = 5, kWords = 11;
  using data::testing::Hdf5Table;
  const auto columns = static_cast<std::uint64_t>(shard.length), places = static_cast<std::uint64_t>(shard.predictions);
  const auto table = [&](std::string name, std::uint64_t width, int bytes) {
    return Hdf5Table{.name = std::move(name),
                     .rows = shard.samples,
                     .columns = width,
                     .element_bytes = bytes,
                     .chunk_rows = 16,
                     .chunk_columns = width};
  };
  Hdf5Table ids = table("input_ids", columns, 4), mask = table("input_mask", columns, 1),
            segments = table("segment_ids", columns, 1), positions = table("masked_lm_positions", places, 4),
            hidden = table("masked_lm_ids", places, 4), next = table("next_sentence_labels", 1, 1);
  next.one_dimension = true;
  Random random(shard.seed);
  const auto below = [&](int bound) { return static_cast<int>(random.Below(static_cast<std::uint64_t>(bound))); };
  for (std::uint64_t sample = 0; sample < shard.samples; ++sample) {
    const int length = shard.length - below(8), cut = 2 + below(length - 6), is_random = below(2);
    int word = below(kWords);
    std::vector<int> row(static_cast<std::size_t>(shard.length), 0);
    for (int i = 1; i < length - 1; ++i) {
      if (i == cut + 1 && is_random == 1) word = below(kWords);
      row[static_cast<std::size_t>(i)] = kFirstWord + word;
      word = (word * 5 + 1) % kWords;
    }
    row[0] = kCls;
    row[static_cast<std::size_t>(cut)] = row[static_cast<std::size_t>(length - 1)] = kSep;
    const int count = shard.some_empty && below(4) == 0 ? 0 : 1 + below(shard.predictions);
    int made = 0;
    for (int place = 1 + below(3); made < count && place < length; place += 1 + below(3)) {
      int& token = row[static_cast<std::size_t>(place)];
      if (token < kFirstWord) continue;
      positions.values.push_back(place);
      hidden.values.push_back(std::exchange(token, kMask));
      ++made;
    }
    positions.values.resize((sample + 1) * places);
    hidden.values.resize((sample + 1) * places);
    for (int i = 0; i < shard.length; ++i) {
      ids.values.push_back(row[static_cast<std::size_t>(i)]);
      mask.values.push_back(i < length);
      segments.values.push_back(i > cut && i < length);
    }
    next.values.push_back(is_random);
  }
  return data::testing::Hdf5Writer().Write({ids, mask, segments, positions, hidden, next});
}

}  // namespace millrace::train
