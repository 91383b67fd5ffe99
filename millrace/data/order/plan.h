// The order of an epoch, as arithmetic: which documents make sample i. No I/O, no threads, no state. data/README.md
// defines the order.
//
// Each source is an endless stream: passes over its records, each shuffled anew and divided into samples. An epoch
// takes a fixed number of samples from each stream. The blend interleaves them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "millrace/data/options/data_source.h"
#include "millrace/data/options/held_out_split.h"
#include "millrace/data/options/sequence_mode.h"
#include "millrace/data/order/blend.h"
#include "millrace/data/order/permutation.h"
#include "millrace/data/records/record_index.h"

namespace millrace::data {

/// Part of the order of every run: none of these may change.
/// A chunk is one read. 512 KiB: large enough for a store's throughput, small enough for a window of 128 places.
inline constexpr std::uint64_t kChunkBytes = 512 * kKiB;
/// The most bytes of a shuffle window. Two windows are in memory at a time.
inline constexpr std::uint64_t kShuffleWindowBytes = 64 * kMiB;
/// The same where nothing is shuffled. These windows only bound what is read ahead.
inline constexpr std::uint64_t kPlainWindowBytes = 8 * kMiB;
/// With best_fit, documents are fitted into rows in groups: enough tokens for this many rows, or this many bytes if
/// that is less.
inline constexpr std::uint64_t kGroupRows = 128, kGroupBytes = 8 * kMiB;

/// Consecutive records of one object, which one read fetches.
struct Chunk {
  std::uint32_t object = 0;
  std::uint32_t block = 0;           ///< of the index, where its first record is
  std::uint32_t skip = 0;            ///< records of that block before its first
  std::uint32_t span = 0;            ///< records in it
  std::uint32_t records = 0;         ///< records of `span` in this part of the split; the plan ignores the others
  std::uint64_t offset = 0;          ///< in the content
  std::uint64_t first_document = 0;  ///< number of its first record among all records of all objects
  std::uint32_t bytes = 0;
  std::uint64_t tokens = 0;  ///< of the documents' texts
};

/// The unit that a pass permutes: one chunk, or with best_fit the chunks whose documents are fitted into rows together.
/// An item of a group is a document, or a row of fitted documents. A unit is what a sample consists of: a token in mode
/// pack, else a sample. An item has one unit or several.
struct ChunkGroup {
  std::uint32_t first = 0, chunks = 0;  ///< the range of the stream's chunks
  std::uint32_t items = 0;
  std::uint64_t units = 0;
};

struct PlanOptions {
  SequenceMode mode = SequenceMode::kPack;
  std::uint64_t sequence_length = 0;
  std::uint64_t seed = 0, window = 0;
  std::uint32_t added_tokens = 0;  ///< BOS and EOS of a document of text, as far as the tokenizer has them
  bool best_fit = false;           ///< pad, sft, pairs of answers: documents share rows
  bool pairs = false;              ///< a document is a pair of answers, whose labels are all of its own tokens
  bool split_long = false;         ///< pad: a long document is several samples
  /// Not 0: a document of n tokens of text is ⌈n / piece⌉ samples (data/reading). BOS and EOS do not count.
  std::uint64_t piece = 0;
  HeldOutSplit split;
  bool shuffled() const { return window > 1; }
  /// Returns the tokens that fitted documents of a row have together. The last token of a row need only be a label.
  std::uint64_t row_tokens() const { return pairs ? sequence_length : sequence_length + 1; }
  /// Returns true if a sample is a run of tokens of the stream. Else a sample is one unit.
  bool joins() const { return mode == SequenceMode::kPack; }
  /// Returns true if a document may be several samples.
  bool divides() const { return split_long || piece > 0; }
};

/// Consecutive groups of a pass, whose items are shuffled among themselves.
struct Window {
  std::uint64_t first_group = 0;  ///< in the pass's order of groups
  std::uint64_t first_unit = 0;   ///< in the pass
};

/// The windows of one pass. Immutable.
struct PassOrder {
  std::uint64_t pass = 0;
  std::vector<Window> windows;  ///< with one more at the end, where the pass ends
  std::uint64_t largest_window_bytes = 0;
  /// Returns the number of the window that holds `unit`.
  std::size_t Find(std::uint64_t unit) const;
};

/// A record of a chunk.
struct DocumentLocation {
  std::uint32_t chunk = 0, record = 0;
  bool operator==(const DocumentLocation&) const = default;
};

/// The items of one window in their order. Immutable.
struct WindowOrder {
  std::uint64_t first_unit = 0;
  std::vector<std::uint32_t> groups;  ///< numbers in the stream
  std::vector<std::uint32_t> starts;  ///< [groups + 1]: number of each group's first item before shuffling
  std::vector<std::uint32_t> ends;    ///< [items]: units of the first k + 1 items; empty: each item is one unit
  Permutation order{0, 0};

