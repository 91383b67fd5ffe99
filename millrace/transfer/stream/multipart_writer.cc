#include "millrace/transfer/stream/multipart_writer.h"

#include <algorithm>
#include <stop_token>
#include <vector>

#include "millrace/base/hash/crc.h"
#include "millrace/base/result.h"
#include "millrace/base/threads/sync.h"
#include "millrace/object/blocking.h"

namespace millrace::transfer {
namespace {

/// The first buffer of an object of unknown size. Most such objects are smaller. A writer that waits for a whole part
/// holds no more than this.
constexpr std::uint64_t kFirstBuffer = 64 * kKiB;

/// The memory of a part, with its share of the budget.
struct Block {
  Reservation reservation;
  Buffer buffer;
  std::size_t filled = 0;
};

}  // namespace

struct MultipartWriter::Rep {
  Rep(object::Store& s, MemoryBudget& b, std::string k, Options o)
      : store(s), budget(b), key(std::move(k)), options(std::move(o)), limits(store.limits()) {
    std::uint64_t parts = static_cast<std::uint64_t>(limits.max_parts);
    part_bytes = std::max({options.part_bytes, limits.min_part, (options.expected_bytes + parts - 1) / parts});
    part_bytes = std::min({part_bytes, limits.max_part, limits.max_put});
    options.parallel_parts = std::max(1, options.parallel_parts);
  }

  Status Ready() MR_EXCLUDES(mutex);
  Result<MutableByteSpan> Space(const object::Call& call);
  Status MakeBlock(const object::Call& call);
  Status Commit(std::size_t bytes);
  Status Launch(const object::Call& call) MR_EXCLUDES(mutex);
  std::uint64_t PartBytes() const;
  Status AwaitInFlight(int at_most, const object::Call& call) MR_EXCLUDES(mutex);
  Result<Finished> Finish(const object::Call& call);
  void Abort() MR_EXCLUDES(mutex);

  object::Store& store;
  MemoryBudget& budget;
  const std::string key;
  Options options;
  const object::Limits limits;
  std::uint64_t part_bytes;  ///< the size of the first parts

  // The writer's thread only.
  std::optional<Block> block;
  std::uint64_t size = 0;
  std::uint32_t crc = 0;
  std::string upload_id;
  int launched = 0;
  bool over = false;  ///< finished or aborted

