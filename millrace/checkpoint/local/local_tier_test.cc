// The local tier: made often, bounded, and chosen at a restart when all of it survives.
#include "millrace/checkpoint/local/local_tier.h"
#include "millrace/checkpoint/commit/pins.h"
#include "millrace/checkpoint/read/catalog.h"
#include "millrace/checkpoint/save/local_folder.h"
#include "millrace/checkpoint/save/writer.h"
#include "millrace/checkpoint/testing/random_state.h"
#include "millrace/checkpoint/testing/thread_group.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <set>
#include <thread>

#include "millrace/base/files/files.h"
#include "millrace/base/files/managed_folder.h"
#include "millrace/base/hash/random.h"
#include "millrace/base/threads/sync.h"
#include "millrace/object/blocking.h"
#include "millrace/object/local/memory_store.h"
#include "millrace/object/testing/fault_store.h"

namespace millrace::checkpoint {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::State;
using testing::ThreadRanks;

constexpr const char* kRun = "s3://bucket/run";
constexpr int kRanks = 2;

class LocalTierTest : public ::testing::Test {
 protected:
  /// All ranks save state number `step`.
  Status Save(std::uint64_t step, SaveOptions options) {
    ThreadRanks ranks(kRanks);
    const State state = StateOf(step);
    const auto shares = state.Share(kRanks, step);
    std::vector<std::unique_ptr<Writer>> writers;
    for (int rank = 0; rank < kRanks; ++rank) {
      Writer::Options of_writer{.url = kRun, .retention = {.keep_last = 10}, .local = tier_};
      writers.push_back(*Writer::Open(connection_, ranks.Rank(rank), budget_, of_writer));
      MR_TRY(writers.back()->Save(step, shares[rank], {}, options));
    }
    Status all;
    for (auto& writer : writers)
      if (auto saved = writer->Wait(); !saved) all = Fail(saved.error());
    return all;
  }
  static State StateOf(std::uint64_t step) { return State::Random(step, 4, 2000); }

  /// What every rank opens, which must be the same and right.
  std::string Newest(std::string url = kRun) {
    ThreadRanks ranks(kRanks);
    std::vector<Result<NewestCheckpoint>> readers(kRanks);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        auto group = ranks.Rank(rank);
        readers[rank] = OpenNewest(connection_, *group, url, tier_, nullptr, Logger());
      });
    }
    for (std::thread& thread : threads) thread.join();
    std::string what;
    for (auto& reader : readers) {
      EXPECT_TRUE(reader) << reader.error().ToString();
      if (!reader) return "error";
      if (reader->reader == nullptr) return "none";
      const std::uint64_t step = reader->reader->manifest().step;
      StateOf(step).ExpectReadBack(*reader->reader, 1);
      const bool local = reader->tier == CheckpointTier::kLocal;
      const auto stored = ListCheckpoints({store_, "run"});
      EXPECT_EQ(reader->in_store,
                std::ranges::any_of(*stored, [&](const ListedCheckpoint& entry) { return entry.step == step; }));
      EXPECT_EQ(reader->reader->name().find(tier_->path) != std::string::npos, local);
      const std::string mine = fmt::format("{} {}", local ? "local" : "store", step);
      EXPECT_TRUE(what.empty() || what == mine) << what << " and " << mine;
      what = mine;
    }
    return what;
  }
  /// Of the step's local files, the one of a rank.
  std::filesystem::path LocalFile(std::uint64_t step, int rank) {
    const std::string name = fmt::format("rank-{:05}.safetensors", rank);
    for (const auto& entry : std::filesystem::recursive_directory_iterator(tier_->path))
      if (entry.path().filename() == name &&
          entry.path().string().find(fmt::format("{:08}", step)) != std::string::npos)
        return entry.path();
    ADD_FAILURE() << "no local file of step " << step;
    return {};
  }
  std::vector<std::uint64_t> LocalSteps() {
    std::vector<std::uint64_t> steps;
    const auto entries = ListCheckpoints(*LocateLocal(*tier_, kRun));
    for (const ListedCheckpoint& entry : *entries) steps.push_back(entry.step);
    return steps;
  }

  /// Everything on the local disk, a line each.
  std::string Files() {
    std::set<std::string> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(tier_->path))
      if (entry.is_regular_file()) files.insert(fmt::format("{} {}\n", entry.path().string(), entry.file_size()));
    return fmt::format("{}", fmt::join(files, ""));
  }

  TempDir directory_ = *TempDir::Create();
  std::optional<LocalTierOptions> tier_ = LocalTierOptions{directory_.path().string() + "/ckpt", 2};
  MemoryBudget budget_{64 * kMiB};
  std::shared_ptr<object::Store> store_ = object::MakeMemoryStore({});
  testing::StoreConnection connection_{store_};
  const SaveOptions local_{.to_store = false, .to_local = true}, both_{.to_local = true};
};

