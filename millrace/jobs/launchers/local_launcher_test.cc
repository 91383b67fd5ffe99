#include "millrace/jobs/launchers/local_launcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>

namespace millrace::jobs {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Real processes: each rank runs a shell script.
class LocalLauncherTest : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(folder_.path() / "logs");
    std::filesystem::create_directories(folder_.path() / "heartbeats");
  }
  std::unique_ptr<LocalLauncher> Launch(std::string script, int ranks = 2) {
    LocalLauncher::Options options;
    options.command = {"/bin/sh", "-c", std::move(script)};
    options.ranks = ranks;
    options.folder = folder_.path();
    options.on_line = [this](int, LocalLauncher::Stream stream, std::string_view line) {
      (stream == LocalLauncher::Stream::kOut ? out_ : error_).emplace_back(line);
    };
    auto launcher = std::make_unique<LocalLauncher>(std::move(options));
    EXPECT_TRUE(launcher->Start(1));
    return launcher;
  }
  /// Waits until `done` holds for the ranks' states; the test fails after 20 s.
  template <class Done>
  std::span<const RankState> Until(LocalLauncher& launcher, Done done) {
    TimePoint deadline = SystemClock().Now() + seconds(20);
    for (;;) {
      auto ranks = launcher.Wait(deadline, {});
      if (done(ranks)) return ranks;
      if (SystemClock().Now() < deadline) continue;
      ADD_FAILURE() << "timed out";
      return ranks;
    }
  }
  static bool AllEnded(std::span<const RankState> ranks) {
    return std::all_of(ranks.begin(), ranks.end(), [](const RankState& rank) { return rank.exit.has_value(); });
  }
  std::string Read(std::string name) { return ReadFile(folder_.path() / "logs" / name).value_or(""); }

  TempDir folder_ = *TempDir::Create();
  std::vector<std::string> out_, error_;
};

TEST_F(LocalLauncherTest, GivesEachRankItsPlace) {
  auto launcher =
      Launch("echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $MASTER_ADDR $MASTER_PORT $MILLRACE_ATTEMPT");
  Until(*launcher, AllEnded);
  std::string first = Read("rank-0.out"), second = Read("rank-1.out");
  EXPECT_THAT(first, testing::MatchesRegex("0/2 0/2 127.0.0.1 [0-9]+ 1\n"));
  EXPECT_THAT(second, testing::MatchesRegex("1/2 1/2 127.0.0.1 [0-9]+ 1\n"));
  EXPECT_EQ(first.substr(7), second.substr(7)) << "one rendezvous for all";
}

constexpr const char* kShowSecret = "echo ${MILLRACE_RANK_SECRET:-none}";

TEST_F(LocalLauncherTest, RanksHaveASecretOfTheirAttempt) {
  auto launcher = Launch(kShowSecret);
  Until(*launcher, AllEnded);
  const std::string first = Read("rank-0.out");
  EXPECT_THAT(first, testing::MatchesRegex("[0-9a-f]+\n"));
  EXPECT_EQ(first.size(), 65u);
  EXPECT_EQ(Read("rank-1.out"), first);
  ASSERT_TRUE(launcher->Start(2));
  Until(*launcher, AllEnded);
  const std::string both = Read("rank-0.out");
  EXPECT_EQ(both.size(), 130u);
  EXPECT_NE(both.substr(65), first) << "an attempt does not meet the one before it";
}

TEST_F(LocalLauncherTest, ForeignProgramsHaveNoSecret) {
  ::setenv("MILLRACE_RANK_SECRET", "of this process", 1);
  LocalLauncher::Options options{.foreign = ForeignProgram{.command = {"/bin/sh", "-c", kShowSecret}},
                                 .folder = folder_.path()};
  LocalLauncher launcher(std::move(options));
  ASSERT_TRUE(launcher.Start(1));
  Until(launcher, AllEnded);
  ::unsetenv("MILLRACE_RANK_SECRET");
  EXPECT_EQ(Read("rank-0.out"), "none\n");
}

TEST_F(LocalLauncherTest, ProgramsOfMillraceMayMakeRanks) {
  EXPECT_TRUE(StartsRanks({.command = {"/usr/bin/millrace", "doctor", "--links"}}));
  EXPECT_FALSE(StartsRanks({.command = {"python3", "train.py"}}));
}

TEST_F(LocalLauncherTest, ASecretOfSeveralMachinesIsGivenOrInherited) {
  LocalLauncher::Options options{.command = {"/bin/sh", "-c", kShowSecret},
                                 .place = {.first_rank = 1, .world_size = 2, .master_port = 29500},
                                 .folder = folder_.path()};
  LocalLauncher inherits(options);
  ASSERT_TRUE(inherits.Start(1));
  Until(inherits, AllEnded);
  EXPECT_EQ(Read("rank-1.out"), "none\n");
  options.place.rank_secret = "given";
  LocalLauncher given(std::move(options));
  ASSERT_TRUE(given.Start(1));
  Until(given, AllEnded);
  EXPECT_EQ(Read("rank-1.out"), "none\ngiven\n");
}

