#include "millrace/cache/block_cache.h"

#include <gtest/gtest.h>

#include <fstream>
#include <future>
#include <thread>

#include "millrace/base/files/files.h"
#include "millrace/base/hash/random.h"
#include "millrace/object/blocking.h"
#include "millrace/object/local/memory_store.h"

namespace millrace::cache {
namespace {

constexpr std::uint64_t kBlock = 4 * kKiB;

std::string Noise(std::size_t size, std::uint64_t seed = 1) {
  std::string text(size, '\0');
  Random random(seed);
  for (char& c : text) c = static_cast<char>(random.Next());
  return text;
}

class BlockCacheTest : public testing::Test {
 protected:
  void OpenCache(BlockCache::Options options) {
    cache_.reset();
    auto opened = BlockCache::Open(*store_, budget_, std::move(options));
    ASSERT_TRUE(opened) << opened.error().ToString();
    cache_ = *std::move(opened);
  }
  static BlockCache::Options Small(std::uint64_t memory = 256 * kKiB) {
    return {.block_bytes = kBlock, .max_fetch_bytes = 4 * kBlock, .memory_bytes = memory};
  }
  ObjectVersion PutObject(const std::string& key, std::string_view content) {
    auto put = object::Put(*store_, key, AsBytes(content));
    EXPECT_TRUE(put);
    return {key, put->etag, content.size()};
  }
  Result<std::string> Read(const ObjectVersion& version, std::uint64_t offset, std::size_t size, bool sparse = false,
                           object::Call call = {}) {
    std::string into(size, '?');
    const auto mode = sparse ? BlockCache::Mode::kExact : BlockCache::Mode::kBlocks;
    std::size_t n = MR_TRY(cache_->Read(version, offset, AsWritableBytes(into), mode, call));
    return into.substr(0, n);
  }

  /// While it lives, the store's only thread is held inside a completion: calls queue up behind it.
  class StalledStore {
   public:
    explicit StalledStore(object::Store& store) {
      std::promise<void> entered;
      store.Head("stall", {}, [&entered, release = release_.get_future().share()](auto) {
        entered.set_value();
        release.wait();
      });
      entered.get_future().wait();
    }
    ~StalledStore() { release_.set_value(); }

   private:
    std::promise<void> release_;
  };

