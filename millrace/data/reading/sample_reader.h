// Makes rows of tokens by the plan: reads chunks, tokenizes documents, and keeps what neighbouring samples need.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "millrace/base/threads/sync.h"
#include "millrace/data/batch/sequence_row.h"
#include "millrace/data/batch/stage_trace.h"
#include "millrace/data/documents/document_encoder.h"
#include "millrace/data/order/plan.h"
#include "millrace/data/reading/chunk_cache.h"
#include "millrace/data/reading/row_writer.h"
#include "millrace/data/reading/single_flight_cache.h"

namespace millrace::data {

/// Reads samples in any order. Neighbouring samples share chunks and documents through caches. Holds at most about
/// `cache_bytes`, plus what calls in progress need. Any thread may call it. The Dataset that made it must outlive it.
class SampleReader final {
 public:
  struct Options {
    std::uint64_t cache_bytes = 0;
    int read_ahead_threads = 0;  ///< fetch the chunks of the current window and of the next one; 0: none
  };
  /// The part of cache_bytes that is for tokenized documents. Less if cache_bytes is small. A guess: 4 million tokens.
  static constexpr std::uint64_t kDocumentCacheBytes = 16 * kMiB;

  SampleReader(std::shared_ptr<const Corpus> corpus, Options options);

  Status Read(std::uint64_t epoch, std::uint64_t index, SequenceRow& row, object::Call call,
              StageTrace* trace = nullptr);

 private:
  using Document = std::shared_ptr<const EncodedDocument>;
  using MadeDocument = SingleFlightCache<std::uint64_t, EncodedDocument>::MadeValue;
  using PassKey = std::pair<std::uint32_t, std::uint64_t>;                  ///< stream, pass
  using WindowKey = std::tuple<std::uint32_t, std::uint64_t, std::size_t>;  ///< stream, pass, window
  using Rows = std::vector<FittedRow>;

  /// The arguments of one call of Read.
  struct Reading {
    std::uint32_t stream;
    std::shared_ptr<const PassOrder> pass;
    object::Call call;
    StageTrace* trace;
  };
  /// Appends the tokens of the pass from `first` on, until the row is full.
  Status AppendStream(const Reading& reading, std::uint64_t first, RowWriter& row);
  Status AppendUnit(const Reading& reading, std::uint64_t unit, RowWriter& row);
  /// The location of a unit of a pass.
  struct UnitLocation {
    std::shared_ptr<const WindowOrder> window;
    std::uint32_t item = 0;  ///< for window->At
    std::uint32_t part = 0;  ///< number of the unit among those of the item
  };
  Result<UnitLocation> FindUnit(const Reading& reading, std::uint64_t unit);
  /// Returns the documents of a unit's row: one, or those that were fitted into it.
  Result<FittedRow> DocumentsOf(const Reading& reading, const UnitLocation& at);

  /// Fills a row for BERT. `draw` are the random numbers of the sample.
  Status FillBertRow(const Reading& reading, std::uint64_t unit, Random draw, SequenceRow& row);
  Status FillMaskedRow(const Reading& reading, const UnitLocation& at, Random draw, SequenceRow& row);
  /// Fills a row with a sample that was stored with its masks.
  Status FillStoredRow(const Reading& reading, DocumentLocation place, SequenceRow& row);
  /// Returns a random document of the window other than `item` that has text. Null if there is none.
  Result<Document> OtherDocument(const Reading& reading, const WindowOrder& window, std::uint32_t item, Random& draw);
  /// Returns the document's tokens without BOS and EOS.
  std::span<const TokenId> TextOf(const EncodedDocument& document) const;

  Result<std::shared_ptr<const PassOrder>> Pass(std::uint32_t stream, std::uint64_t pass, std::stop_token stop);
  /// Returns the order of a window. `unit` is about to be read: starts reading ahead if the window is new.
  Result<std::shared_ptr<const WindowOrder>> EnterWindow(const Reading& reading, std::size_t window,
                                                         std::uint64_t unit);
  Result<std::shared_ptr<const Rows>> RowsOf(std::uint32_t stream, std::uint32_t group, std::stop_token stop);
  Result<Document> DocumentAt(const Reading& reading, DocumentLocation place);
  Result<MadeDocument> Encode(const Reading& reading, DocumentLocation place);
  Status EncodeText(const Reading& reading, const Chunk& chunk, const RecordExtent& extent, std::string_view line,
                    EncodedDocument& document);

  /// Fetches ahead what `window` needs from `unit` on, and then the next window.
  Status ReadAhead(const Reading& reading, std::size_t window, const WindowOrder& order, std::uint64_t unit);
  /// Hints to the stores which objects come next, where a chunk is most of its object (docs/formats/mount-hints.md).
  void Announce(std::span<const ChunkCache::Due> chunks) const;

  std::unique_ptr<DocumentEncoder> BorrowEncoder();
  void ReturnEncoder(std::unique_ptr<DocumentEncoder> encoder);

  const std::shared_ptr<const Corpus> corpus_;
  const bool reads_ahead_;
  const std::uint64_t chunk_bytes_;
  SingleFlightCache<PassKey, PassOrder> passes_;
  SingleFlightCache<WindowKey, WindowOrder> windows_;
  SingleFlightCache<PassKey, Rows> rows_{kRowCacheBytes};  ///< by stream and group
  SingleFlightCache<std::uint64_t, EncodedDocument> documents_;

  static constexpr std::uint64_t kRowCacheBytes = 4 * kMiB;  ///< for the fitted rows of groups; a guess
  Mutex mutex_;
  // Guarded by mutex_.
  std::map<std::uint32_t, std::pair<std::uint64_t, std::size_t>> ahead_of_
      MR_GUARDED_BY(mutex_);  ///< by stream: pass and number of the furthest window entered
  std::vector<std::unique_ptr<DocumentEncoder>> encoders_ MR_GUARDED_BY(mutex_);
  ChunkCache chunks_;  ///< the last member, so that its threads end first
};

}  // namespace millrace::data
