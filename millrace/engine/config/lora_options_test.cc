#include "millrace/engine/config/lora_options.h"

#include <gtest/gtest.h>

namespace millrace::engine {
namespace {

TEST(LoraOptions, ScaleIsAlphaByTheRankOrItsRoot) {
  EXPECT_EQ((LoraOptions{.rank = 16, .alpha = 32}.scale()), 2);
  EXPECT_EQ((LoraOptions{.rank = 16, .alpha = 32, .rslora = true}.scale()), 8);
}

TEST(LoraOptions, TargetsAreNamesOrTheirEnds) {
  const std::string module = "model.layers.11.self_attn.q_proj";
  EXPECT_TRUE(TargetMatches("q_proj", module));
  EXPECT_TRUE(TargetMatches("self_attn.q_proj", module));
  EXPECT_TRUE(TargetMatches("1.self_attn.q_proj", "model.layers.1.self_attn.q_proj"));
  EXPECT_TRUE(TargetMatches(module, module));
  EXPECT_FALSE(TargetMatches("1.self_attn.q_proj", module)) << "of layer 1, not 11";
  EXPECT_FALSE(TargetMatches("proj", module));
  EXPECT_FALSE(TargetMatches("k_proj", module));
  EXPECT_FALSE(TargetMatches("x." + module, module));
}

TEST(LoraOptions, ValuesOutOfRangeAreRefused) {
  EXPECT_TRUE(CheckLora({}, "lora"));
  const auto refused = [](const LoraOptions& options) {
    const Status status = CheckLora(options, "lora");
    return status ? std::string() : status.error().message();
  };
  EXPECT_EQ(refused({.rank = 0}), "lora.r is 0; it must be at least 1");
  EXPECT_EQ(refused({.alpha = 0}), "lora.alpha is 0; it must be positive");
  EXPECT_EQ(refused({.dropout = 1}), "lora.dropout is 1; it must be in [0, 1)");
  EXPECT_EQ(refused({.targets = {}}), "lora.targets is empty; name modules, or all-linear");
}

}  // namespace
}  // namespace millrace::engine
