#include "millrace/train/step_end/delayed_scales.h"

#include <gmock/gmock.h>

#include <functional>
#include <limits>
#include <thread>

#include "millrace/collectives/connect.h"

namespace millrace::train {
namespace {

using engine::ops::Fp8Tensor;

void See(DelayedScales& scales, std::size_t layer, Fp8Tensor tensor, float value) {
  scales.values().seen(layer, tensor).fill_(value);
}
float AmaxOf(DelayedScales& scales, std::size_t layer, Fp8Tensor tensor) {
  return scales.values().amax(layer, tensor).item<float>();
}

/// Runs work(rank, scales) on each rank. A rank has the layers of its place.
void OnRanks(const std::vector<std::vector<std::string>>& layers,
             const std::function<void(std::size_t rank, DelayedScales&)>& work) {
  auto groups = collectives::ConnectThreads(static_cast<int>(layers.size()));
  std::vector<std::jthread> threads;
  for (std::size_t rank = 0; rank < layers.size(); ++rank) {
    threads.emplace_back([&, rank] {
      auto scales = DelayedScales::Make(*groups[rank], layers[rank], at::kCPU);
      ASSERT_TRUE(scales) << scales.error().ToString();
      work(rank, **scales);
    });
  }
}

// Ranks 0 and 1 have one stage, rank 2 another one. Their orders are those of the model, not of the alphabet.
const std::vector<std::vector<std::string>> kStages = {{"b", "a"}, {"b", "a"}, {"d", "c", "e"}};

TEST(DelayedScalesTest, WhatOneRankSeesCountsForAllThatHaveTheLayer) {
  OnRanks(kStages, [](std::size_t rank, DelayedScales& scales) {
    See(scales, 0, Fp8Tensor::kInput, 1 + static_cast<float>(rank));
    if (rank == 1) See(scales, 1, Fp8Tensor::kWeight, 7);
    if (rank == 2) See(scales, 2, Fp8Tensor::kOutputGradient, 0.5F);
    ASSERT_TRUE(scales.EndStep());
    EXPECT_EQ(AmaxOf(scales, 0, Fp8Tensor::kInput), rank == 2 ? 3 : 2);
    EXPECT_EQ(AmaxOf(scales, 1, Fp8Tensor::kWeight), rank == 2 ? 0 : 7);
    if (rank == 2) EXPECT_EQ(AmaxOf(scales, 2, Fp8Tensor::kOutputGradient), 0.5F);
    const Json expected = {{"a", {0, 7, 0}}, {"b", {2, 0, 0}}, {"c", {0, 0, 0}}, {"d", {3, 0, 0}}, {"e", {0, 0, 0.5}}};
    EXPECT_EQ(scales.ToJson(), expected);
  });
}

TEST(DelayedScalesTest, OtherRanksGoOnAlike) {
  Json state;
  OnRanks(kStages, [&](std::size_t rank, DelayedScales& scales) {
    for (const float value : {0.1F, 3.3F, 1e-3F}) {
      for (std::size_t layer = 0; layer < scales.values().layers(); ++layer) {
        See(scales, layer, Fp8Tensor::kInput, value * static_cast<float>(layer + 1));
      }
      ASSERT_TRUE(scales.EndStep());
    }
    if (rank == 0) state = scales.ToJson();
  });
  const Json read = ParseJson(state.dump(), "state").value();
  OnRanks({{"e", "d", "c", "b", "a"}}, [&](std::size_t, DelayedScales& scales) {
    ASSERT_TRUE(scales.Restore(read));
    EXPECT_EQ(scales.ToJson(), state);
    EXPECT_EQ(AmaxOf(scales, 3, Fp8Tensor::kInput), state["b"][0].get<float>());
  });
}

TEST(DelayedScalesTest, ALeftOutStepIsForgotten) {
  OnRanks({{"a"}}, [](std::size_t, DelayedScales& scales) {
    See(scales, 0, Fp8Tensor::kInput, 2);
    ASSERT_TRUE(scales.EndStep());
    See(scales, 0, Fp8Tensor::kInput, 500);
    scales.Skip();
    See(scales, 0, Fp8Tensor::kInput, std::numeric_limits<float>::infinity());
    ASSERT_TRUE(scales.EndStep());
    EXPECT_EQ(AmaxOf(scales, 0, Fp8Tensor::kInput), 2);
  });
}

TEST(DelayedScalesTest, ACheckpointOfOtherLayersIsTakenAsFarAsItGoes) {
  OnRanks({{"a", "b"}}, [](std::size_t, DelayedScales& scales) {
    ASSERT_TRUE(scales.Restore({{"a", {1, 2, 3}}, {"z", {4, 5, 6}}}));
    EXPECT_TRUE(scales.values().HasAmax(0, Fp8Tensor::kWeight));
    EXPECT_FALSE(scales.values().HasAmax(1, Fp8Tensor::kWeight));
    for (const Json& damaged : {Json(3), Json{{"a", 3}}, Json{{"a", {1, 2}}}, Json{{"a", {1, 2, "x"}}},
                                Json{{"a", {1, 2, -3}}}, Json{{"a", {1, 2, 1e300}}}, Json{{"a", {1, 2, nullptr}}}}) {
      const Status restored = scales.Restore(damaged);
      ASSERT_FALSE(restored) << damaged.dump();
      EXPECT_EQ(restored.error().code(), Code::kCorrupt);
      EXPECT_EQ(AmaxOf(scales, 0, Fp8Tensor::kWeight), 2);  // as before
    }
  });
}

}  // namespace
}  // namespace millrace::train
