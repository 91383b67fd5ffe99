// Turns the plan's arithmetic into rows of tokens: reads chunks, renders and tokenizes documents, keeps what neighbours
// need.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "millrace/base/threads/sync.h"
#include "millrace/data/documents/document_encoder.h"
#include "millrace/data/loader.h"
#include "millrace/data/order/plan.h"
#include "millrace/data/reading/chunk_cache.h"
#include "millrace/data/reading/flight_cache.h"
#include "millrace/data/reading/row_writer.h"

namespace millrace::data {

/// Reads samples in any order from any number of threads; neighbouring samples share chunks and documents. Holds at
/// most about `cache_bytes`, plus what calls in progress need.
class CorpusReader final : public SampleReader {
 public:
  struct Options {
    std::uint64_t cache_bytes = 0;
    int read_ahead_threads = 0;  ///< that fetch the chunks of the window being read and of the next; 0: none
  };
  /// Of cache_bytes, this much goes to tokenized documents (less when there is little).
  static constexpr std::uint64_t kDocumentCacheBytes = 16 * kMiB;

  CorpusReader(std::shared_ptr<const Corpus> corpus, Options options);

  Status Read(std::uint64_t epoch, std::uint64_t index, Row& row, object::Call call, StageTrace* trace) override;

 private:
  using Document = std::shared_ptr<const EncodedDocument>;
  using MadeDocument = FlightCache<std::uint64_t, EncodedDocument>::Made;
  using PassKey = std::pair<std::uint32_t, std::uint64_t>;                  ///< stream, pass
  using WindowKey = std::tuple<std::uint32_t, std::uint64_t, std::size_t>;  ///< stream, pass, window
  using Rows = std::vector<FittedRow>;

  /// One call of Read.
  struct Reading {
    std::uint32_t stream;
    std::shared_ptr<const PassOrder> pass;
    object::Call call;
    StageTrace* trace;
  };
  /// The tokens of the pass from `first` on, until the row is full.
  Status AppendStream(const Reading& reading, std::uint64_t first, RowWriter& row);
  Status AppendUnit(const Reading& reading, std::uint64_t unit, RowWriter& row);

  Result<std::shared_ptr<const PassOrder>> Pass(std::uint32_t stream, std::uint64_t pass, std::stop_token stop);
  /// The window's order, in which `unit` is about to be read.
  Result<std::shared_ptr<const WindowOrder>> EnterWindow(const Reading& reading, std::size_t window,
                                                         std::uint64_t unit);
  Result<std::shared_ptr<const Rows>> RowsOf(std::uint32_t stream, std::uint32_t piece, std::stop_token stop);
  Result<Document> DocumentAt(const Reading& reading, Place place);
  Result<MadeDocument> Encode(const Reading& reading, Place place);
  Status EncodeText(const Reading& reading, const Chunk& chunk, const RecordExtent& extent, std::string_view line,
                    EncodedDocument& document);

  /// Makes `window`, from `unit` on, and the one behind it what is fetched ahead.
  Status ReadAhead(const Reading& reading, std::size_t window, const WindowOrder& order, std::uint64_t unit);
  /// Tells the stores which objects come next, as far as a chunk is most of its object.
  void Announce(std::span<const ChunkCache::Due> chunks) const;

  std::unique_ptr<DocumentEncoder> BorrowEncoder();
  void ReturnEncoder(std::unique_ptr<DocumentEncoder> encoder);

  const std::shared_ptr<const Corpus> corpus_;
  const bool reads_ahead_;
  const std::uint64_t chunk_bytes_;
  FlightCache<PassKey, PassOrder> passes_;
  FlightCache<WindowKey, WindowOrder> windows_;
  FlightCache<PassKey, Rows> rows_{kRowCacheBytes};  ///< by stream and piece
  FlightCache<std::uint64_t, EncodedDocument> documents_;

  static constexpr std::uint64_t kRowCacheBytes = 4 * kMiB;
  Mutex mutex_;
  std::map<std::uint32_t, std::pair<std::uint64_t, std::size_t>> ahead_of_
      MR_GUARDED_BY(mutex_);  ///< by stream, the furthest window entered
  std::vector<std::unique_ptr<DocumentEncoder>> encoders_ MR_GUARDED_BY(mutex_);
  ChunkCache chunks_;  ///< last: its threads end first
};

}  // namespace millrace::data
