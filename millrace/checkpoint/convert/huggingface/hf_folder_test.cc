#include "millrace/checkpoint/convert/huggingface/hf_folder.h"

#include <gtest/gtest.h>

namespace millrace::checkpoint {
namespace {

TEST(HfFolderTest, NamesOfTheBaseModelGetItsPrefix) {
  const Json gpt2{{"model_type", "gpt2"}};
  const std::vector<std::string> bare{"wte.weight", "h.0.attn.bias", "h.0.attn.c_attn.bias"};
  const ModelNames names(gpt2, bare);
  EXPECT_EQ(names("wte.weight"), "transformer.wte.weight");
  EXPECT_EQ(names("h.0.attn.c_attn.bias"), "transformer.h.0.attn.c_attn.bias");
  EXPECT_EQ(names("h.0.attn.bias"), std::nullopt) << "the causal mask";
  const ModelNames headed(gpt2, {"transformer.wte.weight", "lm_head.weight"});
  EXPECT_EQ(headed("lm_head.weight"), "lm_head.weight");
  EXPECT_EQ(headed("transformer.wte.weight"), "transformer.wte.weight");
  const ModelNames other(Json{{"model_type", "other"}}, bare);
  EXPECT_EQ(other("h.0.attn.bias"), "h.0.attn.bias") << "what it is there, nobody knows";
}

TEST(HfFolderTest, TiesAreThoseOfTheConfiguration) {
  EXPECT_TRUE(IsTiedName({{"model_type", "gpt2"}}, "lm_head.weight"));
  EXPECT_FALSE(IsTiedName({{"model_type", "gpt2"}, {"tie_word_embeddings", false}}, "lm_head.weight"));
  EXPECT_FALSE(IsTiedName({{"model_type", "llama"}}, "lm_head.weight"));
  EXPECT_TRUE(IsTiedName({{"model_type", "llama"}, {"tie_word_embeddings", true}}, "lm_head.weight"));
  EXPECT_TRUE(IsTiedName({{"model_type", "bert"}}, "cls.predictions.decoder.bias"));
  EXPECT_FALSE(IsTiedName({{"model_type", "bert"}}, "cls.predictions.bias"));
}

TEST(HfFolderTest, WhatComesWithAModel) {
  for (const char* name :
       {"tokenizer.json", "tokenizer.model", "vocab.txt", "merges.txt", "generation_config.json", "chat_template.jinja",
        "LICENSE", "README.md", "preprocessor_config.json", "additional_chat_templates/tool_use.jinja"})
    EXPECT_TRUE(IsModelFile(name)) << name;
  for (const char* name : {"", ".gitattributes", "..", "a/b", "model.safetensors", "pytorch_model.bin", "tf_model.h5",
                           "model.safetensors.index.json", "optimizer.pt", "additional_chat_templates/",
                           "additional_chat_templates/.jinja", "additional_chat_templates/a/b.jinja",
                           "additional_chat_templates/model.safetensors", "other/a.jinja"})
    EXPECT_FALSE(IsModelFile(name)) << name;
}

}  // namespace
}  // namespace millrace::checkpoint
