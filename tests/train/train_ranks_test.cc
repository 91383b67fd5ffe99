// Two real ranks as processes, as a launcher starts them: killed, stopped and started again, their losses never change.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>

#include <map>
#include <thread>

#include "millrace/base/process/subprocess.h"
#include "millrace/base/text.h"
#include "millrace/train/test_corpus.h"

namespace millrace::train {
namespace {

constexpr std::string_view kJob = R"(name: ranks
model: {config: {hidden_size: 32, num_layers: 2, num_heads: 4, num_kv_heads: 2, intermediate_size: 48}}
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
  threads: 1
checkpoint: {url: "FOLDER/runs/RUN", every_steps: 4}
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
  Job Start(const std::string& run, const std::string& attempt) {
    const auto file = folder_.path() / (run + ".yaml");
    const std::string text = Replace(Replace(std::string(kJob), "FOLDER", folder_.path().native()), "RUN", run);
    EXPECT_TRUE(WriteFileAtomic(file, AsBytes(text)));
    Job job{.out = folder_.path() / (run + attempt + ".out")};
    const int port = FreePort();
    for (int rank = 0; rank < 2; ++rank) {
      Subprocess::Options options{.argv = {program_.native(), file.native(), "--json"}};
      options.env = {
          {"RANK", std::to_string(rank)}, {"LOCAL_RANK", std::to_string(rank)},  {"WORLD_SIZE", "2"},
          {"LOCAL_WORLD_SIZE", "2"},      {"MASTER_PORT", std::to_string(port)}, {"MASTER_ADDR", "127.0.0.1"}};
      options.stdout_file = rank == 0 ? job.out : folder_.path() / "rank1.out";
      job.ranks.push_back(Subprocess::Start(std::move(options)).value());
    }
    return job;
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
  EXPECT_EQ(Lines(whole).front()["event"], "plan");
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

}  // namespace
}  // namespace millrace::train
