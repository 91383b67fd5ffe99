// A job on several machines: here, agents on this one, each behind a shell as behind ssh.
#include "millrace/jobs/launchers/remote_launcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <memory>

#include "millrace/base/text.h"
#include "millrace/http/testing/scripted_server.h"

namespace millrace::jobs {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Stream = LocalLauncher::Stream;

class RemoteLauncherTest : public testing::Test {
 protected:
  void SetUp() override {
    const char* bin = std::getenv("MILLRACE_BIN");
    if (bin == nullptr) GTEST_SKIP() << "MILLRACE_BIN is not set";
    millrace_ = std::string(bin) + "/millrace";
    ::signal(SIGPIPE, SIG_IGN);  // as millrace does
    std::filesystem::create_directories(folder_.path() / "logs");
  }
  /// Nodes with two ranks each. A rank is the script.
  RemoteLauncher::Options Options(const std::string& script, int nodes = 2) {
    const std::filesystem::path program = folder_.path() / "rank.sh";
    std::ofstream(program) << "#!/bin/sh\n" << script << "\n";
    std::filesystem::permissions(program, std::filesystem::perms::owner_all);
    RemoteLauncher::Options options;
    for (int i = 1; i <= nodes; ++i) {
      const std::string name = fmt::format("n{}", i);
      const std::string tells = fmt::format("echo $$ > {0}/{1}; test ! -e {0}/{1}.away && exec '{2}' job agent",
                                            folder_.path().string(), name, millrace_);
      options.nodes.push_back({.name = name, .address = "127.0.0.1", .command = {"/bin/sh", "-c", tells}});
    }
    options.ranks_per_node = 2;
    options.program = program.string();
    options.job = "name: tested\n";
    options.env = {{"WORD", "it's \"quoted\""}};
    options.folder = folder_.path();
    options.on_line = [this](int rank, Stream stream, std::string_view line) {
      lines_.push_back(fmt::format("{}{} {}", rank, stream == Stream::kError ? "!" : ":", line));
    };
    return options;
  }
  std::unique_ptr<RemoteLauncher> Launch(const std::string& script) {
    auto launcher = std::make_unique<RemoteLauncher>(Options(script));
    const Status started = launcher->Start(1);
    EXPECT_TRUE(started) << started.error().ToString();
    return launcher;
  }
  template <class Done>
  std::span<const RankState> Until(RemoteLauncher& launcher, Done done) {
    const TimePoint deadline = SystemClock().Now() + seconds(20);
    for (;;) {
      const auto ranks = launcher.Wait(deadline, {});
      if (done(ranks)) return ranks;
      if (SystemClock().Now() < deadline) continue;
      ADD_FAILURE() << "timed out";
      return ranks;
    }
  }
  static bool AllEnded(std::span<const RankState> ranks) {
    return std::ranges::all_of(ranks, [](const RankState& rank) { return rank.exit.has_value(); });
  }
  static bool AllStep(std::span<const RankState> ranks) {
    return std::ranges::all_of(ranks, [](const RankState& rank) { return rank.step.has_value(); });
  }
  std::string Read(const std::string& name) { return ReadFile(folder_.path() / name).value_or(""); }
  pid_t AgentOf(const std::string& node) { return std::stoi(Read(node)); }
  /// Returns the processes of a session that run a program.
  static std::vector<pid_t> MembersNamed(pid_t session, std::string_view program) {
    std::vector<pid_t> members;
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      const pid_t pid = std::atoi(entry.path().filename().c_str());
      const std::string name = ReadFile(entry.path() / "comm").value_or("");
      if (pid > 0 && ::getsid(pid) == session && Trim(name) == program) members.push_back(pid);
    }
    return members;
  }

  const TempDir folder_ = *TempDir::Create();
  std::string millrace_;
  std::vector<std::string> lines_;
};

