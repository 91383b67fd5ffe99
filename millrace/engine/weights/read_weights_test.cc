// Weights as Hugging Face stores them, read by ranks that divide a model.
#include "millrace/engine/weights/read_weights.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "millrace/base/files/files.h"
#include "millrace/base/hash/random.h"
#include "millrace/checkpoint/save/writer.h"
#include "millrace/collectives/connect.h"
#include "millrace/engine/config/families.h"
#include "millrace/engine/models/make_model.h"
#include "millrace/engine/parameters/scalar_types.h"
#include "millrace/engine/weights/adapter_weights.h"
#include "millrace/engine/weights/unused_weights.h"
#include "millrace/engine/weights/weight_names.h"
#include "millrace/object/open/open.h"

namespace millrace::engine {
namespace {

std::unique_ptr<Model> MakeTiny(at::ScalarType dtype, std::uint64_t seed, ModelShare share = {}) {
  const Json json = {{"model_type", "gpt2"}, {"vocab_size", 31}, {"n_embd", 12},
                     {"n_layer", 2},         {"n_head", 4},      {"n_positions", 9}};
  return MakeModel(ParseModelConfig(json, "config.json").value(), dtype, at::kCPU, seed, std::move(share)).value();
}

/// Each rank reads what it owns: the same elements that one rank has, though files hold some matrices transposed and in
/// another type.
TEST(ReadWeights, FillsWhatARankOwns) {
  const TempDir folder = TempDir::Create().value();
  const auto connection = object::OpenConnection({}).value();
  const auto whole = MakeTiny(at::kFloat, 7);
  MemoryBudget budget(64 * kMiB);
  std::vector<checkpoint::SaveSlice> slices;
  std::vector<at::Tensor> stored;  // as Hugging Face has them
  for (const NamedParameter& parameter : whole->Parameters()) {
    stored.push_back((parameter.transposed ? parameter.tensor.t() : parameter.tensor).contiguous());
    const auto sizes = stored.back().sizes();
    slices.push_back({.name = std::string(checkpoint::kModelGroup) + parameter.name,
                      .meta = {.dtype = checkpoint::DType::kF32, .shape = {sizes.begin(), sizes.end()}},
                      .bytes = BytesOf(stored.back())});
  }
  const std::string url = (folder.path() / "run").native();
  const auto writer =
      checkpoint::Writer::Open(*connection, checkpoint::SingleRankExchange(), budget, {.url = url}).value();
  ASSERT_TRUE(writer->Save(1, slices, "{}"));
  ASSERT_TRUE(writer->Wait());
  const auto reader = checkpoint::Reader::Open(*connection, url).value();

  Random random(3);
  for (int round = 0; round < 24; ++round) {
    const int ranks = 1 + static_cast<int>(random.Below(5)), tensor = 1 << random.Below(3);
    const Sharding sharding{.ranks = ranks,
                            .rank = static_cast<int>(random.Below(static_cast<std::uint64_t>(ranks))),
                            .zero = static_cast<int>(random.Below(4))};
    const at::ScalarType dtype = random.Below(2) == 0 ? at::kFloat : at::kBFloat16;
    const auto groups = collectives::ConnectThreads(tensor);
    Collective& group = *groups[random.Below(static_cast<std::uint64_t>(tensor))];
    const auto part =
        MakeTiny(dtype, 8, {.ranks = {&group}, .sharding = sharding, .initial_values = InitialValues::kNone});
    const Status read = ReadWeights(*reader, *part);
    ASSERT_TRUE(read) << read.error().ToString();
    for (const OwnedPiece& piece : part->buffer().owned_pieces()) {
      const NamedParameter& parameter = part->Parameters()[piece.parameter];
      at::Tensor want = whole->Parameters()[whole->buffer().Find(parameter.name)].tensor;
      if (!parameter.slice.whole()) {
        want =
            want.narrow(static_cast<std::int64_t>(parameter.slice.dim), parameter.slice.begin, parameter.slice.extent);
      }
      want = want.reshape({-1}).narrow(0, piece.first, piece.elements()).to(dtype);
      EXPECT_TRUE(piece.values.equal(want)) << parameter.name << ", part " << sharding.rank << " of " << ranks;
    }
  }
}

/// A checkpoint of tensors of float32, by their names in it.
class StoredTensors {
 public:
  explicit StoredTensors(const std::map<std::string, at::Tensor>& tensors) {
    MemoryBudget budget(64 * kMiB);
    std::vector<checkpoint::SaveSlice> slices;
    for (const auto& [name, tensor] : tensors) {
      const auto sizes = tensor.sizes();
      slices.push_back({.name = name,
                        .meta = {.dtype = checkpoint::DType::kF32, .shape = {sizes.begin(), sizes.end()}},
                        .bytes = BytesOf(tensor)});
    }
    const std::string url = (folder_.path() / "run").native();
    const auto writer =
        checkpoint::Writer::Open(*connection_, checkpoint::SingleRankExchange(), budget, {.url = url}).value();
    EXPECT_TRUE(writer->Save(1, slices, "{}"));
    EXPECT_TRUE(writer->Wait());
    reader_ = checkpoint::Reader::Open(*connection_, url).value();
  }
  checkpoint::Reader& reader() { return *reader_; }

