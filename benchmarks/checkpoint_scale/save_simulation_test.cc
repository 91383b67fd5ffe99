#include "benchmarks/checkpoint_scale/save_simulation.h"

#include <gtest/gtest.h>

namespace millrace::checkpoint {
namespace {

constexpr std::int64_t kSmallLayers = 4;
constexpr ScaleModel kSmall{kSmallLayers, 512, 1408, 128, 32'000};

std::uint64_t Parameters(const ScaleModel& m) {
  const auto layer =
      2 * m.hidden * m.hidden + 2 * m.key_value * m.hidden + 3 * m.intermediate * m.hidden + 2 * m.hidden;
  return static_cast<std::uint64_t>(m.layers * layer + 2 * m.vocabulary * m.hidden + m.hidden);
}

TEST(Scale, EveryLayoutSavesEveryByteOnce) {
  for (const ScaleLayout& layout :
       {ScaleLayout{}, ScaleLayout{8}, ScaleLayout{2, 4, 2}, ScaleLayout{16, 2, 4, false}}) {
    const auto save = SimulateSave(kSmall, layout);
    ASSERT_TRUE(save) << save.error().ToString();
    EXPECT_EQ(save->ranks, layout.ranks());
    EXPECT_EQ(save->bytes, 14 * Parameters(kSmall));
    EXPECT_LE(save->later_reports, save->first_reports);
  }
  EXPECT_FALSE(SimulateSave(kSmall, {1, 7, 1})) << "32,000 rows do not divide by 7";
}

TEST(Scale, LoadAndAgreementStaySmallAsRanksGrow) {
  const ScaleModel model;  // 70 billion parameters
  const auto few = SimulateSave(model, {1, 8, 1}), many = SimulateSave(model, {16, 8, 8});
  ASSERT_TRUE(few);
  ASSERT_TRUE(many);
  EXPECT_EQ(few->bytes, many->bytes) << "replicas are written once";
  EXPECT_LT(many->most, few->most / 64);
  EXPECT_LT(many->later_reports, many->first_reports / 2);
  EXPECT_LT(many->agree_s + many->commit_s, 1.0);
  EXPECT_LT(many->slices, 4 * many->tensors * 8 + 40'000u);
  EXPECT_LT(many->total_s(), few->total_s() / 10);
}

}  // namespace
}  // namespace millrace::checkpoint
