#include "millrace/jobs/output/output_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace millrace::jobs {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

// The expressions that Hugging Face's notebooks for SageMaker give, and some more.
const std::vector<MetricDefinition> kDefinitions = {{"loss", R"('loss': ([0-9.]*))"},
                                                    {"rate", R"('learning_rate': ([0-9.]*))"},
                                                    {"epoch", R"('epoch': ([0-9.]*))"},
                                                    {"eval_loss", R"('eval_loss': ([0-9.]*))"},
                                                    {"runtime", R"('train_runtime': ([0-9.]*))"},
                                                    {"samples", R"('train_samples_per_second': ([0-9.]*))"},
                                                    {"none", "<><><><><><>"}};

constexpr std::string_view kPlan =
    R"({"event":"plan","name":"a","steps_per_epoch":4,"steps":8,"resumed_from":0,"global_batch":16})";

std::string StepLine(int step, double loss) {
  return fmt::format(R"({{"step":{},"loss":{},"lr":2e-07,"grad_norm":0.5,"tokens":64}})", step, loss);
}

double Latest(const OutputMetrics& output, const std::string& name) {
  const auto& series = output.metrics().series();
  return series.contains(name) ? series.at(name).latest : -1;
}

std::vector<std::uint64_t> Steps(const OutputMetrics& output, const std::string& name) {
  std::vector<std::uint64_t> steps;
  for (const history::MetricPoint& point : output.metrics().series().at(name).points) steps.push_back(point.last_step);
  return steps;
}

TEST(TrainerTranscriptTest, ShowsStepsAsTransformersTrainerDoes) {
  TrainerTranscript transcript;
  EXPECT_TRUE(transcript.Read(kPlan).starts);
  const TrainerLine line = transcript.Read(StepLine(3, 2.5));
  EXPECT_EQ(line.text, "{'loss': 2.5, 'grad_norm': 0.5, 'learning_rate': 0.0000002, 'epoch': 0.75, 'step': 3}");
  EXPECT_EQ(line.step, 3);
  EXPECT_EQ(transcript.Read(R"({"step":4,"loss":null,"lr":1,"grad_norm":3.0})").text,
            "{'grad_norm': 3.0, 'learning_rate': 1, 'epoch': 1.0, 'step': 4}");
  EXPECT_EQ(
      transcript.Read(R"({"event":"eval","step":4,"samples":9,"labels":99,"seconds":1,"loss":2.25,"accuracy":1.0})")
          .text,
      "{'eval_loss': 2.25, 'eval_accuracy': 1.0, 'epoch': 1.0, 'step': 4}");
  EXPECT_EQ(transcript.Summary(seconds(2)),
            "{'train_runtime': 2.0, 'train_samples_per_second': 32.0, 'train_steps_per_second': 2.0, "
            "'train_loss': 2.5, 'epoch': 1.0}");
}

TEST(TrainerTranscriptTest, ReadsTheTextOfTheTrainer) {
  TrainerTranscript transcript;
  EXPECT_TRUE(transcript.Read("plan of llama-demo").starts);
  transcript.Read("  steps     2,000 in all, 1,000 an epoch; 16 samples a step (2,048 tokens)");
  EXPECT_EQ(transcript.Read("  goes on after step 1,200").resumed_from, 1200);
  EXPECT_EQ(
      transcript
          .Read("step 1500/2000  loss 2.3300  margin 0.100  accuracy 0.500  lr 3.00e-04  grad 0.369   11268 tok/s  "
                "ckpt 2 %")
          .text,
      "{'loss': 2.33, 'grad_norm': 0.369, 'learning_rate': 0.0003, 'epoch': 1.5, 'step': 1500}");
  EXPECT_EQ(transcript.Read("eval after step 1500  loss 2.5000  perplexity 12.18  (128 samples, 1.5 s)").text,
            "{'eval_loss': 2.5, 'eval_perplexity': 12.18, 'epoch': 1.5, 'step': 1500}");
  EXPECT_THAT(*transcript.Summary(seconds(10)), HasSubstr("'train_samples_per_second': 480.0"));
}

TEST(TrainerTranscriptTest, LeavesOtherLinesAlone) {
  TrainerTranscript transcript;
  for (const std::string_view line :
       {"", "hello", "{", "{\"a\": 1}", "[1]", "step one", "{'loss': 1.5, 'epoch': 0.1}"}) {
    const TrainerLine read = transcript.Read(line);
    EXPECT_EQ(read.text, line);
    EXPECT_FALSE(read.step || read.starts || read.resumed_from);
  }
  EXPECT_FALSE(transcript.Summary(seconds(1)));
}

