// The order of an epoch, as arithmetic: which documents make sample i. No I/O, no threads, no state. README.md has the
// definition.
//
// Each source is a *stream*: passes over its records without end, each shuffled anew and cut into samples by itself. An
// epoch takes a fixed number of samples from every stream, one after the other, and the blend says in which turns.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "millrace/data/index/record_index.h"
#include "millrace/data/loader.h"
#include "millrace/data/order/blend.h"
#include "millrace/data/order/permutation.h"

namespace millrace::data {

inline constexpr std::uint64_t kChunkBytes = 512 * kKiB, kWindowBytes = 64 * kMiB;
/// Windows of unshuffled data only bound what is read ahead.
inline constexpr std::uint64_t kPlainWindowBytes = 8 * kMiB;
/// Documents that are fitted into rows together: enough tokens for this many rows, if that is at most this many bytes.
inline constexpr std::uint64_t kGroupRows = 128, kGroupBytes = 8 * kMiB;

/// Consecutive records of one object, fetched by one read.
struct Chunk {
  std::uint32_t object = 0;
  std::uint32_t block = 0;    ///< of the index, where its first record is
  std::uint32_t skip = 0;     ///< records of that block before its first
  std::uint32_t span = 0;     ///< records in it
  std::uint32_t records = 0;  ///< those of them that belong to this part of the split; the others do not exist here
  std::uint64_t offset = 0;   ///< in the content
  std::uint64_t first_document = 0;  ///< number of its first record among all records of all objects
  std::uint32_t bytes = 0;
  std::uint64_t tokens = 0;  ///< of the documents' texts
};

/// What is shuffled as one: a chunk, or the chunks whose documents are fitted into rows together.
struct Piece {
  std::uint32_t first = 0, chunks = 0;  ///< of the stream's chunks
  std::uint32_t items = 0;              ///< documents, or rows where they are fitted
  std::uint64_t units = 0;
};

struct PlanOptions {
  Mode mode = Mode::kPack;
  std::uint64_t sequence_length = 0;
  std::uint64_t seed = 0, window = 0;
  std::uint32_t added_tokens = 0;  ///< per document of text: BOS and EOS, as far as the tokenizer has them
  bool best_fit = false;           ///< pad, sft: documents share rows
  bool split_long = false;         ///< pad: a long document is several samples
  HeldOutSplit split;
  bool shuffled() const { return window > 1; }
  /// True if a sample is a run of tokens of the stream; else it is one unit.
  bool joins() const { return mode == Mode::kPack; }
};

/// A run of pieces of a pass whose items are shuffled among themselves.
struct Window {
  std::uint64_t first_piece = 0;  ///< in the pass's order of pieces
  std::uint64_t first_unit = 0;   ///< of the pass
};

/// The windows of one pass. Immutable.
struct PassOrder {
  std::uint64_t pass = 0;
  std::vector<Window> windows;  ///< and one more behind the last, where the pass ends
  std::uint64_t largest_window_bytes = 0;
  /// The window that holds `unit`.
  std::size_t Find(std::uint64_t unit) const;
};

struct Place {
  std::uint32_t chunk = 0, record = 0;  ///< record of that chunk
  bool operator==(const Place&) const = default;
};

/// The items of one window in their order. Immutable.
struct WindowOrder {
  std::uint64_t first_unit = 0;
  std::vector<std::uint32_t> pieces;  ///< numbers in the stream
  std::vector<std::uint32_t> starts;  ///< pieces + 1: number of each piece's first item in the window before shuffling
  std::vector<std::uint32_t> ends;    ///< units up to and with the k-th item; empty: each is one unit
  Permutation order{0, 0};

  struct Item {
    std::uint32_t piece = 0, number = 0;  ///< number-th item of that piece of the stream
  };
  std::uint32_t items() const { return starts.back(); }
  Item At(std::uint32_t k) const;
  /// The item that holds the unit (relative to first_unit), and where in the window that item starts.
  struct Hit {
    std::uint32_t item = 0, start = 0;
  };
  Hit Find(std::uint32_t unit) const;
  /// The pieces (indexes into `pieces`) in the order in which items from `from` on need them first.
  std::vector<std::uint32_t> FirstUse(std::uint32_t from) const;
};

/// One row's documents where documents are fitted into rows.
using FittedRow = std::vector<Place>;

/// One source's endless order.
struct Stream {
  std::vector<std::uint32_t> chunks;  ///< of the source, in its order
  std::vector<Piece> pieces;
  std::uint64_t records = 0, units = 0, samples = 0;   ///< of a pass
  std::uint64_t window_records = 0, window_bytes = 0;  ///< this source's share of the shuffle window
  std::uint64_t key = 0;
};

/// Everything an epoch's order is made from. Immutable; any thread may call any method. `indexes` must outlive it.
class Plan {
 public:
  /// Fails with kInvalidArgument, naming it, if a source holds less than one sample or an epoch would take none of it.
  static Result<Plan> Make(std::span<const RecordIndex> indexes, std::span<const std::vector<std::uint32_t>> by_source,
                           std::span<const Source> sources, PlanOptions options);

