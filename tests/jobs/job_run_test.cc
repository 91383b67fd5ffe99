// Runs `millrace job …` with shell scripts as ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "millrace/base/files/files.h"
#include "millrace/base/json.h"
#include "millrace/base/process/subprocess.h"

namespace millrace {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::Contains;
using ::testing::HasSubstr;

constexpr const char* kJob = R"(name: tested
data:
  sources: [{url: "s3://corpus/wiki/*.jsonl"}]
  tokenizer: s3://models/tokenizer.model
train: {steps: 100}
run: {processes_per_node: 2, max_restarts: 3}
)";

/// A rank that makes `total` steps, from 10 on once it has been restarted, and leaves when asked to. With `first_total`
/// the first attempt makes that many.
constexpr const char* kRank = R"(#!/bin/sh
trap 'echo saved; exit 130' TERM
step=0
total=${TOTAL:-20}
if [ $MILLRACE_ATTEMPT = 1 ]; then total=${FIRST_TOTAL:-$total}; else step=10; fi
while [ $step -lt $total ]; do
  step=$((step + 1))
  [ $RANK = 1 ] || echo "{\"step\": $step}"
  echo $step > $MILLRACE_HEARTBEAT_FILE
  sleep 0.02
done
)";

class JobRunTest : public testing::Test {
 protected:
  void SetUp() override {
    const char* bin = std::getenv("MILLRACE_BIN");
    if (bin == nullptr) GTEST_SKIP() << "MILLRACE_BIN is not set";
    millrace_ = std::string(bin) + "/millrace";
    std::ofstream(Path("job.yaml")) << kJob;
    std::ofstream(Path("rank.sh")) << kRank;
    std::filesystem::permissions(Path("rank.sh"), std::filesystem::perms::owner_all);
  }
  std::string Path(std::string_view name) const { return (folder_.path() / name).string(); }
  Subprocess::Options Command(std::vector<std::string> arguments) const {
    Subprocess::Options options;
    options.argv = std::move(arguments);
    options.argv.insert(options.argv.begin(), millrace_);
    options.env = {{"MILLRACE_STATE_DIR", Path("state")}, {"TOTAL", total_}};
    if (!first_total_.empty()) options.env["FIRST_TOTAL"] = first_total_;
    options.stderr_file = Path("stderr");
    return options;
  }
  Subprocess StartJob(std::vector<std::string> more = {}) const {
    std::vector<std::string> arguments = {"job",           "run",        Path("job.yaml"), "--program",
                                          Path("rank.sh"), "--no-check", "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    auto options = Command(arguments);
    options.stdout_file = Path("stdout");
    return *Subprocess::Start(std::move(options));
  }
  Json Status() const {
    auto output = Subprocess::Run(Command({"--json", "job", "status", "tested"}));
    return output && output->state.ok() ? *ParseJson(output->stdout_text, "status") : Json();
  }
  /// Polls the status until `ready` holds; the test fails after 20 s.
  template <class Ready>
  Json AwaitStatus(Ready ready) const {
    for (TimePoint end = SystemClock().Now() + seconds(20); SystemClock().Now() < end;) {
      Json status = Status();
      if (status.is_object() && ready(status)) return status;
      SystemClock().SleepFor(milliseconds(20));
    }
    ADD_FAILURE() << "timed out";
    return Status();
  }
  /// As at a shell's prompt, `millrace job run … 2>&1 | READER`; its exit status goes to the file "exit".
  Subprocess StartJobInto(const std::string& reader) const {
    auto options = Command({"job", "run", Path("job.yaml"), "--program", Path("rank.sh"), "--no-check"});
    const std::string script = "{ \"$@\" 2>&1; echo $? >" + Path("exit") + "; } | " + reader;
    const std::vector<std::string> shell = {"sh", "-c", script, "sh"};
    options.argv.insert(options.argv.begin(), shell.begin(), shell.end());
    options.stdout_file = Path("stdout");
    return *Subprocess::Start(std::move(options));
  }
  static bool Stepping(const Json& status) {
    const Json& ranks = status["ranks"];
    return ranks.size() == 2 && ranks[0].contains("step") && ranks[1].contains("step");
  }
  std::vector<Json> Lines() const {
    std::vector<Json> lines;
    std::ifstream file(Path("stdout"));
    for (std::string line; std::getline(file, line);) lines.push_back(ParseJson(line, "a line").value_or(Json(line)));
    return lines;
  }
  static std::vector<std::string> Events(const std::vector<Json>& lines) {
    std::vector<std::string> events;
    for (const Json& line : lines)
      if (line.contains("event")) events.push_back(line["event"]);
    return events;
  }

  TempDir folder_ = *TempDir::Create();
  std::string millrace_, total_ = "20", first_total_;
};

TEST_F(JobRunTest, RunsToItsEndAndHandsOnTheResultsOfRank0) {
  EXPECT_EQ(StartJob().Wait()->exit_code, 0);
  auto lines = Lines();
  EXPECT_EQ(Events(lines), (std::vector<std::string>{"start", "done"}));
  EXPECT_EQ(std::count_if(lines.begin(), lines.end(),
                          [](const Json& line) { return line.contains("step") && !line.contains("event"); }),
            20);
  EXPECT_EQ(Status()["state"], "done");
  EXPECT_EQ(Status()["step"], 20);
}

TEST_F(JobRunTest, LeavesEventsAndAReport) {
  EXPECT_EQ(StartJob().Wait()->exit_code, 0);
  const std::string folder = Path("state/jobs/tested");
  std::vector<std::string> events;
  std::ifstream file(folder + "/logs/events.jsonl");
  for (std::string line; std::getline(file, line);) {
    const Json event = ParseJson(line, "an event").value();
    EXPECT_TRUE(event.contains("time") && event.contains("sentence")) << line;
    events.push_back(event["event"]);
  }
  EXPECT_EQ(events, (std::vector<std::string>{"start", "done"}));
  const auto report = ReadFile(folder + "/report.html");
  ASSERT_TRUE(report) << report.error().ToString();
  EXPECT_THAT(*report, testing::AllOf(HasSubstr("<p>done: "), HasSubstr("started 2 ranks")));
}

TEST_F(JobRunTest, FindsTheMetricsOfTheJobFileInTheOutputOfRank0) {
  std::ofstream(Path("job.yaml"), std::ios::app) << fmt::format("log:\n  tensorboard: {}\n", Path("tb")) << R"yaml(
  metric_definitions:
  - {Name: train_loss, Regex: "'loss': ([0-9.]*)"}
  - {Name: memory, Regex: "memory=([0-9]+)"}
)yaml";
  std::ofstream(Path("rank.sh")) << R"(#!/bin/sh
[ $RANK = 0 ] || { echo memory=9000 >&2; exit 0; }
echo '{"step":1,"loss":2.5,"lr":0.1}'
echo 'step 2/2  loss 1.5000  lr 1.00e-01  grad 0.100  10 tok/s'
echo memory=512 >&2
)";
  EXPECT_EQ(StartJob().Wait()->exit_code, 0) << ReadFile(Path("stderr")).value_or("");
  const std::string folder = Path("state/jobs/tested");
  const auto metrics = ParseJson(ReadFile(folder + "/metrics.json").value_or(""), "the metrics");
  ASSERT_TRUE(metrics) << metrics.error().ToString();
  EXPECT_EQ((*metrics)["metrics"]["train_loss"]["points"].size(), 2u);
  const auto top = Subprocess::Run(Command({"--json", "top", "tested"}));
  const Json shown = ParseJson(top->stdout_text, "the view").value_or(Json())["metrics"];
  EXPECT_EQ(shown, (Json{{"memory", 512}, {"train_loss", 1.5}})) << top->stdout_text;
  EXPECT_THAT(ReadFile(folder + "/report.html").value_or(""), HasSubstr("<h2>train_loss</h2><svg"));
  // The supervisor's event file is the only one: these ranks are no trainer.
  std::string events;
  for (const auto& file : std::filesystem::directory_iterator(Path("tb"))) {
    EXPECT_THAT(file.path().filename().string(), HasSubstr(".tested.metrics.0000"));
    events += ReadFile(file.path()).value_or("");
  }
  EXPECT_THAT(events, testing::AllOf(HasSubstr("metrics/train_loss"), HasSubstr("metrics/memory")));
}

