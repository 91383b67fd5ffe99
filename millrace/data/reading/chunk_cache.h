// The chunks of a corpus in bounded memory. Each is fetched once for all threads, and ahead of time.
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
#include "millrace/data/reading/bert_sampler.h"
#include "millrace/data/reading/chunk_disk.h"
#include "millrace/data/reading/read_ahead.h"
#include "millrace/data/reading/single_flight_cache.h"
#include "millrace/data/records/data_object.h"

namespace millrace::data {

/// The parts that the readers of one data set share. Immutable.
struct Corpus {
  std::vector<DataObject> objects;
  const Plan* plan = nullptr;
  const DocumentForm* form = nullptr;
  const tokenizer::Tokenizer* tokenizer = nullptr;
  std::shared_ptr<ChunkDisk> disk = nullptr;  ///< null: none
  bool counted = false;                       ///< the indexes hold token counts
  const BertSampler* bert = nullptr;          ///< makes the rows of objectives for BERT; null: of others
  Objective objective = Objective::kCausalLm;
  bool stored_samples = false;  ///< records are samples with their masks
  bool boundaries = false;      ///< rows mark where documents begin
  Duration patience{};          ///< how long a store that does not answer is retried
  Clock* clock = &SystemClock();
};

struct LoadedChunk {
  Buffer bytes;
  std::uint64_t offset = 0;  ///< where `bytes` start in the content
  std::vector<RecordExtent> extents;
};

/// Holds at most about `cache_bytes`, plus what is being fetched. Any thread may call any method.
class ChunkCache {
 public:
  /// Up to `threads` threads fetch ahead, as many as it takes for chunks to arrive in time (read_ahead.h). 0: none.
  ChunkCache(std::shared_ptr<const Corpus> corpus, std::uint64_t cache_bytes, int threads);
  ~ChunkCache();

  /// Returns a chunk. Blocks until it is fetched. Retries failures that may pass, until the store has answered nothing
  /// for the corpus's patience. Errors: as Content::ReadFrame and ReadRange; kCancelled.
  Result<std::shared_ptr<const LoadedChunk>> Get(std::uint32_t chunk, object::Call call);

  struct Due {
    std::uint32_t chunk = 0;
    double time = 0;  ///< Plan::TimeOf; the smallest is fetched first
  };
  /// Replaces the list of chunks that are fetched ahead for a stream, as far as its share of the memory goes.
  /// REQUIRES: `chunks` are ascending by time.
  void FetchAhead(std::uint32_t stream, std::vector<Due> chunks);

 private:
  using Made = SingleFlightCache<std::uint32_t, LoadedChunk>::MadeValue;

  Result<Made> Fetch(std::uint32_t chunk, const object::Call& call) const;
  Result<Buffer> FromStore(const Chunk& chunk, const ContentRange& range, const object::Call& call) const;
  Result<Made> FetchPatiently(std::uint32_t chunk, const object::Call& call);
  /// Returns true if the request is to be tried again.
  bool MayPass(const Error& error) MR_EXCLUDES(mutex_);
  bool TakeDue(std::uint32_t& chunk) MR_REQUIRES(mutex_);
  void FetchLoop(std::stop_token stop);

  const std::shared_ptr<const Corpus> corpus_;
  const std::uint64_t cache_bytes_;
  const int threads_allowed_;
  std::uint64_t all_windows_ = 0;  ///< bytes of all streams' windows
  SingleFlightCache<std::uint32_t, LoadedChunk> chunks_;

  Mutex mutex_;
  CondVar more_;
  // Guarded by mutex_.
  std::vector<std::vector<Due>> ahead_ MR_GUARDED_BY(mutex_);  ///< by stream, the next one last
  ReadAheadDepth depth_ MR_GUARDED_BY(mutex_);                 ///< the most fetches under way
  int fetching_ MR_GUARDED_BY(mutex_) = 0;
  std::optional<TimePoint> out_since_ MR_GUARDED_BY(mutex_);  ///< the time of the first failure since the last answer
  TaskScope threads_;
};

}  // namespace millrace::data
