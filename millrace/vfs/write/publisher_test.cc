#include "millrace/vfs/write/publisher.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace millrace::vfs {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// A publisher whose attempts are counted, and fail where they are told to.
class PublisherTest : public testing::Test {
 protected:
  void Start(Publisher::Options options = {}) {
    publisher = std::make_unique<Publisher>(
        options, clock,
        [this](const InodePtr& inode, const object::Call&) -> Status {
          MutexLock lock(mutex);
          tried.push_back(inode->id);
          running += 1;
          most_running = std::max(most_running, running);
          news.NotifyAll();
          news.Wait(mutex, std::stop_token(), [&]() MR_REQUIRES(mutex) { return !held; });
          running -= 1;
          if (failing.contains(inode->id)) return Fail(Code::kUnavailable, "file {} fails", inode->id);
          return {};
        },
        [this](const InodePtr& inode) {
          MutexLock lock(mutex);
          finished.insert(inode->id);
          news.NotifyAll();
        });
  }
  bool Add(InodeId id, Duration delay = Duration::zero()) {
    auto added = publisher->Add(std::make_shared<Inode>(id, NodeKind::kFile), delay);
    return added && *added;
  }
  void AwaitTries(std::size_t count) {
    MutexLock lock(mutex);
    while (tried.size() < count) news.Wait(mutex);
    EXPECT_EQ(tried.size(), count);
  }
  void AwaitFinished(std::size_t count) {
    MutexLock lock(mutex);
    while (finished.size() < count) news.Wait(mutex);
  }
  void SetHeld(bool hold) {
    MutexLock lock(mutex);
    held = hold;
    news.NotifyAll();
  }
  void SetFailing(std::set<InodeId> ids) {
    MutexLock lock(mutex);
    failing = std::move(ids);
  }

  FakeClock clock;
  Mutex mutex;
  CondVar news;
  std::vector<InodeId> tried MR_GUARDED_BY(mutex);
  std::set<InodeId> finished MR_GUARDED_BY(mutex), failing MR_GUARDED_BY(mutex);
  bool held MR_GUARDED_BY(mutex) = false;
  int running MR_GUARDED_BY(mutex) = 0, most_running MR_GUARDED_BY(mutex) = 0;
  std::unique_ptr<Publisher> publisher;
};

TEST_F(PublisherTest, AFileIsTriedWhenItsTimeHasCome) {
  Start();
  ASSERT_TRUE(Add(1, seconds(1)));
  clock.AwaitSleepers(1);
  clock.Advance(milliseconds(999));
  EXPECT_EQ(publisher->stats().waiting, 1);
  EXPECT_FALSE(Add(1, seconds(9))) << "it waits already";
  clock.Advance(milliseconds(1));
  AwaitFinished(1);
  AwaitTries(1);
  EXPECT_EQ(publisher->stats().waiting, 0);
  EXPECT_TRUE(Add(1)) << "and may come again";
  AwaitTries(2);
}

TEST_F(PublisherTest, EachFailureDoublesTheWait) {
  Start({.first_retry = seconds(1), .longest_retry = seconds(5)});
  SetFailing({1});
  Add(1);
  std::size_t tries = 1;
  for (Duration wait : {seconds(1), seconds(2), seconds(4), seconds(5), seconds(5)}) {
    AwaitTries(tries);
    clock.AwaitSleepers(1);
    clock.Advance(wait - milliseconds(1));
    AwaitTries(tries);
    clock.Advance(milliseconds(1));
    AwaitTries(++tries);
  }
  while (publisher->stats().failures < 6) std::this_thread::yield();
  const Publisher::Stats stats = publisher->stats();
  EXPECT_EQ(stats.failing, 1);
  ASSERT_TRUE(stats.error.has_value());
  EXPECT_EQ(stats.error->ToString(), "file 1 fails");
  SetFailing({});
  EXPECT_TRUE(publisher->Flush({})) << "at once";
  EXPECT_EQ(publisher->stats().waiting, 0);
}

TEST_F(PublisherTest, AFewAreTriedAtOnceAndOldOnesFirst) {
  Start({.parallel = 3});
  SetHeld(true);
  for (InodeId id = 9; id > 0; --id) Add(id, seconds(1) + milliseconds(10 - id));
  clock.AwaitSleepers(1);
  clock.Advance(seconds(2));
  AwaitTries(3);
  {
    MutexLock lock(mutex);
    EXPECT_EQ(std::set<InodeId>(tried.begin(), tried.end()), (std::set<InodeId>{9, 8, 7}));
  }
  SetHeld(false);
  AwaitFinished(9);
  MutexLock lock(mutex);
  EXPECT_EQ(most_running, 3);
}

TEST_F(PublisherTest, AFileAddedWhileItIsTriedIsTriedOnceMoreNotTwiceAtATime) {
  Start();
  SetHeld(true);
  Add(1);
  AwaitTries(1);
  EXPECT_FALSE(Add(1));
  EXPECT_FALSE(Add(1));
  SetHeld(false);
  AwaitFinished(1);
  AwaitTries(2);
  MutexLock lock(mutex);
  EXPECT_EQ(most_running, 1);
}

TEST_F(PublisherTest, FlushTriesAllOnceAndTellsWhatFails) {
  Start();
  SetFailing({2});
  for (InodeId id = 1; id <= 3; ++id) Add(id, seconds(100));
  Status flushed = publisher->Flush({});
  ASSERT_FALSE(flushed);
  EXPECT_EQ(flushed.error().ToString(), "file 2 fails");
  AwaitTries(3);
  EXPECT_EQ(publisher->stats().waiting, 1);
  EXPECT_TRUE(publisher->Waits(Inode(2, NodeKind::kFile)));
}

TEST_F(PublisherTest, FlushGivesUpAtItsDeadline) {
  Start();
  SetHeld(true);
  Add(1);
  Status flushed = publisher->Flush({.deadline = Deadline(std::chrono::steady_clock::now())});
  ASSERT_FALSE(flushed);
  EXPECT_EQ(flushed.error().code(), Code::kDeadlineExceeded);
  SetHeld(false);
}

TEST_F(PublisherTest, TheSetIsBounded) {
  Start({.most = 2});
  SetFailing({1, 2});
  Add(1);
  Add(2);
  EXPECT_FALSE(Add(2)) << "it waits";
  auto third = publisher->Add(std::make_shared<Inode>(3, NodeKind::kFile), {});
  ASSERT_FALSE(third);
  EXPECT_EQ(third.error().code(), Code::kResourceExhausted);
}

TEST_F(PublisherTest, RoomIsAwaitedOnlyWhereThereIsHope) {
  Start();
  EXPECT_FALSE(publisher->AwaitProgress({}));
  SetFailing({1});
  Add(1);
  EXPECT_FALSE(publisher->AwaitProgress({})) << "it fails";
  Add(2, seconds(1000));
  EXPECT_TRUE(publisher->AwaitProgress({}));
}

TEST_F(PublisherTest, WhatWaitsAtTheEndIsLeft) {
  Start();
  Add(1, seconds(1));
  publisher.reset();
  AwaitTries(0);
}

}  // namespace
}  // namespace millrace::vfs
