#include "millrace/engine/config/whole_weights.h"

#include <gmock/gmock.h>

#include "millrace/engine/config/families.h"

namespace millrace::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::shared_ptr<const ModelConfig> TinyLlama(bool tied) {
  const Json json = {{"model_type", "llama"},      {"vocab_size", 30},       {"hidden_size", 8},
                     {"intermediate_size", 16},    {"num_hidden_layers", 2}, {"num_attention_heads", 2},
                     {"tie_word_embeddings", tied}};
  return ParseModelConfig(json, "config.json").value();
}

const LoraOptions kQueries{.targets = {"q_proj"}};

std::string Refusal(std::vector<std::string> tensors, bool tied = false, const LoraOptions& options = kQueries) {
  const auto found = FindWholeWeights(tensors, *TinyLlama(tied), options, "the adapter");
  return found ? "" : std::string(found.error().message());
}

TEST(WholeWeights, AreEmbeddingsNormsAndHeads) {
  const std::vector<std::string> tensors = {"lm_head.weight",
                                            "model.embed_tokens.weight",
                                            "model.layers.1.input_layernorm.weight",
                                            "model.layers.1.self_attn.q_proj.lora_A.weight",
                                            "model.layers.1.self_attn.q_proj.lora_B.weight",
                                            "model.norm.weight"};
  EXPECT_THAT(FindWholeWeights(tensors, *TinyLlama(false), kQueries, "it").value(),
              ElementsAre("lm_head.weight", "model.embed_tokens.weight", "model.layers.1.input_layernorm.weight",
                          "model.norm.weight"));
}

TEST(WholeWeights, OtherTensorsAreNamed) {
  for (const std::string tensor :
       {"model.layers.1.self_attn.o_proj.weight", "model.layers.1.self_attn.k_proj.lora_A.weight",
        "model.layers.9.self_attn.q_proj.lora_A.weight", "model.layers.0.self_attn.q_proj.lora_magnitude_vector",
        "model.embed_tokens.lora_embedding_A", "model.layers.1.self_attn.q_proj.lora_B.bias", "score.weight",
        "model.layers.0.mlp.experts.base_layer.weight"}) {
    EXPECT_THAT(Refusal({tensor}), HasSubstr(tensor));
  }
  EXPECT_EQ(
      Refusal({"model.layers.0.self_attn.q_proj.lora_magnitude_vector"}, false, {.dora = true, .targets = {"q_proj"}}),
      "");
}

TEST(WholeWeights, ATiedEmbeddingIsTheHeadsToo) {
  EXPECT_THAT(Refusal({"model.embed_tokens.weight"}, true), HasSubstr("tie_word_embeddings"));
  EXPECT_THAT(Refusal({"lm_head.weight"}, true), HasSubstr("no place"));
  EXPECT_EQ(Refusal({"model.norm.weight"}, true), "");
}

TEST(WholeWeights, ABaseLayerIsAWeightOfTheModel) {
  EXPECT_EQ(BaseLayerWeight("lm_head.base_layer.weight", *TinyLlama(false)), "lm_head.weight");
  EXPECT_EQ(BaseLayerWeight("lm_head.base_layer.weight", *TinyLlama(true)), "model.embed_tokens.weight");
  EXPECT_EQ(BaseLayerWeight("lm_head.weight", *TinyLlama(true)), "");
  const LoraOptions head{.targets = {"lm_head"}};
  const std::vector<std::string> tensors = {"lm_head.lora_A.weight", "lm_head.lora_B.weight",
                                            "lm_head.base_layer.weight"};
  for (const bool tied : {false, true}) {
    EXPECT_THAT(FindWholeWeights(tensors, *TinyLlama(tied), head, "it").value(), IsEmpty());
  }
}

}  // namespace
}  // namespace millrace::engine
