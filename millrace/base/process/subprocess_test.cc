#include "millrace/base/process/subprocess.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <thread>

#include "millrace/base/process/refused_call.h"

namespace millrace {
namespace {

using namespace std::chrono_literals;

TEST(Subprocess, CapturesOutputAndExitStatus) {
  auto output = Subprocess::Run({.argv = {"sh", "-c", "printf \"$GREETING\"; exit 3"}, .env = {{"GREETING", "hello"}}});
  ASSERT_TRUE(output);
  EXPECT_EQ(output->stdout_text, "hello");
  EXPECT_EQ(output->state.exit_code, 3);
  EXPECT_EQ(output->state.ToString(), "exit status 3");
}

TEST(Subprocess, StartFailuresAreErrors) {
  EXPECT_EQ(Subprocess::Start({.argv = {"no-such-program-anywhere"}}).error().code(), Code::kNotFound);
  EXPECT_EQ(Subprocess::Start({.argv = {"/no/such/program"}}).error().code(), Code::kNotFound);
  EXPECT_FALSE(Subprocess::Start({.argv = {"sh"}, .working_directory = "/no/such/folder"}));
}

TEST(Subprocess, FilesEnvironmentAndFolder) {
  TempDir dir = *TempDir::Create();
  setenv("MILLRACE_TEST_SECRET", "hidden", 1);
  auto child = Subprocess::Start({.argv = {"sh", "-c", "pwd; echo \"[$MILLRACE_TEST_SECRET]\" >&2"},
                                  .unset_env = {"MILLRACE_TEST_SECRET"},
                                  .working_directory = dir.path(),
                                  .stdout_file = dir.path() / "out",
                                  .stderr_file = dir.path() / "err"});
  ASSERT_TRUE(child);
  EXPECT_TRUE(child->Wait()->ok());
  EXPECT_EQ(*ReadFile(dir.path() / "out"), dir.path().string() + "\n");
  EXPECT_EQ(*ReadFile(dir.path() / "err"), "[]\n");
}

TEST(Subprocess, StopKillsWhatIgnoresSigterm) {
  auto child = Subprocess::Start(
      {.argv = {"sh", "-c", "trap '' TERM; echo ready; while :; do sleep 100; done"}, .capture_stdout = true});
  ASSERT_TRUE(child);
  EXPECT_FALSE(child->Poll());
  EXPECT_FALSE(child->Wait(1ms));
  EXPECT_NE(child->Stop(20ms).signal, 0);
}

TEST(Subprocess, SystemsWithoutPidfdsSeeTheEndOfAChild) {
  std::thread([] {
    if (!RefuseCall(SYS_pidfd_open, ENOSYS)) return;
    auto child = Subprocess::Start({.argv = {"cat"}, .pipe_stdin = true});
    ASSERT_TRUE(child);
    EXPECT_FALSE(child->Wait(1ms));
    const TimePoint before = SystemClock().Now();
    child->Signal(SIGKILL);
    EXPECT_EQ(child->Wait(1min)->signal, SIGKILL);
    EXPECT_LT(SystemClock().Now() - before, 30s);
  }).join();
}

TEST(Subprocess, DestructionKillsTheWholeGroup) {
  TempDir dir = *TempDir::Create();
  UniqueFd grandchild;
  {
    auto child = Subprocess::Start(
        {.argv = {"sh", "-c", "sleep 1000 & echo $! > pid; mv pid ready; wait"}, .working_directory = dir.path()});
    ASSERT_TRUE(child);
    while (!std::filesystem::exists(dir.path() / "ready")) ASSERT_TRUE(SystemClock().SleepFor(1ms));
    pid_t pid = std::stoi(*ReadFile(dir.path() / "ready"));
    grandchild = UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
    ASSERT_TRUE(grandchild);
  }
  pollfd ended{.fd = grandchild.get(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(poll(&ended, 1, 10'000), 1);
}

TEST(Subprocess, PidfdBecomesReadableAtTheEnd) {
  auto child = Subprocess::Start({.argv = {"true"}});
  ASSERT_TRUE(child);
  pollfd ended{.fd = child->pidfd(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(poll(&ended, 1, 10'000), 1);
  EXPECT_TRUE(child->Poll()->ok());
}

}  // namespace
}  // namespace millrace