TEST_F(JobRunTest, NamesSlowRanks) {
  // Rank 0 writes a history; here the test does.
  const std::string folder = Path("state/jobs/tested");
  total_ = "100000";
  Subprocess job = StartJob();
  AwaitStatus(Stepping);
  const std::string times = R"("step_s":1,"data_wait_s":0,"data_wait_on_s":{},"comm_wait_s":0,"checkpoint_wait_s":0,)"
                            R"("memory_bytes":1,"busy_cores":1,"stage":0,)";
  const std::string facts = R"("name":"tested","precision":"f32","checkpoint_url":"","ranks":2,"steps":9,)"
                            R"("parameters":1,"global_batch":1,"sequence_length":1,"flops_rate":0)";
  const std::string history = fmt::format(
      R"({{"version":1,"facts":{{{}}},"updated":1,"stride":1,"latest":null,"ranks":[{{{}"slowness":1,"straggles":false}},)"
      R"({{{}"slowness":2.5,"straggles":true}}],"checkpoints":[],"evaluations":[],"starts":[],"points":[]}})",
      facts, times, times);
  ASSERT_TRUE(WriteFileAtomic(folder + "/history.json", AsBytes(history)));
  const auto told = [&] { return ReadFile(folder + "/logs/events.jsonl").value_or("").find("straggler"); };
  for (TimePoint end = SystemClock().Now() + seconds(20); told() == std::string::npos && SystemClock().Now() < end;) {
    SystemClock().SleepFor(milliseconds(50));
  }
  const auto status = Subprocess::Run(Command({"job", "status", "tested"}));
  EXPECT_THAT(status->stdout_text, HasSubstr("slower than its peers: 2.5 times"));
  EXPECT_TRUE(Subprocess::Run(Command({"job", "stop", "tested"}))->state.ok());
  job.Wait(seconds(20));
  EXPECT_THAT(Events(Lines()), Contains("straggler"));
  EXPECT_THAT(ReadFile(Path("stderr")).value(), HasSubstr("rank 1 is slower than its peers: 2.5 times"));
}

