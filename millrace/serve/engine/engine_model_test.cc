#include "millrace/serve/engine/engine_model.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <span>
#include <tuple>

#include "millrace/base/files/files.h"
#include "millrace/checkpoint/commit/collect.h"
#include "millrace/checkpoint/format/manifest.h"
#include "millrace/checkpoint/format/safetensors.h"
#include "millrace/checkpoint/save/writer.h"
#include "millrace/checkpoint/testing/thread_group.h"
#include "millrace/engine/config/families.h"
#include "millrace/engine/families/llama/llama_config.h"
#include "millrace/engine/models/make_model.h"
#include "millrace/engine/parameters/scalar_types.h"
#include "millrace/http/client/client.h"
#include "millrace/object/local/memory_store.h"
#include "millrace/object/open/open.h"
#include "millrace/object/testing/fault_store.h"
#include "millrace/serve/api/api.h"
#include "millrace/serve/testing.h"
#include "millrace/tokenizer/formats/load.h"

namespace millrace::serve {
namespace {

using ::testing::HasSubstr;

std::shared_ptr<engine::LlamaConfig> Tiny(std::int64_t vocab_size = 258) {
  auto config = std::make_shared<engine::LlamaConfig>();
  config->vocab_size = vocab_size;
  config->hidden_size = 32;
  config->intermediate_size = 48;
  config->num_layers = 2;
  config->num_heads = 4;
  config->num_kv_heads = 2;
  config->max_positions = 64;
  return config;
}

std::unique_ptr<engine::Model> RandomModel(const std::shared_ptr<engine::LlamaConfig>& config,
                                           std::uint64_t seed = 11) {
  auto model = *engine::MakeModel(config, at::kFloat, at::kCPU, seed);
  // The usual initial weights are so small that every token is as likely as the next.
  for (const auto& parameter : model->Parameters()) {
    if (parameter.tensor.dim() > 1) parameter.tensor.mul_(20);
  }
  return model;
}

/// What greedy decoding is by definition: the whole text through the model for each token, no cache.
std::vector<TokenId> GreedyByDefinition(engine::Model& model, std::vector<TokenId> text, int count) {
  std::vector<TokenId> made;
  for (int i = 0; i < count; ++i) {
    std::vector<std::int64_t> wide(text.begin(), text.end());
    auto logits = model.Logits(at::tensor(wide).unsqueeze(0));
    auto next = static_cast<TokenId>(logits.select(1, logits.size(1) - 1).argmax().item<std::int64_t>());
    text.push_back(next);
    made.push_back(next);
  }
  return made;
}

std::vector<TokenId> GreedyByScheduler(LanguageModel& model, std::vector<TokenId> prompt, int count, int chunk = 256) {
  Scheduler scheduler(model, {.prompt_chunk = chunk});
  std::vector<GenerationRequest> requests;
  requests.push_back({.prompt = std::move(prompt), .max_tokens = count, .sampling = {.temperature = 0}});
  auto generations = scheduler.Submit(std::move(requests));
  std::vector<TokenId> made;
  while (auto token = generations->at(0).Next({})) made.push_back(token->token);
  EXPECT_TRUE(generations->at(0).result());
  return made;
}

TEST(EngineModel, GreedyTextIsThatOfTheWholeForwardPass) {
  auto model = RandomModel(Tiny());
  auto prompt = Bytes("a prompt of some length");
  auto expected = GreedyByDefinition(*model, prompt, 30);
  auto served = *MakeEngineModel(std::move(model));
  EXPECT_EQ(served->context_length(), 64);
  EXPECT_EQ(GreedyByScheduler(*served, prompt, 30), expected);
  EXPECT_EQ(GreedyByScheduler(*served, prompt, 30, /*chunk=*/5), expected) << "however the prompt is cut";
}

/// Compares seeded texts of all models, made together, with those of the first one, each made alone.
void ExpectTheSameTextsInAnyBatch(std::span<LanguageModel* const> models) {
  std::vector<GenerationRequest> requests;
  for (std::uint64_t i = 0; i < 10; ++i) {
    requests.push_back({.prompt = Bytes(std::string(3 * i, 'p') + "question"),
                        .max_tokens = 4 + static_cast<int>(3 * i % 20),
                        .ends = {},
                        .sampling = {.temperature = 0.9, .top_p = 0.95, .seed = i}});
  }
  const auto read = [](Generation& generation) {
    std::vector<TokenId> made;
    while (auto token = generation.Next({})) made.push_back(token->token);
    EXPECT_TRUE(generation.result());
    return made;
  };
  std::vector<std::vector<TokenId>> alone;
  {
    Scheduler scheduler(*models.front(), {});
    for (const GenerationRequest& request : requests) alone.push_back(read((*scheduler.Submit({request}))[0]));
  }
  for (LanguageModel* model : models) {
    for (const int chunk : {5, 64}) {
      Scheduler scheduler(*model, {.prompt_chunk = 2 * chunk, .mixed_chunk = chunk});
      auto generations = scheduler.Submit(requests);
      for (std::size_t i = 0; i < requests.size(); ++i) EXPECT_EQ(read(generations->at(i)), alone[i]) << i;
      if (model != models.front()) EXPECT_GT(scheduler.counters().preemptions, 0U);
    }
  }
}

TEST(EngineModel, SeededTextsAreTheSameInAnyBatch) {
  constexpr std::uint64_t kBlockBytes = 32 * 2 * 2 * 2 * 8 * 4;  // tokens, keys and values, layers, heads, float32
  // In the small cache, texts give up their blocks.
  const auto large = *MakeEngineModel(RandomModel(Tiny())),
             small = *MakeEngineModel(RandomModel(Tiny()), 0, 5 * kBlockBytes);
  EXPECT_EQ(small->cache().blocks, 5);
  ExpectTheSameTextsInAnyBatch(std::vector{large.get(), small.get()});
}

TEST(EngineModel, ACacheOfLessThanABlockIsRefused) {
  const auto refused = MakeEngineModel(RandomModel(Tiny()), 0, 1000);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kInvalidArgument);
  EXPECT_THAT(refused.error().ToString(), HasSubstr("too small"));
}

TEST(EngineModel, AVectorIsThePooledHiddenStatesInAnyBatch) {
  const std::vector<TokenId> first = Bytes("a text"), second = Bytes("another, longer text");
  const std::vector<std::span<const TokenId>> both{first, second}, one{second};
  auto model = RandomModel(Tiny());
  const at::Tensor hidden = model->HiddenStates(one);
  ASSERT_EQ(hidden.sizes(), (at::IntArrayRef{20, 32}));
  const auto embed = [&](Pooling pooling, const auto& texts) {
    auto served = *MakeEngineModel(RandomModel(Tiny()), 0, 0, /*int8_cache=*/false, std::move(pooling));
    return *served->Embed(texts);
  };
  const auto expect = [](const std::vector<float>& vector, const at::Tensor& wanted) {
    ASSERT_EQ(static_cast<std::int64_t>(vector.size()), wanted.numel());
    EXPECT_TRUE(at::allclose(at::tensor(vector), wanted, 1e-5, 1e-6));
  };
  expect(embed({}, one)[0], hidden.mean(0) / hidden.mean(0).norm());
  EXPECT_EQ(embed({}, one)[0], embed({}, both)[1]) << "bit for bit";
  expect(embed({{PoolingMode::kFirst, PoolingMode::kLast}, false}, one)[0], at::cat({hidden[0], hidden[19]}));
  expect(embed({{PoolingMode::kMax}, false}, one)[0], std::get<0>(hidden.max(0)));
  expect(embed({{PoolingMode::kMeanSqrt}, false}, one)[0], hidden.sum(0) / std::sqrt(20.0));
  const at::Tensor weights = at::arange(1, 21, at::kFloat);
  expect(embed({{PoolingMode::kWeightedMean}, false}, one)[0], at::mv(hidden.t(), weights) / weights.sum());
}

TEST(EngineModel, StreamedTextAddsUpToTheWholeAnswer) {
  auto served = *MakeEngineModel(RandomModel(Tiny()));
  ServedScheduler scheduler(std::make_shared<Scheduler>(*served, Scheduler::Options{}));
  ByteTokenizer tokenizer;
  Api api(scheduler, tokenizer, SystemClock(), {.model_name = "tiny", .context_length = served->context_length()});
  auto server = *http::Server::Start({}, [&api](auto& request, auto& response) { api.Handle(request, response); });
  http::Client client({});
  auto post = [&](std::string body) {
    http::Request request{.method = "POST", .url = fmt::format("http://{}/v1/completions", server->address())};
    request.body = AsBytes(body);
    auto response = client.Send(std::move(request));
    return response ? response->body : response.error().ToString();
  };
  for (std::string seed : {"1", "2", "3", "4"}) {
    std::string body = R"({"prompt": "tell", "max_tokens": 40, "temperature": 0.8, "top_p": 0.95, "seed": )" + seed;
    std::string whole = (*ParseJson(post(body + "}"), "answer"))["choices"][0]["text"];
    std::string stream = post(body + R"(, "stream": true})"), text;
    std::string_view rest = stream;
    for (std::size_t end; (end = rest.find("\n\n")) != std::string_view::npos; rest.remove_prefix(end + 2)) {
      auto event = ParseJson(rest.substr(6, end - 6), "event");
      if (event) text += (*event)["choices"][0]["text"].get<std::string>();
    }
    EXPECT_EQ(text, whole);
    EXPECT_FALSE(whole.empty());
  }
  server->Stop(std::chrono::seconds(5));
}

/// A folder with a tokenizer, and models of its vocabulary saved in either layout.
class LoadModelTest : public testing::Test {
 protected:
  void SetUp() override {
    connection_ = *object::OpenConnection({});
    const char* source = std::getenv("MILLRACE_SOURCE");
    auto model = ReadFile(std::filesystem::path(source ? source : ".") / "millrace/train/testdata/tokenizer.model");
    ASSERT_TRUE(model) << model.error().ToString();
    tokenizer_ = *std::move(model);
    Write("tokenizer.model", tokenizer_);
    fingerprint_ = (*tokenizer::Load(AsBytes(tokenizer_), "test"))->fingerprint();
    model_ = RandomModel(Tiny(300));
    expected_ = GreedyByDefinition(*model_, {5, 6, 7, 270}, 20);
  }
  std::string Path(std::string_view name) const { return (folder_.path() / name).string(); }
  void Write(std::string name, std::string_view content) {
    std::filesystem::create_directories(std::filesystem::path(Path(name)).parent_path());
    std::ofstream(Path(name)) << content;
  }
  void SaveRun(std::uint64_t step, Json meta, const std::map<std::string, std::string>& files = {},
               std::string url = "") {
    MemoryBudget budget(64 * kMiB);
    auto writer = checkpoint::Writer::Open(*connection_, checkpoint::SingleRankExchange(), budget,
                                           {.url = url.empty() ? Path("run") : url});
    ASSERT_TRUE(writer) << writer.error().ToString();
    std::vector<checkpoint::SaveSlice> slices;
    for (const auto& parameter : model_->Parameters()) {
      auto sizes = parameter.tensor.sizes();
      slices.push_back({.name = std::string(checkpoint::kModelGroup) + parameter.name,
                        .meta = {.dtype = checkpoint::DType::kF32, .shape = {sizes.begin(), sizes.end()}},
                        .bytes = engine::BytesOf(parameter.tensor)});
    }
    for (const auto& [name, content] : files) {
      slices.push_back({.name = name,
                        .meta = {.dtype = checkpoint::DType::kU8, .shape = {static_cast<std::int64_t>(content.size())}},
                        .bytes = AsBytes(content)});
    }
    ASSERT_TRUE((*writer)->Save(step, slices, DumpJson(meta)));
    ASSERT_TRUE((*writer)->Wait());
  }
  Json Meta() const {
    return {{std::string(checkpoint::kMetaModelConfig), model_->config().ToJson()},
            {"tokenizer", {{"url", Path("tokenizer.model")}, {"fingerprint", fingerprint_}}}};
  }
  /// Returns the logits of what follows some tokens.
  at::Tensor LogitsOf(LanguageModel& model, const std::vector<TokenId>& tokens) {
    const std::vector<std::int32_t> blocks{0};
    const StepPart part{.tokens = tokens, .blocks = blocks};
    const auto logits = model.Step({&part, 1});
    EXPECT_TRUE(logits) << logits.error().ToString();
    return at::tensor(at::ArrayRef<float>(logits->data(), logits->size()));
  }
  void SaveFolder() {
    std::vector<checkpoint::SafetensorsEntry> entries;
    for (const auto& parameter : model_->Parameters()) {
      auto sizes = parameter.tensor.sizes();
      entries.push_back({parameter.name, {checkpoint::DType::kF32, {sizes.begin(), sizes.end()}}, 0});
    }
    std::string file = checkpoint::MakeSafetensorsHeader(entries);
    for (const auto& parameter : model_->Parameters()) file += AsText(engine::BytesOf(parameter.tensor));
    Write("hf/model.safetensors", file);
    Write("hf/config.json", DumpJson(model_->config().ToJson()));
    Write("hf/tokenizer.model", tokenizer_);
  }
  Result<LoadedModel> Load(LoadOptions options) { return LoadModel(*connection_, options, {}); }

