// The order of an epoch, as arithmetic: which documents make sample i. No I/O, no threads, no state. README.md has the
// definition.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "millrace/data/loader.h"
#include "millrace/data/permutation.h"
#include "millrace/data/record_index.h"

namespace millrace::data {

inline constexpr std::uint64_t kChunkBytes = 512 * kKiB, kWindowBytes = 64 * kMiB;
/// Windows of unshuffled data only bound what is read ahead.
inline constexpr std::uint64_t kPlainWindowBytes = 8 * kMiB;

/// Consecutive records of one object, read in one go: up to kChunkBytes of plain lines, or a frame's.
struct Chunk {
  std::uint32_t object = 0;
  std::uint32_t block = 0;  ///< of the index, where its first record is
  std::uint32_t skip = 0;   ///< records of that block before its first
  std::uint32_t records = 0;
  std::uint64_t offset = 0;          ///< in the content
  std::uint64_t first_document = 0;  ///< number of its first record among all records of all objects
  std::uint32_t bytes = 0;
  std::uint64_t tokens = 0;  ///< of the documents' texts
};

/// The first `records` records of a chunk, taking part in an epoch once.
struct Piece {
  std::uint32_t chunk = 0;
  std::uint32_t records = 0;
  std::uint64_t units = 0;  ///< pack: tokens with BOS and EOS; pad: records
};

struct PlanOptions {
  Mode mode = Mode::kPack;
  std::uint64_t sequence_length = 0;
  std::uint64_t seed = 0, window = 0;
  std::uint32_t added_tokens = 0;  ///< per document of text: BOS and EOS, as far as the tokenizer has them
};

/// A run of pieces of an epoch whose records are shuffled among themselves.
struct Window {
  std::uint64_t first_piece = 0;  ///< in the epoch's order of pieces
  std::uint64_t first_unit = 0;   ///< in the epoch's stream
};

/// The windows of one epoch. Immutable.
struct EpochOrder {
  std::uint64_t epoch = 0;
  std::vector<Window> windows;  ///< and one more behind the last, where the epoch ends
  std::uint64_t largest_window_bytes = 0;
  /// The window that holds `unit`.
  std::size_t Find(std::uint64_t unit) const;
};

/// The documents of one window in their order. Immutable.
struct WindowOrder {
  std::uint64_t first_unit = 0;
  std::vector<Piece> pieces;
  std::vector<std::uint32_t>
      starts;                       ///< pieces + 1: number of each piece's first record in the window before shuffling
  std::vector<std::uint32_t> ends;  ///< pack: units up to and with the k-th document
  Permutation order{0, 0};

  struct Place {
    std::uint32_t chunk = 0, record = 0;  ///< record of that chunk
  };
  std::uint32_t documents() const { return starts.back(); }
  Place Document(std::uint32_t k) const;
  /// The document that holds the unit (relative to first_unit), and where in the window that document starts.
  struct Hit {
    std::uint32_t document = 0, start = 0;
  };
  Hit Find(std::uint32_t unit) const;
};

/// Everything an epoch's order is made from. Immutable; any thread may call any method. `indexes` must outlive it.
class Plan {
 public:
  /// Fails with kInvalidArgument if the sources hold less than one sample.
  static Result<Plan> Make(std::span<const RecordIndex> indexes, std::span<const std::vector<std::uint32_t>> by_source,
                           std::span<const Source> sources, PlanOptions options);

  std::uint64_t samples() const { return samples_; }  ///< an epoch
  std::uint64_t units() const { return units_; }      ///< of an epoch's stream
  std::uint64_t records() const { return records_; }  ///< an epoch
  std::span<const Chunk> chunks() const { return chunks_; }
  const PlanOptions& options() const { return options_; }

  EpochOrder OrderOf(std::uint64_t epoch) const;
  WindowOrder OrderOf(const EpochOrder& epoch, std::size_t window) const;
  /// The chunks of a window, without looking at their records.
  std::vector<std::uint32_t> ChunksOf(const EpochOrder& epoch, std::size_t window) const;
  const RecordIndex& index(std::uint32_t object) const { return indexes_[object]; }
  /// Where a chunk's records lie in the content, and their token counts.
  std::vector<RecordExtent> Extents(std::uint32_t chunk) const;

 private:
  Plan(std::span<const RecordIndex> indexes, PlanOptions options) : indexes_(indexes), options_(options) {}
  void MakeChunks(std::uint32_t object);
  void AddSource(const Source& source, std::size_t number, std::span<const std::uint32_t> objects);
  /// Per document of the chunk.
  std::uint32_t AddedTokens(const Chunk& chunk) const {
    return indexes_[chunk.object].token_bytes() > 0 ? 0 : options_.added_tokens;
  }
  Piece PieceOf(std::uint32_t chunk, std::uint32_t records) const;
  bool shuffled() const { return options_.window > 1; }
  Permutation PieceOrder(std::uint64_t epoch) const;

  std::span<const RecordIndex> indexes_;
  PlanOptions options_;
  std::vector<Chunk> chunks_;
  std::vector<std::uint32_t> object_chunks_;  ///< objects + 1: number of each object's first chunk
  std::vector<Piece> pieces_;                 ///< of an epoch, in the order of the sources
  std::uint64_t documents_ = 0, units_ = 0, records_ = 0, samples_ = 0;
};

}  // namespace millrace::data
