// Turns the plan's arithmetic into rows of tokens: reads chunks, renders and tokenizes documents, keeps what neighbours
// need.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/base/sync.h"
#include "millrace/base/task_scope.h"
#include "millrace/data/flight_cache.h"
#include "millrace/data/loader.h"
#include "millrace/data/plan.h"
#include "millrace/data/record_template.h"
#include "millrace/data/sources.h"

namespace millrace::data {

/// What readers of one dataset share. Immutable.
struct Corpus {
  std::vector<DataObject> objects;
  const Plan* plan = nullptr;
  const RecordTemplate* record_template = nullptr;
  const tokenizer::Tokenizer* tokenizer = nullptr;
};

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
  ~CorpusReader() override;

  Status Read(std::uint64_t epoch, std::uint64_t index, std::span<TokenId> inputs, std::span<TokenId> labels,
              object::Call call) override;

 private:
  struct LoadedChunk {
    Buffer bytes;
    std::uint64_t offset = 0;  ///< of `bytes` in the content
    std::vector<RecordExtent> extents;
  };
  using Tokens = std::vector<TokenId>;
  using WindowKey = std::pair<std::uint64_t, std::size_t>;  ///< epoch, window

  /// Appends the tokens [first, first + count) of the epoch's stream to `into`.
  Status ReadStream(const EpochOrder& epoch, std::uint64_t first, std::size_t count, Tokens& into, object::Call call);
  void FillPadded(const Tokens& document, std::span<TokenId> inputs, std::span<TokenId> labels) const;

  Result<std::shared_ptr<const EpochOrder>> Epoch(std::uint64_t epoch, std::stop_token stop);
  Result<std::shared_ptr<const WindowOrder>> EnterWindow(const EpochOrder& epoch, std::size_t window,
                                                         std::stop_token stop);
  Result<std::shared_ptr<const Tokens>> Document(WindowOrder::Place place, object::Call call);
  Result<std::shared_ptr<const LoadedChunk>> ChunkBytes(std::uint32_t chunk, object::Call call);
  Result<FlightCache<std::uint32_t, LoadedChunk>::Made> FetchChunk(std::uint32_t chunk, object::Call call) const;
  Result<FlightCache<std::uint64_t, Tokens>::Made> Tokenize(WindowOrder::Place place, object::Call call);
  /// Of a document that is token ids already.
  Result<FlightCache<std::uint64_t, Tokens>::Made> ReadTokens(const Chunk& chunk, const LoadedChunk& loaded,
                                                              const RecordExtent& extent) const;

  /// Makes `window` and the one behind it what the read-ahead threads work on.
  Status ReadAhead(const EpochOrder& epoch, std::size_t window, const WindowOrder& order, std::stop_token stop);
  /// Tells the stores which objects come next, as far as a chunk is most of its object.
  void Announce(std::span<const std::uint32_t> chunks) const;
  void ReadAheadLoop(std::stop_token stop);

  const std::shared_ptr<const Corpus> corpus_;
  const bool reads_ahead_;
  const std::uint64_t chunk_cache_bytes_;
  FlightCache<std::uint64_t, EpochOrder> epochs_{2};
  FlightCache<WindowKey, WindowOrder> windows_{3};
  FlightCache<std::uint32_t, LoadedChunk> chunks_;
  FlightCache<std::uint64_t, Tokens> documents_;

  Mutex mutex_;
  CondVar more_ahead_;
  std::optional<WindowKey> ahead_of_ MR_GUARDED_BY(mutex_);  ///< the furthest window entered
  std::vector<std::uint32_t> ahead_ MR_GUARDED_BY(mutex_);   ///< chunks to fetch, the next one last
  TaskScope threads_;
};

}  // namespace millrace::data
