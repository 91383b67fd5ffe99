#include "millrace/train/tracing/step_tracer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "millrace/base/files/files.h"
#include "millrace/checkpoint/testing/thread_group.h"
#include "millrace/object/blocking.h"
#include "millrace/object/local/memory_store.h"
#include "millrace/trace/trace_file.h"
#include "millrace/train/testing/train_runs.h"
#include "millrace/train/tracing/traced_store.h"

namespace millrace::train {
namespace {

using testing::Contains;
using testing::IsSupersetOf;
using testing::Not;

/// A trace as a viewer understands it.
struct ParsedTrace {
  std::map<int, std::string> processes;
  std::map<std::pair<int, int>, std::string> threads;
  std::vector<Json> spans;

  /// Returns the names of the spans of a rank in a category.
  std::set<std::string> Names(int rank, std::string_view category) const {
    std::set<std::string> names;
    for (const Json& span : spans) {
      if (span["pid"] == rank && span["cat"] == category) names.insert(span["name"].get<std::string>());
    }
    return names;
  }
  /// Returns the values of an argument in all spans that have it.
  template <class T>
  std::set<T> Values(std::string_view name, std::string_view argument) const {
    std::set<T> values;
    for (const Json& span : spans) {
      if (span["name"] == name) values.insert(span["args"][std::string(argument)].get<T>());
    }
    return values;
  }
};

/// Reads a trace by the rules of the format: every span has a process and a thread with names, and spans of a thread
/// contain each other or lie apart.
ParsedTrace Parse(const std::string& text) {
  ParsedTrace trace;
  const auto file = ParseJson(text, "trace");
  EXPECT_TRUE(file) << file.error().ToString();
  if (!file) return trace;
  std::map<std::pair<int, int>, std::vector<std::pair<double, double>>> open;
  for (const Json& event : (*file)["traceEvents"]) {
    const std::pair<int, int> thread = {event["pid"].get<int>(), event["tid"].get<int>()};
    if (event["ph"] == "M") {
      if (event["name"] == "process_name") trace.processes[thread.first] = event["args"]["name"];
      if (event["name"] == "thread_name") trace.threads[thread] = event["args"]["name"];
      continue;
    }
    EXPECT_EQ(event["ph"], "X");
    EXPECT_TRUE(trace.processes.contains(thread.first)) << event;
    EXPECT_TRUE(trace.threads.contains(thread)) << event;
    const double begin = event["ts"].get<double>(), end = begin + event["dur"].get<double>();
    EXPECT_GE(end, begin) << event;
    auto& stack = open[thread];
    // Numbers of the file are exact to a nanosecond.
    while (!stack.empty() && stack.back().second <= begin + 1e-3) stack.pop_back();
    if (!stack.empty()) {
      EXPECT_LE(end, stack.back().second + 1e-3) << event << " is cut by the span around it";
    }
    stack.emplace_back(begin, end);
    trace.spans.push_back(event);
  }
  return trace;
}

class StepTracerTest : public TrainTest {
 protected:
  std::filesystem::path Folder(const std::string& run) const { return folder_->path() / "logs" / run; }

