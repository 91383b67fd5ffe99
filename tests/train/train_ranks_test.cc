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
#include "millrace/checkpoint/format/manifest.h"
#include "millrace/checkpoint/read/reader.h"
#include "millrace/object/open/open.h"
#include "millrace/s3d/server.h"
#include "millrace/train/testing/test_corpus.h"

namespace millrace::train {
namespace {

constexpr std::string_view kJob = R"(name: ranks
model: {config: {hidden_size: 32, num_layers: 4, num_heads: 4, num_kv_heads: 2, intermediate_size: 48}}
data:
  sources: [{url: "PLACE/corpus.jsonl"}]
  tokenizer: PLACE/tokenizer.model
  sequence_length: 32
  threads: 1
train:
  steps: STEPS
  MORE
  global_batch: 8
  micro_batch: 2
  optimizer: {lr: LR}
  schedule: {warmup_steps: 3}
  parallel: {PARALLEL}
  threads: 1
checkpoint: {url: "PLACE/runs/RUN", every_steps: 4}
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

  /// Moves the data to a bucket, where the checkpoints of later jobs go too.
  void UseBucket() {
    server_ =
        s3d::Server::Start(
            {.root = folder_.path() / "s3d", .access_key = "key", .secret_key = "secret-of-the-test", .sync = false})
            .value();
    ASSERT_TRUE(server_->CreateBucket("corpus"));
    env_ = {{"AWS_ENDPOINT_URL", server_->endpoint()},
            {"AWS_ACCESS_KEY_ID", "key"},
            {"AWS_SECRET_ACCESS_KEY", "secret-of-the-test"},
            {"AWS_REGION", "us-east-1"},
            {"AWS_CONFIG_FILE", "/dev/null"},
            {"AWS_SHARED_CREDENTIALS_FILE", "/dev/null"}};
    for (const char* name : {"corpus.jsonl", "tokenizer.model"}) {
      Subprocess::Options copy{.argv = {(program_.parent_path() / "millrace").native(), "cp",
                                        (folder_.path() / name).native(), fmt::format("s3://corpus/{}", name)},
                               .env = env_};
      copy.stdout_file = folder_.path() / "cp.out";
      ASSERT_TRUE(Subprocess::Start(std::move(copy)).value().Wait(std::chrono::seconds(60)).value().ok());
    }
    place_ = "s3://corpus";
  }