TEST_F(RemoteLauncherTest, GivesEachRankItsPlaceItsJobAndItsEnvironment) {
  auto launcher =
      Launch(R"(echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $MASTER_ADDR; echo "$WORD" >&2; cat $1)");
  EXPECT_EQ(launcher->ranks(), 4);
  const auto ranks = Until(*launcher, AllEnded);
  EXPECT_THAT(lines_,
              testing::UnorderedElementsAre("0: 0/4 0/2 127.0.0.1", "1: 1/4 1/2 127.0.0.1", "2: 2/4 0/2 127.0.0.1",
                                            "3: 3/4 1/2 127.0.0.1", "0! it's \"quoted\"", "1! it's \"quoted\"",
                                            "2! it's \"quoted\"", "3! it's \"quoted\"", "0: name: tested",
                                            "1: name: tested", "2: name: tested", "3: name: tested"));
  EXPECT_EQ(Read("logs/rank-3.out"), "3/4 1/2 127.0.0.1\nname: tested\n");
  EXPECT_EQ(ranks[3].node, "n2");
  EXPECT_GT(ranks[3].pid, 0);
}

TEST_F(RemoteLauncherTest, AllRanksMeetAtOnePortOfTheFirstNode) {
  auto launcher = Launch("echo $MASTER_PORT");
  Until(*launcher, AllEnded);
  for (const char* rank : {"1", "2", "3"}) {
    EXPECT_EQ(Read(fmt::format("logs/rank-{}.out", rank)), Read("logs/rank-0.out"));
  }
  EXPECT_GT(std::stoi(Read("logs/rank-0.out")), 0);
}

TEST_F(RemoteLauncherTest, AllRanksHaveTheSecretOfTheirAttempt) {
  auto launcher = Launch("echo $MILLRACE_RANK_SECRET");
  Until(*launcher, AllEnded);
  const std::string first = Read("logs/rank-0.out");
  EXPECT_EQ(first.size(), 65u);
  for (const char* rank : {"1", "2", "3"}) EXPECT_EQ(Read(fmt::format("logs/rank-{}.out", rank)), first);
  ASSERT_TRUE(launcher->Start(2));
  Until(*launcher, AllEnded);
  EXPECT_NE(Read("logs/rank-0.out").substr(65), first);
}

TEST_F(RemoteLauncherTest, SeesExitsAndTheLastStepBeforeThem) {
  auto launcher = Launch("for s in 1 2 3; do echo $s > $MILLRACE_HEARTBEAT_FILE; done; exit $((RANK * 3))");
  const auto ranks = Until(*launcher, AllEnded);
  for (std::size_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(ranks[rank].exit->exit_code, 3 * static_cast<int>(rank));
    EXPECT_EQ(ranks[rank].step, 3u);
    EXPECT_GT(ranks[rank].beats, 0u);
  }
}

TEST_F(RemoteLauncherTest, SignalsReachEveryRank) {
  auto launcher = Launch("trap 'exit 130' TERM; echo 1 > $MILLRACE_HEARTBEAT_FILE; while :; do sleep 0.02; done");
  Until(*launcher, AllStep);
  launcher->Signal(SIGTERM);
  for (const RankState& rank : Until(*launcher, AllEnded)) EXPECT_EQ(rank.exit->exit_code, 130);
}

TEST_F(RemoteLauncherTest, ALostNodeIsNamedAndItsSuccessorStarts) {
  auto launcher = Launch("echo $MILLRACE_ATTEMPT > $MILLRACE_HEARTBEAT_FILE; exec sleep 60");
  Until(*launcher, AllStep);
  const pid_t first = AgentOf("n2");
  ::kill(first, SIGKILL);
  auto ranks = Until(*launcher, [](auto states) { return states[2].exit && states[3].exit; });
  EXPECT_EQ(ranks[2].exit->signal, SIGKILL);
  EXPECT_THAT(ranks[2].cause, HasSubstr("node n2 is lost"));
  EXPECT_FALSE(ranks[0].exit);
  launcher->Signal(SIGKILL);
  Until(*launcher, AllEnded);
  ASSERT_TRUE(launcher->Start(2));
  ranks = Until(*launcher, AllStep);
  EXPECT_EQ(ranks[3].step, 2u);
  EXPECT_NE(AgentOf("n2"), first);
}

/// What the launcher says of its nodes: "n1 runs, n2 lost, n3 spare".
std::string Uses(const RemoteLauncher& launcher) {
  constexpr const char* kWords[] = {"runs", "spare", "lost", "unfit", "set aside"};
  std::string uses;
  for (const NodeState& node : launcher.nodes()) {
    uses += fmt::format("{}{} {}", uses.empty() ? "" : ", ", node.name, kWords[static_cast<int>(node.use)]);
  }
  return uses;
}

