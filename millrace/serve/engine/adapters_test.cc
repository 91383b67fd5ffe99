// Adapters over a shared model, against the same adapters served alone.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <numeric>

#include "millrace/base/files/files.h"
#include "millrace/checkpoint/format/manifest.h"
#include "millrace/checkpoint/format/safetensors.h"
#include "millrace/checkpoint/save/writer.h"
#include "millrace/engine/config/families.h"
#include "millrace/engine/config/peft_config.h"
#include "millrace/engine/models/lora.h"
#include "millrace/engine/models/make_model.h"
#include "millrace/engine/parameters/scalar_types.h"
#include "millrace/object/open/open.h"
#include "millrace/serve/engine/engine_model.h"
#include "millrace/serve/scheduler.h"

namespace millrace::serve {
namespace {

using ::testing::HasSubstr;

const Json& FamilyConfig(std::string_view family) {
  static const Json llama = {{"model_type", "llama"},       {"vocab_size", 300},      {"hidden_size", 32},
                             {"intermediate_size", 48},     {"num_hidden_layers", 2}, {"num_attention_heads", 4},
                             {"num_key_value_heads", 2},    {"rms_norm_eps", 1e-5},   {"max_position_embeddings", 96},
                             {"tie_word_embeddings", false}};
  static const Json gpt2 = {{"model_type", "gpt2"}, {"vocab_size", 300}, {"n_embd", 32},
                            {"n_layer", 2},         {"n_head", 4},       {"n_positions", 96}};
  return family == "llama" ? llama : gpt2;
}

std::shared_ptr<const engine::ModelConfig> ConfigOf(const Json& json) {
  return engine::ParseModelConfig(json, "config.json").value();
}

/// A text that is asked for: of a model or of one of its adapters.
struct Wish {
  std::string adapter;  ///< its folder; empty: the model itself
  std::vector<TokenId> prompt;
  std::uint64_t seed = 0;
};

class AdaptersTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    connection_ = object::OpenConnection({}).value();
    const char* source = std::getenv("MILLRACE_SOURCE");
    tokenizer_ =
        ReadFile(std::filesystem::path(source ? source : ".") / "millrace/train/testdata/tokenizer.model").value();
    at::manual_seed(5);
    const auto model = engine::MakeModel(ConfigOf(FamilyConfig(GetParam())), at::kFloat, at::kCPU, 3).value();
    for (const auto& parameter : model->Parameters()) {
      parameter.tensor.copy_(at::randn(parameter.tensor.sizes()) * 0.3);
      if (parameter.name.ends_with("norm.weight")) parameter.tensor.fill_(1);
    }
    std::vector<std::pair<std::string, at::Tensor>> tensors;
    for (const auto& parameter : model->Parameters()) {
      tensors.emplace_back(parameter.name, parameter.transposed ? parameter.tensor.t().contiguous() : parameter.tensor);
    }
    WriteTensors("base/model.safetensors", tensors);
    Write("base/config.json", DumpJson(FamilyConfig(GetParam())));
    Write("base/tokenizer.model", tokenizer_);
  }
  std::string Path(std::string_view name) const { return (folder_.path() / name).string(); }
  void Write(std::string_view name, std::string_view content) {
    std::filesystem::create_directories(std::filesystem::path(Path(name)).parent_path());
    std::ofstream(Path(name), std::ios::binary) << content;
  }
  void WriteTensors(std::string_view file, const std::vector<std::pair<std::string, at::Tensor>>& tensors) {
    std::vector<checkpoint::SafetensorsEntry> entries;
    for (const auto& [name, tensor] : tensors) {
      entries.push_back({name, {checkpoint::DType::kF32, {tensor.sizes().begin(), tensor.sizes().end()}}, 0});
    }
    std::string content = checkpoint::MakeSafetensorsHeader(entries);
    for (const auto& [name, tensor] : tensors) content += AsText(engine::BytesOf(tensor));
    Write(file, content);
  }
  /// Returns an adapter's tensors, by the names of PEFT's files.
  std::vector<std::pair<std::string, at::Tensor>> Tensors(const engine::LoraOptions& options, const Json& config) {
    const auto model = engine::MakeModel(ConfigOf(config), at::kFloat, at::kCPU, 4, {.lora = options}).value();
    std::vector<std::pair<std::string, at::Tensor>> tensors;
    for (const auto& parameter : model->Parameters()) {
      if (!parameter.trainable) continue;
      at::Tensor values = at::randn(parameter.tensor.sizes()) * 0.3;
      if (parameter.name.ends_with(engine::kLoraMagnitude)) values = values.abs() + 1;
      tensors.emplace_back(std::string(engine::kPeftPrefix) + parameter.name, values);
    }
    return tensors;
  }
  void WriteConfig(const std::string& name, const engine::LoraOptions& options) {
    Write(name + "/adapter_config.json", DumpJson(engine::PeftConfig(options, {.base = Path("base"), .task = ""})));
  }
  void WriteAdapter(const std::string& name, const engine::LoraOptions& options) {
    WriteTensors(name + "/adapter_model.safetensors", Tensors(options, FamilyConfig(GetParam())));
    WriteConfig(name, options);
  }
  LoadedModel Load(const std::string& name) {
    auto loaded = LoadModel(*connection_, {.model_url = Path(name)}, {});
    EXPECT_TRUE(loaded) << loaded.error().ToString();
    return *std::move(loaded);
  }
  std::shared_ptr<const Adapter> LoadOver(const LoadedModel& base, const std::string& name) {
    auto adapter = base.load_adapter(Path(name), [](std::uint64_t) -> Status { return {}; }, {});
    EXPECT_TRUE(adapter) << adapter.error().ToString();
    return *std::move(adapter);
  }
  static std::vector<TokenId> Text(Generation& generation) {
    std::vector<TokenId> made;
    while (auto token = generation.Next({})) made.push_back(token->token);
    EXPECT_TRUE(generation.result()) << generation.result().error().ToString();
    return made;
  }
  static GenerationRequest Request(const Wish& wish, std::shared_ptr<const Adapter> adapter) {
    return {.prompt = wish.prompt,
            .max_tokens = 20,
            .ends = {},
            .sampling = {.temperature = 0.9, .seed = wish.seed},
            .adapter = std::move(adapter)};
  }

