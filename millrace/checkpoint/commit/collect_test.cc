// Retention, pins and holds: what is wanted stays, whoever collects when.
#include <gmock/gmock.h>

#include <atomic>
#include <latch>
#include <thread>

#include "millrace/checkpoint/commit/collect.h"
#include "millrace/checkpoint/commit/pins.h"
#include "millrace/checkpoint/format/checkpoint_keys.h"
#include "millrace/checkpoint/read/catalog.h"
#include "millrace/checkpoint/read/reader.h"
#include "millrace/checkpoint/save/writer.h"
#include "millrace/checkpoint/testing/checkpoint_test_base.h"
#include "millrace/checkpoint/testing/random_state.h"
#include "millrace/checkpoint/testing/thread_group.h"
#include "millrace/object/blocking.h"
#include "millrace/object/local/memory_store.h"
#include "millrace/object/testing/fault_store.h"

namespace millrace::checkpoint {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::State;
using testing::StoreConnection;

class CollectTest : public ::testing::Test {
 protected:
  void SetUp() override { Fresh(); }
  void Fresh() {
    object::MemoryStoreOptions options;
    options.clock = &clock_;
    store_ = object::FaultStore::Create(object::MakeMemoryStore(options), 1, clock_);
    connection_ = std::make_unique<StoreConnection>(store_);
  }
  object::Location Root() { return {store_, "run"}; }

  void Save(std::uint64_t step, const std::map<std::string, double>& metrics = {}) {
    clock_.Advance(std::chrono::seconds(1));
    Writer::Options options{.url = "s3://bucket/run", .retention = {.keep_last = 1000}, .clock = &clock_};
    auto writer = *Writer::Open(*connection_, SingleRankExchange(), budget_, options);
    ASSERT_TRUE(writer->Save(step, state_.Share(1, 0)[0], {}, {.metrics = metrics}));
    auto saved = writer->Wait();
    ASSERT_TRUE(saved) << saved.error().ToString();
  }
  std::vector<std::uint64_t> Collect(const Retention& retention) {
    auto collected = CollectGarbage(Root(), retention, false);
    EXPECT_TRUE(collected) << collected.error().ToString();
    return collected ? collected->removed_steps : std::vector<std::uint64_t>{};
  }
  std::vector<std::uint64_t> Steps() {
    std::vector<std::uint64_t> steps;
    const auto entries = ListCheckpoints(Root());
    for (const ListedCheckpoint& entry : *entries) steps.push_back(entry.step);
    return steps;
  }
  void ExpectWhole(std::uint64_t step) {
    auto reader = Reader::Open(*connection_, "s3://bucket/run", step);
    ASSERT_TRUE(reader) << reader.error().ToString();
    EXPECT_TRUE((*reader)->Verify(1));
  }
  std::vector<std::string> Marks() {
    std::vector<std::string> marks;
    const auto page = object::List(*store_, {});
    for (const auto& object : page->objects)
      if (CheckpointKeys("run").ParseMark(object.key)) marks.push_back(object.key);
    return marks;
  }