TEST_F(JobRunTest, AKilledRankIsNoticedAndTheJobGoesOn) {
  total_ = "40";
  first_total_ = "100000";  // until it is killed, however slow this machine is
  Subprocess job = StartJob();
  Json status = AwaitStatus(Stepping);
  ::kill(status["ranks"][1]["pid"].get<int>(), SIGKILL);
  TimePoint killed = SystemClock().Now();
  AwaitStatus([](const Json& s) { return s["restarts"] == 1 || s["state"] == "restarting"; });
  EXPECT_LT(SystemClock().Now() - killed, seconds(2));
  EXPECT_EQ(job.Wait()->exit_code, 0);
  EXPECT_EQ(Events(Lines()), (std::vector<std::string>{"start", "failure", "restart", "resumed", "done"}));
}

TEST_F(JobRunTest, StopLetsTheRanksSave) {
  total_ = "100000";
  Subprocess job = StartJob();
  AwaitStatus(Stepping);
  auto stop = Subprocess::Run(Command({"job", "stop", "tested"}));
  EXPECT_TRUE(stop->state.ok());
  EXPECT_EQ(job.Wait(seconds(20))->exit_code, 130);
  EXPECT_EQ(Status()["state"], "interrupted");
  EXPECT_THAT(Lines(), Contains(Json("saved")));
  auto again = Subprocess::Run(Command({"job", "stop", "tested"}));
  EXPECT_FALSE(again->state.ok());
}

TEST_F(JobRunTest, NobodyOutlivesAKilledSupervisor) {
  total_ = "100000";
  Subprocess job = StartJob();
  Json status = AwaitStatus(Stepping);
  ::kill(job.pid(), SIGKILL);
  job.Wait();
  for (const Json& rank : status["ranks"]) {
    TimePoint end = SystemClock().Now() + seconds(10);
    while (::kill(rank["pid"].get<int>(), 0) == 0 && SystemClock().Now() < end) {
      // Nobody may be there to reap an orphan: a zombie is dead too.
      auto stat = ReadFile("/proc/" + std::to_string(rank["pid"].get<int>()) + "/stat");
      if (!stat || stat->find(") Z") != std::string::npos) break;
      SystemClock().SleepFor(milliseconds(10));
    }
    EXPECT_LT(SystemClock().Now(), end);
  }
  EXPECT_EQ(Status()["state"], "lost");
  total_ = "12";
  EXPECT_EQ(StartJob().Wait()->exit_code, 0) << "the name is free again";
}

