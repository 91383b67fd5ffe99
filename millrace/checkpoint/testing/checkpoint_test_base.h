// The fixture of tests of saving and reading: a memory store with injected faults, and writers and readers on it.
#pragma once

#include <gmock/gmock.h>

#include <latch>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "millrace/base/json.h"
#include "millrace/checkpoint/read/catalog.h"
#include "millrace/checkpoint/read/reader.h"
#include "millrace/checkpoint/save/writer.h"
#include "millrace/checkpoint/testing/random_state.h"
#include "millrace/checkpoint/testing/thread_group.h"
#include "millrace/object/blocking.h"
#include "millrace/object/local/memory_store.h"
#include "millrace/object/testing/fault_store.h"

namespace millrace::checkpoint::testing {

constexpr const char* kUrl = "s3://bucket/runs/a";
constexpr auto kSecond = std::chrono::seconds(1);

/// Blocks rank 0 before exchange number `at` (0: attempt, 1: reports, 2: outcome) until the test calls Open.
class GateGroup final : public RankExchange {
 public:
  explicit GateGroup(int at) : at_(at) {}
  int rank() const override { return 0; }
  int size() const override { return 1; }
  Result<std::vector<std::string>> Gather(std::string mine) override {
    Pass();
    return std::vector{std::move(mine)};
  }
  Result<std::string> Broadcast(std::string text) override {
    Pass();
    return text;
  }
  void AwaitArrival() { arrived_.wait(); }
  void Open() { open_.count_down(); }

 private:
  void Pass() {
    if (next_++ != at_) return;
    arrived_.count_down();
    open_.wait();
  }
  const int at_;
  int next_ = 0;
  std::latch arrived_{1}, open_{1};
};

class CheckpointTest : public ::testing::Test {
 protected:
  static object::MemoryStoreOptions StoreOptions(Clock* clock) {
    object::MemoryStoreOptions options;
    options.limits.min_part = 4096;
    options.clock = clock;
    return options;
  }
  Writer::Options Options() {
    Writer::Options options;
    options.url = kUrl;
    options.part_bytes = 8192;
    options.chunk_bytes = 4096;
    options.clock = &clock_;
    return options;
  }
  std::unique_ptr<Writer> Open(std::shared_ptr<RankExchange> group, Writer::Options options) {
    auto writer = Writer::Open(connection_, std::move(group), budget_, std::move(options));
    EXPECT_TRUE(writer) << (writer ? "" : writer.error().ToString());
    return *std::move(writer);
  }
  std::unique_ptr<Writer> Open(std::shared_ptr<RankExchange> group = SingleRankExchange()) {
    return Open(std::move(group), Options());
  }
  static std::vector<SaveSlice> Whole(const State& state) { return state.Share(1, 0)[0]; }

  /// Saves and waits. Advances the clock first, so that every save has another time.
  Status Save(Writer& writer, std::uint64_t step, const State& state, const Json& meta = {}) {
    clock_.Advance(kSecond);
    auto saved = writer.Save(step, Whole(state), DumpJson(meta));
    auto waited = writer.Wait();
    if (!saved) return Fail(saved.error());
    if (!waited) return Fail(waited.error());
    return {};
  }
  /// Saves `slices[rank]` on every rank and returns the result of each rank.
  std::vector<Result<std::optional<SaveStats>>> SaveOnRanks(std::uint64_t step,
                                                            const std::vector<std::vector<SaveSlice>>& slices) {
    clock_.Advance(kSecond);
    ThreadRanks ranks(static_cast<int>(slices.size()));
    std::vector<std::unique_ptr<Writer>> writers;
    for (std::size_t rank = 0; rank < slices.size(); ++rank) {
      writers.push_back(Open(ranks.Rank(static_cast<int>(rank))));
      EXPECT_TRUE(writers.back()->Save(step, slices[rank], fmt::format(R"({{"rank": {}}})", rank)));
    }
    std::vector<Result<std::optional<SaveStats>>> results;
    for (auto& writer : writers) results.push_back(writer->Wait());
    return results;
  }
  std::vector<std::uint64_t> Steps() {
    std::vector<std::uint64_t> steps;
    auto entries = ListCheckpoints({store_, "runs/a"});
    EXPECT_TRUE(entries);
    for (const ListedCheckpoint& entry : *entries) steps.push_back(entry.step);
    return steps;
  }
  std::vector<std::string> Keys(std::string prefix = "") {
    std::vector<std::string> keys;
    auto page = object::List(*store_, {.prefix = prefix});
    EXPECT_TRUE(page);
    for (const auto& object : page->objects) keys.push_back(object.key);
    return keys;
  }
  std::unique_ptr<Reader> MustOpen(std::optional<std::uint64_t> step = std::nullopt) {
    auto reader = Reader::Open(connection_, kUrl, step);
    EXPECT_TRUE(reader) << (reader ? "" : reader.error().ToString());
    return *std::move(reader);
  }
  void ExpectGood(std::uint64_t step, const State& state) {
    auto reader = MustOpen(step);
    state.ExpectReadBack(*reader, 1);
    auto verified = reader->Verify();
    EXPECT_TRUE(verified) << (verified ? "" : verified.error().ToString());
  }

  FakeClock clock_;
  MemoryBudget budget_{64 * kMiB};
  std::shared_ptr<object::FaultStore> store_ =
      object::FaultStore::Create(object::MakeMemoryStore(StoreOptions(&clock_)), 1, clock_);
  StoreConnection connection_{store_};
};

}  // namespace millrace::checkpoint::testing
