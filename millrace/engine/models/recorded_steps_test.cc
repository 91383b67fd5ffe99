#include "millrace/engine/models/recorded_steps.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace millrace::engine {
namespace {

constexpr std::int64_t kBlockTokens = 16, kMaxPositions = 400;

/// Logits that tell what a step was told of each sequence: the token, the position, the first block, and the block of
/// the position; and how many sequences the work was for. A CPU does recorded work again, as a GPU does.
at::Tensor Told(const at::Tensor& ids, const ForwardContext& context) {
  const at::Tensor positions = context.sequences.PositionsOn(at::kCPU).to(at::kLong),
                   tables = context.tables->On(at::kCPU);
  const at::Tensor own = tables.gather(1, at::floor_divide(positions, kBlockTokens).unsqueeze(1)).squeeze(1);
  const at::Tensor rows = at::full_like(ids, ids.numel());
  return at::stack({ids, positions, tables.select(1, 0).to(at::kLong), own.to(at::kLong), rows}, 1).to(at::kFloat);
}

class RecordedStepsTest : public ::testing::Test {
 protected:
  /// Runs a step of `count` sequences, the i-th of which has past(i) tokens, and checks what it was told.
  void Step(std::int64_t count, const std::function<std::int64_t(std::int64_t)>& past_of) {
    std::vector<std::int64_t> lengths(static_cast<std::size_t>(count), 1), past(lengths.size()), ids(lengths.size());
    ops::BlockTables tables;
    std::vector<std::vector<std::int32_t>> blocks;
    for (std::int64_t i = 0; i < count; ++i) {
      const auto at = static_cast<std::size_t>(i);
      past[at] = past_of(i);
      ids[at] = ++token_;
      blocks.emplace_back(kMaxPositions / kBlockTokens);
      std::iota(blocks.back().begin(), blocks.back().end(), static_cast<std::int32_t>(100 * i));
      tables.Add(blocks.back());
    }
    const at::Tensor told =
        steps_.Run(at::tensor(ids, at::kLong), ops::Sequences::Following(lengths, past), tables, kMaxPositions, Told);
    ASSERT_EQ(told.size(0), count);
    for (std::int64_t i = 0; i < count; ++i) {
      const auto at = static_cast<std::size_t>(i);
      EXPECT_EQ(told[i][0].item<std::int64_t>(), ids[at]);
      EXPECT_EQ(told[i][1].item<std::int64_t>(), past[at]);
      EXPECT_EQ(told[i][2].item<std::int64_t>(), blocks[at].front());
      EXPECT_EQ(told[i][3].item<std::int64_t>(), blocks[at][static_cast<std::size_t>(past[at] / kBlockTokens)]);
    }
    const auto rows = told[0][4].item<std::int64_t>();
    EXPECT_GE(rows, count);
    EXPECT_LE(rows, count + count / 2 + 4);
    last_ = told;
  }

  KvCache cache_{
      {.layers = 1, .kv_heads = 1, .head_dim = 16, .blocks = 1, .block_tokens = kBlockTokens}, at::kFloat, at::kCPU};
  RecordedSteps steps_{cache_, at::kCPU};
  at::Tensor last_;
  std::int64_t token_ = 0;
};

TEST_F(RecordedStepsTest, TellsEachStepItsOwnSequences) {
  for (int turn = 0; turn < 4; ++turn) {
    for (const std::int64_t count : {1, 2, 3, 5, 8, 9, 65, 256}) {
      Step(count, [&](std::int64_t i) { return (37 * i + 5 * turn) % 120; });
    }
  }
}

TEST_F(RecordedStepsTest, FollowsTheLongestSequenceToTheEnd) {
  for (std::int64_t past = 0; past < kMaxPositions; past += 7) {
    Step(3, [&](std::int64_t i) { return i == 1 ? past : i; });
  }
  Step(2, [](std::int64_t) { return kMaxPositions - 1; });
  Step(2, [](std::int64_t) { return kMaxPositions - 1; });
}

TEST_F(RecordedStepsTest, KeepsWhatItReturned) {
  for (int turn = 0; turn < 3; ++turn) Step(4, [](std::int64_t i) { return i; });
  const at::Tensor kept = last_, copy = kept.clone();
  Step(4, [](std::int64_t i) { return 10 + i; });
  EXPECT_TRUE(kept.equal(copy));
}

TEST_F(RecordedStepsTest, ComputesAgainAfterAFailure) {
  const ops::Sequences one = ops::Sequences::Following(std::vector<std::int64_t>{1}, std::vector<std::int64_t>{3});
  const std::vector<std::int32_t> table = {0};
  ops::BlockTables tables;
  tables.Add(table);
  const auto fails = [](const at::Tensor&, const ForwardContext&) -> at::Tensor {
    throw std::runtime_error("no memory");
  };
  EXPECT_THROW(steps_.Run(at::zeros({1}, at::kLong), one, tables, kMaxPositions, fails), std::runtime_error);
  for (int turn = 0; turn < 3; ++turn) Step(1, [](std::int64_t) { return 3; });
}

}  // namespace
}  // namespace millrace::engine