TEST_F(JobRunTest, GoesOnWhenNobodyReadsItsOutput) {
  EXPECT_TRUE(StartJobInto("head -n 1").Wait()->ok());
  EXPECT_EQ(*ReadFile(Path("exit")), "0\n");
  EXPECT_EQ(Status()["state"], "done");
  EXPECT_EQ(Status()["step"], 20);
  const std::string words = *ReadFile(Path("state/jobs/tested/logs/supervisor.log"));
  EXPECT_THAT(words, HasSubstr("started 2 ranks"));
  EXPECT_THAT(words, HasSubstr("standard output is gone (Broken pipe); the job goes on"));
}

TEST_F(JobRunTest, StopsInOrderWhenItsReaderIsGone) {
  total_ = "100000";
  Subprocess shell = StartJobInto("true");
  const Json status = AwaitStatus(Stepping);
  ::kill(status["pid"].get<int>(), SIGINT);
  EXPECT_TRUE(shell.Wait(seconds(20))->ok());
  EXPECT_EQ(*ReadFile(Path("exit")), "130\n");
  EXPECT_EQ(Status()["state"], "interrupted");
  EXPECT_THAT(*ReadFile(Path("state/jobs/tested/logs/rank-0.out")), HasSubstr("saved"));
}

TEST_F(JobRunTest, OutlivesItsTerminal) {
  total_ = "100000";
  Subprocess job = StartJob();
  const Json before = AwaitStatus(Stepping);
  job.Signal(SIGHUP);
  AwaitStatus([&](const Json& now) { return now.contains("step") && now["step"] > before["step"]; });
  job.Signal(SIGTERM);
  EXPECT_EQ(job.Wait()->exit_code, 130);
}

TEST_F(JobRunTest, ARanksChildrenHearOfTheSupervisorsEnd) {
  total_ = "100000";
  std::ofstream(Path("rank.sh")) << "#!/bin/sh\n(cat /proc/self/fd/$MILLRACE_LIFELINE; echo >" << Path("heard")
                                 << ".$RANK) &\n"
                                 << std::string(kRank).substr(std::string(kRank).find('\n'));
  Subprocess job = StartJob();
  AwaitStatus(Stepping);
  ::kill(job.pid(), SIGKILL);
  job.Wait();
  const TimePoint end = SystemClock().Now() + seconds(10);
  for (const char* heard : {"heard.0", "heard.1"}) {
    while (!std::filesystem::exists(Path(heard)) && SystemClock().Now() < end) SystemClock().SleepFor(milliseconds(10));
    EXPECT_TRUE(std::filesystem::exists(Path(heard)));
  }
}

TEST_F(JobRunTest, OneRunOfAName) {
  total_ = "100000";
  Subprocess job = StartJob();
  AwaitStatus(Stepping);
  Subprocess second = StartJob();
  EXPECT_EQ(second.Wait()->exit_code, 1);
  EXPECT_THAT(*ReadFile(Path("stderr")), HasSubstr("already runs"));
  job.Signal(SIGINT);
  EXPECT_EQ(job.Wait()->exit_code, 130);
}

TEST_F(JobRunTest, RenderPrintsWhatRuns) {
  auto rendered = Subprocess::Run(Command({"job", "render", Path("job.yaml"), "--set", "train.optimizer.lr=1e-4"}));
  ASSERT_TRUE(rendered->state.ok());
  EXPECT_THAT(rendered->stdout_text, HasSubstr("lr: 0.0001"));
  auto wrong = Subprocess::Run(Command({"job", "render", Path("job.yaml"), "--set", "train.optimiser.lr=1"}));
  EXPECT_EQ(wrong->state.exit_code, 2);
  EXPECT_THAT(*ReadFile(Path("stderr")), HasSubstr("did you mean \"optimizer\""));
}

