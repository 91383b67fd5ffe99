#include "millrace/engine/layout/part_work.h"

#include <gtest/gtest.h>

namespace millrace::engine {
namespace {

/// The parts of a Llama with 512 channels, 1,376 in its MLP, and 32,000 tokens.
constexpr PartSizes kSmallLlama{.block_elements = 4 * 512 * 512 + 3 * 512 * 1376,
                                .head_elements = 512 * 32000,
                                .query_channels = 512,
                                .attended_length = 512};

TEST(PartWork, CountsProductsAndVisiblePairs) {
  const PartWork work = WorkOfParts(kSmallLlama, {});
  EXPECT_DOUBLE_EQ(work.block, 6 * 3'162'112.0 + 14 * 512 * 256.0);
  EXPECT_DOUBLE_EQ(work.head, 6 * 16'384'000.0);
}

TEST(PartWork, LongSequencesMakeBlocksDearer) {
  PartSizes sizes = kSmallLlama;
  sizes.attended_length = 8192;
  EXPECT_GT(WorkOfParts(sizes, {}).block, 2.2 * WorkOfParts(kSmallLlama, {}).block);
  EXPECT_EQ(WorkOfParts(sizes, {}).head, WorkOfParts(kSmallLlama, {}).head);
}

TEST(PartWork, MaskedModelsPredictSomeTokensAndSeeAllKeys) {
  PartSizes sizes = kSmallLlama;
  sizes.causal = false;
  sizes.predicted = 0.15;
  const PartWork work = WorkOfParts(sizes, {});
  EXPECT_DOUBLE_EQ(work.block, 6 * 3'162'112.0 + 14 * 512 * 512.0);
  EXPECT_DOUBLE_EQ(work.head, 6 * 16'384'000.0 * 0.15);
}

TEST(PartWork, BlocksThatAreComputedAgainCostAForwardPassMore) {
  const PartWork plain = WorkOfParts(kSmallLlama, {});
  const double forward = 2 * 3'162'112.0 + 4 * 512 * 256.0;
  const PartWork all = WorkOfParts(kSmallLlama, {.recompute = Recompute::kFull});
  const PartWork half = WorkOfParts(kSmallLlama, {.recompute = Recompute::kFull, .recompute_every = 2});
  EXPECT_DOUBLE_EQ(all.block, plain.block + forward);
  EXPECT_DOUBLE_EQ(half.block, plain.block + forward / 2);
  EXPECT_EQ(all.head, plain.head);
  EXPECT_EQ(WorkOfParts(kSmallLlama, {.recompute = Recompute::kSelective}).block, plain.block);
}

}  // namespace
}  // namespace millrace::engine
