#include "millrace/tokenizer/bpe/merger.h"

#include <gtest/gtest.h>

#include "millrace/base/hash/random.h"

namespace millrace::tokenizer {
namespace {

/// The definition: the pair of lowest rank, the leftmost of several, until none is left.
std::vector<Symbol> MergeByDefinition(const MergeTable& table, std::vector<Symbol> symbols) {
  while (true) {
    std::size_t best = symbols.size();
    MergeTable::Merge merge;
    for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
      auto found = table.Find(symbols[i], symbols[i + 1]);
      if (found.rank < merge.rank) {
        merge = found;
        best = i;
      }
    }
    if (best == symbols.size()) return symbols;
    symbols[best] = merge.merged;
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

TEST(Merges, OfAnyTableAreMadeInTheOrderOfTheDefinition) {
  Random random(1);
  Merger merger;
  for (int round = 0; round < 300; ++round) {
    // Ranks repeat and need not grow with the symbols: merges may make better ones possible.
    int base = 2 + static_cast<int>(random.Below(4)), made = 1 + static_cast<int>(random.Below(30));
    MergeTable table(static_cast<std::size_t>(made));
    for (Symbol next = base; next < base + made; ++next) {
      auto any = [&] { return static_cast<Symbol>(random.Below(static_cast<std::uint64_t>(next))); };
      table.Add(any(), any(), {next, static_cast<std::uint32_t>(random.Below(12))});
    }
    for (std::size_t length : {0, 1, 2, 5, 40, 63, 64, 65, 400}) {
      std::vector<Symbol> symbols(length);
      for (Symbol& symbol : symbols) {
        symbol = random.Below(20) == 0 ? -1 - static_cast<Symbol>(random.Below(100))
                                       : static_cast<Symbol>(random.Below(static_cast<std::uint64_t>(base)));
      }
      auto expected = MergeByDefinition(table, symbols);
      auto merged = merger.Run(table, symbols);
      ASSERT_EQ(std::vector<Symbol>(merged.begin(), merged.end()), expected) << "round " << round << ", " << length;
    }
  }
}

TEST(Merges, OfEqualRankGoFromTheLeftAndGrow) {
  // 0 is a space; runs of up to 4 have one rank, as Llama 2's do.
  MergeTable table(8);
  for (Symbol left = 0; left < 4; ++left) {
    for (Symbol right = 0; left + right + 1 < 4; ++right) table.Add(left, right, {left + right + 1, 7});
  }
  Merger merger;
  std::vector<Symbol> run(100'003, 0);
  auto merged = merger.Run(table, run);
  ASSERT_EQ(merged.size(), 25'001u);
  EXPECT_EQ(merged[0], 3);
  EXPECT_EQ(merged[25'000], 2);
}

TEST(Merges, TheFirstOfTwoForOnePairStays) {
  MergeTable table(2);
  EXPECT_TRUE(table.Add(1, 2, {3, 4}));
  EXPECT_FALSE(table.Add(1, 2, {5, 6}));
  EXPECT_EQ(table.Find(1, 2).merged, 3);
  EXPECT_EQ(table.Find(2, 1).rank, kNoRank);
  EXPECT_EQ(table.Find(-1, 2).rank, kNoRank);
}

}  // namespace
}  // namespace millrace::tokenizer