TEST(OutputMetricsTest, FindsTheFiguresOfTheTrainer) {
  OutputMetrics output(kDefinitions, {});
  output.TakeLine(kPlan);
  for (int step = 1; step <= 8; ++step) output.TakeLine(StepLine(step, 3 - 0.25 * step));
  output.TakeLine(R"({"event":"eval","step":8,"samples":9,"loss":1.25})");
  EXPECT_EQ(Steps(output, "loss"), (std::vector<std::uint64_t>{1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(Latest(output, "loss"), 1);
  EXPECT_EQ(Latest(output, "rate"), 2e-7) << "a number without an exponent";
  EXPECT_EQ(Latest(output, "epoch"), 2);
  EXPECT_EQ(Latest(output, "eval_loss"), 1.25);
  EXPECT_EQ(Latest(output, "runtime"), -1);
  output.TakeEnd(seconds(4));
  EXPECT_EQ(Latest(output, "runtime"), 4);
  EXPECT_EQ(Latest(output, "samples"), 32);
  EXPECT_EQ(Latest(output, "none"), -1);
}

TEST(OutputMetricsTest, SearchesTheLineItselfToo) {
  OutputMetrics output({{"grad", R"re("grad_norm":([0-9.]+))re"}, {"whole", "[0-9]+ tok/s"}, {"all", R"(\d+)"}}, {});
  output.TakeLine(StepLine(1, 2));
  EXPECT_EQ(Latest(output, "grad"), 0.5);
  output.TakeLine("12 tok/s");
  EXPECT_EQ(Latest(output, "whole"), -1) << "12 tok/s is no number";
  EXPECT_EQ(Latest(output, "all"), 12) << "without a group, all of the match is the value";
}

TEST(OutputMetricsTest, CountsTheValuesOfProgramsThatTellNoStep) {
  OutputMetrics output({{"acc", "acc=(\\S+)"}, {"loss", "loss=(\\S+)"}}, {});
  for (const std::string_view line : {"acc=0.5", "noise", "acc=+0.75 loss=1e-3", "acc=nan", "acc=inf", "acc=1.2.3"}) {
    output.TakeLine(line);
  }
  EXPECT_EQ(Steps(output, "acc"), (std::vector<std::uint64_t>{1, 2}));
  EXPECT_EQ(Latest(output, "acc"), 0.75);
  EXPECT_EQ(Steps(output, "loss"), (std::vector<std::uint64_t>{1}));
  EXPECT_EQ(Latest(output, "loss"), 1e-3);
}

TEST(OutputMetricsTest, TakesStepsFromAMetricOfThatName) {
  OutputMetrics output({{"loss", "loss=(\\S+)"}, {"step", "iter (\\d+)"}}, {});
  for (const std::string_view line : {"iter 10 loss=3", "iter 20 loss=2", "loss=1.5", "iter 30", "loss=1"}) {
    output.TakeLine(line);
  }
  EXPECT_EQ(Steps(output, "loss"), (std::vector<std::uint64_t>{10, 20, 30}));
  EXPECT_EQ(output.metrics().series().at("loss").points[1].mean, 1.75);
}

TEST(OutputMetricsTest, KeepsWhatCameBeforeAResumption) {
  const auto plan = [](int resumed_from) {
    return fmt::format(R"({{"event":"plan","resumed_from":{}}})", resumed_from);
  };
  history::LoggedMetrics earlier;
  for (std::uint64_t step = 1; step <= 5; ++step) earlier.Add("loss", step, 9);
  OutputMetrics output(kDefinitions, earlier);
  output.TakeLine(plan(3));
  EXPECT_EQ(Steps(output, "loss"), (std::vector<std::uint64_t>{1, 2, 3}));
  for (int step = 4; step <= 6; ++step) output.TakeLine(StepLine(step, 1));
  output.TakeLine(plan(5));
  EXPECT_EQ(Steps(output, "loss"), (std::vector<std::uint64_t>{1, 2, 3, 4, 5})) << "a restart goes on";
  output.TakeLine("plan of a");
  output.TakeLine("  goes on after step 4");
  EXPECT_EQ(Steps(output, "loss"), (std::vector<std::uint64_t>{1, 2, 3, 4})) << "as text, too";
  output.TakeLine(plan(0));
  EXPECT_TRUE(output.metrics().series().empty()) << "a run from the beginning has only its own values";
}

TEST(MetricDefinitionsTest, OneGroupAtMost) {
  for (const char* regex : {"a", "a(b)", "(?:a|b)(c)", "'loss': ([0-9.]*)"}) EXPECT_TRUE(CheckMetricRegex(regex));
  const auto two = CheckMetricRegex("(a)(b)"), open = CheckMetricRegex("(a"), ahead = CheckMetricRegex("a(?=b)");
  ASSERT_TRUE(!two && !open && !ahead);
  EXPECT_THAT(two.error().ToString(), HasSubstr("has 2 groups"));
  EXPECT_THAT(open.error().ToString(), HasSubstr("missing )"));
  EXPECT_THAT(ahead.error().ToString(), HasSubstr("is not a regular expression of RE2"));
}

TEST(OutputMetricsTest, TellsOfEachValue) {
  std::vector<std::string> told;
  OutputMetrics output({{"loss", "loss=(\\S+)"}}, {}, [&](const std::string& name, std::uint64_t step, double value) {
    told.push_back(fmt::format("{} {} {}", name, step, value));
  });
  output.TakeLine("loss=2.5");
  output.TakeLine("nothing");
  output.TakeLine("loss=1.5");
  EXPECT_THAT(told, testing::ElementsAre("loss 1 2.5", "loss 2 1.5"));
}

}  // namespace
}  // namespace millrace::jobs