  TempDir folder_ = *TempDir::Create();
  std::unique_ptr<object::Connection> connection_;
  std::string tokenizer_, fingerprint_;
  std::unique_ptr<engine::Model> model_;
  std::vector<TokenId> expected_;
};

TEST_F(LoadModelTest, FromTheNewestCheckpointOfARun) {
  SaveRun(10, Meta());
  SaveRun(20, Meta());
  auto loaded = Load({.model_url = Path("run")});
  ASSERT_TRUE(loaded) << loaded.error().ToString();
  EXPECT_THAT(loaded->source, HasSubstr("20"));
  EXPECT_EQ(loaded->tokenizer->fingerprint(), fingerprint_);
  EXPECT_FALSE(loaded->add_bos);
  EXPECT_EQ(GreedyByScheduler(*loaded->model, {5, 6, 7, 270}, 20), expected_);
  EXPECT_THAT(Load({.model_url = Path("run"), .step = 10})->source, HasSubstr("10"));
  EXPECT_EQ(Load({.model_url = Path("run"), .step = 11}).error().code(), Code::kNotFound);
}

TEST_F(LoadModelTest, FromAHuggingFaceFolder) {
  SaveFolder();
  auto loaded = Load({.model_url = Path("hf")});
  ASSERT_TRUE(loaded) << loaded.error().ToString();
  EXPECT_TRUE(loaded->add_bos);
  EXPECT_EQ(GreedyByScheduler(*loaded->model, {5, 6, 7, 270}, 20), expected_);
  Write("hf/tokenizer_config.json", R"({"add_bos_token": false})");
  auto rounded = Load({.model_url = Path("hf/"), .precision = "bf16"});
  ASSERT_TRUE(rounded) << rounded.error().ToString();
  EXPECT_FALSE(rounded->add_bos);
  EXPECT_EQ(GreedyByScheduler(*rounded->model, {5, 6, 7, 270}, 20).size(), 20u);
}

TEST_F(LoadModelTest, QuantizesTheWeights) {
  ASSERT_EQ(::setenv("XDG_CACHE_HOME", Path("cache").c_str(), 1), 0);
  auto config = Tiny(300);
  config->hidden_size = 64;        // a block of NF4
  config->intermediate_size = 96;  // no whole number of them
  model_ = RandomModel(config);
  SaveFolder();
  const std::vector<TokenId> prompt{5, 6, 7, 270, 11, 200};
  auto plain = Load({.model_url = Path("hf")});
  ASSERT_TRUE(plain) << plain.error().ToString();
  const at::Tensor want = LogitsOf(*plain->model, prompt);
  // Logits that have nothing to do with the right ones would have an error of 1.4.
  for (const auto& [weights, least, most] :
       {std::tuple{"int8", 1e-4, 0.05}, std::tuple{"nf4", 0.01, 0.8}, std::tuple{"fp8", 1e-3, 0.2}}) {
    auto loaded = Load({.model_url = Path("hf"), .weights = weights});
    ASSERT_TRUE(loaded) << loaded.error().ToString();
    const double error = ((LogitsOf(*loaded->model, prompt) - want).norm() / want.norm()).item<double>();
    EXPECT_GT(error, least) << weights;
    EXPECT_LT(error, most) << weights;
    ExpectTheSameTextsInAnyBatch(std::vector{loaded->model.get()});
  }

  // What a load has left is a folder of its own.
  std::map<std::string, std::string> folders;
  for (const auto& file : std::filesystem::recursive_directory_iterator(Path("cache"))) {
    if (file.path().filename() != "config.json") continue;
    const Json config = *ParseJson(*ReadFile(file.path()), "config");
    const Json& how = config.at("quantization_config");
    const bool fp8 = how.at("quant_method") == "compressed-tensors", int8 = !fp8 && how.at("load_in_8bit").get<bool>();
    folders[fp8 ? "fp8" : int8 ? "int8" : "nf4"] = file.path().parent_path().string();
  }
  ASSERT_EQ(folders.size(), 3u);
  for (const auto& [weights, folder] : folders) {
    std::ofstream(folder + "/tokenizer.model") << tokenizer_;
    EXPECT_TRUE(Load({.model_url = folder}));
    for (const char* other : {"bf16", "int8", "fp8", "nf4"}) {
      if (other == weights) continue;
      const auto refused = Load({.model_url = folder, .weights = other});
      ASSERT_FALSE(refused) << other;
      EXPECT_EQ(refused.error().code(), Code::kInvalidArgument);
      EXPECT_THAT(refused.error().ToString(), HasSubstr(weights));
    }
  }
}

TEST_F(LoadModelTest, AnEncoderMakesEmbeddings) {
  SaveFolder();
  model_ = *engine::MakeModel(
      *engine::ParseModelConfig(*ParseJson(R"({"model_type": "bert", "architectures": ["BertModel"], "vocab_size": 300,
          "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 48})",
                                           "test"),
                                "test"),
      at::kFloat, at::kCPU, 3);
  SaveFolder();
  auto loaded = Load({.model_url = Path("hf")});
  ASSERT_TRUE(loaded) << loaded.error().ToString();
  EXPECT_FALSE(loaded->generates);
  EXPECT_TRUE(loaded->embeds_bos && loaded->embeds_eos);
  const std::vector<TokenId> text = {5, 6, 7};
  const std::vector<std::span<const TokenId>> texts{text};
  const auto vectors = loaded->model->Embed(texts);
  ASSERT_TRUE(vectors) << vectors.error().ToString();
  EXPECT_EQ((*vectors)[0].size(), 32U);
  EXPECT_EQ(loaded->model->Step({}).error().code(), Code::kUnsupported);
}

TEST_F(LoadModelTest, PoolsAsTheModelsFilesSay) {
  SaveFolder();
  const std::vector<TokenId> text = {5, 6, 7};
  const std::vector<std::span<const TokenId>> texts{text};
  const at::Tensor hidden = model_->HiddenStates(texts);
  Write("hf/modules.json", R"([{"type": "sentence_transformers.models.Transformer", "path": ""},
                               {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}])");
  EXPECT_EQ(Load({.model_url = Path("hf")}).error().code(), Code::kNotFound) << "the pooling's file is not there";
  Write("hf/1_Pooling/config.json", R"({"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false})");
  auto loaded = Load({.model_url = Path("hf")});
  ASSERT_TRUE(loaded) << loaded.error().ToString();
  EXPECT_TRUE(at::allclose(at::tensor((*loaded->model->Embed(texts))[0]), hidden[0], 1e-5, 1e-6));
  Write("hf/1_Pooling/config.json", R"({"pooling_mode": "lasttoken"})");
  EXPECT_TRUE(
      at::allclose(at::tensor((*Load({.model_url = Path("hf")})->model->Embed(texts))[0]), hidden[2], 1e-5, 1e-6));
  Write("hf/1_Pooling/config.json", R"({"pooling_mode": "unheard_of"})");
  EXPECT_EQ(Load({.model_url = Path("hf")}).error().code(), Code::kUnsupported);
  Write("hf/modules.json", R"([{"type": "sentence_transformers.models.Dense", "path": "2_Dense"}])");
  EXPECT_THAT(Load({.model_url = Path("hf")}).error().ToString(), HasSubstr("Dense"));
}

