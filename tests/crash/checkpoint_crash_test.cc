// A save is cut off at every one of its store operations, in several ways. Afterwards the store must hold exactly the
// old checkpoint or the new one, whole; and the next save must succeed and leave nothing behind.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>

#include "millrace/base/files/files.h"
#include "millrace/checkpoint/read/catalog.h"
#include "millrace/checkpoint/read/reader.h"
#include "millrace/checkpoint/save/writer.h"
#include "millrace/checkpoint/testing/random_state.h"
#include "millrace/checkpoint/testing/thread_group.h"
#include "millrace/object/blocking.h"
#include "millrace/object/local/file_store.h"
#include "millrace/object/local/memory_store.h"
#include "millrace/object/testing/fault_store.h"

namespace millrace::checkpoint {
namespace {

using testing::State;
using testing::StoreConnection;
using testing::ThreadRanks;

constexpr int kRanks = 2;

/// How an operation goes wrong.
struct Cut {
  const char* name;
  bool after_effect;  ///< it takes place all the same: the response is lost
  bool for_good;      ///< and so does every later one: the process is dead, or the store out of reach
};

void PrintTo(const Cut& cut, std::ostream* out) { *out << cut.name; }

class CheckpointCrashTest : public ::testing::TestWithParam<Cut> {
 protected:
  void SetUp() override {
    object::MemoryStoreOptions options;
    options.limits.min_part = 4096;
    options.clock = &clock_;
    inner_ = object::MakeMemoryStore(options);
  }

  /// One save by two ranks through `store`; success only if both say so.
  bool Save(std::shared_ptr<object::Store> store, std::uint64_t step, const State& state) {
    clock_.Advance(std::chrono::seconds(1));
    StoreConnection connection(std::move(store));
    ThreadRanks ranks(kRanks);
    auto shares = state.Share(kRanks, step);
    std::vector<std::unique_ptr<Writer>> writers;
    for (int rank = 0; rank < kRanks; ++rank) {
      Writer::Options options;
      options.url = "s3://bucket/run";
      options.retention = {.keep_last = 1};
      options.part_bytes = 4096;
      options.chunk_bytes = 4096;
      options.parallel_parts = 2;
      options.clock = &clock_;
      writers.push_back(*Writer::Open(connection, ranks.Rank(rank), budget_, options));
      EXPECT_TRUE(writers.back()->Save(step, shares[rank], fmt::format(R"({{"step": {}}})", step)));
    }
    bool saved = true;
    for (auto& writer : writers) saved = writer->Wait().has_value() && saved;
    return saved;
  }

  std::vector<std::uint64_t> Steps() {
    std::vector<std::uint64_t> steps;
    auto entries = ListCheckpoints({inner_, "run"});
    EXPECT_TRUE(entries);
    for (const ListedCheckpoint& entry : *entries) steps.push_back(entry.step);
    return steps;
  }
  void ExpectWhole(std::uint64_t step, const State& state) {
    StoreConnection connection(inner_);
    auto reader = Reader::Open(connection, "s3://bucket/run", step);
    ASSERT_TRUE(reader) << reader.error().ToString();
    auto verified = (*reader)->Verify(1);
    EXPECT_TRUE(verified) << verified.error().ToString();
    state.ExpectReadBack(**reader, 1);
    EXPECT_EQ((*reader)->manifest().meta, Json({{"step", step}}));
  }

