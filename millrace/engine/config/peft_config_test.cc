#include "millrace/engine/config/peft_config.h"

#include <gmock/gmock.h>

namespace millrace::engine {
namespace {

TEST(PeftConfig, IsReadBackAsItWasWritten) {
  for (const LoraOptions& options :
       {LoraOptions{}, LoraOptions{.dora = true},
        LoraOptions{.rank = 64, .alpha = 16, .dropout = 0.1, .rslora = true, .targets = {"q_proj", "v"}}}) {
    const Json json = PeftConfig(options, {.base = "s3://models/llama", .task = "CAUSAL_LM"});
    EXPECT_EQ(ReadPeftConfig(json, "adapter_config.json").value(), options);
  }
}

TEST(PeftConfig, WhatIsNotImplementedIsNamed) {
  const auto refused = [](std::string_view key, const Json& value) {
    Json json = PeftConfig({}, {});
    json[std::string(key)] = value;
    const auto read = ReadPeftConfig(json, "a.json");
    return read ? std::string("read") : std::string(read.error().message());
  };
  EXPECT_EQ(refused("peft_type", "IA3"), "a.json: peft_type IA3 is not implemented; LORA is");
  EXPECT_EQ(refused("lora_bias", true), "a.json: lora_bias true is not implemented");
  EXPECT_EQ(refused("bias", "all"), "a.json: bias \"all\" is not implemented");
  EXPECT_EQ(refused("rank_pattern", {{"q_proj", 4}}), "a.json: rank_pattern {\"q_proj\":4} is not implemented");
  EXPECT_EQ(refused("target_modules", ".*attn.*"),
            "a.json: target_modules is the pattern \".*attn.*\"; a list of names is implemented");
  EXPECT_EQ(refused("target_modules", Json::array()), "a.json.targets is empty; name modules, or all-linear");
  EXPECT_EQ(refused("lora_bias", false), "read");
  for (const char* init : {"pissa", "pissa_niter_4", "olora", "corda", "loftq", "of_tomorrow"}) {
    EXPECT_THAT(refused("init_lora_weights", init),
                testing::StartsWith(fmt::format("a.json: init_lora_weights \"{}\" changes the adapted model", init)));
  }
  EXPECT_EQ(refused("init_lora_weights", "gaussian"), "read");
  EXPECT_EQ(refused("init_lora_weights", false), "read");
  EXPECT_EQ(refused("trainable_token_indices", {1, 2}), "a.json: trainable_token_indices [1,2] is not implemented");
  EXPECT_EQ(refused("alora_invocation_tokens", {7}), "a.json: alora_invocation_tokens [7] is not implemented");
  EXPECT_EQ(refused("ensure_weight_tying", true), "a.json: ensure_weight_tying true is not implemented");
  EXPECT_EQ(refused("of_tomorrow", {{"x", 1}}), "a.json: of_tomorrow {\"x\":1} is not implemented");
  EXPECT_EQ(refused("of_tomorrow", nullptr), "read");
  EXPECT_EQ(refused("of_tomorrow", Json::object()), "read");
}

}  // namespace
}  // namespace millrace::engine
