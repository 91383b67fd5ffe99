// Retention, pins and holds: what is wanted stays, whoever collects when.
#include <gmock/gmock.h>

#include <latch>
#include <thread>

#include "millrace/checkpoint/checkpoint.h"
#include "millrace/checkpoint/layout.h"
#include "millrace/checkpoint/marks.h"
#include "millrace/checkpoint/testing/random_state.h"
#include "millrace/checkpoint/testing/thread_group.h"
#include "millrace/object/blocking.h"
#include "millrace/object/fault/fault_store.h"
#include "millrace/object/memory/memory_store.h"

namespace millrace::checkpoint {
namespace {

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
    auto writer = *Writer::Open(*connection_, SingleProcessGroup(), budget_, options);
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
    for (const Entry& entry : *entries) steps.push_back(entry.step);
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
      if (Layout("run").ParseMark(object.key)) marks.push_back(object.key);
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
    auto hold = Hold::Take(Root(), 1), second = Hold::Take(Root(), 1);
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
  ASSERT_TRUE(object::Put(*store_, Layout("run").NewHoldKey(1), AsBytes("{}\n")));
  Save(2);
  EXPECT_THAT(Collect({.keep_last = 1}), IsEmpty());
  clock_.Advance(kHoldTime);
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
    clock_.Advance(kHoldTime);
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
    if (!pin) {
      EXPECT_THAT(Marks(), IsEmpty()) << pin.error().ToString();
    }
    pinned += pin.has_value();
    removed += gone;
  }
  EXPECT_GT(pinned + removed, 0);
}

TEST(Retained, TheBestAreThoseOfTheDefinition) {
  Random random(1);
  for (int round = 0; round < 300; ++round) {
    std::set<std::uint64_t> committed;
    std::map<std::uint64_t, double> metric;
    for (std::uint64_t i = 1 + random.Below(20); i > 0; --i) committed.insert(random.Below(60));
    for (std::uint64_t step : committed)
      if (random.Below(4)) metric[step] = static_cast<double>(random.Below(10));
    const Retention retention{
        .keep_last = 1, .keep_best = static_cast<int>(random.Below(5)), .greatest = random.Below(2) == 1};
    const auto kept = Retained(committed, retention, metric);
    for (const auto& [step, value] : metric) {
      int better = 0;
      for (const auto& [other, theirs] : metric) {
        const bool beats = retention.greatest ? theirs > value : theirs < value;
        better += beats || (theirs == value && other > step);
      }
      EXPECT_EQ(kept.contains(step), better < retention.keep_best || step == *committed.rbegin()) << step;
    }
    std::map<std::uint64_t, double> left;
    for (std::uint64_t step : kept)
      if (metric.contains(step)) left[step] = metric[step];
    EXPECT_EQ(Retained(kept, retention, left), kept) << "applying it again changes nothing";
  }
}

TEST(Layout, ParsesTheMarksItMakesAndNoOthers) {
  const Layout layout("runs/a");
  using Kind = Layout::Mark::Kind;
  for (const auto& [key, kind] : {std::pair(layout.PinKey(7), Kind::kPin), std::pair(layout.NewHoldKey(7), Kind::kHold),
                                  std::pair(layout.NewGoingKey(7), Kind::kGoing)}) {
    const auto mark = layout.ParseMark(key);
    ASSERT_TRUE(mark) << key;
    EXPECT_EQ(mark->step, 7u);
    EXPECT_EQ(mark->kind, kind);
    EXPECT_TRUE(key.starts_with(layout.MarksPrefix(7)));
    EXPECT_FALSE(layout.StepOfManifest(key));
    EXPECT_FALSE(layout.ParseFileKey(key));
  }
  for (const char* key : {"runs/a/step-00000007.json", "runs/a/step-00000007", "runs/a/step-7.pin",
                          "runs/a/step-00000007.hold-", "runs/a/step-00000007.hold-0123", "runs/a/step-00000007/x.pin"})
    EXPECT_FALSE(layout.ParseMark(key)) << key;
}

}  // namespace
}  // namespace millrace::checkpoint