  TempDir folder_ = TempDir::Create().value();
  std::unique_ptr<object::Connection> connection_;
  std::string tokenizer_;
};

std::vector<TokenId> SomeTokens(std::size_t count) {
  std::vector<TokenId> tokens(count);
  std::iota(tokens.begin(), tokens.end(), TokenId{10});
  return tokens;
}

/// Adapters of other ranks, targets and kinds.
std::map<std::string, engine::LoraOptions> Kinds(std::string_view family) {
  const std::vector<std::string> some = family == "llama" ? std::vector<std::string>{"q_proj", "v_proj", "down_proj"}
                                                          : std::vector<std::string>{"c_attn"};
  return {{"all", {.rank = 4, .alpha = 8}},
          {"some", {.rank = 7, .alpha = 3, .rslora = true, .targets = some}},
          {"head", {.rank = 2, .alpha = 8, .targets = {some[0], "lm_head"}}},
          {"dora", {.rank = 3, .alpha = 6, .dora = true}}};
}

TEST_P(AdaptersTest, TextsOfOneBatchAreThoseOfModelsServedAlone) {
  std::vector<Wish> wishes;
  for (const std::string name : {"", "all", "some", "head", "dora"}) {
    // Prompts of a block and more, which begin alike, and a short one.
    for (const std::size_t length : {std::size_t{41}, std::size_t{3}}) {
      wishes.push_back({name, SomeTokens(length), wishes.size()});
    }
  }
  for (const auto& [name, options] : Kinds(GetParam())) WriteAdapter(name, options);
  std::vector<std::vector<TokenId>> alone(wishes.size());
  for (const std::string name : {"base", "all", "some", "head", "dora"}) {
    const LoadedModel model = Load(name);
    Scheduler scheduler(*model.model, {});
    for (std::size_t i = 0; i < wishes.size(); ++i) {
      if ((wishes[i].adapter.empty() ? "base" : wishes[i].adapter) != name) continue;
      alone[i] = Text(scheduler.Submit({Request(wishes[i], nullptr)})->at(0));
    }
  }
  EXPECT_NE(alone[0], alone[2]) << "adapters change texts";
  EXPECT_NE(alone[2], alone[8]);

  const LoadedModel shared = Load("base");
  std::map<std::string, std::shared_ptr<const Adapter>> adapters{{"", nullptr}};
  for (const auto& [name, options] : Kinds(GetParam())) adapters[name] = LoadOver(shared, name);
  for (const int chunk : {7, 64}) {
    Scheduler scheduler(*shared.model, {.prompt_chunk = 2 * chunk, .mixed_chunk = chunk});
    for (int round = 0; round < 2; ++round) {  // in the second one, beginnings are in the cache
      std::vector<GenerationRequest> requests;
      for (const Wish& wish : wishes) requests.push_back(Request(wish, adapters.at(wish.adapter)));
      auto generations = scheduler.Submit(std::move(requests)).value();
      for (std::size_t i = 0; i < wishes.size(); ++i) {
        EXPECT_EQ(Text(generations[i]), alone[i]) << wishes[i].adapter << ", chunk " << chunk << ", round " << round;
      }
    }
    EXPECT_GE(scheduler.counters().shared_tokens, 5U * 32) << "each adapter's texts share their beginning";
  }
}