  FakeClock clock_;
  MemoryBudget budget_{64 * kMiB};
  std::shared_ptr<object::Store> inner_;
};

TEST_P(CheckpointCrashTest, TheOldOrTheNewCheckpointIsThereAndWhole) {
  const State old = State::Random(1, 5, 8000), fresh = State::Random(2, 5, 8000), last = State::Random(3, 5, 8000);
  int committed = 0, lost = 0;
  for (int operation = 0;; ++operation) {
    SCOPED_TRACE(fmt::format("cut at operation {}", operation));
    SetUp();
    ASSERT_TRUE(Save(inner_, 10, old));
    auto faulty = object::FaultStore::Create(inner_, 1, clock_);
    faulty->Add({.skip = operation,
                 .times = GetParam().for_good ? -1 : 1,
                 .fault = {.code = Code::kUnavailable, .after_effect = GetParam().after_effect}});
    const bool saved = Save(faulty, 20, fresh);

    const auto steps = Steps();
    const bool has_old = std::ranges::count(steps, 10) == 1, has_new = std::ranges::count(steps, 20) == 1;
    ASSERT_EQ(steps.size(), std::size_t{has_old} + std::size_t{has_new});
    ASSERT_TRUE(has_old || has_new);
    EXPECT_TRUE(has_new || !saved) << "what was reported as saved is there";
    if (has_new) ExpectWhole(20, fresh);
    if (has_old) ExpectWhole(10, old);
    (has_new ? committed : lost) += 1;

    // The run goes on from what there is: the same step again, unless it is committed, then another one.
    ASSERT_TRUE(has_new || Save(inner_, 20, fresh));
    ASSERT_TRUE(Save(inner_, 30, last));
    ExpectWhole(30, last);
    ASSERT_EQ(Steps(), std::vector<std::uint64_t>{30});
    const auto left = object::List(*inner_, {});
    ASSERT_TRUE(left);
    for (const auto& object : left->objects)
      EXPECT_TRUE(object.key.ends_with(".json") || object.key.starts_with("run/step-00000030/")) << object.key;
    EXPECT_TRUE(object::ListUploads(*inner_, "")->empty());
    if (HasFailure()) return;

    std::uint64_t calls = 0;
    for (int kind = 0; kind <= static_cast<int>(object::Operation::kListUploads); ++kind)
      calls += faulty->calls(static_cast<object::Operation>(kind));
    if (static_cast<std::uint64_t>(operation) >= calls) break;  // the cut lay behind the end
  }
  EXPECT_GT(committed, 0);
  EXPECT_GT(lost, 10) << "there are many operations before the commit";
}

INSTANTIATE_TEST_SUITE_P(Cuts, CheckpointCrashTest,
                         ::testing::Values(Cut{"ErrorOnce", false, false}, Cut{"LostResponseOnce", true, false},
                                           Cut{"Death", false, true}, Cut{"DeathWithEffect", true, true}),
                         [](const auto& info) { return info.param.name; });

/// Saves to `root` until it is killed; a byte goes to `pipe` for every commit.
[[noreturn]] void SaveForever(const std::string& root, int pipe) {
  StoreConnection connection(*object::OpenFileStore({.root = "/", .durable = false, .threads = 2}));
  MemoryBudget budget(64 * kMiB);
  const State state = State::Random(1, 3, 20'000);
  Writer::Options options;
  options.url = root;
  options.retention = {.keep_last = 2};
  options.on_done = [pipe](const Result<SaveStats>& stats) {
    if (!stats || write(pipe, "", 1) != 1) _exit(1);
  };
  auto writer = *Writer::Open(connection, SingleRankExchange(), budget, options);
  auto existing = ListCheckpoints(*object::Locate(connection, root));
  for (std::uint64_t step = existing->empty() ? 1 : existing->back().step + 1;; ++step)
    if (!writer->Save(step, state.Share(1, step)[0], {})) _exit(1);
}

TEST(CheckpointKill, AProcessKilledAtAnyMomentLeavesWholeCheckpoints) {
  auto directory = *TempDir::Create();
  const std::string root = directory.path().string();
  const State state = State::Random(1, 3, 20'000);
  Random random(1);
  std::uint64_t newest = 0;
  for (int round = 0; round < 12; ++round) {
    int pipe[2];
    ASSERT_EQ(::pipe2(pipe, O_CLOEXEC), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) SaveForever(root, pipe[1]);
    close(pipe[1]);
    char byte;
    for (std::uint64_t commits = 1 + random.Below(4); commits > 0; --commits) ASSERT_EQ(read(pipe[0], &byte, 1), 1);
    for (std::uint64_t spin = random.Below(200'000); spin > 0; --spin)
      std::atomic_signal_fence(std::memory_order_seq_cst);
    kill(child, SIGKILL);
    ASSERT_EQ(waitpid(child, nullptr, 0), child);
    close(pipe[0]);

    StoreConnection connection(*object::OpenFileStore({.root = "/", .durable = false, .threads = 2}));
    auto entries = ListCheckpoints(*object::Locate(connection, root));
    ASSERT_TRUE(entries);
    ASSERT_FALSE(entries->empty());
    EXPECT_GT(entries->back().step, newest) << "what was committed before the kill is there";
    newest = entries->back().step;
    for (const ListedCheckpoint& entry : *entries) {
      auto reader = Reader::Open(connection, root, entry.step);
      ASSERT_TRUE(reader) << reader.error().ToString();
      state.ExpectReadBack(**reader, 1);
    }
  }
}

}  // namespace
}  // namespace millrace::checkpoint
