// `millrace job trace` as a user sees it, against the embedded endpoint.
#include <gmock/gmock.h>

#include <set>
#include <string>
#include <vector>

#include "millrace/base/json.h"
#include "millrace/trace/trace_file.h"
#include "tests/cli/object_fixture.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

class JobTraceTest : public ObjectFixture {
 protected:
  /// Puts the traces of two ranks into a run's folder, and the joined one if asked.
  void PutTraces(std::uint64_t first, std::uint64_t last, bool joined) {
    const FakeClock clock;
    trace::Recorder recorder(clock);
    recorder.SetOn(true);
    recorder.Add("step", trace::Category::kStep, TimePoint(), TimePoint(std::chrono::seconds(1)));
    std::vector<std::string> traces;
    for (int rank = 0; rank < 2; ++rank) {
      traces.push_back(trace::RankTrace(
          {.rank = rank, .ranks = 2, .job = "demo", .node = {}, .first_step = first, .last_step = last}, recorder));
      WriteLocal("run/" + trace::RankTraceKey(first, last, rank), *trace::Compress(traces.back()));
    }
    if (joined) WriteLocal("run/" + trace::TraceKey(first, last), *trace::Compress(*trace::JoinTraces(traces)));
    const auto copied = Millrace({"cp", "-r", "run/", "s3://bucket/run/"});
    ASSERT_EQ(copied.exit, 0) << copied.err;
  }
  /// Returns the processes of a trace that was fetched.
  std::set<int> Ranks(const std::string& file) {
    const auto text = trace::Decompress(Local(file), kMiB);
    EXPECT_TRUE(text);
    std::set<int> ranks;
    const Json trace = ParseJson(*text, file).value();
    for (const Json& event : trace["traceEvents"]) ranks.insert(event["pid"].get<int>());
    return ranks;
  }
};

TEST_F(JobTraceTest, FetchesTheOneThatIsThere) {
  PutTraces(10, 12, /*joined=*/true);
  const auto ran = Millrace({"job", "trace", "s3://bucket/run"});
  ASSERT_EQ(ran.exit, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("trace-10-12.json.gz: steps 10 to 12, "));
  EXPECT_THAT(ran.out, HasSubstr("ui.perfetto.dev"));
  EXPECT_EQ(Ranks("trace-10-12.json.gz"), (std::set<int>{0, 1}));
  const auto again = Millrace({"job", "trace", "s3://bucket/run"});
  EXPECT_EQ(again.exit, 1);
  EXPECT_THAT(again.err, HasSubstr("trace-10-12.json.gz exists already: name another file with --out"));
}

TEST_F(JobTraceTest, JoinsRanksWhoseRunWasKilled) {
  PutTraces(10, 12, /*joined=*/false);
  const auto ran = Millrace({"--json", "job", "trace", "s3://bucket/run/", "--out", "mine.json.gz"});
  ASSERT_EQ(ran.exit, 0) << ran.err;
  EXPECT_EQ(ran.objects().at(0)["last_step"], 12);
  EXPECT_EQ(Ranks("mine.json.gz"), (std::set<int>{0, 1}));
}

TEST_F(JobTraceTest, AsksWhichOfSeveral) {
  PutTraces(10, 12, true);
  PutTraces(5, 5, true);
  const auto ran = Millrace({"job", "trace", "s3://bucket/run"});
  EXPECT_EQ(ran.exit, 2);
  EXPECT_THAT(ran.err, HasSubstr("several traces: choose one by --steps: 10-12, "));
  EXPECT_EQ(Millrace({"job", "trace", "s3://bucket/run", "--steps", "5-5"}).exit, 0);
  EXPECT_EQ(Millrace({"job", "trace", "s3://bucket/run", "--steps", "5"}).exit, 2);
  EXPECT_EQ(Millrace({"job", "trace", "s3://bucket/run", "--steps", "6-7"}).exit, 4);
}

TEST_F(JobTraceTest, SaysHowATraceIsMade) {
  const auto ran = Millrace({"job", "trace", "s3://bucket/none"});
  EXPECT_EQ(ran.exit, 4);
  EXPECT_THAT(ran.err, HasSubstr("s3://bucket/none has no trace: train.profile: {steps: [10, 12]} makes one"));
  EXPECT_EQ(Millrace({"job", "trace", "no-such-job"}).exit, 4);
}

}  // namespace
}  // namespace millrace