TEST_F(LocalLauncherTest, RanksMayBePartOfALargerJob) {
  std::vector<std::string> lines;
  LocalLauncher::Options options;
  options.command = {"/bin/sh", "-c", "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $MASTER_ADDR:$MASTER_PORT"};
  options.ranks = 2;
  options.place = {.first_rank = 4, .world_size = 8, .master_address = "10.0.0.1", .master_port = 29500};
  options.folder = folder_.path();
  options.all_lines = true;
  options.on_line = [&](int rank, LocalLauncher::Stream, std::string_view line) {
    lines.push_back(fmt::format("{}: {}", rank, line));
  };
  LocalLauncher launcher(std::move(options));
  ASSERT_TRUE(launcher.Start(1));
  Until(launcher, AllEnded);
  EXPECT_THAT(lines, testing::UnorderedElementsAre("4: 4/8 0/2 10.0.0.1:29500", "5: 5/8 1/2 10.0.0.1:29500"));
  EXPECT_EQ(Read("rank-5.out"), "5/8 1/2 10.0.0.1:29500\n");
}

TEST_F(LocalLauncherTest, HandsOnTheLinesOfRank0) {
  auto launcher = Launch("echo out $RANK; echo error $RANK >&2; printf unfinished");
  Until(*launcher, AllEnded);
  EXPECT_THAT(out_, ElementsAre("out 0", "unfinished"));
  EXPECT_THAT(error_, ElementsAre("error 0"));
  EXPECT_EQ(Read("rank-1.err"), "error 1\n");
}

TEST_F(LocalLauncherTest, SeesExitsAndTheLastStepBeforeThem) {
  auto launcher = Launch("for s in 1 2 3; do echo $s > $MILLRACE_HEARTBEAT_FILE; done; exit $((RANK * 3))");
  auto ranks = Until(*launcher, AllEnded);
  EXPECT_EQ(ranks[0].exit->exit_code, 0);
  EXPECT_EQ(ranks[1].exit->exit_code, 3);
  EXPECT_EQ(ranks[0].step, 3u);
  EXPECT_EQ(ranks[1].step, 3u);
}

TEST_F(LocalLauncherTest, AnExitEndsAWaitAtOnce) {
  auto launcher = Launch("exec sleep 60");
  auto ranks = launcher->Wait(SystemClock().Now(), {});
  ASSERT_FALSE(ranks[1].exit);
  ::kill(static_cast<pid_t>(ranks[1].pid), SIGKILL);
  TimePoint killed = SystemClock().Now();
  ranks = Until(*launcher, [](auto states) { return states[1].exit.has_value(); });
  EXPECT_LT(SystemClock().Now() - killed, seconds(2));
  EXPECT_EQ(ranks[1].exit->signal, SIGKILL);
  EXPECT_FALSE(ranks[0].exit);
}

TEST_F(LocalLauncherTest, AStopEndsAWaitAtOnce) {
  auto launcher = Launch("exec sleep 60");
  std::stop_source stop;
  stop.request_stop();
  TimePoint before = SystemClock().Now();
  launcher->Wait(before + seconds(60), stop.get_token());
  EXPECT_LT(SystemClock().Now() - before, seconds(5));
}

TEST_F(LocalLauncherTest, SignalsReachEveryRank) {
  auto launcher = Launch("trap 'exit 130' TERM; echo 1 > $MILLRACE_HEARTBEAT_FILE; while :; do sleep 0.02; done");
  Until(*launcher, [](auto states) { return states[0].step && states[1].step; });
  launcher->Signal(SIGTERM);
  auto ranks = Until(*launcher, AllEnded);
  EXPECT_EQ(ranks[0].exit->exit_code, 130);
  EXPECT_EQ(ranks[1].exit->exit_code, 130);
}

TEST_F(LocalLauncherTest, ANewAttemptStartsAfreshAndKeepsTheLogs) {
  auto launcher =
      Launch("echo $MILLRACE_ATTEMPT $MASTER_PORT; [ $MILLRACE_ATTEMPT = 2 ] || echo 9 > $MILLRACE_HEARTBEAT_FILE");
  EXPECT_EQ(Until(*launcher, AllEnded)[0].step, 9u);
  ASSERT_TRUE(launcher->Start(2));
  auto ranks = Until(*launcher, AllEnded);
  EXPECT_FALSE(ranks[0].step) << "the heartbeat of the attempt before must not count";
  ASSERT_EQ(out_.size(), 2u);
  EXPECT_TRUE(out_[0].starts_with("1 "));
  EXPECT_TRUE(out_[1].starts_with("2 "));
  EXPECT_THAT(Read("rank-0.out"), HasSubstr(out_[0] + "\n" + out_[1]));
}

