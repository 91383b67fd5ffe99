#include "millrace/engine/config/families.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace millrace::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::int64_t Parameters(const Json& config) {
  return ParseModelConfig(config, "config.json").value()->ParameterCount();
}

/// The sizes that the models' authors publish.
TEST(ModelFamilies, CountThePublishedParameters) {
  const auto llama = [](int hidden, int inner, int heads, int layers) {
    return Parameters({{"model_type", "llama"},
                       {"vocab_size", 128256},
                       {"hidden_size", hidden},
                       {"intermediate_size", inner},
                       {"num_hidden_layers", layers},
                       {"num_attention_heads", heads},
                       {"num_key_value_heads", 8}});
  };
  EXPECT_EQ(llama(4096, 14336, 32, 32), 8'030'261'248);
  EXPECT_EQ(llama(8192, 28672, 64, 80), 70'553'706'496);
  EXPECT_EQ(llama(16384, 53248, 128, 126), 405'853'388'800);
  EXPECT_EQ(Parameters({{"model_type", "gpt2"}}), 124'439'808);
  EXPECT_EQ(Parameters({{"model_type", "gptj"}}), 6'050'882'784);
  const Json qwen3 = {{"model_type", "qwen3"},     {"vocab_size", 151936},       {"hidden_size", 1024},
                      {"intermediate_size", 3072}, {"num_hidden_layers", 28},    {"num_attention_heads", 16},
                      {"num_key_value_heads", 8},  {"tie_word_embeddings", true}};
  EXPECT_EQ(Parameters(qwen3), 596'049'920);
  EXPECT_EQ(Parameters({{"model_type", "bert"}}), 110'106'428);  // BertForPreTraining
}

/// Sizes of published configurations, and the elements of the tensors in their folders.
TEST(ModelFamilies, CountTheParametersOfPublishedConfigurations) {
  const auto sizes = [](std::string_view type, std::int64_t vocabulary, int hidden, int inner, int layers, int heads,
                        int key_heads, const Json& members) {
    Json json = {{"model_type", type},
                 {"vocab_size", vocabulary},
                 {"hidden_size", hidden},
                 {"intermediate_size", inner},
                 {"num_hidden_layers", layers},
                 {"num_attention_heads", heads},
                 {"num_key_value_heads", key_heads}};
    json.update(members);
    return Parameters(json);
  };
  const Json nothing = Json::object();
  // OLMo-2-1124-7B, granite-3.3-2b, SmolLM3-3B, Phi-3-mini, Phi-4-mini, gemma-2-2b, gemma-3-1b, GLM-4-9B-0414.
  EXPECT_EQ(sizes("olmo2", 100352, 4096, 11008, 32, 32, 32, nothing), 7'298'617'344);
  EXPECT_EQ(sizes("granite", 49159, 2048, 8192, 40, 32, 8, {{"tie_word_embeddings", true}}), 2'533'539'840);
  EXPECT_EQ(sizes("smollm3", 128256, 2048, 11008, 36, 16, 4, nothing), 3'075'098'624);
  EXPECT_EQ(sizes("phi3", 32064, 3072, 8192, 32, 32, 32, nothing), 3'821'079'552);
  EXPECT_EQ(
      sizes("phi3", 200064, 3072, 8192, 32, 24, 8, {{"tie_word_embeddings", true}, {"partial_rotary_factor", 0.75}}),
      3'836'021'760);
  EXPECT_EQ(sizes("gemma2", 256000, 2304, 9216, 26, 8, 4, nothing), 2'614'341'888);
  EXPECT_EQ(sizes("gemma3_text", 262144, 1152, 6912, 26, 4, 1, nothing), 999'885'952);
  EXPECT_EQ(sizes("glm4", 151552, 4096, 13696, 40, 32, 2, nothing), 9'400'279'040);
}

TEST(ModelFamilies, RefuseWhatTheyCannotDescribe) {
  const auto other = ParseModelConfig({{"model_type", "mamba"}}, "config.json");
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().code(), Code::kUnsupported);
  EXPECT_THAT(other.error().ToString(), HasSubstr("config.json: model_type \"mamba\""));
  EXPECT_EQ(ParseModelConfig({{"model_type", "llama"}}, "config.json").error().code(), Code::kInvalidArgument);
}

TEST(ModelFamilies, NameWhatTwoModelsDifferIn) {
  const Json llama = FindFamily("llama")->new_model(
      "llama", {.vocab_size = 10, .hidden_size = 8, .num_layers = 2, .num_heads = 2, .max_positions = 64});
  const auto difference = [&](const Json& members) {
    Json other = llama;
    other.update(members);
    return DifferenceOfModels(llama, other);
  };
  EXPECT_EQ(difference(Json::object()), "");
  EXPECT_EQ(difference({{"vocab_size", 0}, {"max_position_embeddings", 128}, {"attention_dropout", 0.1}}), "");
  EXPECT_EQ(difference({{"num_attention_heads", 4}, {"num_key_value_heads", 4}, {"head_dim", 2}}),
            "its num_attention_heads is 2, this job's is 4");
  EXPECT_EQ(difference({{"rope_theta", 5e5}}), "its rope_theta is 10000.0, this job's is 500000.0");
  EXPECT_EQ(difference({{"sliding_window", 16}}), "its sliding_window is null, this job's is 16");
  EXPECT_EQ(difference({{"tie_word_embeddings", true}}), "its tie_word_embeddings is false, this job's is true");
  EXPECT_THAT(difference({{"model_type", "mistral"}}), HasSubstr("its model_type is \"llama\", this job's is"));
}

/// Which layers have the window, as transformers' classes read it.
TEST(ModelFamilies, ReadWindowsOfSomeLayers) {
  const std::string full = "full_attention", near = "sliding_attention";
  const auto read = [](std::string_view type, const Json& members) {
    Json json = FindFamily(type)->new_model(
        type, {.vocab_size = 10, .hidden_size = 8, .num_layers = 4, .num_heads = 2, .max_positions = 64});
    for (const char* key : {"sliding_window", "max_window_layers"}) json.erase(key);
    json.update(members);
    return ParseModelConfig(json, "config.json");
  };
  const auto windows = [&](std::string_view type, const Json& members) {
    const auto config = read(type, members);
    EXPECT_TRUE(config) << config.error().ToString();
    const Json written = (*config)->ToJson();
    EXPECT_EQ(ParseModelConfig(written, "").value()->ToJson(), written) << members;
    const Json* window = JsonFind(written, "sliding_window");
    const std::int64_t keys = window != nullptr && !window->is_null() ? window->get<std::int64_t>() : 0;
    std::vector<std::int64_t> of_layers(4, keys);
    if (const Json* types = JsonFind(written, "layer_types"); types != nullptr) {
      for (std::size_t i = 0; i < of_layers.size(); ++i) of_layers[i] = types->at(i) == near ? keys : 0;
    }
    return of_layers;
  };
  const Json on = {{"use_sliding_window", true}};
  const auto and_on = [&](Json members) {
    members.update(on);
    return members;
  };
  EXPECT_THAT(windows("llama", Json::object()), ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(windows("mistral", Json::object()), ElementsAre(4096, 4096, 4096, 4096));
  EXPECT_THAT(windows("mistral", {{"sliding_window", nullptr}}), ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(windows("mistral", {{"sliding_window", 7}, {"layer_types", {full, full, near, near}}}),
              ElementsAre(7, 7, 7, 7));
  EXPECT_THAT(windows("ministral", {{"sliding_window", 7}, {"layer_types", {near, full, near, full}}}),
              ElementsAre(7, 0, 7, 0));
  EXPECT_THAT(windows("qwen2", {{"sliding_window", 7}, {"max_window_layers", 1}}), ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(windows("qwen2", and_on({{"sliding_window", 7}})), ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(windows("qwen2", and_on({{"sliding_window", 7}, {"max_window_layers", 0}})), ElementsAre(7, 7, 7, 7));
  EXPECT_THAT(windows("qwen3", and_on({{"sliding_window", 7}, {"max_window_layers", 3}})), ElementsAre(0, 0, 0, 7));
  EXPECT_THAT(windows("qwen3", and_on({{"max_window_layers", 3}, {"layer_types", {near, full, full, full}}})),
              ElementsAre(4096, 0, 0, 0));
  const auto refused = [&](const Json& members) { return read("qwen3", members).error().ToString(); };
  EXPECT_THAT(refused({{"layer_types", {full, near, full, full}}}), HasSubstr("there is no use_sliding_window"));
  EXPECT_THAT(refused({{"layer_types", {full, full}}}), HasSubstr("a list of 4 types"));
  EXPECT_THAT(refused({{"layer_types", {full, full, "mamba", full}}}), HasSubstr("\"mamba\" is not implemented"));
}

class FamilyTest : public testing::TestWithParam<std::string_view> {
 protected:
  const ModelFamily& family_ = *FindFamily(GetParam());
  const Json new_model_ = family_.new_model(
      GetParam(), {.vocab_size = 1000, .hidden_size = 512, .num_layers = 3, .num_heads = 4, .max_positions = 64});
};

TEST_P(FamilyTest, NewModelsHaveTheGivenSizes) {
  const auto config = ParseModelConfig(new_model_, "config.json");
  ASSERT_TRUE(config) << config.error().ToString();
  const ModelSizes sizes = (*config)->sizes();
  EXPECT_EQ((*config)->family(), GetParam());
  EXPECT_EQ(sizes.vocab_size, 1000);
  EXPECT_EQ(sizes.hidden_size, 512);
  EXPECT_EQ(sizes.num_layers, 3);
  EXPECT_EQ(sizes.num_heads, 4);
  EXPECT_EQ(sizes.num_kv_heads, 4);
  EXPECT_EQ(sizes.max_positions, 64);
  EXPECT_GT(sizes.intermediate_size, 512);
  const plan::ModelShape shape = (*config)->Shape();
  EXPECT_EQ(shape.family, GetParam());
  EXPECT_FALSE(shape.embedding.empty() || shape.block.empty() || shape.head.empty());
}

TEST_P(FamilyTest, WrittenConfigurationsAreReadBack) {
  const auto config = ParseModelConfig(new_model_, "config.json").value();
  EXPECT_EQ(ParseModelConfig(config->ToJson(), "config.json").value()->ToJson(), config->ToJson());
}

/// A job file may set an option, so the family must read it. No option takes a list of objects, so one is refused.
TEST_P(FamilyTest, OptionsAreRead) {
  for (const std::string_view option : family_.options) {
    bool is_read = false;
    for (const std::string_view type : family_.model_types) {
      Json json = new_model_;
      json["model_type"] = type;
      json[std::string(option)] = Json::array({Json::object()});
      is_read = is_read || !ParseModelConfig(json, "config.json");
    }
    EXPECT_TRUE(is_read) << option;
  }
}

std::vector<std::string_view> Types() {
  std::vector<std::string_view> types;
  for (const ModelFamily& family : ModelFamilies()) {
    types.insert(types.end(), family.model_types.begin(), family.model_types.end());
  }
  return types;
}

INSTANTIATE_TEST_SUITE_P(Types, FamilyTest, testing::ValuesIn(Types()),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace millrace::engine