  struct JobChoices {
    int ranks = 2;
    std::string_view parallel = {};
    int steps = 60;
    std::string_view lr = "5.0e-3";
    std::string_view more = "precision: f32";  ///< a line of `train`
  };
  /// A job under way.
  struct Job {
    std::filesystem::path out;
    std::vector<Subprocess> ranks;
  };
  Job Start(const std::string& run, const std::string& attempt) { return Start(run, attempt, {}); }
  Job Start(const std::string& run, const std::string& attempt, const JobChoices& choices) {
    const auto file = folder_.path() / (run + ".yaml");
    const int ranks = choices.ranks;
    std::string text(kJob);
    for (const auto& [word, value] : std::map<std::string, std::string>{{"PARALLEL", std::string(choices.parallel)},
                                                                        {"RANKS", std::to_string(ranks)},
                                                                        {"STEPS", std::to_string(choices.steps)},
                                                                        {"LR", std::string(choices.lr)},
                                                                        {"MORE", std::string(choices.more)},
                                                                        {"PLACE", place_},
                                                                        {"RUN", run}}) {
      text = Replace(std::move(text), word, value);
    }
    EXPECT_TRUE(WriteFileAtomic(file, AsBytes(text)));
    Job job{.out = folder_.path() / (run + attempt + ".out")};
    const int port = FreePort();
    for (int rank = 0; rank < ranks; ++rank) {
      Subprocess::Options options{.argv = {program_.native(), file.native(), "--json"}};
      options.env = {{"RANK", std::to_string(rank)},        {"LOCAL_RANK", std::to_string(rank)},
                     {"WORLD_SIZE", std::to_string(ranks)}, {"LOCAL_WORLD_SIZE", std::to_string(ranks)},
                     {"MASTER_PORT", std::to_string(port)}, {"MASTER_ADDR", "127.0.0.1"}};
      options.env.insert(env_.begin(), env_.end());
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

  /// Runs a job to its end. Returns whether all ranks succeeded.
  bool Finish(const std::string& run, const std::string& attempt, const JobChoices& choices) {
    Job job = Start(run, attempt, choices);
    bool ok = true;
    for (Subprocess& rank : job.ranks) ok = rank.Wait(std::chrono::seconds(60)).value().ok() && ok;
    return ok;
  }

  /// Every byte of a checkpoint's tensors.
  std::map<std::string, std::string> Tensors(const std::string& run, std::uint64_t step) {
    const auto connection = object::OpenConnection({}).value();
    const auto reader = checkpoint::Reader::Open(*connection, fmt::format("{}/runs/{}", place_, run), step).value();
    std::map<std::string, std::string> tensors;
    for (const auto& [name, meta] : reader->manifest().tensors) {
      Buffer bytes(meta.bytes());
      EXPECT_TRUE(reader->Read(name, 0, bytes.span()));
      tensors[name] = AsText(bytes);
    }
    return tensors;
  }

  TempDir folder_ = TempDir::Create().value();
  std::string place_ = folder_.path().native();  ///< of the data and the checkpoints
  std::map<std::string, std::string> env_;       ///< of the ranks
  std::unique_ptr<s3d::Server> server_;
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

/// Far less than the ranks' time-out. On a quiet machine they need less than a second; a busy one gives eight ranks
/// little time, and a sanitizer looks for leaks when they end.
constexpr Duration kToLeave = std::chrono::seconds(30);

/// Wherever in the mesh a rank is lost, the others leave soon and name it; then the job goes on. Data
/// and checkpoints are in a bucket.
TEST_F(TrainRanks, ALostRankEndsTheWholeMesh) {
  constexpr int kRanks = 8;
  UseBucket();
  const JobChoices mesh{.ranks = kRanks,
                        .parallel = "data: 2, tensor: 2, sequence: true, pipeline: 2, zero: 1, recompute: selective"};
  Job whole = Start("mesh", "", mesh);
  for (Subprocess& rank : whole.ranks) ASSERT_TRUE(rank.Wait(std::chrono::seconds(120)).value().ok());
  const auto expected = Losses(whole);
  ASSERT_EQ(expected.size(), 60u);

  Random random(6);
  std::map<int, std::string> seen;
  for (int attempt = 0; attempt < 3; ++attempt) {
    Job job = Start("broken", std::to_string(attempt), mesh);
    AwaitCheckpoint(job, 8 * (attempt + 1));
    const int victim = static_cast<int>(random.Below(kRanks));
    SCOPED_TRACE(fmt::format("rank {} is killed", victim));
    job.ranks[static_cast<std::size_t>(victim)].Signal(SIGKILL);
    for (int rank = 0; rank < kRanks; ++rank) {
      if (rank == victim) continue;
      const auto left = job.ranks[static_cast<std::size_t>(rank)].Wait(kToLeave);
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
  Job last = Start("broken", "last", mesh);
  for (Subprocess& rank : last.ranks) ASSERT_TRUE(rank.Wait(std::chrono::seconds(120)).value().ok());
  for (const auto& [step, loss] : Losses(last)) seen[step] = loss;
  EXPECT_EQ(seen, expected);
}

TEST_F(TrainRanks, FrozenParametersStayAsTheyAre) {
  const auto is_frozen = [](std::string_view name) {
    return name == "model.embed_tokens.weight" || name.find(".layers.1.") != name.npos;
  };
  constexpr std::string_view kFreeze = "freeze: [model.embed_tokens.weight, \"*.layers.1.*\"]";
  JobChoices choices{.parallel = "data: 2, zero: 1", .steps = 12, .more = kFreeze};
  ASSERT_TRUE(Finish("whole", "", choices));
  const std::string in_parts = std::string(kFreeze) + "\n  steps_this_run: 6";
  choices.more = in_parts;
  ASSERT_TRUE(Finish("parts", "1", choices) && Finish("parts", "2", choices));
  // Gradients times this rate do not reach the last bit of a weight.
  ASSERT_TRUE(Finish("start", "", {.steps = 12, .lr = "1.0e-12, name: sgd", .more = "steps_this_run: 1"}));

  const auto whole = Tensors("whole", 12), parts = Tensors("parts", 12), start = Tensors("start", 1);
  EXPECT_EQ(parts, whole) << "bit for bit";
  std::size_t frozen = 0, moments = 0;
  for (const auto& [name, bytes] : whole) {
    const bool freezes = is_frozen(name.substr(name.rfind('/') + 1));
    if (name.starts_with("model/")) {
      EXPECT_EQ(bytes == start.at(name), freezes) << name;
      frozen += freezes ? 1 : 0;
    } else {
      EXPECT_FALSE(freezes) << name;
      ++moments;
    }
  }
  EXPECT_EQ(frozen, 10u);
  EXPECT_GT(moments, 0u);

  const std::string more = "freeze: [model.embed_tokens.weight, \"*.layers.1.*\", \"*.layers.2.*\"]";
  ASSERT_TRUE(Finish("parts", "more", {.parallel = "data: 2, zero: 1", .steps = 16, .more = more}));
  for (const auto& [name, bytes] : Tensors("parts", 16)) {
    if (!name.starts_with("model/")) continue;
    EXPECT_EQ(bytes == whole.at(name), is_frozen(name.substr(6)) || name.find(".layers.2.") != name.npos) << name;
  }
  EXPECT_FALSE(
      Finish("parts", "fewer", {.parallel = "data: 2, zero: 1", .steps = 20, .more = "freeze: [\"*.layers.1.*\"]"}));
  EXPECT_NE(ReadFile(folder_.path() / "partsfewer.out.0.err")->find("train.freeze"), std::string::npos);
}

}  // namespace
}  // namespace millrace::train
