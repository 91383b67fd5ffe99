// Two real ranks as processes, as a launcher starts them: killed, stopped and started again, their losses never change.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>

#include <map>
#include <thread>

#include "millrace/base/hash/random.h"
#include "millrace/base/process/subprocess.h"
#include "millrace/base/text.h"
#include "millrace/train/testing/test_corpus.h"

namespace millrace::train {
namespace {

constexpr std::string_view kJob = R"(name: ranks
model: {config: {hidden_size: 32, num_layers: 4, num_heads: 4, num_kv_heads: 2, intermediate_size: 48}}
data:
  sources: [{url: "FOLDER/corpus.jsonl"}]
  tokenizer: FOLDER/tokenizer.model
  sequence_length: 32
  threads: 1
train:
  steps: 60
  global_batch: 8
  micro_batch: 2
  optimizer: {lr: 5.0e-3}
  schedule: {warmup_steps: 3}
  parallel: {PARALLEL}
  threads: 1
checkpoint: {url: "FOLDER/runs/RUN", every_steps: 4}
run: {processes_per_node: RANKS}
)";

int FreePort() {
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t size = sizeof address;
  if (::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size) != 0) return 0;
  ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.sin_port);
}

std::string Replace(std::string text, std::string_view what, std::string_view with) {
  for (auto at = text.find(what); at != text.npos; at = text.find(what, at + with.size())) {
    text.replace(at, what.size(), with);
  }
  return text;
}

class TrainRanks : public testing::Test {
 protected:
  void SetUp() override {
    const char* bin = std::getenv("MILLRACE_BIN");
    program_ = std::filesystem::path(bin ? bin : ".") / "millrace-train";
    if (!std::filesystem::exists(program_)) GTEST_SKIP() << program_ << " is not built";
    WriteCorpus(folder_.path());
  }

  /// A job of two ranks under way.
  struct Job {
    std::filesystem::path out;
    std::vector<Subprocess> ranks;
  };
  Job Start(const std::string& run, const std::string& attempt, int ranks = 2, std::string_view parallel = "") {
    const auto file = folder_.path() / (run + ".yaml");
    const std::string divided = Replace(Replace(kJob.data(), "PARALLEL", parallel), "RANKS", std::to_string(ranks));
    const std::string text = Replace(Replace(divided, "FOLDER", folder_.path().native()), "RUN", run);
    EXPECT_TRUE(WriteFileAtomic(file, AsBytes(text)));
    Job job{.out = folder_.path() / (run + attempt + ".out")};
    const int port = FreePort();
    for (int rank = 0; rank < ranks; ++rank) {
      Subprocess::Options options{.argv = {program_.native(), file.native(), "--json"}};
      options.env = {{"RANK", std::to_string(rank)},        {"LOCAL_RANK", std::to_string(rank)},
                     {"WORLD_SIZE", std::to_string(ranks)}, {"LOCAL_WORLD_SIZE", std::to_string(ranks)},
                     {"MASTER_PORT", std::to_string(port)}, {"MASTER_ADDR", "127.0.0.1"}};
      options.stdout_file = rank == 0 ? job.out : folder_.path() / fmt::format("rank{}.out", rank);
      options.stderr_file = ErrorsOf(job, rank);
      job.ranks.push_back(Subprocess::Start(std::move(options)).value());
    }
    return job;
  }

  /// Returns the memory of the fullest rank that `millrace job plan` prints.
  Json PlannedMemory(const std::string& run) {
    const std::filesystem::path out = folder_.path() / (run + ".plan");
    const std::filesystem::path millrace = program_.parent_path() / "millrace";
    Subprocess::Options options{
        .argv = {millrace.native(), "--json", "job", "plan", (folder_.path() / (run + ".yaml")).native()}};
    options.stdout_file = out;
    EXPECT_TRUE(Subprocess::Start(std::move(options)).value().Wait(std::chrono::seconds(60)).value().ok());
    const Json plan = ParseJson(ReadFile(out).value(), "the plan").value();
    return plan["memory"][plan["fullest_stage"].get<std::size_t>()]["total"];
  }

  static std::filesystem::path ErrorsOf(const Job& job, int rank) {
    return job.out.native() + fmt::format(".{}.err", rank);
  }

  /// What rank 0 has said so far, whole lines only.
  std::vector<Json> Lines(const Job& job) {
    std::vector<Json> lines;
    const auto text = ReadFile(job.out);
    if (!text) return lines;
    for (std::string_view line : Split(std::string_view(*text).substr(0, text->rfind('\n') + 1), '\n')) {
      if (!line.empty()) lines.push_back(ParseJson(line, "a line").value());
    }
    return lines;
  }
  std::map<int, std::string> Losses(const Job& job) {
    std::map<int, std::string> losses;
    for (const Json& line : Lines(job)) {
      if (JsonFind(line, "loss") && !JsonFind(line, "event")) losses[line["step"]] = DumpJson(line["loss"]);
    }
    return losses;
  }
  /// Until rank 0 has told of a checkpoint of `step` or later.
  void AwaitCheckpoint(const Job& job, int step) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (std::chrono::steady_clock::now() < deadline) {
      for (const Json& line : Lines(job)) {
        if (JsonFind(line, "event") && line["event"] == "checkpoint" && line["step"] >= step) return;
      }
      std::this_thread::yield();
    }
    FAIL() << "no checkpoint of step " << step;
  }

  TempDir folder_ = TempDir::Create().value();
  std::filesystem::path program_;
};