  FakeClock clock_;
  MemoryBudget budget_{16 * kMiB};
  const State state_ = State::Random(1, 3, 200);
  std::shared_ptr<object::FaultStore> store_;
  std::unique_ptr<StoreConnection> connection_;
};

TEST_F(CollectTest, TheBestStayByTheirMetric) {
  const double loss[] = {5, 3, 4, 1, 2, 6};
  for (std::uint64_t step = 1; step <= 6; ++step) Save(step, {{"loss", loss[step - 1]}, {"accuracy", loss[step - 1]}});
  EXPECT_THAT(Collect({.keep_last = 1, .keep_best = 3}), ElementsAre(1, 3));
  EXPECT_THAT(Steps(), ElementsAre(2, 4, 5, 6));
  Save(7);  // knows no metric
  EXPECT_THAT(Collect({.keep_last = 1, .keep_best = 1, .metric = "accuracy", .greatest = true}), ElementsAre(2, 4, 5));
  EXPECT_THAT(Steps(), ElementsAre(6, 7));
}

TEST_F(CollectTest, APinnedStepStaysUntilItIsUnpinned) {
  for (std::uint64_t step : {1, 2, 3}) Save(step);
  ASSERT_TRUE(Pin(Root(), 1, "ann@node", "the baseline"));
  EXPECT_THAT(Collect({.keep_last = 1}), ElementsAre(2));
  const auto entries = *ListCheckpoints(Root());
  EXPECT_TRUE(entries[0].pinned);
  EXPECT_FALSE(entries[1].pinned);
  ExpectWhole(1);
  ASSERT_TRUE(Unpin(Root(), 1));
  EXPECT_EQ(Unpin(Root(), 1).error().code(), Code::kNotFound);
  EXPECT_THAT(Collect({.keep_last = 1}), ElementsAre(1));
  EXPECT_EQ(Pin(Root(), 1, "", "").error().code(), Code::kNotFound) << "a fence is no checkpoint";
  EXPECT_EQ(Pin(Root(), 9, "", "").error().code(), Code::kNotFound);
  EXPECT_THAT(Marks(), IsEmpty());
}

TEST_F(CollectTest, WhatAReaderHoldsStays) {
  for (std::uint64_t step : {1, 2}) Save(step);
  {
    auto hold = CheckpointLease::Acquire(Root(), 1), second = CheckpointLease::Acquire(Root(), 1);
    ASSERT_TRUE(hold);
    ASSERT_TRUE(second);
    hold->reset();
    EXPECT_THAT(Collect({.keep_last = 1}), IsEmpty());
    ExpectWhole(1);
  }
  EXPECT_THAT(Collect({.keep_last = 1}), ElementsAre(1));
}

TEST_F(CollectTest, TheHoldOfAKilledReaderRunsOut) {
  Save(1);
  ASSERT_TRUE(object::Put(*store_, CheckpointKeys("run").NewHoldKey(1), AsBytes("{}\n")));
  Save(2);
  EXPECT_THAT(Collect({.keep_last = 1}), IsEmpty());
  clock_.Advance(kLeaseTime);
  EXPECT_THAT(Collect({.keep_last = 1}), IsEmpty()) << "no commit says yet that so much time has passed";
  Save(3);
  EXPECT_THAT(Collect({.keep_last = 1}), ElementsAre(1, 2));
  EXPECT_THAT(Marks(), IsEmpty());
}

TEST_F(CollectTest, ACollectorThatIsKilledAnywhereLosesNothingThatIsPinned) {
  for (int operation = 0, calls = 1; operation < calls; ++operation) {
    Fresh();
    for (std::uint64_t step : {1, 2, 3}) Save(step);
    ASSERT_TRUE(Pin(Root(), 2, "", ""));
    store_->Add({.skip = operation, .times = -1, .fault = {.code = Code::kUnavailable}});
    const auto collected = CollectGarbage(Root(), {.keep_last = 1}, false);
    store_->Clear();
    if (!collected) calls = operation + 2;
    ExpectWhole(2);
    ExpectWhole(3);
    clock_.Advance(kLeaseTime);
    Save(4);
    ASSERT_TRUE(CollectGarbage(Root(), {.keep_last = 2}, false));
    EXPECT_THAT(Steps(), ElementsAre(2, 3, 4));
    EXPECT_THAT(Marks(), ElementsAre("run/step-00000002.pin"));
  }
}

TEST_F(CollectTest, OfAPinAndACollectorOneSeesTheOther) {
  int pinned = 0, removed = 0;
  for (int round = 0; round < 150; ++round) {
    Fresh();
    for (std::uint64_t step : {1, 2}) Save(step);
    std::latch start(2);
    Status pin;
    std::thread other([&] {
      start.arrive_and_wait();
      pin = Pin(Root(), 1, "", "");
    });
    start.arrive_and_wait();
    const bool gone = !Collect({.keep_last = 1}).empty();
    other.join();
    ASSERT_FALSE(pin && gone);
    if (pin) ExpectWhole(1);
    if (!pin && gone && !Marks().empty()) {
      clock_.Advance(kLeaseTime);
      Save(3);
      EXPECT_THAT(Collect({.keep_last = 2}), IsEmpty());
      EXPECT_THAT(Marks(), IsEmpty()) << pin.error().ToString();
    }
    pinned += pin.has_value();
    removed += gone;
  }
  EXPECT_GT(pinned + removed, 0);
}

TEST_F(CollectTest, APinThatFailsLeavesThePinThatWasThere) {
  for (std::uint64_t step : {1, 2}) Save(step);
  ASSERT_TRUE(Pin(Root(), 1, "ann@node", "the baseline"));
  ASSERT_TRUE(object::Put(*store_, CheckpointKeys("run").NewRemovalKey(1), AsBytes("{}\n")));
  EXPECT_EQ(Pin(Root(), 1, "bob@node", "mine too").error().code(), Code::kBusy);
  const auto pin = *object::GetAll(*store_, CheckpointKeys("run").PinKey(1), 1000);
  ASSERT_TRUE(pin);
  EXPECT_THAT(pin->bytes, HasSubstr("the baseline"));
  EXPECT_THAT(Collect({.keep_last = 1}), IsEmpty());
  ExpectWhole(1);
}

/// A collector announces itself between the two looks of whoever pins.
TEST_F(CollectTest, APinThatMayHaveComeTooLateIsNotTakenBack) {
  for (std::uint64_t step : {1, 2}) Save(step);
  const std::string pin = CheckpointKeys("run").PinKey(1), going = CheckpointKeys("run").NewRemovalKey(1);
  bool once = false;
  store_->Add({.operation = object::Operation::kPut, .key_prefix = pin, .fault = {.action = [&] {
                                                                          if (std::exchange(once, true)) return;
                                                                          EXPECT_TRUE(object::Put(*store_, going,
                                                                                                  AsBytes("{}\n")));
                                                                        }}});
  const Status pinned = Pin(Root(), 1, "ann@node", "");
  ASSERT_FALSE(pinned);
  EXPECT_EQ(pinned.error().code(), Code::kBusy);
  EXPECT_THAT(pinned.error().ToString(), HasSubstr("the pin is set"));
  EXPECT_THAT(Marks(), Contains(pin));
  EXPECT_THAT(Collect({.keep_last = 1}), IsEmpty());
  ExpectWhole(1);
}

/// Two collectors at one step: the first to end leaves the other's announcement, which whoever pins must see.
TEST_F(CollectTest, ACollectorLeavesTheAnnouncementsOfOthers) {
  for (std::uint64_t step : {1, 2}) Save(step);
  const auto hold = CheckpointLease::Acquire(Root(), 1);
  const std::string other = CheckpointKeys("run").NewRemovalKey(1);
  ASSERT_TRUE(object::Put(*store_, other, AsBytes("{}\n")));
  EXPECT_THAT(Collect({.keep_last = 1}), IsEmpty());
  EXPECT_THAT(Marks(), Contains(other));
}

/// Cut off anywhere, also to nothing and to just the size of a fence: it is damage, and nothing is taken in its place.
TEST_F(CollectTest, AManifestThatWasCutOffHidesNothing) {
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{kFenceBytes}, std::size_t{127}}) {
    SCOPED_TRACE(size);
    Fresh();
    for (std::uint64_t step : {1, 2}) Save(step);
    const std::string key = CheckpointKeys("run").ManifestKey(2);
    const std::string text = (*object::GetAll(*store_, key, Manifest::kMaxBytes))->bytes;
    ASSERT_TRUE(object::Put(*store_, key, AsBytes(text).first(size)));
    EXPECT_THAT(Steps(), ElementsAre(1, 2));
    for (const auto& step : {std::optional<std::uint64_t>(), std::optional<std::uint64_t>(2)}) {
      const auto reader = Reader::Open(*connection_, "s3://bucket/run", step);
      ASSERT_FALSE(reader);
      EXPECT_EQ(reader.error().code(), Code::kCorrupt);
      EXPECT_THAT(reader.error().ToString(), HasSubstr("step-00000002.json"));
    }
    const std::size_t keys = object::List(*store_, {})->objects.size();
    EXPECT_THAT(Collect({.keep_last = 1}), IsEmpty()) << "it is not kept in place of a whole one";
    EXPECT_EQ(object::List(*store_, {})->objects.size(), keys);
    ExpectWhole(1);
    auto removed = RemoveAfter(Root(), 1, false);
    ASSERT_TRUE(removed);
    EXPECT_THAT(Steps(), ElementsAre(1));
    Save(2);
    ExpectWhole(2);
  }
}