TEST_F(JobRunTest, LogsAndLists) {
  EXPECT_EQ(StartJob().Wait()->exit_code, 0);
  auto logs = Subprocess::Run(Command({"job", "logs", "tested", "--follow"}));
  EXPECT_THAT(logs->stdout_text, HasSubstr("{\"step\": 20}\n"));
  auto list = Subprocess::Run(Command({"job", "list"}));
  EXPECT_THAT(list->stdout_text, HasSubstr("tested"));
  EXPECT_EQ(Subprocess::Run(Command({"job", "status", "other"}))->state.exit_code, 4);
  EXPECT_THAT(Subprocess::Run(Command({"job", "status"}))->stdout_text, HasSubstr("tested: done, step 20"));
  EXPECT_TRUE(StartJob({"--set", "name=second"}).Wait()->ok());
  const auto both = Subprocess::Run(Command({"job", "status"}));
  EXPECT_THAT(both->stdout_text, HasSubstr("tested "));
  EXPECT_THAT(both->stdout_text, HasSubstr("second "));
}

TEST_F(JobRunTest, ASubmittedJobRunsInTheBackground) {
  total_ = "100000";
  const auto submitted = Subprocess::Run(
      Command({"job", "submit", Path("job.yaml"), "--program", Path("rank.sh"), "--no-check", "--json"}));
  ASSERT_TRUE(submitted->state.ok()) << *ReadFile(Path("stderr"));
  const Json told = *ParseJson(submitted->stdout_text, "output");
  EXPECT_EQ(told["name"], "tested");
  // Whoever asks at once hears of this run.
  EXPECT_EQ(Status()["pid"], told["pid"]);
  const int pid = told["pid"].get<int>();
  EXPECT_EQ(::getsid(pid), pid);
  AwaitStatus(Stepping);
  const auto again = Subprocess::Run(Command({"job", "submit", Path("job.yaml"), "--no-check"}));
  EXPECT_EQ(again->state.exit_code, 1);
  EXPECT_THAT(*ReadFile(Path("stderr")), HasSubstr("`millrace job stop tested` ends it"));
  EXPECT_TRUE(Subprocess::Run(Command({"job", "stop", "tested"}))->state.ok());
  EXPECT_EQ(Status()["state"], "interrupted");
  EXPECT_THAT(*ReadFile(Path("state/jobs/tested/logs/supervisor.log")), HasSubstr("stopping: the ranks have"));
}

TEST_F(JobRunTest, OneAttachesToASubmittedJob) {
  total_ = "60";
  const auto submitted =
      Subprocess::Run(Command({"job", "submit", Path("job.yaml"), "--program", Path("rank.sh"), "--no-check"}));
  ASSERT_TRUE(submitted->state.ok()) << *ReadFile(Path("stderr"));
  EXPECT_THAT(submitted->stdout_text, HasSubstr("millrace job attach tested"));
  const auto attached = Subprocess::Run(Command({"job", "attach", "tested"}));
  EXPECT_TRUE(attached->state.ok());
  EXPECT_THAT(attached->stdout_text, testing::EndsWith("{\"step\": 60}\n"));
}

TEST_F(JobRunTest, WhoReadsThatAJobHasEndedFindsItsEndInTheBucket) {
  total_ = "60";
  const std::string url = Path("bucket/run");
  const auto submitted = Subprocess::Run(Command(
      {"job", "submit", Path("job.yaml"), "--program", Path("rank.sh"), "--no-check", "--set", "log.url=" + url}));
  ASSERT_TRUE(submitted->state.ok()) << *ReadFile(Path("stderr"));
  const Json ended = AwaitStatus([](const Json& status) { return status["state"] == "done"; });
  const Json in_bucket = *ParseJson(*ReadFile(url + "/status.json"), "status");
  EXPECT_EQ(in_bucket["state"], "done");
  EXPECT_EQ(in_bucket["step"], ended["step"]);
  EXPECT_THAT(*ReadFile(url + "/events.jsonl"), HasSubstr("\"event\":\"done\""));
}