TEST_F(TrainRanks, KilledAndStoppedRunsEqualTheUndisturbedOne) {
  Job whole = Start("whole", "");
  for (Subprocess& rank : whole.ranks) ASSERT_TRUE(rank.Wait(std::chrono::seconds(60)).value().ok());
  const auto expected = Losses(whole);
  ASSERT_EQ(expected.size(), 60u);
  const Json plan = Lines(whole).front();
  EXPECT_EQ(plan["event"], "plan");
  EXPECT_EQ(plan["memory_bytes"], PlannedMemory("whole"));
  EXPECT_EQ(Lines(whole).back()["event"], "done");

  // One rank dies; the other must notice and leave with an error.
  Job killed = Start("disturbed", "1");
  AwaitCheckpoint(killed, 4);
  killed.ranks[1].Signal(SIGKILL);
  const auto left = killed.ranks[0].Wait(std::chrono::seconds(10));
  ASSERT_TRUE(left.has_value()) << "the surviving rank hangs";
  EXPECT_EQ(left->exit_code, 1);

  // Both go on from the newest checkpoint; then the launcher asks them to leave.
  Job stopped = Start("disturbed", "2");
  const auto resumed = [&](const Job& job) { return Lines(job).front()["resumed_from"].get<int>(); };
  AwaitCheckpoint(stopped, 12);
  EXPECT_GE(resumed(stopped), 4);
  for (Subprocess& rank : stopped.ranks) rank.Signal(SIGTERM);
  for (Subprocess& rank : stopped.ranks) EXPECT_EQ(rank.Wait(std::chrono::seconds(30)).value().exit_code, 130);

  Job last = Start("disturbed", "3");
  for (Subprocess& rank : last.ranks) ASSERT_TRUE(rank.Wait(std::chrono::seconds(60)).value().ok());
  EXPECT_GE(resumed(last), 12);
  for (const Job* job : {&killed, &stopped, &last}) {
    for (const auto& [step, loss] : Losses(*job)) EXPECT_EQ(loss, expected.at(step)) << step;
  }
  EXPECT_EQ(Losses(last).rbegin()->first, 60);
}

/// Wherever in the mesh a rank is lost, the others leave within two seconds and name it; then the job goes on.
TEST_F(TrainRanks, ALostRankEndsTheWholeMesh) {
  constexpr int kRanks = 8;
  const std::string_view parallel = "data: 2, tensor: 2, sequence: true, pipeline: 2, zero: 2, recompute: selective";
  Job whole = Start("mesh", "", kRanks, parallel);
  for (Subprocess& rank : whole.ranks) ASSERT_TRUE(rank.Wait(std::chrono::seconds(120)).value().ok());
  const auto expected = Losses(whole);
  ASSERT_EQ(expected.size(), 60u);

  Random random(static_cast<std::uint64_t>(::getpid()));
  std::map<int, std::string> seen;
  for (int attempt = 0; attempt < 3; ++attempt) {
    Job job = Start("broken", std::to_string(attempt), kRanks, parallel);
    AwaitCheckpoint(job, 8 * (attempt + 1));
    const int victim = static_cast<int>(random.Below(kRanks));
    SCOPED_TRACE(fmt::format("rank {} is killed", victim));
    job.ranks[static_cast<std::size_t>(victim)].Signal(SIGKILL);
    for (int rank = 0; rank < kRanks; ++rank) {
      if (rank == victim) continue;
      const auto left = job.ranks[static_cast<std::size_t>(rank)].Wait(std::chrono::seconds(2));
      ASSERT_TRUE(left.has_value()) << "rank " << rank << " hangs";
      EXPECT_EQ(left->exit_code, 1);
    }
    bool named = false;
    for (int rank = 0; rank < kRanks; ++rank) {
      named = named || ReadFile(ErrorsOf(job, rank)).value().find(fmt::format("rank {} ", victim)) != std::string::npos;
    }
    EXPECT_TRUE(named);
    for (const auto& [step, loss] : Losses(job)) seen[step] = loss;
  }
  Job last = Start("broken", "last", kRanks, parallel);
  for (Subprocess& rank : last.ranks) ASSERT_TRUE(rank.Wait(std::chrono::seconds(120)).value().ok());
  for (const auto& [step, loss] : Losses(last)) seen[step] = loss;
  EXPECT_EQ(seen, expected);
}

}  // namespace
}  // namespace millrace::train