TEST_F(LoadModelTest, FromAnImportedCheckpointWithItsTokenizer) {
  Json meta = Meta();
  meta.erase("tokenizer");
  SaveRun(0, meta, {{"files/tokenizer.model", tokenizer_}});
  auto loaded = Load({.model_url = Path("run")});
  ASSERT_TRUE(loaded) << loaded.error().ToString();
  EXPECT_EQ(loaded->tokenizer->fingerprint(), fingerprint_);
  EXPECT_TRUE(loaded->add_bos) << "nothing says otherwise";
  EXPECT_EQ(GreedyByScheduler(*loaded->model, {5, 6, 7, 270}, 20), expected_);
  SaveRun(1, meta,
          {{"files/tokenizer.model", tokenizer_}, {"files/tokenizer_config.json", R"({"add_bos_token":false})"}});
  EXPECT_FALSE(Load({.model_url = Path("run")})->add_bos);

  // A run that began with the imported model names it as the place of its tokenizer.
  Json trained = Meta();
  std::filesystem::rename(Path("run"), Path("imported"));
  trained["tokenizer"]["url"] = Path("imported");
  SaveRun(5, trained);
  auto tuned = Load({.model_url = Path("run")});
  ASSERT_TRUE(tuned) << tuned.error().ToString();
  EXPECT_EQ(tuned->tokenizer->fingerprint(), fingerprint_);
  EXPECT_FALSE(tuned->add_bos);
}