  struct Item {
    std::uint32_t group = 0, number = 0;  ///< a group of the stream, and an item of it
  };
  std::uint32_t items() const { return starts.back(); }
  /// Returns the k-th item in the shuffled order. REQUIRES: k < items().
  Item At(std::uint32_t k) const;
  struct ItemAtUnit {
    std::uint32_t item = 0;   ///< for At
    std::uint32_t start = 0;  ///< its first unit, relative to first_unit
  };
  /// Returns the item that holds `unit`, which is relative to first_unit.
  ItemAtUnit Find(std::uint32_t unit) const;
  /// Returns indexes into `groups`, in the order in which the items from `from` on first need the groups.
  std::vector<std::uint32_t> FirstUse(std::uint32_t from) const;
};

/// The documents of one row, with best_fit.
using FittedRow = std::vector<DocumentLocation>;

/// The endless order of one source.
struct Stream {
  std::vector<std::uint32_t> chunks;  ///< the source's chunks, in its order
  std::vector<ChunkGroup> groups;
  std::uint64_t records = 0, units = 0, samples = 0;   ///< in a pass
  std::uint64_t window_records = 0, window_bytes = 0;  ///< this source's share of the shuffle window
  std::uint64_t key = 0;
};

/// The location of a sample in its stream.
struct SampleLocation {
  std::uint32_t stream = 0;
  std::uint64_t pass = 0;    ///< of the stream
  std::uint64_t sample = 0;  ///< in the pass
};

/// Everything that an epoch's order is made of. Immutable; any thread may call any method. The indexes must outlive it.
class Plan {
 public:
  /// Errors: kInvalidArgument, naming the source, if a source holds less than one sample or an epoch would take no
  /// sample of it.
  static Result<Plan> Make(std::span<const RecordIndex> indexes, std::span<const std::vector<std::uint32_t>> by_source,
                           std::span<const DataSource> sources, PlanOptions options);

  std::uint64_t samples() const { return blend_.samples(); }  ///< in an epoch
  std::uint64_t records() const { return records_; }          ///< in this part of the split, each object counted once
  /// Returns how many documents are cut because no row holds them. 0 in mode pad without best_fit, which does not
  /// count.
  std::uint64_t truncated() const { return truncated_; }
  std::span<const Chunk> chunks() const { return chunks_; }
  std::span<const Stream> streams() const { return streams_; }
  const Blend& blend() const { return blend_; }
  const PlanOptions& options() const { return options_; }

  /// Returns where sample `index` of an epoch's order lies. REQUIRES: index < samples().
  SampleLocation Locate(std::uint64_t epoch, std::uint64_t index) const;
  /// Returns when a unit of a pass is read, in epochs since the start of the first one. Units with the least value are
  /// fetched first.
  double TimeOf(std::uint32_t stream, std::uint64_t pass, std::uint64_t unit) const;

  PassOrder OrderOf(std::uint32_t stream, std::uint64_t pass) const;
  WindowOrder OrderOf(std::uint32_t stream, const PassOrder& pass, std::size_t window) const;
  /// Returns the groups of a window, without looking at their records.
  std::vector<std::uint32_t> GroupsOf(std::uint32_t stream, const PassOrder& pass, std::size_t window) const;
  /// Returns the document of an item. REQUIRES: no best_fit.
  DocumentLocation DocumentOf(std::uint32_t stream, WindowOrder::Item item) const {
    return {streams_[stream].chunks[streams_[stream].groups[item.group].first], item.number};
  }
  /// Returns the rows of a group, always the same. REQUIRES: best_fit.
  std::vector<FittedRow> FitRows(std::uint32_t stream, std::uint32_t group) const;

  const RecordIndex& index(std::uint32_t object) const { return indexes_[object]; }
  /// Returns where a chunk's records lie in the content, and their token counts. Records of the other part of the split
  /// are left out.
  std::vector<RecordExtent> Extents(std::uint32_t chunk) const;

 private:
  Plan(std::span<const RecordIndex> indexes, PlanOptions options) : indexes_(indexes), options_(options), blend_({}) {}
  void MakeChunks(std::uint32_t object);
  /// Returns true if the record belongs to this part of the split.
  bool Selects(const RecordExtent& record) const;
  Stream MakeStream(std::size_t number, std::span<const std::uint32_t> objects);
  void MakeGroups(Stream& stream);
  void CountTruncated(std::uint32_t chunk);
  void ShareWindow(std::span<const DataSource> sources);
  std::vector<FittedRow> FitRows(const Stream& stream, const ChunkGroup& group) const;
  /// Returns the tokens of the whole document.
  std::uint32_t TokensOf(const Chunk& chunk, const RecordExtent& record) const {
    return record.tokens + AddedTokens(chunk);
  }
  std::uint32_t AddedTokens(const Chunk& chunk) const {
    return indexes_[chunk.object].token_bytes() > 0 ? 0 : options_.added_tokens;
  }
  std::uint64_t TokensOf(const Chunk& chunk) const {
    return chunk.tokens + std::uint64_t{chunk.records} * AddedTokens(chunk);
  }
  /// Returns the units of a document of `tokens` tokens.
  std::uint32_t UnitsOf(std::uint32_t tokens) const;
  Permutation GroupOrder(const Stream& stream, std::uint64_t pass) const;

  std::span<const RecordIndex> indexes_;
  PlanOptions options_;
  std::vector<Chunk> chunks_;
  std::vector<std::uint32_t> object_chunks_;  ///< [objects + 1]: number of each object's first chunk
  std::vector<Stream> streams_;
  Blend blend_;
  std::uint64_t documents_ = 0, records_ = 0, truncated_ = 0;
};

}  // namespace millrace::data