TEST_F(LocalTierTest, TheNewestThatSurvivesWins) {
  EXPECT_EQ(Newest(), "none");
  ASSERT_TRUE(Save(10, local_));
  EXPECT_EQ(Newest(), "local 10") << "before the store has any";
  ASSERT_TRUE(Save(20, both_));
  EXPECT_EQ(Newest(), "local 20") << "of the same step the nearer one";
  ASSERT_TRUE(Save(30, local_));
  EXPECT_EQ(Newest(), "local 30");
  ASSERT_TRUE(Save(40, {}));
  EXPECT_EQ(Newest(), "store 40");
  EXPECT_THAT(LocalSteps(), ElementsAre(20, 30)) << "a bounded number is kept";
  EXPECT_EQ(Newest("s3://bucket/other"), "none") << "another run does not see them";
}

TEST_F(LocalTierTest, OnePartThatIsLostIsAllLost) {
  ASSERT_TRUE(Save(10, both_));
  ASSERT_TRUE(Save(20, local_));
  std::filesystem::remove(LocalFile(20, 1));
  EXPECT_EQ(Newest(), "local 10");
  EXPECT_THAT(LocalSteps(), ElementsAre(10)) << "the run will come to step 20 again";
  ASSERT_TRUE(Save(20, local_));
  EXPECT_EQ(Newest(), "local 20");
  std::filesystem::remove_all(tier_->path);
  EXPECT_EQ(Newest(), "store 10");
}

TEST_F(LocalTierTest, DamageOnTheDiskIsFoundBeforeItIsUsed) {
  ASSERT_TRUE(Save(10, {}));
  ASSERT_TRUE(Save(20, local_));
  ASSERT_TRUE(Save(30, local_));
  for (const auto& [step, rank] : {std::pair(30, 1), std::pair(20, 0)}) {
    const auto path = LocalFile(static_cast<std::uint64_t>(step), rank);
    std::string bytes = *ReadFile(path, kMiB);
    bytes[bytes.size() - 1] ^= 1;
    ASSERT_TRUE(WriteFileAtomic(path, AsBytes(bytes)));
    EXPECT_EQ(Newest(), step == 30 ? "local 20" : "store 10");
  }
  EXPECT_THAT(LocalSteps(), IsEmpty());
}

TEST_F(LocalTierTest, WhatTheDiskCannotTakeDoesNotKeepTheStoreFromIt) {
  ASSERT_TRUE(WriteFileAtomic(directory_.path() / "ckpt", AsBytes("a file where the folder should be")));
  EXPECT_FALSE(Save(10, local_));
  EXPECT_TRUE(Save(20, both_));
  EXPECT_EQ(Newest(), "store 20");
}

TEST_F(LocalTierTest, AFolderOfOthersIsRefusedAndLeftAlone) {
  const fs::path theirs = tier_->path;
  fs::create_directory(theirs);
  ASSERT_TRUE(WriteFileAtomic(theirs / "notes", AsBytes("theirs")));
  auto refused = LocateLocal(*tier_, kRun);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().ToString(), HasSubstr("checkpoint.local.path"));
  EXPECT_FALSE(Writer::Open(connection_, SingleRankExchange(), budget_, {.url = kRun, .local = tier_}));
  EXPECT_EQ(*ReadFile(theirs / "notes"), "theirs");
  fs::remove(theirs / "notes");
  ASSERT_EQ(::chmod(theirs.c_str(), 0777), 0);
  EXPECT_EQ(LocateLocal(*tier_, kRun).error().code(), Code::kPermissionDenied);
  ASSERT_EQ(::chmod(theirs.c_str(), 0700), 0);
  EXPECT_TRUE(Save(20, both_));
}

TEST_F(LocalTierTest, AFolderOfAnEarlierReleaseIsKept) {
  ASSERT_TRUE(Save(10, local_));
  ASSERT_TRUE(fs::remove(fs::path(tier_->path) / ManagedFolder::kMarkerName));
  EXPECT_EQ(Newest(), "local 10");
}

/// Writers of all ranks over a store that is as slow as a test wants, with a group for each place.
class SlowStoreTest : public LocalTierTest {
 protected:
  static constexpr std::uint64_t kSnapshot = 64 * kKiB;