TEST_F(RemoteLauncherTest, ASpareTakesThePlaceOfALostNode) {
  RemoteLauncher::Options options = Options("echo $MILLRACE_ATTEMPT > $MILLRACE_HEARTBEAT_FILE; exec sleep 60", 3);
  options.sizes = {2};
  RemoteLauncher launcher(std::move(options));
  ASSERT_TRUE(launcher.Start(1));
  Until(launcher, AllStep);
  EXPECT_EQ(Uses(launcher), "n1 runs, n2 runs, n3 spare");
  const pid_t spare = AgentOf("n3");
  ::kill(AgentOf("n1"), SIGKILL);
  Until(launcher, [](auto states) { return states[0].exit.has_value(); });
  launcher.Signal(SIGKILL);
  Until(launcher, AllEnded);
  ASSERT_TRUE(launcher.Start(2));
  const auto ranks = Until(launcher, AllStep);
  EXPECT_EQ(Uses(launcher), "n1 lost, n2 runs, n3 runs");
  EXPECT_EQ(ranks[0].node, "n3");
  EXPECT_EQ(ranks[2].node, "n2");
  EXPECT_EQ(AgentOf("n3"), spare);
}

TEST_F(RemoteLauncherTest, AnUnfitNodeHasNoRanks) {
  RemoteLauncher::Options options = Options("echo 1 > $MILLRACE_HEARTBEAT_FILE", 3);
  options.sizes = {2};
  options.health = HealthOptions{.checks = {"disk"}};
  options.nodes[1].command = {"/bin/sh", "-c", fmt::format("TMPDIR=/nothing exec '{}' job agent", millrace_)};
  RemoteLauncher launcher(std::move(options));
  ASSERT_TRUE(launcher.Start(1));
  EXPECT_EQ(Uses(launcher), "n1 runs, n2 unfit, n3 runs");
  EXPECT_THAT(launcher.nodes()[1].reason, HasSubstr("is unfit: disk: /nothing cannot be used"));
  EXPECT_EQ(Until(launcher, AllEnded)[2].node, "n3");
}

TEST_F(RemoteLauncherTest, WithoutASpareAnUnfitNodeKeepsTheJobFromStarting) {
  RemoteLauncher::Options options = Options("exit 0");
  options.health = HealthOptions{.checks = {"disk"}};
  options.nodes[1].command = {"/bin/sh", "-c", fmt::format("TMPDIR=/nothing exec '{}' job agent", millrace_)};
  RemoteLauncher launcher(std::move(options));
  const Status started = launcher.Start(1);
  ASSERT_FALSE(started);
  EXPECT_EQ(started.error().code(), Code::kUnavailable);
  EXPECT_THAT(started.error().ToString(), HasSubstr("2 nodes are needed and 1 ready: node n2 is unfit: disk"));
}

TEST_F(RemoteLauncherTest, ANodeThatIsSetAsideHasNoRanks) {
  RemoteLauncher::Options options = Options("echo 1 > $MILLRACE_HEARTBEAT_FILE", 3);
  options.sizes = {2};
  RemoteLauncher launcher(std::move(options));
  ASSERT_TRUE(launcher.Start(1));
  Until(launcher, AllEnded);
  EXPECT_TRUE(launcher.SetAside("n2", "failed twice"));
  ASSERT_TRUE(launcher.Start(2));
  EXPECT_EQ(Uses(launcher), "n1 runs, n2 set aside, n3 runs");
  EXPECT_EQ(Until(launcher, AllEnded)[3].node, "n3");
  EXPECT_FALSE(launcher.SetAside("n3", "there is no other"));
}

// Rank 0 has measured the network, and tells of the node of rank 2.
constexpr const char* kTellsOfASlowNode = R"(
  test "$RANK$MILLRACE_ATTEMPT" = 01 && told="slow 2 all links of n2 are slow"
  printf '1\n%s\n' "$told" > $MILLRACE_HEARTBEAT_FILE
  exec sleep 60)";

