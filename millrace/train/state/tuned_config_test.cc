#include "millrace/train/state/tuned_config.h"

#include <gtest/gtest.h>

#include "millrace/data/testing/testing.h"
#include "millrace/engine/config/families.h"

namespace millrace::train {
namespace {

const data::testing::ByteTokenizer kTokens(/*bos=*/256, /*eos=*/257);

Json Tuned(const Json& stored, std::vector<std::string> classes = {}) {
  const auto config = engine::ParseModelConfig(stored, "config.json");
  EXPECT_TRUE(config) << config.error().ToString();
  return TunedConfig(stored, **config, classes, at::kBFloat16, kTokens);
}

Json SmallLlama() {
  return {{"model_type", "llama"},  {"vocab_size", 300},        {"hidden_size", 8},    {"intermediate_size", 16},
          {"num_hidden_layers", 1}, {"num_attention_heads", 2}, {"rms_norm_eps", 1e-5}};
}

TEST(TunedConfig, KeepsWhatTheModelsFolderSays) {
  Json stored = SmallLlama();
  stored.update({{"eos_token_id", {1, 2}}, {"pad_token_id", 3}, {"dtype", "float32"}, {"of_others", {{"x", 1}}}});
  const Json tuned = Tuned(stored);
  EXPECT_EQ(tuned["pad_token_id"], 3);
  EXPECT_EQ(tuned["of_others"], stored["of_others"]);
  EXPECT_EQ(tuned["rms_norm_eps"], 1e-5);
  EXPECT_EQ(tuned["torch_dtype"], "bfloat16");
  EXPECT_EQ(tuned["dtype"], "bfloat16");
  EXPECT_EQ(tuned["eos_token_id"], (Json{1, 2, kTokens.eos()})) << "training ends texts with the tokenizer's";
  EXPECT_TRUE(engine::ParseModelConfig(tuned, "again"));
}

TEST(TunedConfig, TheTokenizersEndIsOneOfTheModels) {
  Json stored = SmallLlama();
  EXPECT_EQ(Tuned(stored)["eos_token_id"], kTokens.eos());
  stored["eos_token_id"] = kTokens.eos();
  EXPECT_EQ(Tuned(stored)["eos_token_id"], kTokens.eos());
  stored["eos_token_id"] = 7;
  EXPECT_EQ(Tuned(stored)["eos_token_id"], (Json{7, kTokens.eos()}));
  EXPECT_EQ(TunedGenerationConfig({{"eos_token_id", 7}, {"temperature", 0.6}}, kTokens),
            (Json{{"eos_token_id", {7, kTokens.eos()}}, {"temperature", 0.6}}));
  EXPECT_EQ(TunedGenerationConfig(nullptr, kTokens), nullptr);
}

TEST(TunedConfig, ClassesKeepTheirNames) {
  const Json names = {{"0", "neg"}, {"1", "pos"}};
  Json stored = {{"model_type", "gpt2"},
                 {"architectures", {"GPT2ForSequenceClassification"}},
                 {"id2label", names},
                 {"label2id", {{"neg", 0}, {"pos", 1}}}};
  EXPECT_EQ(Tuned(stored)["id2label"], names);
  EXPECT_EQ(Tuned(stored)["label2id"], stored["label2id"]);
  EXPECT_EQ(Tuned(stored, {"no", "yes"})["id2label"], (Json{{"0", "no"}, {"1", "yes"}})) << "the job's names";
  stored["num_labels"] = 3;
  EXPECT_EQ(Tuned(stored)["id2label"].size(), 3U) << "another number of classes";
}

}  // namespace
}  // namespace millrace::train
