#include "millrace/vfs/read/file_readahead.h"

#include <gtest/gtest.h>

#include <thread>

#include "millrace/base/hash/random.h"
#include "millrace/base/threads/memory_budget.h"
#include "millrace/object/blocking.h"
#include "millrace/object/local/memory_store.h"

namespace millrace::vfs {
namespace {

using std::chrono::milliseconds;

class FileReadaheadTest : public testing::Test {
 protected:
  void SetUp() override {
    for (int i = 0; i < 200; ++i) Put(Name(i), fmt::format("content {}", i));
    Start();
  }
  void Start(std::uint64_t most_bytes = kMiB) {
    ahead_.reset();
    ahead_ = std::make_unique<FileReadahead>(
        *store_, *cache_, metadata_, attributes_, clock_,
        FileReadahead::Options{.most_bytes = most_bytes, .trust = milliseconds(1000), .guess = {}, .has_bytes = {}});
  }
  static std::string Name(int i) { return fmt::format("d/f{:03}", i); }
  void Put(const std::string& key, std::string_view content) {
    ASSERT_TRUE(object::Put(*store_, key, AsBytes(content), {}));
  }
  /// As an open does. True when it needed no question.
  bool Open(const std::string& path) {
    const bool confirmed = ahead_->Confirm(path, {}).has_value();
    ahead_->OnOpen(path);
    return confirmed;
  }
  void AwaitGuesses(std::uint64_t count) {
    while (ahead_->stats().guesses < count) std::this_thread::yield();
  }
  std::string EtagNow(const std::string& key) { return (*object::Head(*store_, key))->etag; }

  MemoryBudget budget_{64 * kMiB};
  FakeClock clock_;
  std::shared_ptr<object::Store> store_ = object::MakeMemoryStore();
  std::unique_ptr<cache::BlockCache> cache_ = *cache::BlockCache::Open(
      *store_, budget_,
      {.block_bytes = 4 * kKiB, .max_fetch_bytes = 32 * kKiB, .memory_bytes = kMiB, .clock = &clock_});
  MetadataCache metadata_{clock_, milliseconds(1000), milliseconds(1000), 10'000};
  AttributeStore attributes_{*store_, metadata_, clock_, "", StoredAttributesPolicy::kAuto};
  std::unique_ptr<FileReadahead> ahead_;
};

TEST_F(FileReadaheadTest, FilesOpenedInListingOrderAreProvedAndHereBeforeTheirOpen) {
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(Open(Name(i)));
  AwaitGuesses(8);
  for (int i = 3; i < 200; ++i) EXPECT_TRUE(Open(Name(i))) << i;
  EXPECT_EQ(ahead_->stats().opened, 197u);
  EXPECT_EQ(cache_->stats().misses, 197u);  // one request a file
}

TEST_F(FileReadaheadTest, AFileThatWasReplacedIsNotConfirmed) {
  for (int i = 0; i < 3; ++i) Open(Name(i));
  AwaitGuesses(8);
  EXPECT_TRUE(ahead_->Confirm(Name(4), {}));
  clock_.Advance(milliseconds(1100));
  EXPECT_FALSE(ahead_->Confirm(Name(4), {}));  // too long ago
  Put(Name(100), "new");
  for (int i = 3; i < 100; ++i) Open(Name(i));
  const auto confirmed = ahead_->Confirm(Name(100), {});
  EXPECT_TRUE(!confirmed || confirmed->etag == EtagNow(Name(100)));
}

TEST_F(FileReadaheadTest, LaterKnowledgeWins) {
  for (int i = 0; i < 3; ++i) Open(Name(i));
  AwaitGuesses(8);
  EXPECT_TRUE(ahead_->Confirm(Name(5), {}));
  clock_.Advance(milliseconds(1));
  metadata_.Put(Name(5), {.as_of = clock_.Now()});  // removed through this mount
  EXPECT_FALSE(ahead_->Confirm(Name(5), {}));
}

TEST_F(FileReadaheadTest, FilesOpenedInAnyOrderAreLeftAlone) {
  for (int i = 200; i < 4000; ++i) Put(fmt::format("d/g{:04}", i), "x");
  Random random(1);
  for (int i = 0; i < 2000; ++i) Open(fmt::format("d/g{:04}", 200 + random.Below(3800)));
  EXPECT_LE(ahead_->stats().guesses - ahead_->stats().opened, 200u);
}

TEST_F(FileReadaheadTest, HintsAreReadInTheirOrderAndPassOverWhatIsNoFile) {
  std::vector<std::string> plan;
  for (int i = 199; i >= 0; i -= 3) plan.push_back(Name(i * 7 % 200));
  plan.insert(plan.begin() + 5, "d/none");
  EXPECT_EQ(ahead_->WillOpen(plan), plan.size());
  for (const std::string& path : plan) {
    EXPECT_EQ(Open(path), path != "d/none") << path;
  }
}

TEST_F(FileReadaheadTest, GuessesAreBounded) {
  Start(/*most_bytes=*/100);
  std::vector<std::string> plan;
  for (int i = 0; i < 200; ++i) plan.push_back(Name(i));
  metadata_.Put(Name(0), FileMetadata(**object::Head(*store_, Name(0)), clock_.Now()));
  EXPECT_EQ(ahead_->WillOpen(plan), 200u);
  EXPECT_LE(ahead_->stats().guesses, 64u);
}

}  // namespace
}  // namespace millrace::vfs
