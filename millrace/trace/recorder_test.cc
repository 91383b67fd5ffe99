#include "millrace/trace/recorder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

namespace millrace::trace {
namespace {

using std::chrono::microseconds;

TEST(Recorder, KeepsSpansOfThreadsThatHaveAScopeWhileItIsOn) {
  FakeClock clock;
  Recorder recorder(clock);
  const auto work = [&](const char* name) {
    Span span(name, Category::kKernel);
    if (span) span.SetArguments({{"rows", 3}});
    clock.Advance(microseconds(5));
  };
  {
    const ThreadScope scope(&recorder);
    work("before");
    recorder.SetOn(true);
    work("Linear");
    {
      const ThreadScope none(nullptr);
      work("hidden");
    }
    work("Norm");
    recorder.SetOn(false);
    work("after");
  }
  recorder.SetOn(true);
  work("without a scope");
  const auto events = recorder.events();
  ASSERT_EQ(events.size(), 2);
  EXPECT_EQ(events[0].name, "Linear");
  EXPECT_EQ(events[1].name, "Norm");
  EXPECT_EQ(events[0].end - events[0].begin, microseconds(5));
  EXPECT_EQ(events[0].arguments, Json({{"rows", 3}}));
  EXPECT_EQ(CategoryName(events[0].category), "kernel");
}

TEST(Recorder, NamesThreads) {
  const FakeClock clock;
  Recorder recorder(clock);
  recorder.SetOn(true);
  recorder.NameThread("training");
  recorder.Add("a", Category::kStep, {}, {});
  std::thread other([&] {
    pthread_setname_np(pthread_self(), "loader-1");
    recorder.Add("b", Category::kData, {}, {});
  });
  other.join();
  EXPECT_THAT(recorder.threads(), testing::ElementsAre("training", "loader-1"));
  EXPECT_EQ(recorder.events()[0].thread, 0);
  EXPECT_EQ(recorder.events()[1].thread, 1);
}

TEST(Recorder, CountsWhatItDrops) {
  const FakeClock clock;
  Recorder recorder(clock, 2);
  recorder.SetOn(true);
  for (int i = 0; i < 5; ++i) recorder.Add("a", Category::kStep, {}, {});
  EXPECT_EQ(recorder.events().size(), 2);
  EXPECT_EQ(recorder.dropped(), 3);
}

}  // namespace
}  // namespace millrace::trace