TEST_P(AdaptersTest, LogitsHaveTheBitsOfATextAlone) {
  const LoadedModel shared = Load("base");
  std::vector<std::shared_ptr<const Adapter>> adapters{nullptr};
  for (const auto& [name, options] : Kinds(GetParam())) {
    WriteAdapter(name, options);
    adapters.push_back(LoadOver(shared, name));
  }
  const std::vector<TokenId> prompt = SomeTokens(9);
  std::vector<std::vector<std::int32_t>> blocks;
  std::vector<StepPart> parts;
  for (std::size_t i = 0; i < 2 * adapters.size(); ++i) blocks.push_back({static_cast<std::int32_t>(i)});
  for (std::size_t i = 0; i < blocks.size(); ++i) {  // neighbours and strangers
    const std::size_t tokens = 9 - i % 4;
    parts.push_back({.tokens = std::span(prompt).first(tokens),
                     .past = 0,
                     .blocks = blocks[i],
                     .logits = i % 3 == 0 ? 2 : 1,
                     .adapter = adapters[i / 2].get()});
  }
  const auto together = shared.model->Step(parts).value();
  const std::vector<float> kept(together.begin(), together.end());
  std::size_t at = 0;
  for (const StepPart& part : parts) {
    const auto alone = shared.model->Step({&part, 1}).value();
    ASSERT_LE(at + alone.size(), kept.size());
    EXPECT_EQ(std::memcmp(alone.data(), kept.data() + at, alone.size() * sizeof(float)), 0);
    at += alone.size();
  }
  EXPECT_EQ(at, kept.size());
}

TEST_P(AdaptersTest, SaysWhatIsWrongWithAnAdapter) {
  const LoadedModel shared = Load("base");
  const engine::LoraOptions options{.rank = 4, .alpha = 8};
  const auto refusal = [&](const std::string& name) {
    const auto adapter = shared.load_adapter(Path(name), [](std::uint64_t) -> Status { return {}; }, {});
    EXPECT_FALSE(adapter) << name;
    return adapter ? "" : adapter.error().ToString();
  };
  EXPECT_THAT(refusal("nothing"), HasSubstr("no model at"));
  EXPECT_THAT(refusal("base"), HasSubstr("is no adapter"));

  Json wide = FamilyConfig(GetParam());
  wide[GetParam() == "llama" ? "hidden_size" : "n_embd"] = 64;
  WriteTensors("wide/adapter_model.safetensors", Tensors(options, wide));
  WriteConfig("wide", options);
  EXPECT_THAT(refusal("wide"),
              HasSubstr("lora_A.weight is [4, 64], and this model and the adapter's rank want [4, 32]"));

  const auto tensors = Tensors(options, FamilyConfig(GetParam()));
  auto changed = tensors;
  changed[1].second = changed[1].second.clone();
  changed[1].second.view({-1})[5] = std::numeric_limits<float>::quiet_NaN();
  WriteTensors("nan/adapter_model.safetensors", changed);
  WriteConfig("nan", options);
  EXPECT_THAT(refusal("nan"), HasSubstr("not numbers"));

  changed = tensors;
  changed.pop_back();
  WriteTensors("less/adapter_model.safetensors", changed);
  WriteConfig("less", options);
  EXPECT_THAT(refusal("less"), HasSubstr("has no weight " + tensors.back().first.substr(engine::kPeftPrefix.size())));

  changed = tensors;
  changed.emplace_back("base_model.model.model.embed_tokens.weight", at::zeros({300, 32}));
  WriteTensors("more/adapter_model.safetensors", changed);
  WriteConfig("more", options);
  EXPECT_THAT(refusal("more"), HasSubstr("embed_tokens.weight, which does not adapt a linear layer"));

  WriteAdapter("strange", options);
  WriteConfig("strange", {.rank = 4, .alpha = 8, .targets = {"w_pack"}});
  EXPECT_THAT(refusal("strange"), HasSubstr("adapts \"w_pack\", and no linear layer of this model is called so"));

  WriteAdapter("cut", options);
  const auto size = std::filesystem::file_size(Path("cut/adapter_model.safetensors"));
  std::filesystem::resize_file(Path("cut/adapter_model.safetensors"), size - 5);
  EXPECT_FALSE(refusal("cut").empty());

  WriteAdapter("own", options);
  const auto full =
      shared.load_adapter(Path("own"), [](std::uint64_t) -> Status { return Fail(Code::kThrottled, "no room"); }, {});
  EXPECT_FALSE(full);
  EXPECT_FALSE(Load("own").load_adapter) << "a model with an adapter takes no others";
}