  /// `memory`: for how many copies a rank has room.
  void Open(std::vector<int> memory) {
    ThreadRanks of_store(kRanks), of_disk(kRanks);
    for (int rank = 0; rank < kRanks; ++rank) {
      budgets_[rank] = std::make_unique<MemoryBudget>(memory[rank] * (kSnapshot + kMiB));
      Writer::Options options{.url = kRun, .retention = {.keep_last = 100}, .local = tier_};
      options.local_group = of_disk.Rank(rank);
      options.snapshot_bytes = kSnapshot;
      options.on_done = [this, rank](const Result<SaveStats>& stats) {
        MutexLock lock(mutex_);
        done_[rank].push_back(
            stats ? fmt::format("{} {}", stats->tier == CheckpointTier::kLocal ? "local" : "store", stats->step)
                  : "failed");
        changed_.NotifyAll();
      };
      writers_[rank] = *Writer::Open(slow_connection_, of_store.Rank(rank), *budgets_[rank], options);
      ASSERT_TRUE(writers_[rank]->Wait());  // what warms up
    }
  }
  /// From now on the store's answers to puts wait for Release.
  void Hold() { slow_->Add({.operation = object::Operation::kPut, .times = -1, .fault = {.latency = kHour}}); }
  void Release() {
    slow_->Clear();
    clock_.AdvanceOnSleep(true);
    clock_.Advance(kHour);
  }
  /// All ranks start saving state number `step` and copy it.
  void Start(std::uint64_t step, const SaveOptions& options) {
    const State state = StateOf(step);
    const auto shares = state.Share(kRanks, step);
    for (int rank = 0; rank < kRanks; ++rank) EXPECT_TRUE(writers_[rank]->Start(step, shares[rank], {}, options));
    for (int rank = 0; rank < kRanks; ++rank) writers_[rank]->WaitCopied();
  }
  void AwaitDone(const std::string& what) {
    MutexLock lock(mutex_);
    for (auto& done : done_)
      while (std::ranges::find(done, what) == done.end()) changed_.Wait(mutex_);
  }
  std::vector<std::string> Done(int rank) {
    MutexLock lock(mutex_);
    return done_[rank];
  }

  static constexpr auto kHour = std::chrono::hours(1);
  FakeClock clock_;
  std::shared_ptr<object::FaultStore> slow_ = object::FaultStore::Create(store_, 1, clock_);
  testing::StoreConnection slow_connection_{slow_};
  std::unique_ptr<MemoryBudget> budgets_[kRanks];
  Mutex mutex_;
  CondVar changed_;
  std::vector<std::string> done_[kRanks] MR_GUARDED_BY(mutex_);
  std::unique_ptr<Writer> writers_[kRanks];
};

TEST_F(SlowStoreTest, TheDiskDoesNotWaitForTheStore) {
  Open({2, 2});
  Hold();
  Start(10, {});
  for (const auto& writer : writers_) {
    EXPECT_TRUE(writer->busy());
    EXPECT_FALSE(writer->busy(local_));
    EXPECT_TRUE(writer->busy(both_));
  }
  for (const std::uint64_t step : {20, 30, 40}) {
    Start(step, local_);
    AwaitDone(fmt::format("local {}", step));
  }
  EXPECT_THAT(*ListCheckpoints({store_, "run"}), IsEmpty()) << "the first one is still on its way";
  Release();
  for (auto& writer : writers_) ASSERT_TRUE(writer->Wait());
  EXPECT_THAT(LocalSteps(), ElementsAre(30, 40));
  EXPECT_EQ(Newest(), "local 40");
  std::filesystem::remove_all(tier_->path);
  EXPECT_EQ(Newest(), "store 10") << "as it was copied, whatever was saved meanwhile";
}

TEST_F(SlowStoreTest, WithMemoryForOneCopyItWaits) {
  Open({2, 1});
  Hold();
  Start(10, {});
  EXPECT_FALSE(writers_[0]->busy(local_));
  EXPECT_TRUE(writers_[1]->busy(local_)) << "ranks may differ";
  EXPECT_LE(budgets_[1]->peak(), kSnapshot + kMiB);
  std::thread releaser([&] { Release(); });
  Start(20, local_);  // the second rank waits for its upload
  releaser.join();
  for (auto& writer : writers_) ASSERT_TRUE(writer->Wait());
  EXPECT_THAT(Done(1), ElementsAre("store 10", "local 20"));
  EXPECT_EQ(Newest(), "local 20");
}

TEST_F(SlowStoreTest, AFailureBesideASuccessIsTold) {
  Open({2, 2});
  slow_->Add({.operation = object::Operation::kPut,
              .times = -1,
              .fault = {.code = Code::kPermissionDenied, .latency = kHour}});
  Start(10, {});
  Start(20, local_);
  AwaitDone("local 20");
  clock_.AwaitSleepers(1);
  Release();
  for (auto& writer : writers_) EXPECT_EQ(writer->Wait().error().code(), Code::kPermissionDenied);
  for (auto& writer : writers_) EXPECT_FALSE(*writer->Wait()) << "once";
  Start(30, both_);
  for (auto& writer : writers_) EXPECT_EQ((*writer->Wait())->tier, CheckpointTier::kStore);
  EXPECT_EQ(Newest(), "local 30");
}

