#include "millrace/tracking/wandb_tracker.h"

#include <gmock/gmock.h>

#include <cmath>

#include "millrace/base/files/files.h"
#include "millrace/base/text.h"
#include "millrace/tracking/testing/collected_log.h"

namespace millrace::tracking {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// A package wandb that writes down how it is called. tests/interop/tracking.py has the real one.
constexpr std::string_view kPackage = R"(
import json, os

class errors:
    class UsageError(Exception): pass
    class AuthenticationError(UsageError): pass
    class CommError(Exception): pass

def write(*words):
    with open(os.environ["OUT"], "a") as file:
        print(json.dumps(words), file=file)

class Summary(dict):
    def __setitem__(self, key, value): write("summary", key, value)

class Config:
    def update(self, values, allow_val_change): write("config", values, allow_val_change)

class Run:
    id, url, dir = "id", None, "/wb/run/files"
    def __init__(self):
        self.step = int(os.environ.get("STEP", 0))
        self.summary, self.config = Summary(), Config()
    def define_metric(self, name, **options): pass
    def log(self, values, step): write("log", step, values)
    def mark_preempting(self): write("preempting")
    def finish(self, exit_code): write("finish", exit_code)

class Settings:
    def __init__(self, **options): pass

def teardown(): pass

def init(mode, resume=None, settings=None, **options):
    write("init", mode, resume, {k: v for k, v in options.items() if v})
    if mode == "online" and "FAIL" in os.environ:
        raise getattr(errors, os.environ["FAIL"])("first line\nsecond line")
    return Run()
)";

class WandbTrackerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(folder_.path() / "lib/wandb");
    ASSERT_TRUE(WriteFileAtomic(folder_.path() / "lib/wandb/__init__.py", AsBytes(kPackage)));
    shared_.env = {{"PYTHONPATH", (folder_.path() / "lib").string()},
                   {"OUT", (folder_.path() / "out").string()},
                   {"NETRC", "/nonexistent"},
                   {"WANDB_MODE", ""},
                   {"WANDB_API_KEY", ""}};
    shared_.folder = (folder_.path() / "records").string();
  }
  Result<std::unique_ptr<WandbTracker>> Open(const WandbOptions& options = {},
                                             TrackedRun run = {.id = "abc", .name = "demo"}) {
    return WandbTracker::Open(options, shared_, run, log_.logger());
  }
  std::vector<std::string> Calls() const {
    std::vector<std::string> calls;
    const std::string text = ReadFile(folder_.path() / "out", 1 << 20).value_or("");
    for (const std::string_view line : Split(text, '\n')) {
      if (!line.empty()) calls.emplace_back(line);
    }
    return calls;
  }

  TempDir folder_ = TempDir::Create().value();
  TrackingOptions shared_;
  CollectedLog log_;
};

TEST_F(WandbTrackerTest, RecordsAWholeRun) {
  auto tracker = Open({.project = "p", .entity = "e", .group = "g", .tags = {"t"}},
                      {.id = "abc", .name = "demo", .parameters = {{"train.seed", 3.0}, {"train.lr", 0.5}, {"a", "b"}}})
                     .value();
  tracker->AddMetrics(1, {{"train/loss", 2.5}});
  tracker->AddMetrics(1, {{"speed/tokens_per_s", 10}});
  tracker->AddMetrics(2, {{"train/loss", std::nan("")}});
  tracker->AddCheckpoint({.step = 2, .tier = "store", .url = "s3://runs/a", .bytes = 10, .seconds = 0.5});
  tracker->AddCheckpoint({.step = 3, .error = "no space"});
  tracker->End(RunEnding::kFinished, "");
  const std::string records = fmt::format("\"dir\": \"{}\"", shared_.folder);
  const std::vector<std::string> expected = {
      R"(["init", "offline", null, {"project": "p", "entity": "e", "name": "demo", "group": "g", "tags": ["t"], "id": "abc", )" +
          records + "}]",
      R"(["config", {"a": "b", "train.lr": 0.5, "train.seed": 3}, true])",
      R"(["config", {"attempt": 1, "resumed_from": 0}, true])",
      R"(["log", 1, {"train/loss": 2.5, "step": 1}])",
      R"(["log", 1, {"speed/tokens_per_s": 10.0, "step": 1}])",
      R"(["log", 2, {"train/loss": NaN, "step": 2}])",
      R"(["log", 2, {"checkpoint/step": 2, "checkpoint/bytes": 10, "checkpoint/seconds": 0.5}])",
      R"(["summary", "checkpoint/tier", "store"])",
      R"(["summary", "checkpoint/url", "s3://runs/a"])",
      R"(["summary", "checkpoint/error", "no space"])",
      R"(["finish", 0])"};
  EXPECT_EQ(Calls(), expected);
  EXPECT_EQ(log_.Count("no key of W&B was found"), 1) << log_.text();
}

