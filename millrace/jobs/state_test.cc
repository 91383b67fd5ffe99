#include "millrace/jobs/state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <thread>
#include <tuple>

#include "millrace/base/process/subprocess.h"

namespace millrace::jobs {
namespace {

using ::testing::HasSubstr;

JobStatus Running() {
  return {.name = "demo",
          .state = "running",
          .message = "attempt 1 started",
          .pid = ::getpid(),
          .attempt = 2,
          .restarts = 1,
          .step = 57,
          .started = "2026-01-31T12:00:00.000Z",
          .updated = "2026-01-31T12:00:01.000Z",
          .ranks = {{.pid = 12, .state = "running", .step = 57}, {.pid = 13, .state = "starting", .step = {}}},
          .nodes = {{.name = "n1", .state = "runs"}, {.name = "n2", .state = "lost", .reason = "is lost: gone"}},
          .cost = JobStatus::Cost{12.5, "EUR"}};
}

class JobFolderTest : public testing::Test {
 protected:
  TempDir root_ = *TempDir::Create();
};

TEST_F(JobFolderTest, StatusSurvivesJson) {
  auto back = JobStatus::FromJson(Running().ToJson(), "test");
  ASSERT_TRUE(back) << back.error().ToString();
  EXPECT_EQ(*back, Running());
  EXPECT_EQ(JobStatus::FromJson(Json::object(), "test").error().code(), Code::kCorrupt);
  EXPECT_EQ(JobStatus::FromJson(Json::array({1}), "test").error().code(), Code::kCorrupt);
}

TEST_F(JobFolderTest, OneSupervisorAtATime) {
  auto first = JobFolder::Claim(root_.path(), "demo");
  ASSERT_TRUE(first) << first.error().ToString();
  ASSERT_TRUE(first->Write(Running()));
  auto second = JobFolder::Claim(root_.path(), "demo");
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code(), Code::kBusy);
  EXPECT_THAT(second.error().ToString(), HasSubstr(std::to_string(::getpid())));
}

TEST_F(JobFolderTest, AnAbandonedJobIsLost) {
  {
    auto folder = JobFolder::Claim(root_.path(), "demo");
    ASSERT_TRUE(folder->Write(Running()));
    EXPECT_EQ(ReadJob(root_.path(), "demo")->state, "running");
  }
  EXPECT_EQ(ReadJob(root_.path(), "demo")->state, "lost");
  EXPECT_EQ(StopJob(root_.path(), "demo").error().code(), Code::kPreconditionFailed);
}

TEST_F(JobFolderTest, AFolderThatAnotherUserMayHaveMadeIsRefused) {
  const auto jobs = root_.path() / "jobs";
  std::filesystem::create_directories(jobs / "demo");
  std::filesystem::create_directory_symlink(jobs / "demo", jobs / "link");
  EXPECT_EQ(JobFolder::Claim(root_.path(), "link").error().code(), Code::kPermissionDenied);
  ASSERT_EQ(::chmod((jobs / "demo").c_str(), 0777), 0);
  auto refused = JobFolder::Claim(root_.path(), "demo");
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().ToString(), HasSubstr("MILLRACE_STATE_DIR"));
  ASSERT_EQ(::chmod((jobs / "demo").c_str(), 0700), 0);
  auto held = JobFolder::Claim(root_.path(), "demo");
  ASSERT_TRUE(held);
  ASSERT_TRUE(held->Write(Running()));
  ASSERT_EQ(::chmod((jobs / "demo").c_str(), 0777), 0);
  EXPECT_EQ(StopJob(root_.path(), "demo").error().code(), Code::kPermissionDenied) << "who wrote that process id?";
}

TEST_F(JobFolderTest, StopSignalsNobodyButTheSupervisor) {
  // The status of the run before names a process that is gone; its number belongs to another one now.
  auto bystander = Subprocess::Start({.argv = {"sleep", "1000"}});
  ASSERT_TRUE(bystander) << bystander.error().ToString();
  auto folder = JobFolder::Claim(root_.path(), "demo");
  JobStatus before = Running();
  before.pid = bystander->pid();
  before.pid_start = ProcessStart(bystander->pid()) - 1;
  ASSERT_TRUE(folder->Write(before));
  EXPECT_EQ(StopJob(root_.path(), "demo").error().code(), Code::kUnavailable);
  // It ended in order: what its status says is not of the supervisor that holds the folder.
  before.pid_start += 1;
  before.state = "done";
  ASSERT_TRUE(folder->Write(before));
  EXPECT_EQ(StopJob(root_.path(), "demo").error().code(), Code::kUnavailable);
  EXPECT_FALSE(bystander->Poll());
  before.state = "running";
  ASSERT_TRUE(folder->Write(before));
  EXPECT_TRUE(StopJob(root_.path(), "demo"));
  EXPECT_EQ(bystander->Wait()->signal, SIGTERM);
}