TEST_F(JobRunTest, ASubmissionThatCannotStartSaysWhy) {
  std::filesystem::create_directories(Path("state/jobs"));
  std::ofstream(Path("state/jobs/tested")) << "in the way";
  const auto submitted =
      Subprocess::Run(Command({"job", "submit", Path("job.yaml"), "--program", Path("rank.sh"), "--no-check"}));
  EXPECT_NE(submitted->state.exit_code, 0);
  EXPECT_EQ(submitted->stdout_text, "");
  EXPECT_THAT(*ReadFile(Path("stderr")), HasSubstr("state/jobs/tested"));
}

/// Another machine: it has the bucket and no state folder.
TEST_F(JobRunTest, ABucketShowsARunFromAnywhere) {
  const std::string url = Path("bucket/runs/tested");
  std::ofstream(Path("rank.sh"), std::ios::app) << "[ $RANK = 1 ] || echo checkpoint of step 20 committed\n"
                                                << "echo warning $RANK >&2\n";
  ASSERT_EQ(StartJob({"--set", "log.url=" + url}).Wait()->exit_code, 0);
  const auto elsewhere = [&](std::vector<std::string> arguments) {
    auto options = Command(std::move(arguments));
    options.env["MILLRACE_STATE_DIR"] = Path("nothing");
    return *Subprocess::Run(std::move(options));
  };
  const Json status = *ParseJson(elsewhere({"--json", "job", "status", url}).stdout_text, "status");
  EXPECT_EQ(status["state"], "done");
  EXPECT_EQ(status["step"], 20);
  EXPECT_THAT(elsewhere({"job", "status", url}).stdout_text, HasSubstr("tested: done, step 20"));
  EXPECT_THAT(elsewhere({"job", "list", Path("bucket/runs")}).stdout_text, HasSubstr("tested"));
  EXPECT_EQ(elsewhere({"job", "logs", url}).stdout_text, *ReadFile(Path("state/jobs/tested/logs/rank-0.out")));
  EXPECT_EQ(elsewhere({"job", "logs", url, "--rank", "1", "--errors"}).stdout_text, "warning 1\n");
  EXPECT_EQ(elsewhere({"job", "logs", url, "--rank", "2"}).state.exit_code, 4);
  EXPECT_THAT(elsewhere({"job", "attach", url}).stdout_text, HasSubstr("{\"step\": 20}\n"));
  EXPECT_EQ(elsewhere({"job", "stop", url}).state.exit_code, 2);
  EXPECT_EQ(elsewhere({"job", "status", Path("bucket/runs/other")}).state.exit_code, 4);
  std::ifstream events(url + "/events.jsonl");
  std::vector<std::string> names;
  for (std::string line; std::getline(events, line);) names.push_back((*ParseJson(line, "event"))["event"]);
  EXPECT_THAT(names, testing::UnorderedElementsAre("start", "checkpoint", "done"));
}

TEST_F(JobRunTest, ABucketThatIsAwayHoldsNoJobUp) {
  std::ofstream(Path("blocker")) << "a file where the folder would be";
  EXPECT_EQ(StartJob({"--set", "log.url=" + Path("blocker/run")}).Wait()->exit_code, 0);
  EXPECT_EQ(Status()["state"], "done");
  const std::string said = *ReadFile(Path("stderr"));
  const std::size_t told = said.find("cannot be written, the job goes on without");
  ASSERT_NE(told, std::string::npos) << said;
  EXPECT_EQ(said.find("cannot be written, the job goes on without", told + 1), std::string::npos);
}

TEST_F(JobRunTest, ServeHandsItsFlagsOn) {
  auto serve = Subprocess::Run(Command({"serve", "--model", Path("nothing"), "--listen", "127.0.0.1:0", "--quiet"}));
  std::string said = *ReadFile(Path("stderr"));
  if (std::filesystem::exists(millrace_ + "-serve")) {
    EXPECT_EQ(serve->state.exit_code, 4);
    EXPECT_THAT(said, HasSubstr("millrace serve: no model at"));
  } else {
    EXPECT_THAT(said, HasSubstr("millrace-serve is not beside millrace"));
  }
}

}  // namespace
}  // namespace millrace
