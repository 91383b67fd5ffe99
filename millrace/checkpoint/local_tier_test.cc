// The local tier: made often, bounded, and chosen at a restart when all of it survives.
#include "millrace/checkpoint/local_tier.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <thread>

#include "millrace/base/files.h"
#include "millrace/checkpoint/testing/random_state.h"
#include "millrace/checkpoint/testing/thread_group.h"
#include "millrace/object/blocking.h"
#include "millrace/object/memory/memory_store.h"

namespace millrace::checkpoint {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::State;
using testing::ThreadRanks;

constexpr const char* kUrl = "s3://bucket/run";
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
      Writer::Options of_writer{.url = kUrl, .retention = {.keep_last = 10}, .local = tier_};
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
  std::string Newest(std::string url = kUrl) {
    ThreadRanks ranks(kRanks);
    std::vector<Result<checkpoint::Newest>> readers(kRanks);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        auto group = ranks.Rank(rank);
        readers[rank] = OpenNewest(connection_, *group, url, tier_, Logger());
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
      const bool local = reader->tier == Tier::kLocal;
      const auto stored = ListCheckpoints({store_, "run"});
      EXPECT_EQ(reader->in_store, std::ranges::any_of(*stored, [&](const Entry& entry) { return entry.step == step; }));
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
    const auto entries = ListCheckpoints(*LocateLocal(*tier_, kUrl));
    for (const Entry& entry : *entries) steps.push_back(entry.step);
    return steps;
  }

  TempDir directory_ = *TempDir::Create();
  std::optional<LocalTier> tier_ = LocalTier{directory_.path().string() + "/ckpt", 2};
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

TEST_F(LocalTierTest, RefusesWhatCannotBe) {
  auto writer = *Writer::Open(connection_, SingleProcessGroup(), budget_, {.url = kUrl});
  EXPECT_EQ(writer->Save(1, {}, {}, local_).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(writer->Save(1, {}, {}, {.to_store = false}).error().code(), Code::kInvalidArgument);
  tier_->keep = 0;
  EXPECT_FALSE(Writer::Open(connection_, SingleProcessGroup(), budget_, {.url = kUrl, .local = tier_}));
}

}  // namespace
}  // namespace millrace::checkpoint