/// Any order of saves on ranks of different means: all are committed, and those to one place in the order of the calls.
TEST_F(SlowStoreTest, EveryPlaceKeepsTheOrder) {
  Open({1, 2});
  clock_.AdvanceOnSleep(true);
  slow_->Add({.times = -1, .probability = 0.3, .fault = {.latency = std::chrono::milliseconds(1)}});
  Random random(4);
  std::vector<std::string> local, stored, seen[2];
  for (std::uint64_t step = 1; step <= 25; ++step) {
    const std::uint64_t kind = random.Below(4);
    const SaveOptions options = kind == 0 ? SaveOptions{} : kind == 1 ? both_ : local_;
    if (options.to_local) local.push_back(fmt::format("local {}", step));
    if (options.to_store) stored.push_back(fmt::format("store {}", step));
    const State state = StateOf(step);
    const auto shares = state.Share(kRanks, step);
    // Ranks call when they come to it.
    std::thread other([&] { EXPECT_TRUE(writers_[1]->Save(step, shares[1], {}, options)); });
    EXPECT_TRUE(writers_[0]->Save(step, shares[0], {}, options));
    other.join();
  }
  for (auto& writer : writers_) ASSERT_TRUE(writer->Wait());
  for (int rank = 0; rank < kRanks; ++rank) {
    for (auto& places : seen) places.clear();
    for (const std::string& done : Done(rank)) seen[done.starts_with("local")].push_back(done);
    EXPECT_EQ(seen[1], local);
    EXPECT_EQ(seen[0], stored);
  }
}

/// A disk of its own size for the test, gone with it.
class SmallDisk {
 public:
  static std::unique_ptr<SmallDisk> Mount(const std::filesystem::path& path, const char* size) {
    std::filesystem::create_directories(path);
    if (mount("tmpfs", path.c_str(), "tmpfs", 0, size) != 0) return nullptr;
    return std::unique_ptr<SmallDisk>(new SmallDisk(path));
  }
  ~SmallDisk() { umount2(path_.c_str(), MNT_DETACH); }
  /// Somebody else's file takes all that is left.
  void Fill() {
    const int fd = open(Ballast().c_str(), O_WRONLY | O_CREAT, 0600);
    const std::string block(4096, 'x');
    while (write(fd, block.data(), block.size()) > 0) continue;
    close(fd);
  }
  void MakeRoom() { std::filesystem::remove(Ballast()); }

 private:
  explicit SmallDisk(std::filesystem::path path) : path_(std::move(path)) {}
  std::filesystem::path Ballast() const { return path_ / "ballast"; }
  const std::filesystem::path path_;
};

TEST_F(LocalTierTest, AFullDiskIsNamedWithItsCureAndTheRunGoesOn) {
  const auto disk = SmallDisk::Mount(tier_->path, "size=2m,mode=0700");
  if (!disk) GTEST_SKIP() << "a disk cannot be mounted here: " << strerror(errno);
  ASSERT_TRUE(Save(10, local_));
  disk->Fill();
  const std::string before = Files();
  const auto full = Save(20, local_);
  ASSERT_FALSE(full);
  EXPECT_EQ(full.error().code(), Code::kNoSpace) << full.error().ToString();
  EXPECT_THAT(full.error().ToString(), HasSubstr(tier_->path));
  EXPECT_THAT(full.error().ToString(), HasSubstr("room for 2 checkpoints and one under way"));
  EXPECT_EQ(Files(), before) << "nothing of the failed save is left";
  EXPECT_EQ(Newest(), "local 10");
  EXPECT_TRUE(Save(30, both_)) << "the store's is made all the same";
  EXPECT_EQ(Newest(), "store 30");
  disk->MakeRoom();
  EXPECT_TRUE(Save(40, local_));
  EXPECT_EQ(Newest(), "local 40");
}

TEST_F(LocalTierTest, RefusesWhatCannotBe) {
  auto writer = *Writer::Open(connection_, SingleRankExchange(), budget_, {.url = kRun});
  EXPECT_EQ(writer->Save(1, {}, {}, local_).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(writer->Save(1, {}, {}, {.to_store = false}).error().code(), Code::kInvalidArgument);
  tier_->keep = 0;
  EXPECT_FALSE(Writer::Open(connection_, SingleRankExchange(), budget_, {.url = kRun, .local = tier_}));
}

}  // namespace
}  // namespace millrace::checkpoint