/// There a fence would replace the manifest of a save that has just committed, and the files would go.
TEST_F(CollectTest, OnAStoreThatIgnoresConditionsNothingIsSavedOrRemoved) {
  for (std::uint64_t step : {1, 2}) Save(step);
  store_->SetIdentity("https://ignores-conditions/bucket");
  store_->Add({.operation = object::Operation::kPut, .times = -1, .fault = {.ignore_conditions = true}});
  const object::Call call{.deadline = Deadline::After(clock_, std::chrono::minutes(1))};
  const auto collected = CollectGarbage(Root(), {.keep_last = 1}, false, call);
  ASSERT_FALSE(collected);
  EXPECT_EQ(collected.error().code(), Code::kUnsupported);
  EXPECT_THAT(collected.error().ToString(), HasSubstr("ignores the conditions of writes"));
  EXPECT_FALSE(RemoveAfter(Root(), 1, false, call));
  EXPECT_TRUE(CollectGarbage(Root(), {.keep_last = 1}, true, call)) << "a look changes nothing";

  auto writer = *Writer::Open(*connection_, SingleRankExchange(), budget_,
                              {.url = "s3://bucket/run", .upload_limit = std::chrono::minutes(1), .clock = &clock_});
  ASSERT_TRUE(writer->Save(3, state_.Share(1, 0)[0], {}));
  const auto saved = writer->Wait();
  ASSERT_FALSE(saved);
  EXPECT_THAT(saved.error().ToString(), HasSubstr("ignores the conditions of writes"));
  EXPECT_THAT(Steps(), ElementsAre(1, 2));
  for (const std::uint64_t step : Steps()) ExpectWhole(step);
}

