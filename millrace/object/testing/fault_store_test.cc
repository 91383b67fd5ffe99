#include "millrace/object/testing/fault_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <thread>

#include "millrace/object/blocking.h"
#include "millrace/object/local/memory_store.h"

namespace millrace::object {
namespace {

TEST(FaultStore, FailsTheNthCallOfAnOperation) {
  auto store = FaultStore::Create(MakeMemoryStore());
  store->Add({.operation = Operation::kPut, .skip = 2, .times = 2, .fault = {.code = Code::kThrottled}});
  std::string outcome;
  for (int i = 0; i < 6; ++i) outcome += Put(*store, "k", AsBytes("x")) ? '+' : '-';
  EXPECT_EQ(outcome, "++--++");
  EXPECT_EQ(store->calls(Operation::kPut), 6u);
  EXPECT_TRUE(Head(*store, "k"));
}

TEST(FaultStore, ErrorRateRepeatsWithItsSeed) {
  auto run = [](std::uint64_t seed) {
    auto store = FaultStore::Create(MakeMemoryStore(), seed);
    store->Add({.times = -1, .probability = 0.3, .fault = {.code = Code::kUnavailable}});
    std::string outcome;
    for (int i = 0; i < 100; ++i) outcome += Head(*store, "k") ? '+' : '-';
    return outcome;
  };
  EXPECT_EQ(run(5), run(5));
  EXPECT_NE(run(5), run(6));
  std::string outcome = run(5);
  auto failed = std::count(outcome.begin(), outcome.end(), '-');
  EXPECT_GT(failed, 10);
  EXPECT_LT(failed, 60);
}

TEST(FaultStore, ALostResponseStillTookEffect) {
  auto store = FaultStore::Create(MakeMemoryStore());
  store->Add({.operation = Operation::kPut, .fault = {.code = Code::kUnavailable, .after_effect = true}});
  store->Add({.operation = Operation::kDelete, .fault = {.code = Code::kUnavailable}});
  EXPECT_FALSE(Put(*store, "k", AsBytes("there")));
  EXPECT_FALSE(Delete(*store, "k"));
  auto content = GetAll(*store, "k", 100);
  ASSERT_TRUE(content && *content);
  EXPECT_EQ((*content)->bytes, "there");
}

TEST(FaultStore, CutsABodyShort) {
  auto store = FaultStore::Create(MakeMemoryStore());
  ASSERT_TRUE(Put(*store, "k", AsBytes("0123456789")));
  store->Add({.operation = Operation::kGet, .fault = {.cut_after = 4}});
  std::string into(10, '?');
  auto cut = Get(*store, "k", {}, AsWritableBytes(into));
  ASSERT_FALSE(cut);
  EXPECT_EQ(cut.error().code(), Code::kUnavailable);
  EXPECT_EQ(into, "0123??????");
  EXPECT_TRUE(Get(*store, "k", {}, AsWritableBytes(into)));
  EXPECT_EQ(into, "0123456789");
}

TEST(FaultStore, RulesSelectKeysAndCanBeForgotten) {
  auto store = FaultStore::Create(MakeMemoryStore());
  store->Add({.key_prefix = "bad/", .times = -1, .fault = {.code = Code::kPermissionDenied}});
  EXPECT_TRUE(Head(*store, "good"));
  EXPECT_FALSE(Head(*store, "bad/x"));
  store->Clear();
  EXPECT_TRUE(Head(*store, "bad/x"));
}

TEST(FaultStore, LatencyIsPaidByTheClock) {
  FakeClock clock;
  auto store = FaultStore::Create(MakeMemoryStore(), 1, clock);
  store->Add({.fault = {.latency = std::chrono::hours(1)}});
  std::promise<bool> done;
  store->Head("k", {}, [&](Result<std::optional<ObjectInfo>> head) { done.set_value(head.has_value()); });
  clock.AwaitSleepers(1);
  std::future<bool> outcome = done.get_future();
  EXPECT_EQ(outcome.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  clock.Advance(std::chrono::hours(1));
  EXPECT_TRUE(outcome.get());
}

TEST(FaultStore, CancellingEndsTheWait) {
  FakeClock clock;
  auto store = FaultStore::Create(MakeMemoryStore(), 1, clock);
  store->Add({.fault = {.latency = std::chrono::hours(1)}});
  std::stop_source stop;
  std::jthread canceller([&] {
    clock.AwaitSleepers(1);
    stop.request_stop();
  });
  auto head = Head(*store, "k", {.stop = stop.get_token()});
  ASSERT_FALSE(head);
  EXPECT_EQ(head.error().code(), Code::kCancelled);
}

}  // namespace
}  // namespace millrace::object