TEST_F(RemoteLauncherTest, ASpareTakesThePlaceOfANodeWithSlowLinks) {
  RemoteLauncher::Options options = Options(kTellsOfASlowNode, 3);
  options.sizes = {2};
  RemoteLauncher launcher(std::move(options));
  ASSERT_TRUE(launcher.Start(1));
  Until(launcher, [&](auto) { return !launcher.RegroupReason().empty(); });
  EXPECT_EQ(launcher.RegroupReason(), "node n2 is set aside: all links of n2 are slow");
  launcher.Signal(SIGTERM);
  Until(launcher, AllEnded);
  ASSERT_TRUE(launcher.Start(2));
  EXPECT_EQ(Uses(launcher), "n1 runs, n2 set aside, n3 runs");
  EXPECT_EQ(Until(launcher, AllStep)[2].node, "n3");
  EXPECT_EQ(launcher.RegroupReason(), "");
}

TEST_F(RemoteLauncherTest, WithoutASpareSlowLinksAreAWarning) {
  RemoteLauncher launcher(Options(kTellsOfASlowNode));
  ASSERT_TRUE(launcher.Start(1));
  Until(launcher, [&](auto) { return !launcher.nodes()[1].warnings.empty(); });
  EXPECT_THAT(launcher.nodes()[1].warnings, ElementsAre("all links of n2 are slow"));
  EXPECT_EQ(launcher.RegroupReason(), "");
  EXPECT_EQ(Uses(launcher), "n1 runs, n2 runs");
}

TEST_F(RemoteLauncherTest, FewerNodesGoOnAndTheOthersComeBack) {
  RemoteLauncher::Options options = Options("echo $WORLD_SIZE > $MILLRACE_HEARTBEAT_FILE; exec sleep 60");
  options.sizes = {2, 1};
  options.return_interval = milliseconds(100);
  RemoteLauncher launcher(std::move(options));
  ASSERT_TRUE(launcher.Start(1));
  Until(launcher, AllStep);
  EXPECT_EQ(launcher.RegroupReason(), "");
  std::ofstream(folder_.path() / "n1.away").put('\n');
  ::kill(AgentOf("n1"), SIGKILL);
  Until(launcher, [](auto states) { return states[0].exit.has_value(); });
  launcher.Signal(SIGKILL);
  Until(launcher, AllEnded);
  ASSERT_TRUE(launcher.Start(2));
  auto ranks = Until(launcher, AllStep);
  EXPECT_EQ(launcher.ranks(), 2);
  ASSERT_EQ(ranks.size(), 2u);
  EXPECT_EQ(ranks[0].step, 2u);
  EXPECT_EQ(ranks[0].node, "n2");
  EXPECT_EQ(launcher.RegroupReason(), "");
  std::filesystem::remove(folder_.path() / "n1.away");
  Until(launcher, [&](auto) { return !launcher.RegroupReason().empty(); });
  EXPECT_EQ(launcher.RegroupReason(), "2 nodes are ready again; there were 1");
  launcher.Signal(SIGKILL);
  Until(launcher, AllEnded);
  ASSERT_TRUE(launcher.Start(3));
  ranks = Until(launcher, AllStep);
  ASSERT_EQ(ranks.size(), 4u);
  EXPECT_EQ(ranks[0].step, 4u);
  EXPECT_EQ(ranks[0].node, "n2");  // it keeps its place
}