  std::shared_ptr<object::Store> store_ = object::MakeMemoryStore();
  MemoryBudget budget_{8 * kMiB};
  std::unique_ptr<BlockCache> cache_;
};

TEST_F(BlockCacheTest, AnyRangeReadsAsTheObjectDoes) {
  const std::string content = Noise(10 * kBlock + 123);
  ObjectVersion version = PutObject("a", content);
  OpenCache(Small(8 * kBlock));  // less than the object
  Random random(7);
  for (int i = 0; i < 2000; ++i) {
    std::uint64_t offset = random.Below(content.size() + 50), size = random.Below(6 * kBlock);
    auto read = Read(version, offset, size, i % 3 == 0);
    ASSERT_TRUE(read) << read.error().ToString();
    ASSERT_EQ(*read, offset < content.size() ? content.substr(offset, size) : "") << offset << "+" << size;
    ASSERT_LE(cache_->stats().memory_bytes, cache_->capacity());
    if (i % 5 == 0) cache_->Prefetch(version, random.Below(content.size()), random.Below(4 * kBlock));
  }
}

TEST_F(BlockCacheTest, ABlockIsFetchedOnceForManyReaders) {
  const std::string content = Noise(3 * kBlock);
  ObjectVersion version = PutObject("a", content);
  OpenCache(Small());
  std::vector<std::future<Result<std::string>>> readers;
  {
    StalledStore stalled(*store_);
    for (int i = 0; i < 8; ++i) {
      readers.push_back(std::async(std::launch::async, [&, i] { return Read(version, i * 100, content.size()); }));
    }
    while (cache_->stats().memory_hits + cache_->stats().misses < 8) std::this_thread::yield();
  }
  for (int i = 0; i < 8; ++i) EXPECT_EQ(readers[i].get(), content.substr(i * 100));
  EXPECT_EQ(cache_->stats().misses, 1u);
  EXPECT_EQ(cache_->stats().bytes_fetched, content.size());
}

TEST_F(BlockCacheTest, AdjacentBlocksOfOnePartComeWithOneRequest) {
  ObjectVersion version = PutObject("a", Noise(12 * kBlock));
  OpenCache(Small());
  EXPECT_EQ(cache_->Prefetch(version, 2 * kBlock, 6 * kBlock).bytes, 6 * kBlock);  // blocks 2-3, 4-7
  EXPECT_EQ(cache_->stats().misses, 2u);
  EXPECT_TRUE(Read(version, 2 * kBlock, 6 * kBlock));
  EXPECT_EQ(cache_->stats().misses, 2u);
}

TEST_F(BlockCacheTest, SparseReadsFetchExactlyWhatIsMissing) {
  const std::string content = Noise(8 * kBlock);
  ObjectVersion version = PutObject("a", content);
  OpenCache(Small());
  EXPECT_EQ(Read(version, 100, 50, true), content.substr(100, 50));
  EXPECT_EQ(cache_->stats().bytes_fetched, 50u);
  ASSERT_TRUE(Read(version, kBlock, kBlock));
  EXPECT_EQ(Read(version, kBlock - 10, kBlock + 30, true), content.substr(kBlock - 10, kBlock + 30));
  EXPECT_EQ(cache_->stats().bytes_fetched, 50 + kBlock + 10 + 20);
  EXPECT_EQ(cache_->stats().memory_bytes, kBlock);
}

TEST_F(BlockCacheTest, AReplacedOrDeletedVersionIsStale) {
  ObjectVersion version = PutObject("a", Noise(4 * kBlock, 1));
  OpenCache({.block_bytes = kBlock, .max_fetch_bytes = kBlock, .memory_bytes = 256 * kKiB});
  ASSERT_TRUE(Read(version, 0, kBlock));
  PutObject("a", Noise(4 * kBlock, 2));
  EXPECT_TRUE(Read(version, 0, kBlock)) << "bytes of the version asked for are still here";
  for (bool sparse : {false, true}) EXPECT_EQ(Read(version, kBlock, kBlock, sparse).error().code(), Code::kStale);
  ASSERT_TRUE(object::Delete(*store_, "a"));
  for (bool sparse : {false, true}) EXPECT_EQ(Read(version, kBlock, kBlock, sparse).error().code(), Code::kStale);
  ObjectVersion fresh = PutObject("a", "new");
  EXPECT_EQ(Read(fresh, 0, 100), "new");
}

TEST_F(BlockCacheTest, ReadaheadDoesNotPushOutReadahead) {
  ObjectVersion version = PutObject("a", Noise(64 * kBlock));
  OpenCache(Small(8 * kBlock));
  std::uint64_t ahead = cache_->Prefetch(version, 0, 64 * kBlock).bytes;
  EXPECT_EQ(ahead, 8 * kBlock);
  ASSERT_TRUE(cache_->Fetch(version, 0, ahead));
  EXPECT_EQ(cache_->stats().misses, 2u) << "all of it stayed";
  ASSERT_TRUE(Read(version, 0, 4 * kBlock));  // one run is consumed: room for one more
  EXPECT_EQ(cache_->Prefetch(version, 8 * kBlock, 64 * kBlock).bytes, 4 * kBlock);
}

TEST_F(BlockCacheTest, AReadNeedsNoRoom) {
  const std::string content = Noise(6 * kBlock);
  ObjectVersion a = PutObject("a", content), b = PutObject("b", content);
  OpenCache(Small(4 * kBlock));
  auto stalled = std::make_unique<StalledStore>(*store_);
  cache_->Prefetch(a, 0, 4 * kBlock);  // fills the tier and stays under way
  auto read = std::async(std::launch::async, [&] { return Read(b, 0, 2 * kBlock); });
  while (cache_->stats().misses < 2) std::this_thread::yield();
  stalled.reset();
  EXPECT_EQ(read.get(), content.substr(0, 2 * kBlock));
}

TEST_F(BlockCacheTest, FetchTellsWhenTheStoreWasAsked) {
  ObjectVersion version = PutObject("a", Noise(2 * kBlock));
  OpenCache(Small());
  const TimePoint before = SystemClock().Now();
  auto proof = cache_->Fetch(version, 0, kBlock);
  ASSERT_TRUE(proof && proof->asked);
  EXPECT_TRUE(proof->now);
  EXPECT_GE(*proof->asked, before);
  auto again = cache_->Fetch(version, 0, kBlock);
  EXPECT_FALSE(again->now);  // here already: the proof is as old as it was
  EXPECT_EQ(again->asked, proof->asked);
  PutObject("a", "other");
  EXPECT_EQ(cache_->Fetch(version, kBlock, kBlock).error().code(), Code::kStale);
}

TEST_F(BlockCacheTest, AStoppedReaderLeavesAndTheBlockStillArrives) {
  const std::string content = Noise(kBlock);
  ObjectVersion version = PutObject("a", content);
  OpenCache(Small());
  std::stop_source stop;
  {
    StalledStore stalled(*store_);
    auto read = std::async(std::launch::async, [&] { return Read(version, 0, 10, false, {stop.get_token()}); });
    while (cache_->stats().misses == 0) std::this_thread::yield();
    stop.request_stop();
    EXPECT_EQ(read.get().error().code(), Code::kCancelled);
  }
  EXPECT_EQ(Read(version, 0, 10), content.substr(0, 10));
  EXPECT_EQ(cache_->stats().misses, 1u);
}

TEST_F(BlockCacheTest, MemoryComesFromTheBudget) {
  OpenCache(Small(1 * kMiB));
  EXPECT_EQ(budget_.used(), 1 * kMiB);
  cache_.reset();
  EXPECT_EQ(budget_.used(), 0u);
  auto all = budget_.TryAcquire(8 * kMiB, MemoryBudget::Priority::kForeground);
  auto refused = BlockCache::Open(*store_, budget_, Small());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kResourceExhausted);
  all->ShrinkTo(8 * kMiB - 40 * kKiB);
  OpenCache(Small(1 * kMiB));
  EXPECT_LE(cache_->capacity(), 40 * kKiB);
}

TEST_F(BlockCacheTest, BytesOnDiskSurviveARestartAndAreCheckedEveryTime) {
  auto folder = TempDir::Create();
  ASSERT_TRUE(folder);
  const std::string content = Noise(3 * kBlock + 17);
  ObjectVersion version = PutObject("a", content);
  auto options = Small();
  options.directory = folder->path() / "cache";
  options.disk_bytes = 1 * kMiB;
  OpenCache(options);
  ASSERT_EQ(Read(version, 0, content.size()), content);
  OpenCache(options);
  ASSERT_EQ(Read(version, 0, content.size()), content);
  EXPECT_EQ(cache_->stats().disk_hits, 1u);
  EXPECT_EQ(cache_->stats().misses, 0u);
  cache_.reset();

  const std::filesystem::path blocks = options.directory / "blocks-00";
  std::string bytes = *ReadFile(blocks);
  for (char& c : bytes) c = static_cast<char>(c ^ 1);
  std::ofstream(blocks, std::ios::binary) << bytes;
  OpenCache(options);
  EXPECT_EQ(Read(version, 0, content.size()), content);
  EXPECT_GT(cache_->stats().corrupt_blocks, 0u);
  EXPECT_EQ(cache_->stats().misses, 1u);
}

TEST_F(BlockCacheTest, ThreadsSeeOnlyTheVersionTheyAskedForWhileObjectsChange) {
  auto folder = TempDir::Create();
  ASSERT_TRUE(folder);
  auto options = Small(24 * kBlock);
  options.directory = folder->path();
  options.disk_bytes = 30 * kBlock;
  OpenCache(options);
  constexpr int kObjects = 4, kVersions = 12;
  auto content = [](int object, int version) { return Noise(7 * kBlock + 99 * object, object * 100 + version); };
  std::atomic<bool> done = false;
  struct Current {
    Mutex mutex;
    ObjectVersion version;
    int number = 0;
  } current[kObjects];
  for (int i = 0; i < kObjects; ++i) current[i].version = PutObject("o" + std::to_string(i), content(i, 0));
  std::vector<std::thread> readers;
  for (int t = 0; t < 4; ++t) {
    readers.emplace_back([&, t] {
      Random random(t);
      while (!done) {
        int i = static_cast<int>(random.Below(kObjects));
        ObjectVersion version;
        int number;
        {
          MutexLock lock(current[i].mutex);
          version = current[i].version;
          number = current[i].number;
        }
        const std::string expected = content(i, number);
        std::uint64_t offset = random.Below(expected.size()), size = random.Below(3 * kBlock);
        if (random.Below(3) == 0) cache_->Prefetch(version, offset, 4 * kBlock);
        auto read = Read(version, offset, size, random.Below(4) == 0);
        if (read) {
          EXPECT_EQ(*read, expected.substr(offset, size));
        } else {
          EXPECT_EQ(read.error().code(), Code::kStale) << read.error().ToString();
        }
        EXPECT_LE(cache_->stats().memory_bytes, cache_->capacity());
      }
    });
  }
  for (int v = 1; v < kVersions; ++v) {
    for (int i = 0; i < kObjects; ++i) {
      ObjectVersion next = PutObject("o" + std::to_string(i), content(i, v));
      MutexLock lock(current[i].mutex);
      current[i].version = next;
      current[i].number = v;
    }
    for (std::uint64_t before = cache_->stats().misses; cache_->stats().misses < before + 20;)
      std::this_thread::yield();
  }
  done = true;
  for (std::thread& reader : readers) reader.join();
}

}  // namespace
}  // namespace millrace::cache
