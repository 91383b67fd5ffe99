#include "millrace/trace/trace_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace millrace::trace {
namespace {

using std::chrono::microseconds;
using std::chrono::nanoseconds;
using testing::HasSubstr;

TimePoint At(nanoseconds time) { return TimePoint(time); }

/// The trace of a rank whose clock is `offset` ahead of rank 0's.
std::string TraceOf(int rank, Duration offset) {
  const FakeClock clock;
  Recorder recorder(clock);
  recorder.SetOn(true);
  recorder.NameThread("training");
  recorder.Add("inner \"a\"", Category::kKernel, At(microseconds(1002) + offset),
               At(microseconds(1003) + nanoseconds(5) + offset), {{"bytes", 12}});
  recorder.Add("outer", Category::kPass, At(microseconds(1000) + offset), At(microseconds(1009) + offset));
  return RankTrace({.rank = rank,
                    .ranks = 2,
                    .job = "demo",
                    .node = "n" + std::to_string(rank),
                    .first_step = 3,
                    .last_step = 4,
                    .clock_offset = offset,
                    .clock_error = microseconds(2)},
                   recorder);
}

/// The spans of a process in the file.
std::vector<Json> SpansOf(const Json& file, int rank) {
  std::vector<Json> spans;
  for (const Json& event : file["traceEvents"]) {
    if (event["ph"] == "X" && event["pid"] == rank) spans.push_back(event);
  }
  return spans;
}

TEST(TraceFile, HasSpansInOrderWithTheTimesOfRank0) {
  const auto file = ParseJson(TraceOf(1, microseconds(500)), "trace");
  ASSERT_TRUE(file) << file.error().ToString();
  const std::vector<Json> spans = SpansOf(*file, 1);
  ASSERT_EQ(spans.size(), 2);
  EXPECT_EQ(spans[0]["name"], "outer");
  EXPECT_EQ(spans[0]["cat"], "pass");
  EXPECT_EQ(spans[0]["ts"], 1000.0);
  EXPECT_EQ(spans[0]["dur"], 9.0);
  EXPECT_FALSE(spans[0].contains("args"));
  EXPECT_EQ(spans[1]["name"], "inner \"a\"");
  EXPECT_EQ(spans[1]["ts"], 1002.0);
  EXPECT_EQ(spans[1]["dur"], 1.005);
  EXPECT_EQ(spans[1]["args"]["bytes"], 12);
  EXPECT_EQ((*file)["traceEvents"][0]["args"]["name"], "rank 1 (n1)");
  EXPECT_EQ((*file)["otherData"]["clocks"][0]["offset_us"], 500.0);
}

TEST(TraceFile, JoinsRanks) {
  const std::vector<std::string> traces = {TraceOf(0, {}), TraceOf(1, microseconds(-70))};
  const auto joined = JoinTraces(traces);
  ASSERT_TRUE(joined) << joined.error().ToString();
  const auto file = ParseJson(*joined, "trace");
  ASSERT_TRUE(file) << file.error().ToString();
  for (const int rank : {0, 1}) {
    const std::vector<Json> spans = SpansOf(*file, rank);
    ASSERT_EQ(spans.size(), 2) << rank;
    EXPECT_EQ(spans[0]["ts"], 1000.0);
  }
  ASSERT_EQ((*file)["otherData"]["clocks"].size(), 2);
  EXPECT_EQ((*file)["otherData"]["clocks"][1]["rank"], 1);
  EXPECT_EQ((*file)["otherData"]["job"], "demo");
}

TEST(TraceFile, RefusesWhatIsNoTrace) {
  EXPECT_EQ(JoinTraces(std::vector<std::string>{"{}"}).error().code(), Code::kCorrupt);
  EXPECT_EQ(JoinTraces(std::vector<std::string>{TraceOf(0, {}).substr(0, 300)}).error().code(), Code::kCorrupt);
  EXPECT_EQ(JoinTraces(std::vector<std::string>{}).error().code(), Code::kNotFound);
}

TEST(TraceFile, IsCompressed) {
  std::string text;
  for (int i = 0; i < 200'000; ++i) text += std::to_string(i);
  const auto packed = Compress(text);
  ASSERT_TRUE(packed);
  EXPECT_LT(packed->size(), text.size());
  EXPECT_EQ(*Decompress(*packed, text.size()), text);
  EXPECT_EQ(Decompress(*packed, text.size() - 1).error().code(), Code::kResourceExhausted);
  EXPECT_EQ(Decompress(packed->substr(0, packed->size() / 2), text.size()).error().code(), Code::kCorrupt);
  EXPECT_EQ(Decompress("not gzip", 100).error().code(), Code::kCorrupt);
}

TEST(TraceFile, KeysNameStepsAndRank) {
  EXPECT_EQ(TraceKey(10, 12), "traces/steps-10-12.json.gz");
  EXPECT_EQ(RankTraceKey(10, 12, 3), "traces/steps-10-12/rank-3.json.gz");
}

TEST(TraceFile, HasThreadsThatAreOnlyInTheTrace) {
  FakeClock clock;
  Recorder recorder(clock);
  recorder.SetOn(true);
  recorder.Add("step", Category::kStep, clock.Now(), clock.Now());
  OtherSpans others{.threads = {"store 1", "store 2"}, .dropped = 2};
  others.events.push_back(
      {.name = "read", .category = Category::kData, .thread = 1, .begin = clock.Now(), .end = clock.Now()});
  const auto trace = ParseJson(RankTrace({}, recorder, others), "trace");
  ASSERT_TRUE(trace) << trace.error().ToString();
  EXPECT_EQ((*trace)["otherData"]["clocks"][0]["dropped"], 2);
  int named = 0;
  for (const Json& event : (*trace)["traceEvents"]) {
    if (event["name"] == "read") {
      EXPECT_EQ(event["tid"], 3) << "0 is the process, and 1 the recorder's thread";
    }
    if (event["name"] == "thread_name" && event["tid"] == 3) {
      EXPECT_EQ(event["args"]["name"], "store 2");
      ++named;
    }
  }
  EXPECT_EQ(named, 1);
}

}  // namespace
}  // namespace millrace::trace
