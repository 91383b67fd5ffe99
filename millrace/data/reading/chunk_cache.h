// The bytes of a corpus in bounded memory: chunks fetched once however many threads want them, and ahead of them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/base/threads/sync.h"
#include "millrace/base/threads/task_scope.h"
#include "millrace/data/documents/document_encoder.h"
#include "millrace/data/order/plan.h"
#include "millrace/data/reading/chunk_disk.h"
#include "millrace/data/reading/flight_cache.h"
#include "millrace/data/reading/read_ahead.h"
#include "millrace/data/sources/sources.h"

namespace millrace::data {

/// What readers of one dataset share. Immutable.
struct Corpus {
  std::vector<DataObject> objects;
  const Plan* plan = nullptr;
  const DocumentForm* form = nullptr;
  const tokenizer::Tokenizer* tokenizer = nullptr;
  std::shared_ptr<ChunkDisk> disk = nullptr;  ///< null: none
  bool counted = false;                       ///< the indexes count tokens
  bool boundaries = false;                    ///< rows keep documents apart
  Duration patience{};                        ///< with a store that does not answer
  Clock* clock = &SystemClock();
};

struct LoadedChunk {
  Buffer bytes;
  std::uint64_t offset = 0;  ///< of `bytes` in the content
  std::vector<RecordExtent> extents;
};

/// Any thread may call any method. Holds at most about `cache_bytes`, plus what is being fetched.
class ChunkCache {
 public:
  /// As many threads fetch ahead as are needed for chunks to come in time, up to `threads`; 0: none.
  ChunkCache(std::shared_ptr<const Corpus> corpus, std::uint64_t cache_bytes, int threads);
  ~ChunkCache();

  /// A store that fails in a way that may pass is asked again, until it has answered nothing for the corpus's patience.
  Result<std::shared_ptr<const LoadedChunk>> Get(std::uint32_t chunk, object::Call call);

  struct Due {
    std::uint32_t chunk = 0;
    double time = 0;  ///< the smallest is fetched first
  };
  /// Replaces what is to be fetched ahead for a stream: in this order, which is ascending by time, as far as its share
  /// of the memory goes.
  void FetchAhead(std::uint32_t stream, std::vector<Due> chunks);

 private:
  using Made = FlightCache<std::uint32_t, LoadedChunk>::Made;

  Result<Made> Fetch(std::uint32_t chunk, const object::Call& call) const;
  Result<Buffer> FromStore(const Chunk& chunk, const ContentRange& range, const object::Call& call) const;
  Result<Made> FetchPatiently(std::uint32_t chunk, const object::Call& call);
  /// True if the failure is to be tried again.
  bool MayPass(const Error& error) MR_EXCLUDES(mutex_);
  bool TakeDue(std::uint32_t& chunk) MR_REQUIRES(mutex_);
  void FetchLoop(std::stop_token stop);

  const std::shared_ptr<const Corpus> corpus_;
  const std::uint64_t cache_bytes_;
  const int threads_allowed_;
  std::uint64_t all_windows_ = 0;  ///< bytes of the streams' windows
  FlightCache<std::uint32_t, LoadedChunk> chunks_;

  Mutex mutex_;
  CondVar more_;
  std::vector<std::vector<Due>> ahead_ MR_GUARDED_BY(mutex_);  ///< by stream, the next one last
  ReadAheadDepth depth_ MR_GUARDED_BY(mutex_);                 ///< fetches under way at most
  int fetching_ MR_GUARDED_BY(mutex_) = 0;
  std::optional<TimePoint> out_since_ MR_GUARDED_BY(mutex_);  ///< nothing was answered since then
  TaskScope threads_;
};

}  // namespace millrace::data