/// A run's checkpoint tells over which weights it was trained.
TEST_P(AdaptersTest, ARunOverOtherWeightsIsRefused) {
  const LoadedModel shared = Load("base");
  const engine::LoraOptions options{.rank = 2, .alpha = 8};
  WriteAdapter("mine", options);
  const auto lent = engine::MakeModel(ConfigOf(FamilyConfig(GetParam())), at::kFloat, at::kCPU, 3,
                                      {.freeze = {"*"}});  // weights other than the base's
  const std::uint64_t other = engine::FrozenFingerprint((*lent)->buffer(), {}).value();
  Json config = FamilyConfig(GetParam());
  config["torch_dtype"] = "float32";
  const auto tensors = Tensors(options, FamilyConfig(GetParam()));
  std::vector<checkpoint::SaveSlice> slices;
  for (const auto& [name, tensor] : tensors) {
    slices.push_back({.name = std::string(checkpoint::kAdapterGroup) + name,
                      .meta = {.dtype = checkpoint::DType::kF32, .shape = tensor.sizes().vec()},
                      .bytes = engine::BytesOf(tensor)});
  }
  MemoryBudget budget(64 * kMiB);
  auto writer = checkpoint::Writer::Open(*connection_, checkpoint::SingleRankExchange(), budget, {.url = Path("run")});
  ASSERT_TRUE(writer);
  const auto save = [&](std::uint64_t step, const std::string& fingerprint, const std::string& quantization = "") {
    const Json meta = {
        {std::string(checkpoint::kMetaModelConfig), config},
        {std::string(checkpoint::kMetaAdapterConfig), engine::PeftConfig(options, {.base = Path("base"), .task = ""})},
        {"tokenizer", {{"fingerprint", shared.tokenizer->fingerprint()}}},
        {"train", {{"base_fingerprint", fingerprint}, {"base_quantization", quantization}}}};
    ASSERT_TRUE((*writer)->Save(step, slices, DumpJson(meta)));
    ASSERT_TRUE((*writer)->Wait());
  };
  save(1, fmt::format("{:016x}", other));
  const auto refused = shared.load_adapter(Path("run"), [](std::uint64_t) -> Status { return {}; }, {});
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().ToString(), HasSubstr("adapts a model with other weights"));
  // Whether two models in other forms have the same weights cannot be told.
  ASSERT_EQ(::setenv("XDG_CACHE_HOME", Path("cache").c_str(), 1), 0);
  const LoadedModel quantized = LoadModel(*connection_, {.model_url = Path("base"), .weights = "int8"}, {}).value();
  EXPECT_NE(LoadOver(quantized, "run"), nullptr);
  save(2, fmt::format("{:016x}", other), "int8");
  EXPECT_NE(LoadOver(shared, "run"), nullptr);
  EXPECT_FALSE(quantized.load_adapter(Path("run"), [](std::uint64_t) -> Status { return {}; }, {}));
  save(3, "");
  const auto taken = LoadOver(shared, "run");
  EXPECT_EQ(taken->add_bos(), std::optional(false)) << "as the run's texts began";
  EXPECT_EQ(LoadOver(shared, "mine")->add_bos(), std::nullopt);
}

INSTANTIATE_TEST_SUITE_P(Families, AdaptersTest, testing::Values("llama", "gpt2"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace millrace::serve