  std::uint64_t samples() const { return blend_.samples(); }  ///< an epoch
  std::uint64_t records() const { return records_; }          ///< of this part of the split, each object counted once
  std::uint64_t truncated() const { return truncated_; }      ///< documents cut because no row holds them; where known
  std::span<const Chunk> chunks() const { return chunks_; }
  std::span<const Stream> streams() const { return streams_; }
  const Blend& blend() const { return blend_; }
  const PlanOptions& options() const { return options_; }

  struct Location {
    std::uint32_t stream = 0;
    std::uint64_t pass = 0, sample = 0;  ///< of the stream; of the pass
  };
  /// Where the sample at place `index` < samples() of an epoch's order lies.
  Location Locate(std::uint64_t epoch, std::uint64_t index) const;
  /// When the pass's unit comes, in epochs since the first one began: for deciding what to fetch first.
  double TimeOf(std::uint32_t stream, std::uint64_t pass, std::uint64_t unit) const;

  PassOrder OrderOf(std::uint32_t stream, std::uint64_t pass) const;
  WindowOrder OrderOf(std::uint32_t stream, const PassOrder& pass, std::size_t window) const;
  /// The pieces of a window, without looking at their records.
  std::vector<std::uint32_t> PiecesOf(std::uint32_t stream, const PassOrder& pass, std::size_t window) const;
  /// The one document of an item. Only where documents are not fitted.
  Place DocumentOf(std::uint32_t stream, WindowOrder::Item item) const {
    return {streams_[stream].chunks[streams_[stream].pieces[item.piece].first], item.number};
  }
  /// The rows of a piece where documents are fitted: always the same.
  std::vector<FittedRow> FitRows(std::uint32_t stream, std::uint32_t piece) const;

  const RecordIndex& index(std::uint32_t object) const { return indexes_[object]; }
  /// Where a chunk's records (of this part of the split) lie in the content, and their token counts.
  std::vector<RecordExtent> Extents(std::uint32_t chunk) const;

 private:
  Plan(std::span<const RecordIndex> indexes, PlanOptions options) : indexes_(indexes), options_(options), blend_({}) {}
  void MakeChunks(std::uint32_t object);
  /// True if the record belongs to this part of the split.
  bool Selects(const RecordExtent& record) const;
  Stream MakeStream(std::size_t number, std::span<const std::uint32_t> objects);
  void MakePieces(Stream& stream);
  void ShareWindow(std::span<const Source> sources);
  std::vector<FittedRow> FitRows(const Stream& stream, const Piece& piece) const;
  /// Of the whole document.
  std::uint32_t TokensOf(const Chunk& chunk, const RecordExtent& record) const {
    return record.tokens + AddedTokens(chunk);
  }
  std::uint32_t AddedTokens(const Chunk& chunk) const {
    return indexes_[chunk.object].token_bytes() > 0 ? 0 : options_.added_tokens;
  }
  std::uint64_t TokensOf(const Chunk& chunk) const {
    return chunk.tokens + std::uint64_t{chunk.records} * AddedTokens(chunk);
  }
  /// Of a document of so many tokens.
  std::uint32_t UnitsOf(std::uint32_t tokens) const;
  Permutation PieceOrder(const Stream& stream, std::uint64_t pass) const;

  std::span<const RecordIndex> indexes_;
  PlanOptions options_;
  std::vector<Chunk> chunks_;
  std::vector<std::uint32_t> object_chunks_;  ///< objects + 1: number of each object's first chunk
  std::vector<Stream> streams_;
  Blend blend_;
  std::uint64_t documents_ = 0, records_ = 0, truncated_ = 0;
};

}  // namespace millrace::data
