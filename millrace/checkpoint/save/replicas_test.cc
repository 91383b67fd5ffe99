#include "millrace/checkpoint/save/replicas.h"
#include "millrace/checkpoint/read/reader.h"
#include "millrace/checkpoint/save/writer.h"
#include "millrace/checkpoint/testing/random_state.h"
#include "millrace/checkpoint/testing/thread_group.h"

#include <gmock/gmock.h>

#include <thread>

#include "millrace/object/local/memory_store.h"

namespace millrace::checkpoint {
namespace {

using testing::State;

std::vector<std::uint64_t> LoadsOf(const std::vector<std::vector<HeldSlice>>& held,
                                   const std::vector<std::vector<SliceShare>>& shares) {
  std::vector<std::uint64_t> loads(held.size());
  for (std::size_t rank = 0; rank < held.size(); ++rank)
    for (const SliceShare& share : shares[rank])
      loads[rank] += share.elements * DTypeBytes(held[rank][share.slice].meta.dtype);
  return loads;
}

TEST(Replicas, EveryElementIsWrittenOnceByOneWhoHasIt) {
  Random random(1);
  for (int round = 0; round < 300; ++round) {
    const std::size_t ranks = 1 + random.Below(9);
    std::vector<std::vector<HeldSlice>> held(ranks);
    std::map<std::string, std::vector<int>> written;
    for (int tensor = 0; tensor < 12; ++tensor) {
      HeldSlice slice{.name = fmt::format("t{}", tensor), .meta = {DType::kF16, {}}};
      slice.elements = random.Below(2000);
      slice.meta.shape = {static_cast<std::int64_t>(slice.elements)};
      written[slice.name].resize(slice.elements);
      const std::size_t first = random.Below(ranks);
      for (std::size_t rank = 0; rank < ranks; ++rank)
        if (rank == first || random.Below(2)) held[rank].push_back(slice);
    }
    const auto shares = BalanceReplicas(held, 1 + random.Below(500));
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      for (const SliceShare& share : shares[rank]) {
        const HeldSlice& slice = held[rank][share.slice];
        ASSERT_LE(share.begin + share.elements, slice.elements);
        for (std::uint64_t i = 0; i < share.elements; ++i) ++written[slice.name][share.begin + i];
      }
    }
    for (const auto& [name, times] : written)
      for (int count : times) ASSERT_EQ(count, 1) << name;
  }
}

TEST(Replicas, RanksWriteAboutAsMuch) {
  Random random(2);
  for (int round = 0; round < 50; ++round) {
    const std::size_t ranks = 2 + random.Below(30);
    const std::uint64_t least = 1 << 12;
    std::vector<std::vector<HeldSlice>> held(ranks);
    std::uint64_t total = 0, own_most = 0;
    for (int tensor = 0; tensor < 20; ++tensor) {
      HeldSlice slice{.name = fmt::format("t{}", tensor), .meta = {DType::kU8, {}}};
      slice.elements = random.Below(tensor == 0 ? 1 << 22 : 1 << 16);
      total += slice.elements;
      for (auto& rank : held) rank.push_back(slice);
    }
    for (std::size_t rank = 0; rank < ranks; ++rank) {  // and something of its own
      HeldSlice slice{.name = fmt::format("own{}", rank), .meta = {DType::kU8, {}}};
      slice.elements = random.Below(1 << 14);
      own_most = std::max(own_most, slice.elements);
      total += slice.elements;
      held[rank].push_back(slice);
    }
    const auto loads = LoadsOf(held, BalanceReplicas(held, least));
    const std::uint64_t most = *std::ranges::max_element(loads);
    EXPECT_LE(most, std::max(total / ranks + 2 * least, own_most + 2 * least)) << ranks << " ranks";
  }
}

TEST(Replicas, ASharedOutStateIsSavedAndReadBack) {
  constexpr int kRanks = 3;
  const State state = State::Random(4, 8, 300'000);
  testing::ThreadRanks ranks(kRanks);
  testing::StoreConnection connection(object::MakeMemoryStore({}));
  MemoryBudget budget(64 * kMiB);
  std::vector<std::uint64_t> bytes(kRanks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      auto group = ranks.Rank(rank);
      // Every rank holds all of it.
      auto slices = ShareReplicas(*group, state.Share(1, 0)[0]);
      ASSERT_TRUE(slices) << slices.error().ToString();
      for (const SaveSlice& slice : *slices) bytes[rank] += slice.bytes.size();
      auto writer = *Writer::Open(connection, group, budget, {.url = "s3://bucket/run"});
      ASSERT_TRUE(writer->Save(1, *slices, {}));
      const auto saved = writer->Wait();
      ASSERT_TRUE(saved) << saved.error().ToString();
    });
  }
  for (std::thread& thread : threads) thread.join();
  auto reader = Reader::Open(connection, "s3://bucket/run");
  ASSERT_TRUE(reader);
  state.ExpectReadBack(**reader, 2);
  EXPECT_LE(*std::ranges::max_element(bytes), *std::ranges::min_element(bytes) + 2 * kMiB);
}

}  // namespace
}  // namespace millrace::checkpoint