TEST_F(WandbTrackerTest, StepsThatAreMadeAgainAreKept) {
  shared_.env["STEP"] = "8";  // W&B has rows 0 to 7 of the earlier attempt
  shared_.env["WANDB_API_KEY"] = "hidden-key";
  auto tracker = Open({}, {.id = "abc", .name = "demo", .attempt = 2, .resumed_from = 5}).value();
  for (const std::uint64_t step : {6u, 7u, 8u, 20u, 21u}) tracker->AddMetrics(step, {{"a", 1}});
  tracker->End(RunEnding::kStopped, "");
  const auto calls = Calls();
  ASSERT_EQ(calls.size(), 10u);
  EXPECT_THAT(calls[0], HasSubstr(R"("online", "allow")"));
  EXPECT_EQ(calls[3], R"(["log", 8, {"a": 1.0, "step": 6}])");
  EXPECT_EQ(calls[4], R"(["log", 9, {"a": 1.0, "step": 7}])");
  EXPECT_EQ(calls[5], R"(["log", 10, {"a": 1.0, "step": 8}])");
  EXPECT_EQ(calls[6], R"(["log", 20, {"a": 1.0, "step": 20}])");
  EXPECT_EQ(calls[7], R"(["log", 21, {"a": 1.0, "step": 21}])");
  EXPECT_EQ(calls[8], R"(["preempting"])");
  EXPECT_EQ(calls[9], R"(["finish", 1])");
  EXPECT_THAT(log_.text(), Not(HasSubstr("hidden-key")));
}

TEST_F(WandbTrackerTest, RecordsOnTheDiskIfTheServerIsAway) {
  shared_.env["FAIL"] = "CommError";
  auto tracker = Open({.mode = "online"}).value();
  tracker->End(RunEnding::kFailed, "lost");
  EXPECT_THAT(Calls()[0], HasSubstr(R"("online")"));
  EXPECT_THAT(Calls()[1], HasSubstr(R"("offline")"));
  EXPECT_EQ(Calls().back(), R"(["finish", 1])");
  EXPECT_EQ(log_.Count("cannot be reached (first line)"), 1) << log_.text();
}

TEST_F(WandbTrackerTest, AKeyThatIsRefusedIsAnError) {
  shared_.env["FAIL"] = "AuthenticationError";
  const auto refused = Open({.mode = "online"});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kInvalidArgument);
  EXPECT_EQ(refused.error().message(), "W&B: first line");
}

TEST_F(WandbTrackerTest, TheEnvironmentOfWandbCounts) {
  shared_.env["WANDB_MODE"] = "disabled";
  shared_.env["WANDB_RUN_ID"] = "mine";
  shared_.env["WANDB_DIR"] = "/elsewhere";
  Open().value();
  EXPECT_THAT(Calls()[0], HasSubstr(R"("disabled", null, {"project": "demo", "name": "demo", "id": "mine"})"));
  EXPECT_EQ(log_.Count("no key"), 0);
}

TEST_F(WandbTrackerTest, SaysHowToInstallThePackage) {
  std::filesystem::remove(folder_.path() / "lib/wandb/__init__.py");
  ASSERT_TRUE(WriteFileAtomic(folder_.path() / "lib/wandb.py", AsBytes("raise ImportError('none')")));
  const auto missing = Open();
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code(), Code::kInvalidArgument);
  EXPECT_THAT(missing.error().message(), HasSubstr("-m pip install wandb"));
}

}  // namespace
}  // namespace millrace::tracking
