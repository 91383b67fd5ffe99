#include "millrace/plan/model/model_shape.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/plan/testing_setups.h"

namespace millrace::plan {
namespace {

using ::testing::HasSubstr;

/// The sizes that the models' authors publish.
TEST(ModelShape, CountsThePublishedParameters) {
  EXPECT_EQ(Llama8B().ParameterCount(), 8'030'261'248);
  EXPECT_EQ(Llama70B().ParameterCount(), 70'553'706'496);
  EXPECT_EQ(Llama405B().ParameterCount(), 405'853'388'800);
  const Json gpt2 = {{"model_type", "gpt2"}, {"vocab_size", 50257}, {"n_embd", 768}, {"n_layer", 12}, {"n_head", 12}};
  EXPECT_EQ(ParseModelShape(gpt2, "gpt2")->ParameterCount(), 124'439'808);
  const Json gptj = {{"model_type", "gptj"}, {"vocab_size", 50400}, {"n_embd", 4096},
                     {"n_layer", 28},        {"n_head", 16},        {"n_positions", 2048}};
  EXPECT_EQ(ParseModelShape(gptj, "gptj")->ParameterCount(), 6'050'882'784);
  const Json qwen3 = {{"model_type", "qwen3"},     {"vocab_size", 151936},       {"hidden_size", 1024},
                      {"intermediate_size", 3072}, {"num_hidden_layers", 28},    {"num_attention_heads", 16},
                      {"num_key_value_heads", 8},  {"tie_word_embeddings", true}};
  EXPECT_EQ(ParseModelShape(qwen3, "qwen3")->ParameterCount(), 596'049'920);
  const Json bert = {{"model_type", "bert"},          {"vocab_size", 30522},     {"hidden_size", 768},
                     {"intermediate_size", 3072},     {"num_hidden_layers", 12}, {"num_attention_heads", 12},
                     {"max_position_embeddings", 512}};
  EXPECT_EQ(ParseModelShape(bert, "bert")->ParameterCount(), 110'106'428);  // BertForPreTraining
}

TEST(ModelShape, RefusesWhatItCannotDescribe) {
  const auto other = ParseModelShape({{"model_type", "mamba"}}, "config.json");
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().code(), Code::kUnsupported);
  EXPECT_THAT(other.error().ToString(), HasSubstr("config.json: model_type \"mamba\""));
  EXPECT_EQ(ParseModelShape({{"model_type", "llama"}}, "config.json").error().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace millrace::plan