/// Clocks of hosts, hours off the store's and each other's, decide nothing: ages are the store's to tell, and newer is
/// what has the higher step.
TEST_F(CollectTest, HostsWhoseClocksAreWrongSaveAndCollectAsOthersDo) {
  FakeClock slow(clock_.Wall() - std::chrono::hours(30)), fast(clock_.Wall() + std::chrono::hours(30));
  const auto save_by = [&](Clock& clock, std::uint64_t step) {
    clock_.Advance(std::chrono::seconds(1));
    Writer::Options options{.url = "s3://bucket/run", .retention = {.keep_last = 2}, .clock = &clock};
    auto writer = *Writer::Open(*connection_, SingleRankExchange(), budget_, options);
    EXPECT_TRUE(writer->Save(step, state_.Share(1, 0)[0], {}));
    EXPECT_TRUE(writer->Wait());
  };
  save_by(fast, 1);
  save_by(slow, 2);
  save_by(fast, 3);
  save_by(slow, 4);
  EXPECT_THAT(Steps(), ElementsAre(3, 4));

  // A save under way on the slow host, while the other one commits nothing newer but collects.
  clock_.Advance(std::chrono::seconds(1));
  auto gate = std::make_shared<testing::GateGroup>(1);
  auto writer = *Writer::Open(*connection_, gate, budget_, {.url = "s3://bucket/run", .clock = &slow});
  ASSERT_TRUE(writer->Save(5, state_.Share(1, 0)[0], {}));
  gate->AwaitArrival();
  const auto hold = CheckpointLease::Acquire(Root(), 3);
  ASSERT_TRUE(hold);
  const auto collected = CollectGarbage(Root(), {.keep_last = 1}, false);
  ASSERT_TRUE(collected);
  EXPECT_EQ(collected->objects, 0u) << "neither the save under way nor what is held";
  gate->Open();
  ASSERT_TRUE(writer->Wait());
  for (const std::uint64_t step : Steps()) ExpectWhole(step);
  EXPECT_EQ(Steps().back(), 5u);
}

/// Another clock, off by some time.
class OffClock final : public Clock {
 public:
  explicit OffClock(Clock& right) : right_(right) {}
  TimePoint Now() const override { return right_.Now(); }
  WallTime Wall() const override { return right_.Wall() + off.load(); }
  bool SleepUntil(TimePoint when, std::stop_token stop) override { return right_.SleepUntil(when, std::move(stop)); }
  std::atomic<Duration> off{Duration::zero()};

 private:
  Clock& right_;
};

/// The clock that counts, the store's, is set back: a save may then be taken for one that died long ago, but it is
/// told.
TEST_F(CollectTest, AStoreWhoseClockIsSetBackLosesNothingThatWasCommitted) {
  OffClock clock(clock_);
  object::MemoryStoreOptions options;
  options.clock = &clock;
  store_ = object::FaultStore::Create(object::MakeMemoryStore(options), 1, clock_);
  connection_ = std::make_unique<StoreConnection>(store_);
  Save(1);
  clock.off = -std::chrono::hours(2);
  Save(2);
  auto gate = std::make_shared<testing::GateGroup>(1);
  auto writer = *Writer::Open(*connection_, gate, budget_, {.url = "s3://bucket/run"});
  ASSERT_TRUE(writer->Save(3, state_.Share(1, 0)[0], {}));
  gate->AwaitArrival();
  EXPECT_THAT(Collect({.keep_last = 2}), IsEmpty());
  gate->Open();
  const auto saved = writer->Wait();
  ASSERT_FALSE(saved);
  EXPECT_THAT(saved.error().ToString(), HasSubstr("given up by garbage collection"));
  EXPECT_THAT(Steps(), ElementsAre(1, 2));
  Save(3);
  EXPECT_THAT(Collect({.keep_last = 2}), ElementsAre(1)) << "newer is what has the higher step";
  for (const std::uint64_t step : Steps()) ExpectWhole(step);
}

}  // namespace
}  // namespace millrace::checkpoint