TEST_F(RemoteLauncherTest, ANodeThatEc2TakesAwayIsReplacedOrLeft) {
  // The notice comes once the ranks run. A node that is taken away before is not chosen.
  std::atomic<bool> running = false;
  const auto release = [&](bool runs) {
    running = runs;
    running.notify_all();
  };
  http::testing::ScriptedServer ec2([&](const http::testing::ScriptedServer::Seen&) {
    running.wait(false);
    return http::testing::ScriptedServer::Reply{
        http::testing::Answer(200, R"({"action": "stop", "time": "2026-01-31T12:00:00Z"})")};
  });
  for (const bool has_spare : {true, false}) {
    release(false);
    RemoteLauncher::Options options = Options("echo 1 > $MILLRACE_HEARTBEAT_FILE; exec sleep 60", has_spare ? 3 : 2);
    options.sizes = {2};
    options.health.spot = "http://127.0.0.1:1";  // nobody: no notice
    // The agent of n1 is told of another service than the others.
    options.nodes[0].command = {
        "/bin/sh", "-c", fmt::format("sed -u 's|http://127.0.0.1:1|{}|' | '{}' job agent", ec2.url(), millrace_)};
    RemoteLauncher launcher(std::move(options));
    const Status started = launcher.Start(1);
    release(true);
    ASSERT_TRUE(started) << started.error().ToString();
    Until(launcher, [&](auto) { return !launcher.RegroupReason().empty() || !launcher.LeaveReason().empty(); });
    const std::string why = "node n1 is unfit: spot: EC2 will stop this machine at 2026-01-31T12:00:00Z";
    if (has_spare) {
      EXPECT_THAT(launcher.RegroupReason(), HasSubstr(why));
      EXPECT_EQ(launcher.LeaveReason(), "");
    } else {
      EXPECT_THAT(launcher.LeaveReason(),
                  testing::AllOf(HasSubstr(why), HasSubstr("no other node can take its place")));
    }
    launcher.Signal(SIGKILL);
    Until(launcher, AllEnded);
    EXPECT_EQ(launcher.Start(2).has_value(), has_spare);
    if (has_spare) EXPECT_EQ(Uses(launcher), "n1 unfit, n2 runs, n3 runs");
  }
}

TEST_F(RemoteLauncherTest, AnAgentThatSaysNothingIsLost) {
  RemoteLauncher::Options options = Options("exec sleep 60");
  options.silence = seconds(6);  // agents speak every 2 s
  RemoteLauncher launcher(std::move(options));
  ASSERT_TRUE(launcher.Start(1));
  ::kill(AgentOf("n1"), SIGSTOP);
  const auto ranks = Until(launcher, [](auto states) { return states[0].exit.has_value(); });
  EXPECT_THAT(ranks[0].cause, HasSubstr("node n1 is lost: it said nothing"));
  EXPECT_FALSE(ranks[2].exit);
}

/// Waits until a process has ended, without a word to anybody meanwhile.
bool AwaitEnd(pid_t pid, Duration patience = seconds(30)) {
  const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (process.get() < 0) return errno == ESRCH;
  pollfd watched{.fd = process.get(), .events = POLLIN, .revents = 0};
  return ::poll(&watched, 1, static_cast<int>(patience / milliseconds(1))) == 1;
}

TEST_F(RemoteLauncherTest, RanksWhoseSupervisorSaysNothingEndByThemselves) {
  RemoteLauncher::Options options = Options("exec sleep 60", 1);
  options.lease = seconds(2);
  RemoteLauncher launcher(std::move(options));
  ASSERT_TRUE(launcher.Start(1));
  const pid_t rank = static_cast<pid_t>(launcher.Wait(SystemClock().Now(), {})[0].pid);
  EXPECT_TRUE(AwaitEnd(rank));
  const auto ranks = Until(launcher, AllEnded);
  EXPECT_THAT(ranks[0].cause, HasSubstr("the supervisor said nothing for 2.0 s"));
}

TEST_F(RemoteLauncherTest, RanksWhoseSupervisorAnswersOutliveTheLease) {
  RemoteLauncher::Options options = Options("exec sleep 60", 1);
  options.lease = seconds(3);
  RemoteLauncher launcher(std::move(options));
  ASSERT_TRUE(launcher.Start(1));
  const TimePoint end = SystemClock().Now() + seconds(6);
  while (SystemClock().Now() < end) {
    ASSERT_FALSE(launcher.Wait(end, {})[0].exit) << launcher.ErrorTail(0, 5);
  }
}