  std::stop_source stop;  ///< stops the parts in flight
  Mutex mutex;
  CondVar changed;
  int in_flight MR_GUARDED_BY(mutex) = 0;
  std::vector<object::PartInfo> parts MR_GUARDED_BY(mutex);
  std::optional<Error> failure MR_GUARDED_BY(mutex);
};

Status MultipartWriter::Rep::Ready() {
  if (over) return Fail(Code::kInternal, "{}: written to after its end", key);
  MutexLock lock(mutex);
  if (failure) return Fail(*failure);
  return {};
}

/// Returns the size of the next part. It doubles after every tenth of the parts that the store allows. Parts that begin
/// with 8 MiB then reach any size that S3 allows. A part takes at most half the budget.
std::uint64_t MultipartWriter::Rep::PartBytes() const {
  int doublings =
      options.expected_bytes > 0 && size < options.expected_bytes ? 0 : launched / std::max(1, limits.max_parts / 10);
  std::uint64_t grown = part_bytes << std::min(doublings, 20);
  std::uint64_t most = std::min({limits.max_part, limits.max_put, std::max(budget.total() / 2, limits.min_part)});
  return std::clamp(grown, std::min(limits.min_part, most), most);
}

Status MultipartWriter::Rep::MakeBlock(const object::Call& call) {
  std::uint64_t want = PartBytes();
  if (options.expected_bytes > 0) {
    if (size < options.expected_bytes) want = std::min(want, std::max(options.expected_bytes - size, std::uint64_t{1}));
  } else if (launched == 0) {
    want = std::min(want, kFirstBuffer);
  }
  Reservation reservation = MR_TRY(budget.Acquire(want, call.stop));
  block.emplace(Block{std::move(reservation), Buffer(want)});
  return {};
}

Result<MutableByteSpan> MultipartWriter::Rep::Space(const object::Call& call) {
  MR_TRY(Ready());
  if (!block) MR_TRY(MakeBlock(call));
  if (block->filled == block->buffer.size()) {
    std::uint64_t full = PartBytes();
    if (block->filled < full) {  // the first buffer is full: go on in one of a whole part
      Reservation reservation = MR_TRY(budget.Acquire(full, call.stop));
      Block larger{std::move(reservation), Buffer(full), block->filled};
      std::ranges::copy(block->buffer.span(), larger.buffer.data());
      *block = std::move(larger);
    } else {
      MR_TRY(Launch(call));
      MR_TRY(MakeBlock(call));
    }
  }
  return block->buffer.span().subspan(block->filled);
}

Status MultipartWriter::Rep::Commit(std::size_t bytes) {
  if (!block || bytes > block->buffer.size() - block->filled) {
    return Fail(Code::kInternal, "{}: {} bytes committed that there was no space for", key, bytes);
  }
  crc = Crc32c(block->buffer.span().subspan(block->filled, bytes), crc);
  block->filled += bytes;
  size += bytes;
  return {};
}

/// Sends the current block as the next part.
Status MultipartWriter::Rep::Launch(const object::Call& call) {
  if (launched == limits.max_parts) {
    return Fail(Code::kResourceExhausted,
                "{}: {} parts of up to {} bytes are not enough; give it larger parts and a memory budget of twice one",
                key, limits.max_parts, PartBytes());
  }
  if (upload_id.empty()) {
    auto created = object::CreateMultipart(store, key, options.put, call);
    if (!created) return Fail(created.error().Context("starting the upload of " + key));
    upload_id = *std::move(created);
  }
  MR_TRY(AwaitInFlight(options.parallel_parts - 1, call));
  int number = ++launched;
  auto part = std::make_shared<Block>(std::move(*block));
  block.reset();
  {
    MutexLock lock(mutex);
    ++in_flight;
  }
  store.UploadPart(key, upload_id, number, part->buffer.span().first(part->filled), {.stop = stop.get_token()},
                   [this, part, number](Result<object::PartInfo> done) mutable {
                     part.reset();
                     MutexLock lock(mutex);
                     if (done) {
                       parts.push_back(*std::move(done));
                     } else if (!failure) {
                       failure = done.error().Context(fmt::format("part {} of {}", number, key));
                     }
                     --in_flight;
                     changed.NotifyAll();  // under the lock: once it is released, the writer may be destroyed
                   });
  return {};
}

Status MultipartWriter::Rep::AwaitInFlight(int at_most, const object::Call& call) {
  MutexLock lock(mutex);
  auto settled = [&]() MR_NO_THREAD_SAFETY_ANALYSIS { return in_flight <= at_most || failure; };
  bool in_time = call.deadline.infinite() ? changed.Wait(mutex, call.stop, settled)
                                          : changed.WaitUntil(mutex, call.deadline.at(), call.stop, settled);
  if (failure) return Fail(*failure);
  if (in_time) return {};
  return call.stop.stop_requested() ? Fail(Code::kCancelled, "uploading {} was cancelled", key)
                                    : Fail(Code::kDeadlineExceeded, "uploading {} took too long", key);
}

Result<MultipartWriter::Finished> MultipartWriter::Rep::Finish(const object::Call& call) {
  MR_TRY(Ready());
  if (launched == 0) {
    ByteSpan body = block ? ByteSpan(block->buffer.span().first(block->filled)) : ByteSpan();
    auto put = object::Put(store, key, body, options.put, call);
    if (!put) return Fail(put.error());
    over = true;
    block.reset();
    return Finished{std::move(put->etag), size, crc};
  }
  if (block && block->filled > 0) MR_TRY(Launch(call));
  MR_TRY(AwaitInFlight(0, call));
  std::vector<object::PartInfo> ordered;
  {
    MutexLock lock(mutex);
    ordered = parts;
  }
  std::ranges::sort(ordered, {}, &object::PartInfo::number);
  auto completed = object::CompleteMultipart(store, key, upload_id, std::move(ordered), options.put, call);
  if (!completed) return Fail(completed.error());
  over = true;
  return Finished{std::move(completed->etag), size, crc};
}

void MultipartWriter::Rep::Abort() {
  if (over) return;
  over = true;
  stop.request_stop();
  {
    MutexLock lock(mutex);
    while (in_flight > 0) changed.Wait(mutex);
  }
  block.reset();
  // Best effort. If it fails, the parts stay invisible until the bucket's lifecycle rules remove them.
  if (!upload_id.empty()) (void)object::AbortMultipart(store, key, upload_id);
}

MultipartWriter::MultipartWriter(object::Store& store, MemoryBudget& budget, std::string key, Options options)
    : rep_(std::make_unique<Rep>(store, budget, std::move(key), std::move(options))) {}

MultipartWriter::~MultipartWriter() { rep_->Abort(); }

Status MultipartWriter::Write(ByteSpan bytes, object::Call call) {
  MR_TRY(rep_->Ready());
  while (!bytes.empty()) {
    MutableByteSpan space = MR_TRY(rep_->Space(call));
    std::size_t n = std::min(space.size(), bytes.size());
    std::ranges::copy(bytes.first(n), space.begin());
    MR_TRY(rep_->Commit(n));
    bytes = bytes.subspan(n);
  }
  return {};
}

Result<MutableByteSpan> MultipartWriter::Space(object::Call call) { return rep_->Space(call); }
Status MultipartWriter::Commit(std::size_t bytes) { return rep_->Commit(bytes); }
Result<MultipartWriter::Finished> MultipartWriter::Finish(object::Call call) { return rep_->Finish(call); }
void MultipartWriter::Abort() { rep_->Abort(); }
std::uint64_t MultipartWriter::bytes_written() const { return rep_->size; }

}  // namespace millrace::transfer
