#include "millrace/jobs/run_publisher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "millrace/base/files/files.h"
#include "millrace/object/blocking.h"
#include "millrace/object/local/memory_store.h"
#include "millrace/object/testing/fault_store.h"

namespace millrace::jobs {
namespace {

using ::testing::HasSubstr;

class RunPublisherTest : public testing::Test {
 protected:
  std::unique_ptr<RunPublisher> Publish() {
    RunPublisher::Options options;
    options.folder = {.logs = logs_.path(), .run = "r1"};
    options.status = {{"state", "starting"}};
    options.on_failure = [this](const Error&) { ++failures_; };
    options.clock = &clock_;
    return std::make_unique<RunPublisher>(object::Location{store_, "run/"}, std::move(options));
  }
  std::string Events() const {
    const auto found = object::GetAll(*store_, "run/events.jsonl", kMiB);
    return found && *found ? (*found)->bytes : "";
  }
  std::string State() const {
    const auto status = ReadRunStatus({store_, "run/"}, {});
    return status ? (*status)["state"].get<std::string>() : "";
  }
  /// Advances the clock by intervals until `holds`.
  template <class Holds>
  void AdvanceUntil(Holds holds) {
    for (const TimePoint end = SystemClock().Now() + std::chrono::seconds(20); !holds();) {
      ASSERT_LT(SystemClock().Now(), end);
      clock_.Advance(std::chrono::seconds(10));
      std::this_thread::yield();
    }
  }

  const TempDir logs_ = *TempDir::Create();
  const std::shared_ptr<object::FaultStore> store_ = object::FaultStore::Create(object::MakeMemoryStore());
  FakeClock clock_;
  std::atomic<int> failures_ = 0;
};

TEST_F(RunPublisherTest, WritesAtTheEndWhatIsLeft) {
  auto publisher = Publish();
  AdvanceUntil([&] { return State() == "starting"; });
  publisher->NoteEvent({{"event", "done"}});
  publisher->NoteStatus({{"state", "running"}});
  publisher->NoteStatus({{"state", "done"}});
  publisher.reset();
  EXPECT_THAT(Events(), HasSubstr("done"));
  EXPECT_EQ(State(), "done");
}

TEST_F(RunPublisherTest, ReadersKnowOfARunAtOnce) {
  const auto publisher = Publish();
  const TimePoint end = SystemClock().Now() + std::chrono::seconds(20);
  while (State() != "starting" && SystemClock().Now() < end) std::this_thread::yield();
  EXPECT_EQ(State(), "starting");  // the clock has not moved
}

TEST_F(RunPublisherTest, WritesOnceAnInterval) {
  auto publisher = Publish();
  publisher->NoteEvent({{"event", "start"}});
  AdvanceUntil([&] { return Events().find("start") != std::string::npos; });
}

TEST_F(RunPublisherTest, ABucketThatIsAwayIsToldOnceAndCaughtUpWith) {
  store_->Add({.times = -1, .fault = {.code = Code::kUnavailable}});
  auto publisher = Publish();
  publisher->NoteEvent({{"event", "start"}});
  publisher->NoteStatus({{"state", "running"}});
  AdvanceUntil([&] { return store_->calls(object::Operation::kGet) + store_->calls(object::Operation::kHead) > 3; });
  EXPECT_EQ(failures_, 1);
  store_->Clear();
  AdvanceUntil([&] { return Events().find("start") != std::string::npos; });
  publisher.reset();
  EXPECT_EQ(failures_, 1);
}

}  // namespace
}  // namespace millrace::jobs