TEST_F(LocalLauncherTest, TellsTheLastWordsOfARank) {
  auto launcher = Launch("for i in 1 2 3 4 5; do echo line $i of $RANK >&2; done; exit 1");
  Until(*launcher, AllEnded);
  EXPECT_EQ(launcher->ErrorTail(1, 2), "line 4 of 1\nline 5 of 1");
  EXPECT_EQ(launcher->ErrorTail(1, 100).substr(0, 6), "line 1");
  ASSERT_TRUE(launcher->Start(2));
  Until(*launcher, AllEnded);
  EXPECT_EQ(launcher->ErrorTail(0, 100).size(), 5 * std::string("line 1 of 0\n").size() - 1) << "of this attempt only";
}

TEST_F(LocalLauncherTest, NothingIsLeftBehind) {
  std::vector<pid_t> pids;
  {
    auto launcher = Launch("exec sleep 60", 3);
    for (const RankState& rank : launcher->Wait(SystemClock().Now(), {})) pids.push_back(static_cast<pid_t>(rank.pid));
  }
  ASSERT_EQ(pids.size(), 3u);
  for (pid_t pid : pids) EXPECT_EQ(::kill(pid, 0), -1);
}

TEST_F(LocalLauncherTest, AProgramThatIsNotThereIsAnError) {
  LocalLauncher launcher({.command = {"/nonexistent/millrace-train"}, .ranks = 2, .folder = folder_.path()});
  auto started = launcher.Start(1);
  ASSERT_FALSE(started);
  EXPECT_THAT(started.error().ToString(), HasSubstr("/nonexistent/millrace-train"));
  EXPECT_TRUE(launcher.Wait(SystemClock().Now(), {}).empty());
}

TEST(LogFollower, CutsEndlessLines) {
  TempDir folder = *TempDir::Create();
  std::ofstream(folder.path() / "log") << std::string(200 * kKiB, 'x') << "\nnext\n";
  LogFollower follower(folder.path() / "log");
  std::size_t total = 0;
  std::vector<std::string> lines;
  EXPECT_TRUE(follower.Poll([&](std::string_view line) {
    EXPECT_LE(line.size(), 128 * kKiB);
    total += line.size();
    lines.emplace_back(line);
  }));
  EXPECT_EQ(total, 200 * kKiB + 4);
  EXPECT_EQ(lines.back(), "next");
  EXPECT_EQ(TailOf(folder.path() / "none", 0, 3), "");
}

TEST(LogFollower, BeginsAtItsLastLines) {
  TempDir folder = *TempDir::Create();
  const std::filesystem::path path = folder.path() / "log";
  std::string text = std::string(200 * kKiB, 'x') + "\n";
  for (int i = 0; i < 20'000; ++i) text += fmt::format("line {}\n", i);
  std::ofstream(path) << text;
  for (const auto& [tail, first] : {std::pair(1, "line 19999"), {15'000, "line 5000"}, {20'000, "line 0"}}) {
    LogFollower follower(path);
    ASSERT_TRUE(follower.SkipToTail(tail));
    std::vector<std::string> lines;
    ASSERT_TRUE(follower.Poll([&](std::string_view line) { lines.emplace_back(line); }));
    EXPECT_EQ(lines.size(), static_cast<std::size_t>(tail));
    EXPECT_EQ(lines.front(), first);
  }
  LogFollower all(path);
  ASSERT_TRUE(all.SkipToTail(1'000'000));
  int lines = 0;
  ASSERT_TRUE(all.Poll([&](std::string_view) { ++lines; }));
  EXPECT_GT(lines, 20'000);
}

TEST_F(LocalLauncherTest, AForeignProgramFindsItsFolderAndShowsLifeByItsOutput) {
  LocalLauncher::Options options;
  const std::filesystem::path checkpoints = folder_.path() / "deep" / "checkpoints";
  options.foreign =
      ForeignProgram{.command = {"/bin/sh", "-c", "echo $GROUP_RANK > $MILLRACE_CHECKPOINTS/$RANK; echo here; exit 3"},
                     .checkpoint_folder = checkpoints.string()};
  options.ranks = 2;
  options.place = {.first_rank = 4, .world_size = 6, .master_port = 29500};
  options.folder = folder_.path();
  LocalLauncher launcher(std::move(options));
  ASSERT_TRUE(launcher.Start(1));
  const auto ranks = Until(launcher, AllEnded);
  for (const RankState& rank : ranks) {
    EXPECT_EQ(rank.exit->exit_code, 3);
    EXPECT_GT(rank.beats, 0U);
    EXPECT_FALSE(rank.step);
  }
  EXPECT_EQ(ReadFile(checkpoints / "4").value_or(""), "2\n");
  EXPECT_EQ(ReadFile(checkpoints / "5").value_or(""), "2\n");
}

}  // namespace
}  // namespace millrace::jobs
