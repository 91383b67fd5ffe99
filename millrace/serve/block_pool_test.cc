#include "millrace/serve/block_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

namespace millrace::serve {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

/// The first tokens of text `text`. Texts are alike up to `alike` tokens.
std::vector<TokenId> Tokens(std::size_t count, TokenId text = 0, std::size_t alike = 0) {
  std::vector<TokenId> tokens(count);
  std::iota(tokens.begin(), tokens.end(), 1);
  for (std::size_t i = alike; i < count; ++i) tokens[i] += 100 * text;
  return tokens;
}

/// Takes blocks for all tokens and publishes the full ones, as a text does that is computed.
std::vector<std::int32_t> Store(BlockPool& pool, const std::vector<TokenId>& tokens) {
  std::vector<std::int32_t> blocks = pool.Share(tokens);
  const auto in_block = static_cast<std::size_t>(pool.block_tokens());
  while (blocks.size() * in_block < tokens.size()) {
    blocks.push_back(pool.TakeBlock());
    if (blocks.size() * in_block <= tokens.size()) pool.Publish(tokens, blocks);
  }
  return blocks;
}

TEST(BlockPool, FullBlocksOfABeginningAreShared) {
  BlockPool pool({.blocks = 10, .block_tokens = 4});
  EXPECT_THAT(pool.Share(Tokens(20)), IsEmpty());
  const auto first = Store(pool, Tokens(10));
  EXPECT_THAT(first, ElementsAre(0, 1, 2));
  EXPECT_EQ(pool.used(), 3);
  EXPECT_THAT(pool.Share(Tokens(8)), ElementsAre(0)) << "one token must be left to compute";
  EXPECT_THAT(pool.Share(Tokens(9)), ElementsAre(0, 1));
  EXPECT_THAT(pool.Share(Tokens(20)), ElementsAre(0, 1)) << "the third one is not full";
  EXPECT_THAT(pool.Share(Tokens(20, 1, 4)), ElementsAre(0)) << "alike up to there";
  EXPECT_THAT(pool.Share(Tokens(20, 1, 3)), IsEmpty());
  EXPECT_EQ(pool.used(), 3);
}

TEST(BlockPool, WhatNobodyUsesStaysUntilItsMemoryIsWanted) {
  BlockPool pool({.blocks = 4, .block_tokens = 4});
  const auto first = Store(pool, Tokens(12));
  pool.Release(first);
  EXPECT_EQ(pool.used(), 0);
  EXPECT_EQ(pool.available(), 4);
  EXPECT_EQ(pool.TakeBlock(), 3) << "the one that has nothing";
  EXPECT_EQ(pool.TakeBlock(), first[2]) << "the end goes before the beginning";
  const auto again = pool.Share(Tokens(12));
  EXPECT_THAT(again, ElementsAre(first[0], first[1]));
  EXPECT_EQ(pool.TakeBlock(), -1) << "all are in use";
  pool.Release(again);
  EXPECT_EQ(pool.TakeBlock(), first[1]);
  EXPECT_EQ(pool.TakeBlock(), first[0]);
  EXPECT_THAT(pool.Share(Tokens(12)), IsEmpty());
}

TEST(BlockPool, TheLeastRecentlyUsedGoesFirst) {
  BlockPool pool({.blocks = 2, .block_tokens = 4});
  const auto a = Store(pool, Tokens(4)), b = Store(pool, Tokens(4, 1));
  pool.Release(a);
  pool.Release(b);
  pool.Release(pool.Share(Tokens(5)));
  EXPECT_EQ(pool.TakeBlock(), b[0]);
  EXPECT_THAT(pool.Share(Tokens(5)), ElementsAre(a[0]));
}

TEST(BlockPool, EqualBlocksOfTwoTextsBecomeOne) {
  BlockPool pool({.blocks = 8, .block_tokens = 4});
  std::vector<std::int32_t> one{pool.TakeBlock(), pool.TakeBlock()}, other{pool.TakeBlock(), pool.TakeBlock()};
  pool.Publish(Tokens(8), std::span(one).first(1));
  pool.Publish(Tokens(8), std::span(other).first(1));
  EXPECT_EQ(other[0], one[0]);
  EXPECT_EQ(pool.used(), 3);
  pool.Publish(Tokens(8), one);
  pool.Publish(Tokens(8), other);
  EXPECT_EQ(other, one);
  pool.Release(one);
  EXPECT_EQ(pool.used(), 2) << "the other one still uses them";
  pool.Release(other);
  EXPECT_EQ(pool.used(), 0);
  EXPECT_THAT(pool.Share(Tokens(9)), ElementsAre(one[0], one[1]));
}

TEST(BlockPool, SequencesOfOtherRootsShareNothing) {
  BlockPool pool({.blocks = 10, .block_tokens = 4});
  const auto first = Store(pool, Tokens(10));
  EXPECT_THAT(pool.Share(Tokens(10), 1), IsEmpty());
  std::vector<std::int32_t> other{pool.TakeBlock()};
  pool.Publish(Tokens(4), other, 1);
  EXPECT_NE(other[0], first[0]) << "equal tokens, but another root's";
  EXPECT_THAT(pool.Share(Tokens(10), 1), ElementsAre(other[0]));
  EXPECT_THAT(pool.Share(Tokens(10), 2), IsEmpty());
  EXPECT_THAT(pool.Share(Tokens(10)), ElementsAre(first[0], first[1]));
}

}  // namespace
}  // namespace millrace::serve