TEST_F(LoadModelTest, CollectorsLeaveWhatIsBeingLoaded) {
  auto store = object::FaultStore::Create(object::MakeMemoryStore());
  connection_ = std::make_unique<checkpoint::testing::StoreConnection>(store);
  const std::string url = "s3://bucket/run";
  Json meta = Meta();
  meta.erase("tokenizer");
  SaveRun(1, meta, {{"files/tokenizer.model", tokenizer_}}, url);
  int looked = 0;
  store->Add({.operation = object::Operation::kGet,
              .key_prefix = "run/step-00000001/",
              .times = -1,
              .fault = {.action = [&] {
                if (looked++ > 0) return;
                SaveRun(2, meta, {}, url);
                auto collected = checkpoint::CollectGarbage({store, "run"}, {.keep_last = 1}, false);
                ASSERT_TRUE(collected) << collected.error().ToString();
                EXPECT_TRUE(collected->removed_steps.empty());
              }}});
  auto loaded = Load({.model_url = url});
  ASSERT_TRUE(loaded) << loaded.error().ToString();
  EXPECT_EQ(GreedyByScheduler(*loaded->model, {5, 6, 7, 270}, 20), expected_);
  EXPECT_GT(looked, 1);
  EXPECT_EQ(checkpoint::CollectGarbage({store, "run"}, {.keep_last = 1}, false)->removed_steps.size(), 1u)
      << "held no longer than it took to load";
}

TEST_F(LoadModelTest, SaysWhatIsMissingOrWrong) {
  auto nothing = Load({.model_url = Path("nothing")});
  ASSERT_FALSE(nothing);
  EXPECT_EQ(nothing.error().code(), Code::kNotFound);
  EXPECT_THAT(nothing.error().ToString(), HasSubstr("no model at"));

  Json other = Meta();
  other["tokenizer"]["fingerprint"] = "12345678";
  SaveRun(1, other);
  EXPECT_EQ(Load({.model_url = Path("run")}).error().code(), Code::kPreconditionFailed);
  Json none = Meta();
  none.erase("tokenizer");
  SaveRun(2, none);
  EXPECT_THAT(Load({.model_url = Path("run")}).error().ToString(), HasSubstr("--tokenizer"));
  EXPECT_TRUE(Load({.model_url = Path("run"), .tokenizer_url = Path("tokenizer.model")}));
  Json wrong = Meta();
  wrong[std::string(checkpoint::kMetaModelConfig)]["intermediate_size"] = 64;
  SaveRun(3, wrong);
  EXPECT_EQ(Load({.model_url = Path("run")}).error().code(), Code::kCorrupt);
}

}  // namespace
}  // namespace millrace::serve
