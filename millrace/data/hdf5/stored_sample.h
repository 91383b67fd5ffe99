// Samples of BERT's pre-training that were made before, with their masks, as records of a fixed size.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "millrace/base/bytes.h"
#include "millrace/base/result.h"
#include "millrace/data/batch/sequence_row.h"
#include "millrace/data/batch/token.h"

namespace millrace::data {

/// The bytes of a record, little-endian: u32 length (inputs in front of the padding), i32 label (of the next sentence,
/// or kIgnoreLabel), i32 ids[tokens], u8 segments[tokens], i32 positions[predictions], i32 hidden[predictions].
/// Position 0 ends the list of predictions, as in NVIDIA's run_pretraining.py.
struct StoredSampleLayout {
  std::uint32_t tokens = 0, predictions = 0;

  std::uint64_t ids_at() const { return 8; }
  std::uint64_t segments_at() const { return ids_at() + 4 * std::uint64_t{tokens}; }
  std::uint64_t positions_at() const { return segments_at() + tokens; }
  std::uint64_t hidden_at() const { return positions_at() + 4 * std::uint64_t{predictions}; }
  std::uint64_t bytes() const { return hidden_at() + 4 * std::uint64_t{predictions}; }
};

/// The samples of a frame. Frame::state has them.
struct StoredSampleFrame {
  std::uint64_t first_row = 0;  ///< in the shard
  std::uint32_t rows = 0;
  StoredSampleLayout layout;

  std::string Encode() const;
  /// Errors: kCorrupt if the state is none that Encode wrote, or the frame would exceed kMaxFrameContent.
  static Result<StoredSampleFrame> Decode(std::string_view state);
};

/// Writes a sample into a row. A row that is longer than the sample has more padding.
/// Errors, without the name of the object: kInvalidArgument if the row is too short; kCorrupt if a token is not below
/// `vocab_size`, or a prediction lies outside the sample.
Status WriteStoredSample(ByteSpan record, const StoredSampleLayout& layout, int vocab_size, TokenId padding,
                         SequenceRow& row);

}  // namespace millrace::data