  Options Traced(const std::string& run) const {
    Options options = Tiny(run);
    options.steps = 6;
    options.profile = ProfileOptions{.first_step = 3, .last_step = 4, .url = Folder(run).native() + "/", .job = "demo"};
    return options;
  }
  std::string Read(const std::filesystem::path& path) const {
    const auto packed = ReadFile(path, 64 * kMiB);
    EXPECT_TRUE(packed) << path;
    if (!packed) return {};
    return trace::Decompress(*packed, 256 * kMiB).value();
  }
  ParsedTrace Joined(const std::string& run) const { return Parse(Read(Folder(run) / trace::TraceKey(3, 4))); }
};

TEST_F(StepTracerTest, ShowsWhatARankDoes) {
  Options options = Traced("plain");
  options.checkpoint.url = CheckpointUrl("plain");
  options.checkpoint.every_steps = 3;
  options.eval.every_steps = 4;
  options.eval.sources = options.data.sources;
  options.eval.samples = 4;
  const Ran ran = Run(options);
  ASSERT_TRUE(ran.outcome) << ran.outcome.error().ToString();
  const ParsedTrace trace = Joined("plain");
  EXPECT_EQ(trace.Values<int>("step", "step"), (std::set<int>{3, 4}));
  EXPECT_THAT(trace.Names(0, "pass"), IsSupersetOf({"forward", "backward", "evaluation"}));
  EXPECT_THAT(trace.Names(0, "model"), IsSupersetOf({"embedding", "block 0", "block 1", "head", "block 0 backward",
                                                     "block 1 backward", "head backward"}));
  EXPECT_THAT(trace.Names(0, "kernel"),
              IsSupersetOf({"Linear", "Linear backward", "Gated", "Gated backward", "Attention"}));
  EXPECT_THAT(trace.Names(0, "kernel"), Not(Contains("EndOfBlock backward")));
  EXPECT_THAT(trace.Names(0, "optimizer"), IsSupersetOf({"gradient norm", "optimizer"}));
  EXPECT_THAT(trace.Names(0, "data"), IsSupersetOf({"load a micro-batch", "make a micro-batch", "tokenize", "pack"}));
  EXPECT_THAT(trace.Names(0, "checkpoint"), IsSupersetOf({"save", "wait for the copy"}));
  EXPECT_EQ(trace.threads.at({0, 1}), "training");
}

TEST_F(StepTracerTest, ShowsRequestsToTheStore) {
  Options options = Traced("requests");
  options.checkpoint.url = CheckpointUrl("requests");
  options.checkpoint.every_steps = 3;
  // The save of the last step waits until the upload of step 3 has ended.
  options.profile->last_step = *options.steps;
  const Ran ran = Run(options);
  ASSERT_TRUE(ran.outcome) << ran.outcome.error().ToString();
  const ParsedTrace trace = Parse(Read(Folder("requests") / trace::TraceKey(3, 6)));
  EXPECT_THAT(trace.Names(0, "checkpoint"), Contains("write"));
  bool writes_weights = false;
  std::set<std::string> threads;
  for (const Json& span : trace.spans) {
    if (span["name"] != "write") continue;
    threads.insert(trace.threads.at({span["pid"].get<int>(), span["tid"].get<int>()}));
    const std::string key = span["args"]["key"].get<std::string>();
    const bool is_file = span["name"] == "write" && key.ends_with("/rank-00000.safetensors");
    writes_weights = writes_weights || (is_file && span["args"]["bytes"].get<std::uint64_t>() > 1000);
  }
  EXPECT_TRUE(writes_weights) << "the checkpoint of step 3";
  EXPECT_TRUE(threads.contains("store 1"));
}

TEST_F(StepTracerTest, DoesNotChangeARun) {
  const Options traced = Traced("traced");
  Options plain = traced;
  plain.profile = std::nullopt;
  const Ran with = Run(traced), without = Run(plain);
  ASSERT_TRUE(with.outcome && without.outcome);
  EXPECT_EQ(with.losses, without.losses);
  EXPECT_EQ(with.norms, without.norms);
}

TEST_F(StepTracerTest, JoinsRanksThatDivideTheModel) {
  struct Layout {
    std::string name;
    engine::ParallelOptions options;
    std::string axis;
    std::string operation;
    int ranks = 2;
  };
  const std::vector<Layout> layouts = {
      {"replicas", {}, "replica", "all-reduce"},
      {"tensor", {.tensor = 2}, "tensor", "all-reduce"},
      {"pipeline", {.pipeline = 2}, "pipeline", "send"},
      {"zero3", {.zero = 3}, "shard", "all-gather"},
      {"zero_bubble", {.pipeline = 2, .schedule = engine::PipelineSchedule::kZeroBubble}, "pipeline", "receive"},
      {"both", {.tensor = 2, .pipeline = 2}, "tensor", "all-reduce", 4}};
  for (const Layout& layout : layouts) {
    SCOPED_TRACE(layout.name);
    Options options = Traced(layout.name);
    options.parallel = layout.options;
    options.parallel.recompute = engine::Recompute::kFull;
    const Ran ran = RunRanks(options, layout.ranks);
    ASSERT_TRUE(ran.outcome) << ran.outcome.error().ToString();
    const ParsedTrace trace = Joined(layout.name);
    ASSERT_EQ(trace.processes.size(), layout.ranks);
    bool found = false;
    for (const Json& span : trace.spans) {
      if (span["name"] != layout.operation || span["args"]["group"] != layout.axis) continue;
      found = true;
      EXPECT_GT(span["args"]["bytes"], 0);
      EXPECT_EQ(span["args"]["ranks"], 2);
    }
    EXPECT_TRUE(found) << layout.operation << " over " << layout.axis;
    // The ranks are threads of one process, so they make a step at the same time by one clock.
    std::map<int, std::pair<double, double>> step;
    for (const Json& span : trace.spans) {
      if (span["name"] != "step" || span["args"]["step"] != 4) continue;
      const double begin = span["ts"].get<double>();
      step[span["pid"].get<int>()] = {begin, begin + span["dur"].get<double>()};
    }
    ASSERT_EQ(step.size(), layout.ranks);
    for (const auto& [rank, times] : step) {
      EXPECT_LT(times.first, step[0].second) << rank;
      EXPECT_GT(times.second, step[0].first) << rank;
    }
    for (int rank = 0; rank < layout.ranks; ++rank) {
      EXPECT_TRUE(std::filesystem::exists(Folder(layout.name) / trace::RankTraceKey(3, 4, rank)));
    }
  }
}

TEST_F(StepTracerTest, WritesTheStepsThatWereMadeWhenARunStops) {
  Options options = Traced("stopped");
  options.profile->last_step = 5;
  options.checkpoint.url = CheckpointUrl("stopped");
  const Ran ran = Run(options, /*stop_after=*/2);
  ASSERT_TRUE(ran.outcome) << ran.outcome.error().ToString();
  ASSERT_EQ(ran.outcome->step, 3);
  const ParsedTrace trace = Parse(Read(Folder("stopped") / trace::TraceKey(3, 5)));
  EXPECT_EQ(trace.Values<int>("step", "step"), std::set<int>{3});
}

TEST_F(StepTracerTest, GoesOnIfTheTraceCannotBeWritten) {
  Options options = Traced("unwritable");
  std::filesystem::create_directories(Folder("unwritable").parent_path());
  std::ofstream(Folder("unwritable")) << "a file, not a folder";
  const Ran ran = RunRanks(options, 2);
  ASSERT_TRUE(ran.outcome) << ran.outcome.error().ToString();
  EXPECT_EQ(ran.outcome->step, 6);
}

/// A clock that is ahead of another one.
class ShiftedClock final : public Clock {
 public:
  explicit ShiftedClock(Duration by) : by_(by) {}
  TimePoint Now() const override { return SystemClock().Now() + by_; }
  WallTime Wall() const override { return SystemClock().Wall(); }
  bool SleepUntil(TimePoint when, std::stop_token stop) override { return SystemClock().SleepUntil(when - by_, stop); }