/// srun that is stopped and then killed leaves its agent as it was: the agent meets neither an end of its input nor an
/// error of its output.
TEST_F(RemoteLauncherTest, NoRankStartsWhileOneOfALostNodeMayRun) {
  RemoteLauncher::Options options = Options("echo 0 > $MILLRACE_HEARTBEAT_FILE; exec sleep 60", 1);
  const std::string relay = fmt::format(
      "echo $$ > {0}/session; test -e {0}/second && exec '{1}' job agent; touch {0}/second;"
      "(cat; exec sleep 60) | '{1}' job agent | (cat; exec cat > /dev/null)",
      folder_.path().string(), millrace_);
  options.nodes[0].command = {"/usr/bin/setsid", "--wait", "/bin/sh", "-c", relay};
  options.silence = seconds(5);
  options.lease = seconds(8);
  RemoteLauncher launcher(std::move(options));
  ASSERT_TRUE(launcher.Start(1));
  Until(launcher, AllStep);
  const pid_t session = AgentOf("session");
  const pid_t rank = static_cast<pid_t>(launcher.Wait(SystemClock().Now(), {})[0].pid);
  for (const pid_t cat : MembersNamed(session, "cat")) ::kill(cat, SIGSTOP);
  const auto ranks = Until(launcher, AllEnded);
  EXPECT_THAT(ranks[0].cause, HasSubstr("it said nothing"));
  EXPECT_EQ(::kill(rank, 0), 0) << "it should still run";
  ASSERT_TRUE(launcher.Start(2));
  EXPECT_TRUE(AwaitEnd(rank, Duration(0))) << "two generations of a rank run";
  ::kill(-session, SIGKILL);
}

TEST_F(RemoteLauncherTest, ANodeThatCannotBeReachedMayBeTriedAgain) {
  RemoteLauncher::Options options = Options("exit 0");
  options.nodes[1].command = {"/bin/sh", "-c", "echo 'Connection refused' >&2; exit 255"};
  RemoteLauncher launcher(std::move(options));
  const Status started = launcher.Start(1);
  ASSERT_FALSE(started);
  EXPECT_EQ(started.error().code(), Code::kUnavailable);
  EXPECT_THAT(started.error().ToString(),
              HasSubstr("node n2 is lost: /bin/sh ended with exit status 255: Connection refused"));
  EXPECT_TRUE(launcher.Wait(SystemClock().Now(), {}).empty());
}

TEST_F(RemoteLauncherTest, ItsOwnerExplainsWhyANodeIsLost) {
  RemoteLauncher::Options options = Options("exit 0");
  options.nodes[1].command = {"/bin/sh", "-c", "echo 'No key' >&2; exit 3"};
  options.explain = [](const RemoteNode& node, const ExitState& state, std::string_view words) {
    return Error(Code::kPermissionDenied, fmt::format("{}|{}|{}", node.name, state.exit_code, words));
  };
  RemoteLauncher launcher(std::move(options));
  const Status started = launcher.Start(1);
  ASSERT_FALSE(started);
  EXPECT_EQ(started.error().code(), Code::kPermissionDenied);
  EXPECT_EQ(started.error().ToString(), "n2|3|No key");
}

