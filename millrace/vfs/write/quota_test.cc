#include "millrace/vfs/write/quota.h"

#include <gtest/gtest.h>

#include <stop_token>
#include <thread>
#include <utility>

#include "millrace/object/blocking.h"
#include "millrace/object/local/memory_store.h"

namespace millrace::vfs {
namespace {

class QuotaTest : public testing::Test {
 protected:
  void Put(const std::string& key, std::size_t size) {
    const std::string content(size, 'x');
    ASSERT_TRUE(object::Put(*store_, key, AsBytes(content)));
  }
  bool Add(std::uint64_t bytes) {
    const Status added = quota_.Add(bytes, {});
    if (!added) EXPECT_EQ(added.error().code(), Code::kNoSpace) << added.error().ToString();
    return added.has_value();
  }

  FakeClock clock_;
  std::shared_ptr<object::Store> store_ = object::MakeMemoryStore();
  std::uint64_t limit_ = 100, unpublished_ = 0;
  std::function<void()> on_limit_ = [] {};
  bool limit_fails_ = false;
  Quota quota_{{.store = *store_,
                .prefix = "v/",
                .limit = [this](const object::Call&) -> Result<std::uint64_t> {
                  on_limit_();
                  if (limit_fails_) return Fail(Code::kUnavailable, "no answer");
                  return limit_;
                },
                .unpublished = [this] { return unpublished_; },
                .clock = clock_,
                .log = {}}};
};

TEST_F(QuotaTest, CountsWhatIsThereAndWhatIsAdded) {
  Put("v/a", 60);
  Put("w", 1000);
  EXPECT_TRUE(Add(30));
  EXPECT_FALSE(Add(11));
  EXPECT_TRUE(Add(10));
  EXPECT_FALSE(Add(1));
  EXPECT_EQ(quota_.Current({})->used, 100u);
}

TEST_F(QuotaTest, SeesWhatOthersRemoveAfterAWhile) {
  Put("v/a", 100);
  EXPECT_FALSE(Add(1));
  ASSERT_TRUE(object::Delete(*store_, "v/a"));
  EXPECT_FALSE(Add(1)) << "each write of a full volume would list it";
  clock_.Advance(std::chrono::seconds(6));
  EXPECT_TRUE(Add(100));
}

TEST_F(QuotaTest, SeesWhatItsTreeRemovesAtOnce) {
  Put("v/a", 100);
  EXPECT_FALSE(Add(1));
  ASSERT_TRUE(object::Delete(*store_, "v/a"));
  quota_.NoteRemoval();
  EXPECT_TRUE(Add(100));
}

TEST_F(QuotaTest, CountsAFileThatIsReplacedOnce) {
  Put("v/a", 80);
  EXPECT_TRUE(Add(20));
  clock_.Advance(std::chrono::seconds(6));
  unpublished_ = 0;  // the new content is not longer than the old one
  EXPECT_TRUE(Add(20));
}

TEST_F(QuotaTest, CountsWhatIsPublishedWhileItLists) {
  unpublished_ = 80;
  on_limit_ = [this] {  // asked for with the listing
    unpublished_ = 0;
    Put("v/a", 80);
  };
  EXPECT_EQ(quota_.Current({})->used, 160u) << "too much, rather than too little";
  clock_.Advance(std::chrono::minutes(2));
  EXPECT_EQ(quota_.Current({})->used, 80u);
}

TEST_F(QuotaTest, ReportsDoNotListAfterEachRemoval) {
  int listings = 0;
  on_limit_ = [&] { ++listings; };
  for (int i = 0; i < 3; ++i) {
    quota_.NoteRemoval();
    EXPECT_TRUE(quota_.Current({}));
  }
  EXPECT_EQ(listings, 1);
  clock_.Advance(std::chrono::seconds(6));
  EXPECT_TRUE(quota_.Current({}));
  EXPECT_EQ(listings, 2);
}

TEST_F(QuotaTest, ReportsGoOnWithoutTheStore) {
  EXPECT_TRUE(Add(30));
  clock_.Advance(std::chrono::minutes(2));
  std::stop_source stopped;
  stopped.request_stop();
  EXPECT_EQ(quota_.Current({.stop = stopped.get_token()})->used, 30u);
}

TEST_F(QuotaTest, ThoseThatWaitForAListingLearnThatItFailed) {
  limit_fails_ = true;
  std::jthread other;
  Status of_other;
  bool begun = false;
  on_limit_ = [&] {
    if (std::exchange(begun, true)) return;
    other = std::jthread([&] {
      if (auto usage = quota_.Current({}); !usage) of_other = Fail(usage.error());
    });
  };
  EXPECT_FALSE(quota_.Current({}));
  other.join();
  EXPECT_FALSE(of_other);
}

TEST_F(QuotaTest, AListingThatFailsForgetsNoRemoval) {
  Put("v/a", 100);
  EXPECT_FALSE(Add(1));
  ASSERT_TRUE(object::Delete(*store_, "v/a"));
  quota_.NoteRemoval();
  std::stop_source stopped;
  stopped.request_stop();
  EXPECT_TRUE(quota_.Add(1, {.stop = stopped.get_token()})) << "accepted unseen";
  EXPECT_TRUE(Add(100));
}

TEST_F(QuotaTest, FollowsALimitThatChanges) {
  Put("v/a", 100);
  EXPECT_FALSE(Add(1));
  limit_ = 200;
  clock_.Advance(std::chrono::seconds(6));
  EXPECT_TRUE(Add(100));
  EXPECT_EQ(quota_.Current({})->limit, 200u);
  limit_fails_ = true;
  clock_.Advance(std::chrono::minutes(2));
  EXPECT_EQ(quota_.Current({})->limit, 200u) << "the last one stays";
  limit_fails_ = false;
  limit_ = 0;
  clock_.Advance(std::chrono::minutes(2));
  EXPECT_EQ(quota_.Current({})->limit, 0u);
  EXPECT_TRUE(Add(1'000'000));
}

}  // namespace
}  // namespace millrace::vfs
