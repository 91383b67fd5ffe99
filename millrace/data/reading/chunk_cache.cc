#include "millrace/data/reading/chunk_cache.h"

#include <algorithm>
#include <utility>

#include "millrace/base/text.h"
#include "millrace/data/records/content.h"

namespace millrace::data {
namespace {

/// Waits between attempts while a store does not answer: doubled from the first to the longest. Guesses.
constexpr Duration kFirstWait = std::chrono::milliseconds(100), kLongestWait = std::chrono::seconds(5);

}  // namespace

ChunkCache::ChunkCache(std::shared_ptr<const Corpus> corpus, std::uint64_t cache_bytes, int threads)
    : corpus_(std::move(corpus)),
      cache_bytes_(cache_bytes),
      threads_allowed_(threads),
      chunks_(cache_bytes),
      ahead_(corpus_->plan->streams().size()),
      depth_(threads) {
  for (const Stream& stream : corpus_->plan->streams()) all_windows_ += stream.window_bytes;
  for (int i = 0; i < threads; ++i) {
    threads_.Spawn("data-fetch", [this](std::stop_token stop) { FetchLoop(std::move(stop)); });
  }
}

ChunkCache::~ChunkCache() {
  threads_.RequestStop();
  threads_.Join();
}

Result<std::shared_ptr<const LoadedChunk>> ChunkCache::Get(std::uint32_t chunk, object::Call call) {
  if (threads_allowed_ > 0) {
    const bool ready = chunks_.Ready(chunk);
    MutexLock lock(mutex_);
    const bool grown = depth_.Needed(ready);
    lock.Unlock();
    if (grown) more_.NotifyAll();
  }
  return chunks_.Get(chunk, call.stop, [&] { return FetchPatiently(chunk, call); });
}

void ChunkCache::FetchAhead(std::uint32_t stream, std::vector<Due> chunks) {
  // An eighth stays free for chunks of the last window, which rows across the border still need.
  const std::uint64_t shared = cache_bytes_ - cache_bytes_ / 8;
  std::uint64_t share = static_cast<std::uint64_t>(
      static_cast<double>(shared) *
      (static_cast<double>(corpus_->plan->streams()[stream].window_bytes) / static_cast<double>(all_windows_)));
  std::uint64_t bytes = 0;
  std::size_t fit = 0;
  for (; fit < chunks.size(); ++fit) {
    bytes += corpus_->plan->chunks()[chunks[fit].chunk].bytes;
    if (bytes > share) break;
  }
  chunks.resize(fit);
  std::ranges::reverse(chunks);
  {
    MutexLock lock(mutex_);
    ahead_[stream] = std::move(chunks);
  }
  more_.NotifyAll();
}

Result<ChunkCache::Made> ChunkCache::Fetch(std::uint32_t number, const object::Call& call) const {
  const Chunk& chunk = corpus_->plan->chunks()[number];
  const DataObject& object = corpus_->objects[chunk.object];
  ContentRange range{&object, chunk.offset, chunk.bytes};
  if (object.content) {
    const IndexedFrame& frame = corpus_->plan->index(chunk.object).FrameAt(chunk.offset);
    range = {&object, frame.content_offset, frame.content_bytes};
  }
  auto loaded = std::make_shared<LoadedChunk>();
  loaded->offset = range.offset;
  loaded->extents = corpus_->plan->Extents(number);
  if (auto kept = corpus_->disk ? corpus_->disk->Load(range) : std::nullopt) {
    loaded->bytes = *std::move(kept);
  } else {
    loaded->bytes = MR_TRY(FromStore(chunk, range, call));
    if (corpus_->disk) corpus_->disk->Save(range, loaded->bytes, loaded);
  }
  std::uint64_t cost = loaded->bytes.size() + loaded->extents.size() * sizeof(RecordExtent);
  return {{std::move(loaded), cost}};
}

Result<Buffer> ChunkCache::FromStore(const Chunk& chunk, const ContentRange& range, const object::Call& call) const {
  const DataObject& object = *range.object;
  if (!object.content) {
    Buffer bytes(range.bytes);
    MR_TRY(ReadRange(object, range.offset, bytes.span(), "reading records of", call));
    return bytes;
  }
  const Frame& frame = corpus_->plan->index(chunk.object).FrameAt(chunk.offset).frame;
  Buffer content = MR_TRY(object.content->ReadFrame(frame, call));
  if (content.size() == range.bytes) return content;
  return Fail(Code::kCorrupt,
              "{}: the records at byte {} of the object are not those of its index; delete the index "
              "to have it rebuilt",
              object.url, frame.offset);
}

bool ChunkCache::MayPass(const Error& error) {
  if (!IsRetryable(error.code())) return false;
  MutexLock lock(mutex_);
  TimePoint now = corpus_->clock->Now();
  if (!out_since_) out_since_ = now;
  return now - *out_since_ < corpus_->patience;
}

Result<ChunkCache::Made> ChunkCache::FetchPatiently(std::uint32_t chunk, const object::Call& call) {
  for (Duration wait = kFirstWait;; wait = std::min(2 * wait, kLongestWait)) {
    Result<Made> made = Fetch(chunk, call);
    if (made) {
      MutexLock lock(mutex_);
      out_since_.reset();
      return made;
    }
    if (!MayPass(made.error())) {
      if (!IsRetryable(made.error().code())) return made;
      return Fail(std::move(made).error().Context(
          fmt::format("no record could be read for {}; start again at the last state when the store answers",
                      FormatDuration(corpus_->patience))));
    }
    if (!corpus_->clock->SleepFor(wait, call.stop)) return Fail(Code::kCancelled, "interrupted");
  }
}

bool ChunkCache::TakeDue(std::uint32_t& chunk) {
  std::vector<Due>* first = nullptr;
  for (auto& stream : ahead_) {
    if (!stream.empty() && (!first || stream.back().time < first->back().time)) first = &stream;
  }
  if (!first) return false;
  chunk = first->back().chunk;
  first->pop_back();
  return true;
}

void ChunkCache::FetchLoop(std::stop_token stop) {
  MutexLock lock(mutex_);
  while (true) {
    std::uint32_t chunk = 0;
    auto next = [&]() MR_NO_THREAD_SAFETY_ANALYSIS { return fetching_ < depth_.now() && TakeDue(chunk); };
    if (!more_.Wait(mutex_, stop, next) || stop.stop_requested()) return;
    ++fetching_;
    lock.Unlock();
    // A failure is ignored here. The reader that needs the chunk fetches it again, and returns its error.
    if (!chunks_.Has(chunk)) (void)chunks_.Get(chunk, stop, [&] { return Fetch(chunk, {.stop = stop}); });
    lock.Lock();
    --fetching_;
    more_.NotifyOne();
  }
}

}  // namespace millrace::data