TEST_F(RemoteLauncherTest, OrdersToAnAgentThatIsGoneDoNoHarm) {
  auto launcher = Launch("echo 1 > $MILLRACE_HEARTBEAT_FILE; exec sleep 60");
  Until(*launcher, AllStep);
  const UniqueFd agent(static_cast<int>(::syscall(SYS_pidfd_open, AgentOf("n2"), 0)));
  ::kill(AgentOf("n2"), SIGKILL);
  pollfd ended{.fd = agent.get(), .events = POLLIN, .revents = 0};
  ASSERT_EQ(::poll(&ended, 1, 20'000), 1);
  launcher->Signal(SIGKILL);  // before it is known that the agent is gone
  for (const RankState& rank : Until(*launcher, AllEnded)) EXPECT_EQ(rank.exit->signal, SIGKILL);
}

TEST_F(RemoteLauncherTest, AnAgentThatSpeaksNonsenseIsLost) {
  for (const char* event : {R"({"started": [{}, "2"]})", R"({"started": 7})", R"({"port": "x"})", R"({"beat": []})",
                            R"({"line": {"rank": 2, "text": 5}})", R"({"exit": {"rank": "2"}})"}) {
    RemoteLauncher::Options options = Options("exit 0");
    options.nodes[1].command = {"/bin/sh", "-c", fmt::format("echo '{{}}'; read order; echo '{}'; sleep 60", event)};
    RemoteLauncher launcher(std::move(options));
    const Status started = launcher.Start(1);
    ASSERT_FALSE(started) << event;
    EXPECT_EQ(started.error().code(), Code::kCorrupt) << event;
    EXPECT_THAT(started.error().ToString(), HasSubstr("node n2 is lost")) << event;
  }
}

TEST_F(RemoteLauncherTest, AJobFileMayBeLongerThanAPipe) {
  RemoteLauncher::Options options = Options("wc -c < $1");
  options.job = "name: tested\n" + std::string(300'000, '#');
  RemoteLauncher launcher(std::move(options));
  ASSERT_TRUE(launcher.Start(1));
  Until(launcher, AllEnded);
  EXPECT_EQ(Read("logs/rank-3.out"), "300013\n");
}

TEST_F(RemoteLauncherTest, AnAgentRefusesOrdersOfTheWrongForm) {
  const std::string orders =
      R"({"start": {"attempt": 1, "first_rank": 0, "ranks": 1, "world_size": 1, "master_address": "a", )"
      R"("master_port": 1, "rank_secret": "", "threads": 0, "program": "/bin/true", "job": "", "env": )";
  for (const char* env : {R"({"A": 5}}})", R"(["A"]}})", R"("A"}})"}) {
    const auto ran = Subprocess::Run(
        {.argv = {"/bin/sh", "-c", fmt::format("echo '{}{}' | '{}' job agent", orders, env, millrace_)}});
    ASSERT_TRUE(ran);
    EXPECT_TRUE(ran->state.ok()) << ran->state.ToString();
    EXPECT_THAT(ran->stdout_text, HasSubstr("refused")) << env;
  }
}

TEST_F(RemoteLauncherTest, AProgramThatIsNotThereIsAnErrorOfTheNode) {
  RemoteLauncher::Options options = Options("exit 0");
  options.program = "/nonexistent/millrace-train";
  RemoteLauncher launcher(std::move(options));
  const Status started = launcher.Start(1);
  ASSERT_FALSE(started);
  EXPECT_NE(started.error().code(), Code::kUnavailable);
  EXPECT_THAT(started.error().ToString(),
              testing::AllOf(HasSubstr("node n"), HasSubstr("/nonexistent/millrace-train")));
}

TEST_F(RemoteLauncherTest, WordsOfALoginShellAreNoEvents) {
  RemoteLauncher::Options options = Options("echo 1 > $MILLRACE_HEARTBEAT_FILE");
  options.nodes[0].command = {"/bin/sh", "-c", fmt::format("echo Welcome; echo '[1]'; exec '{}' job agent", millrace_)};
  RemoteLauncher launcher(std::move(options));
  ASSERT_TRUE(launcher.Start(1));
  for (const RankState& rank : Until(launcher, AllEnded)) EXPECT_TRUE(rank.exit->ok());
}

TEST_F(RemoteLauncherTest, NothingIsLeftBehind) {
  auto launcher = Launch("echo $$ >&2; echo 1 > $MILLRACE_HEARTBEAT_FILE; exec sleep 60");
  Until(*launcher, AllStep);
  std::vector<pid_t> pids = {AgentOf("n1"), AgentOf("n2")};
  for (int rank = 0; rank < 4; ++rank) pids.push_back(std::stoi(Read(fmt::format("logs/rank-{}.err", rank))));
  launcher.reset();
  for (const pid_t pid : pids) EXPECT_EQ(::kill(pid, 0), -1) << pid;
}

TEST_F(RemoteLauncherTest, TellsTheLastWordsOfARankInThisAttempt) {
  auto launcher = Launch("for i in 1 2 3; do echo line $i of $RANK in $MILLRACE_ATTEMPT >&2; done; exit 1");
  Until(*launcher, AllEnded);
  EXPECT_EQ(launcher->ErrorTail(3, 2), "line 2 of 3 in 1\nline 3 of 3 in 1");
  ASSERT_TRUE(launcher->Start(2));
  Until(*launcher, AllEnded);
  EXPECT_EQ(launcher->ErrorTail(0, 100), "line 1 of 0 in 2\nline 2 of 0 in 2\nline 3 of 0 in 2");
}

}  // namespace
}  // namespace millrace::jobs
