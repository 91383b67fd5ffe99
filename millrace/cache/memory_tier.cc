#include "millrace/cache/memory_tier.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <new>

namespace millrace::cache {
namespace {

constexpr std::uint64_t kHugePage = 2 * kMiB;  ///< of x86-64, and of arm64 with pages of 4 KiB
/// Smaller buffers are not pooled: the allocator reuses them itself. 64 KiB is a guess below the size (128 KiB) from
/// which glibc returns memory to the system.
constexpr std::uint64_t kPooled = 64 * kKiB;

/// The pool's share of the memory: an eighth, in whole fetches.
std::uint64_t SpareBytes(std::uint64_t capacity, std::uint64_t fetch_bytes) {
  return capacity / 8 / fetch_bytes * fetch_bytes;
}

}  // namespace

VersionKey::VersionKey(const ObjectVersion& v)
    : version(v),
      hash(Mix64(std::hash<std::string_view>()(v.key)) ^ std::hash<std::string_view>()(v.etag) ^ Mix64(v.size)) {}

RunBuffer::RunBuffer(std::uint64_t size) : size_(size) {
  const bool huge = size > 0 && size % kHugePage == 0;
  auto* memory = static_cast<std::byte*>(huge ? std::aligned_alloc(kHugePage, size) : std::malloc(size));
  if (!memory && size > 0) throw std::bad_alloc();
  if (huge) ::madvise(memory, size, MADV_HUGEPAGE);  // an error is harmless: small pages work too
  bytes_.reset(memory);
}

std::uint64_t BufferPool::RoundUp(std::uint64_t bytes) {
  if (bytes < kPooled) return bytes;
  const std::uint64_t step = std::bit_floor(bytes) / 4;
  return (bytes + step - 1) / step * step;
}

RunBuffer BufferPool::Take(std::uint64_t bytes) {
  const std::uint64_t size = RoundUp(bytes);
  {
    MutexLock lock(mutex_);
    auto found = std::find_if(spare_.rbegin(), spare_.rend(), [&](const RunBuffer& b) { return b.size() == size; });
    if (found != spare_.rend()) {
      RunBuffer buffer = std::move(*found);
      spare_.erase(std::next(found).base());
      spare_bytes_ -= size;
      return buffer;
    }
  }
  return RunBuffer(size);
}

void BufferPool::Give(RunBuffer buffer) {
  if (buffer.size() < kPooled || buffer.size() > most_) return;
  std::vector<RunBuffer> dropped;  // freed without the lock
  MutexLock lock(mutex_);
  spare_bytes_ += buffer.size();
  spare_.push_back(std::move(buffer));
  while (spare_bytes_ > most_) {
    spare_bytes_ -= spare_.front().size();
    dropped.push_back(std::move(spare_.front()));
    spare_.erase(spare_.begin());
  }
}

BlockRun::BlockRun(const VersionKey& key, std::uint64_t first, std::uint64_t count, std::uint64_t at,
                   std::uint64_t size, std::atomic<std::uint64_t>& held, BufferPool& pool)
    : version(key.version),
      version_hash(key.hash),
      first_block(first),
      blocks(count),
      offset(at),
      held_(held),
      pool_(pool),
      size_(size),
      buffer_(pool.Take(size)) {
  held_ += memory();
}

BlockRun::~BlockRun() {
  held_ -= memory();
  pool_.Give(std::move(buffer_));
}

void BlockRun::Finish(std::optional<Error> error) {
  MutexLock lock(mutex_);
  done_ = true;
  ready_.store(!error, std::memory_order_release);
  error_ = std::move(error);
  finished_.NotifyAll();
}

Status BlockRun::Wait(const object::Call& call) {
  if (ready_.load(std::memory_order_acquire)) return {};
  MutexLock lock(mutex_);
  auto done = [this]() MR_NO_THREAD_SAFETY_ANALYSIS { return done_; };
  bool finished = call.deadline.infinite() ? finished_.Wait(mutex_, call.stop, done)
                                           : finished_.WaitUntil(mutex_, call.deadline.at(), call.stop, done);
  if (!finished) {
    return Fail(call.stop.stop_requested() ? Code::kCancelled : Code::kDeadlineExceeded, "waiting for bytes of {}",
                version.key);
  }
  if (error_) return Fail(*error_);
  return {};
}

MemoryTier::MemoryTier(std::uint64_t capacity, std::uint64_t block_bytes, std::uint64_t blocks_per_fetch,
                       std::uint64_t keep_read)
    : block_bytes_(block_bytes),
      blocks_per_fetch_(blocks_per_fetch),
      pool_(SpareBytes(capacity, block_bytes * blocks_per_fetch)) {
  capacity -= SpareBytes(capacity, block_bytes * blocks_per_fetch);
  // Few large shards: each must hold several runs for its order of eviction to mean something.
  std::uint64_t shards = std::clamp<std::uint64_t>(capacity / (8 * block_bytes * blocks_per_fetch), 1, 16);
  shard_capacity_ = capacity / shards;
  shard_keep_read_ = keep_read / shards;
  for (std::uint64_t i = 0; i < shards; ++i) shards_.push_back(std::make_unique<Shard>());
}

MemoryTier::Shard& MemoryTier::ShardOf(std::uint64_t version_hash, std::uint64_t block) {
  // Adjacent parts of an object go to adjacent shards, so that one long read fills all shards evenly.
  return *shards_[(version_hash + block / blocks_per_fetch_) % shards_.size()];
}

MemoryTier::Claim MemoryTier::Find(const VersionKey& key, std::uint64_t block, std::uint64_t last_block,
                                   Priority priority) {
  last_block = std::min(last_block, block / blocks_per_fetch_ * blocks_per_fetch_ + blocks_per_fetch_ - 1);
  Shard& shard = ShardOf(key.hash, block);
  MutexLock lock(shard.mutex);
  if (auto found = shard.index.find({key.hash, block}); found != shard.index.end()) {
    const ObjectVersion& other = found->second->version;
    if (other.key != key.version.key || other.etag != key.version.etag) return {};  // a collision of 64-bit hashes
    return {found->second, false};
  }
  std::uint64_t blocks = 1;
  while (block + blocks <= last_block && !shard.index.contains({key.hash, block + blocks})) ++blocks;
  const std::uint64_t offset = block * block_bytes_;
  auto size_of = [&](std::uint64_t n) { return std::min(n * block_bytes_, key.version.size - offset); };
  if (!MakeRoom(shard, BufferPool::RoundUp(size_of(blocks)), priority)) {
    if (blocks == 1 || !MakeRoom(shard, BufferPool::RoundUp(size_of(1)), priority)) return {};
    blocks = 1;
  }
  auto run = std::make_shared<BlockRun>(key, block, blocks, offset, size_of(blocks), shard.held, pool_);
  for (std::uint64_t i = 0; i < blocks; ++i) shard.index[{key.hash, block + i}] = run;
  return {std::move(run), true};
}

std::shared_ptr<BlockRun> MemoryTier::Peek(const VersionKey& key, std::uint64_t block) {
  Shard& shard = ShardOf(key.hash, block);
  MutexLock lock(shard.mutex);
  auto found = shard.index.find({key.hash, block});
  if (found == shard.index.end()) return nullptr;
  const ObjectVersion& other = found->second->version;
  return other.key == key.version.key && other.etag == key.version.etag ? found->second : nullptr;
}

void MemoryTier::Publish(const std::shared_ptr<BlockRun>& run, std::optional<Error> error) {
  Shard& shard = ShardOf(run->version_hash, run->first_block);
  {
    MutexLock lock(shard.mutex);
    if (error) {
      Drop(shard, run);
    } else {
      run->state_ = BlockRun::State::kFresh;
      run->position_ = shard.fresh.insert(shard.fresh.end(), run);
    }
  }
  run->Finish(std::move(error));
}

void MemoryTier::Touch(const std::shared_ptr<BlockRun>& run, std::uint64_t end) {
  Shard& shard = ShardOf(run->version_hash, run->first_block);
  MutexLock lock(shard.mutex);
  if (run->state_ == BlockRun::State::kFresh && end >= run->end()) {
    shard.consumed.splice(shard.consumed.end(), shard.fresh, run->position_);
    shard.consumed_bytes += run->memory();
    run->state_ = BlockRun::State::kConsumed;
    while (shard.consumed_bytes > shard_keep_read_ && shard.consumed.size() > 1) EvictOldest(shard, shard.consumed);
  } else if (run->state_ == BlockRun::State::kFresh) {
    shard.fresh.splice(shard.fresh.end(), shard.fresh, run->position_);
  } else if (run->state_ == BlockRun::State::kConsumed) {
    shard.consumed.splice(shard.consumed.end(), shard.consumed, run->position_);
  }
}

void MemoryTier::EvictOldest(Shard& shard, std::list<std::shared_ptr<BlockRun>>& queue) {
  Drop(shard, std::shared_ptr<BlockRun>(queue.front()));  // a copy: Drop() erases the element
  ++evictions_;
}

bool MemoryTier::MakeRoom(Shard& shard, std::uint64_t bytes, Priority priority) {
  auto fits = [&] { return shard.held + bytes <= shard_capacity_; };
  while (!fits() && !shard.consumed.empty()) EvictOldest(shard, shard.consumed);
  if (priority == Priority::kSpeculative) return fits();
  while (!fits() && !shard.fresh.empty()) EvictOldest(shard, shard.fresh);
  return fits();
}

void MemoryTier::Unlink(Shard& shard, BlockRun& run) {
  if (run.state_ == BlockRun::State::kFresh) {
    shard.fresh.erase(run.position_);
  } else if (run.state_ == BlockRun::State::kConsumed) {
    shard.consumed_bytes -= run.memory();
    shard.consumed.erase(run.position_);
  }
  run.state_ = BlockRun::State::kDropped;
}

void MemoryTier::Drop(Shard& shard, const std::shared_ptr<BlockRun>& run) {
  for (std::uint64_t i = 0; i < run->blocks; ++i) shard.index.erase({run->version_hash, run->first_block + i});
  Unlink(shard, *run);
}

std::uint64_t MemoryTier::held() const {
  std::uint64_t sum = 0;
  for (const auto& shard : shards_) sum += shard->held;
  return sum;
}

}  // namespace millrace::cache