TEST_F(JobFolderTest, LookingDoesNotKeepASupervisorOut) {
  {
    auto folder = JobFolder::Claim(root_.path(), "demo");
  }
  std::atomic<bool> claimed = false;
  std::jthread looking([&] {
    while (!claimed) std::ignore = ReadJob(root_.path(), "demo");
  });
  for (int i = 0; i < 200; ++i) EXPECT_TRUE(JobFolder::Claim(root_.path(), "demo"));
  claimed = true;
}

TEST_F(JobFolderTest, LogsOfTheRunBeforeAreKeptOnce) {
  for (int run = 0; run < 3; ++run) {
    auto folder = JobFolder::Claim(root_.path(), "demo");
    ASSERT_TRUE(folder) << folder.error().ToString();
    EXPECT_TRUE(std::filesystem::is_empty(folder->logs()));
    std::ofstream(folder->logs() / "rank-0.out") << run;
    if (run == 0) continue;
    EXPECT_EQ(*ReadFile(folder->path() / "logs.previous" / "rank-0.out"), std::to_string(run - 1));
  }
}

TEST_F(JobFolderTest, ListsByNameAndSkipsWhatIsNoJob) {
  EXPECT_TRUE(ListJobs(root_.path())->empty());
  for (const char* name : {"b", "a"}) {
    JobStatus status = Running();
    status.name = name;
    status.state = "done";
    ASSERT_TRUE(JobFolder::Claim(root_.path(), name)->Write(status));
  }
  std::filesystem::create_directories(root_.path() / "jobs" / "empty");
  std::filesystem::create_directories(root_.path() / "jobs" / "torn");
  std::ofstream(root_.path() / "jobs" / "torn" / "status.json") << "{\"name\":";
  auto jobs = ListJobs(root_.path());
  ASSERT_TRUE(jobs);
  ASSERT_EQ(jobs->size(), 2u);
  EXPECT_EQ(jobs->at(0).name, "a");
  EXPECT_EQ(jobs->at(1).name, "b");
}

TEST_F(JobFolderTest, ADeletedJobIsGone) {
  EXPECT_EQ(DeleteJob(root_.path(), "demo").error().code(), Code::kNotFound);
  {
    const JobFolder folder = *JobFolder::Claim(root_.path(), "demo");
    ASSERT_TRUE(folder.Write(StartingStatus("demo", {})));
    EXPECT_EQ(DeleteJob(root_.path(), "demo").error().code(), Code::kBusy);
  }
  // An interrupted deletion of an earlier job of this name.
  std::filesystem::create_directories(root_.path() / "jobs/.demo.deleted/logs");
  ASSERT_TRUE(DeleteJob(root_.path(), "demo"));
  EXPECT_TRUE(std::filesystem::is_empty(root_.path() / "jobs"));
  EXPECT_TRUE(ListJobs(root_.path())->empty());
}

TEST_F(JobFolderTest, NamesStayInTheFolder) {
  for (const char* name : {"", ".", "..", "a/b", "../x"}) {
    EXPECT_EQ(JobFolder::Claim(root_.path(), name).error().code(), Code::kInvalidArgument) << name;
    EXPECT_EQ(ReadJob(root_.path(), name).error().code(), Code::kInvalidArgument) << name;
  }
  EXPECT_EQ(ReadJob(root_.path(), "none").error().code(), Code::kNotFound);
}

TEST_F(JobFolderTest, OnlyJobsThatHaveNotEndedGoOn) {
  EXPECT_FALSE(FindUnfinished(root_.path(), "demo").exists);
  JobStatus status = Running();
  auto folder = JobFolder::Claim(root_.path(), "demo");
  ASSERT_TRUE(folder && folder->Write(status));
  EXPECT_TRUE(FindUnfinished(root_.path(), "demo").exists);
  EXPECT_EQ(FindUnfinished(root_.path(), "demo").spent, 12.5);
  status.state = "done";
  ASSERT_TRUE(folder->Write(status));
  EXPECT_FALSE(FindUnfinished(root_.path(), "demo").exists);
}

TEST(QueuedStatus, CountsTheCostOfAJobThatGoesOn) {
  JobStatus earlier = Running();
  EXPECT_EQ(QueuedStatus("demo", "Slurm", WallTime(), &earlier).cost, earlier.cost);
  earlier.state = "done";
  EXPECT_EQ(QueuedStatus("demo", "Slurm", WallTime(), &earlier).cost, std::nullopt);
  const JobStatus first = QueuedStatus("demo", "Slurm", WallTime(), nullptr);
  EXPECT_EQ(first.state, "queued");
  EXPECT_EQ(first.message, "being submitted to Slurm");
}

}  // namespace
}  // namespace millrace::jobs