 private:
  const Duration by_;
};

TEST(ClockOffsets, AreThoseOfTheRanksClocks) {
  const Duration shifts[] = {std::chrono::hours(1), std::chrono::hours(1), std::chrono::hours(3)};
  auto groups = collectives::ConnectThreads(3);
  std::vector<std::vector<ClockOffset>> found(3);
  {
    std::vector<std::jthread> threads;
    for (std::size_t rank = 0; rank < 3; ++rank) {
      threads.emplace_back([&, rank] {
        const ShiftedClock clock(shifts[rank]);
        auto offsets = MeasureClockOffsets(*groups[rank], clock);
        ASSERT_TRUE(offsets) << offsets.error().ToString();
        found[rank] = *std::move(offsets);
      });
    }
  }
  for (const auto& offsets : found) {
    ASSERT_EQ(offsets.size(), 3);
    EXPECT_EQ(offsets[0].offset, Duration(0));
    EXPECT_EQ(offsets[1].offset, Duration(0)) << "the clocks are the same";
    const Duration off = offsets[2].offset - std::chrono::hours(2);
    EXPECT_LE(std::chrono::abs(off), offsets[2].error);
    EXPECT_LT(offsets[2].error, std::chrono::seconds(10));
  }
}

TEST(TracedConnection, RecordsRequestsWhileTheRecorderIsOn) {
  const auto store = object::MakeMemoryStore();
  checkpoint::testing::StoreConnection inner(store);
  TracedConnection connection(inner);
  const auto traced = object::Locate(connection, "s3://bucket/key")->store;
  FakeClock clock;
  trace::Recorder recorder(clock);
  connection.FollowRecorder(recorder);
  ASSERT_TRUE(object::Put(*traced, "key", AsBytes("before")));
  recorder.SetOn(true);
  ASSERT_TRUE(object::Put(*traced, "key", AsBytes("content")));
  ASSERT_TRUE(object::GetAll(*traced, "key", kMiB));
  EXPECT_FALSE(object::Put(*traced, "key", AsBytes("again"), {.if_none_match = true}));
  recorder.SetOn(false);
  ASSERT_TRUE(object::GetAll(*traced, "key", kMiB));
  const trace::OtherSpans spans = connection.spans();
  EXPECT_EQ(spans.threads, std::vector<std::string>{"store 1"}) << "one request at a time";
  ASSERT_GE(spans.events.size(), 3u);
  EXPECT_EQ(spans.events.front().name, "write");
  EXPECT_EQ(spans.events.front().arguments["bytes"], 7);
  const trace::TraceEvent& read = *std::ranges::find(spans.events, "read", &trace::TraceEvent::name);
  EXPECT_EQ(read.category, trace::Category::kData);
  EXPECT_EQ(read.arguments["key"], "key");
  EXPECT_EQ(read.arguments["bytes"], 7);
  EXPECT_EQ(spans.events.back().arguments["error"], CodeName(Code::kPreconditionFailed));
}

}  // namespace
}  // namespace millrace::train
