#include "millrace/serve/engine/engine_model.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "millrace/base/files/files.h"
#include "millrace/checkpoint/format/manifest.h"
#include "millrace/checkpoint/format/safetensors.h"
#include "millrace/checkpoint/retention/collect.h"
#include "millrace/checkpoint/save/writer.h"
#include "millrace/checkpoint/testing/thread_group.h"
#include "millrace/engine/families/llama/llama_config.h"
#include "millrace/engine/models/make_model.h"
#include "millrace/engine/parameters/scalar_types.h"
#include "millrace/http/client/client.h"
#include "millrace/object/fault/fault_store.h"
#include "millrace/object/memory/memory_store.h"
#include "millrace/object/open/open.h"
#include "millrace/serve/api.h"
#include "millrace/serve/testing.h"
#include "millrace/tokenizer/load/load.h"

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
  while (auto token = generations->at(0).Next({})) made.push_back(*token);
  EXPECT_TRUE(generations->at(0).result());
  return made;
}

TEST(EngineModel, GreedyTextIsThatOfTheWholeForwardPass) {
  auto model = RandomModel(Tiny());
  auto prompt = Bytes("a prompt of some length");
  auto expected = GreedyByDefinition(*model, prompt, 30);
  auto served = MakeEngineModel(std::move(model));
  EXPECT_EQ(served->context_length(), 64);
  EXPECT_EQ(GreedyByScheduler(*served, prompt, 30), expected);
  EXPECT_EQ(GreedyByScheduler(*served, prompt, 30, /*chunk=*/5), expected) << "however the prompt is cut";
}

TEST(EngineModel, ASequenceEndsWhereItWasSaidTo) {
  auto served = MakeEngineModel(RandomModel(Tiny()));
  auto sequence = *served->NewSequence(3);
  EXPECT_TRUE(sequence->Append(Bytes("abc")));
  EXPECT_FALSE(sequence->Append(Bytes("d")));
}

TEST(EngineModel, StreamedTextAddsUpToTheWholeAnswer) {
  auto served = MakeEngineModel(RandomModel(Tiny()));
  Scheduler scheduler(*served, {});
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
    ASSERT_TRUE((*writer)->Save(step, slices, meta));
    ASSERT_TRUE((*writer)->Wait());
  }
  Json Meta() const {
    return {{std::string(checkpoint::kMetaModelConfig), model_->config().ToJson()},
            {"tokenizer", {{"url", Path("tokenizer.model")}, {"fingerprint", fingerprint_}}}};
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

TEST_F(LoadModelTest, AModelThatGeneratesNoTextIsRefused) {
  SaveFolder();
  Write("hf/config.json", R"({"model_type": "bert", "vocab_size": 300})");
  const auto loaded = Load({.model_url = Path("hf")});
  ASSERT_FALSE(loaded);
  EXPECT_EQ(loaded.error().code(), Code::kUnsupported);
  EXPECT_THAT(loaded.error().ToString(), HasSubstr("does not generate text"));
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