 private:
  const TempDir folder_ = TempDir::Create().value();
  const std::unique_ptr<object::Connection> connection_ = object::OpenConnection({}).value();
  std::unique_ptr<checkpoint::Reader> reader_;
};

Json TinyConfig(std::string_view family, const Json& members = Json::object()) {
  const ModelSizes sizes{.vocab_size = 31, .hidden_size = 12, .num_layers = 2, .num_heads = 2, .max_positions = 9};
  Json json = FindFamily(family)->new_model(family, sizes);
  json.update(members);
  return json;
}

std::map<std::string, at::Tensor> WeightsOf(Model& model) {
  std::map<std::string, at::Tensor> weights;
  for (const NamedParameter& parameter : model.Parameters()) {
    weights[std::string(checkpoint::kModelGroup) + parameter.name] =
        (parameter.transposed ? parameter.tensor.t() : parameter.tensor).detach().contiguous().clone();
  }
  return weights;
}

TEST(ParameterNames, AreThoseOfTheModel) {
  for (const ModelFamily& family : ModelFamilies()) {
    for (const std::string_view type : family.model_types) {
      for (const bool tied : {false, true}) {
        Json json = TinyConfig(type, {{"tie_word_embeddings", tied}});
        if (type == "gptj") json["rotary_dim"] = 4;
        if (type == "glm4") json["partial_rotary_factor"] = 1.0;  // of a head, half is odd
        const auto parsed = ParseModelConfig(json, "config.json");
        if (!parsed && tied != family.names.tied) continue;  // the family does not have both
        ASSERT_TRUE(parsed) << parsed.error().ToString();
        const auto& config = *parsed;
        const LoraOptions lora{.rank = 2, .dora = true};
        const auto model = MakeModel(config, at::kFloat, at::kCPU, 1, {.lora = lora}).value();
        std::set<std::string> made, said;
        for (const NamedParameter& parameter : model->Parameters()) made.insert(parameter.name);
        plan::ModelShape shape = config->Shape();
        shape.Adapt(lora);
        for (std::string& name : shape.ParameterNames()) said.insert(std::move(name));
        EXPECT_EQ(said, made) << type;
      }
    }
  }
}

TEST(UnusedWeights, AreNamed) {
  const auto config = ParseModelConfig(TinyConfig("llama"), "config.json").value();
  const auto model = MakeModel(config, at::kFloat, at::kCPU, 1).value();
  const std::map<std::string, at::Tensor> weights = WeightsOf(*model);
  const auto with = [&](const std::string& name) -> Result<std::vector<std::string>> {
    auto more = weights;
    more["model/" + name] = at::ones({3});
    StoredTensors stored(more);
    return UnusedWeights(stored.reader(), *config, nullptr);
  };
  EXPECT_EQ(with("model.layers.0.self_attn.rotary_emb.inv_freq").value(), std::vector<std::string>());
  EXPECT_EQ(with("v_head.summary.weight").value(), (std::vector<std::string>{"v_head.summary.weight"}));
  for (const std::string name : {"model.layers.2.mlp.up_proj.weight", "model.layers.0.self_attn.q_proj.bias"}) {
    const auto refused = with(name);
    ASSERT_FALSE(refused) << name;
    EXPECT_EQ(refused.error().code(), Code::kUnsupported);
    EXPECT_NE(refused.error().ToString().find(name), std::string::npos) << refused.error().ToString();
  }
}

TEST(UnusedWeights, ATiedHeadIsTheEmbedding) {
  const auto config = ParseModelConfig(TinyConfig("llama", {{"tie_word_embeddings", true}}), "config.json").value();
  const auto model = MakeModel(config, at::kFloat, at::kCPU, 1).value();
  auto weights = WeightsOf(*model);
  weights["model/lm_head.weight"] = weights.at("model/model.embed_tokens.weight").clone();
  EXPECT_EQ(UnusedWeights(StoredTensors(weights).reader(), *config, nullptr).value(), std::vector<std::string>());
  weights["model/lm_head.weight"][3][4] += 1;
  const auto refused = UnusedWeights(StoredTensors(weights).reader(), *config, nullptr);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().ToString().find("lm_head.weight"), std::string::npos) << refused.error().ToString();
}

/// PEFT's modules_to_save, and the head's own weight beside the head's adapter.
TEST(ReadAdapter, TakesWeightsOfTheModel) {
  const auto config = ParseModelConfig(TinyConfig("llama"), "config.json").value();
  LoraOptions lora{.rank = 2, .targets = {"q_proj", "lm_head"}};
  std::map<std::string, at::Tensor> stored;
  const auto put = [&](const std::string& name, at::IntArrayRef sizes) {
    stored["adapter/base_model.model." + name] = at::rand(sizes);
  };
  for (const std::string layer : {"model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.q_proj"}) {
    put(layer + ".lora_A.weight", {2, 12});
    put(layer + ".lora_B.weight", {12, 2});
  }
  put("lm_head.lora_A.weight", {2, 12});
  put("lm_head.lora_B.weight", {31, 2});
  put("lm_head.base_layer.weight", {31, 12});
  put("model.embed_tokens.weight", {31, 12});
  put("model.norm.weight", {12});
  StoredTensors adapter(stored);
  ASSERT_TRUE(FindWhole(adapter.reader(), *config, lora));
  EXPECT_EQ(lora.whole, (std::vector<std::string>{"model.embed_tokens.weight", "model.norm.weight"}));
  const auto model = MakeModel(config, at::kFloat, at::kCPU, 1, {.lora = lora}).value();
  const Status read = ReadAdapter(adapter.reader(), *model);
  ASSERT_TRUE(read) << read.error().ToString();
  std::set<std::string> trained;
  for (const NamedParameter& parameter : model->Parameters()) {
    if (parameter.trainable) trained.insert(parameter.name);
    const std::string beside = parameter.name == "lm_head.weight" ? "lm_head.base_layer.weight" : parameter.name;
    const auto found = stored.find("adapter/base_model.model." + beside);
    EXPECT_EQ(found != stored.end(), parameter.trainable || parameter.name == "lm_head.weight") << parameter.name;
    if (found != stored.end()) {
      EXPECT_TRUE(parameter.tensor.equal(found->second)) << parameter.name;
    }
  }
  EXPECT_TRUE(trained.contains("model.embed_tokens.weight"));
  EXPECT_TRUE(trained.contains("model.norm.weight"));
  EXPECT_EQ(trained.size(), 8U);
}

/// PEFT puts a head's own weight and bias beside the head's adapter. Beside a shared model, they must be the model's.
TEST(ReadAdapterWeights, TakesTheModelsOwnHead) {
  const auto config = ParseModelConfig(TinyConfig("gptj", {{"rotary_dim", 4}}), "config.json").value();
  const auto model = MakeModel(config, at::kFloat, at::kCPU, 1).value();
  const std::string head = "adapter/base_model.model.lm_head.";
  std::map<std::string, at::Tensor> stored = {{head + "lora_A.weight", at::rand({2, 12})},
                                              {head + "lora_B.weight", at::rand({31, 2})}};
  for (const NamedParameter& parameter : model->Parameters()) {
    for (const std::string part : {"weight", "bias"}) {
      if (parameter.name == "lm_head." + part) stored[head + "base_layer." + part] = parameter.tensor.detach().clone();
    }
  }
  ASSERT_EQ(stored.size(), 4U);
  const LoraOptions lora{.rank = 2, .targets = {"lm_head"}};
  const auto reserve = [](std::uint64_t) { return Status(); };
  const auto read = ReadAdapterWeights(StoredTensors(stored).reader(), *model, lora, reserve);
  EXPECT_TRUE(read) << read.error().ToString();
  stored.at(head + "base_layer.bias")[3] += 1;
  const auto refused = ReadAdapterWeights(StoredTensors(stored).reader(), *model, lora, reserve);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().ToString().find("lm_head.base_layer.bias"), std::string::npos)
      << refused.error().ToString();
}

}  // namespace
}  // namespace millrace::engine
