#include "millrace/checkpoint/convert/quantized_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "millrace/base/files/files.h"
#include "millrace/checkpoint/convert/export.h"
#include "millrace/checkpoint/convert/tensors/quantized_names.h"
#include "millrace/checkpoint/format/half.h"
#include "millrace/checkpoint/format/safetensors.h"
#include "millrace/checkpoint/testing/thread_group.h"
#include "millrace/engine/quantized/quantize.h"
#include "millrace/object/local/file_store.h"

namespace millrace::checkpoint {
namespace {

namespace fs = std::filesystem;
using engine::Quantization;

struct Weight {
  std::vector<std::int64_t> shape;
  std::vector<float> values;  ///< exact in BF16
};
using Weights = std::map<std::string, Weight>;

/// Writes a Hugging Face folder with weights of BF16, each in a shard of its own.
void WriteFolder(const fs::path& folder, const std::string& config, const Weights& weights) {
  fs::create_directories(folder);
  std::ofstream(folder / "config.json") << config;
  std::size_t shard = 0;
  for (const auto& [name, weight] : weights) {
    std::vector<SafetensorsEntry> entries{{name, {DType::kBF16, weight.shape}}};
    std::ofstream out(folder / fmt::format("model-{:05}-of-{:05}.safetensors", ++shard, weights.size()));
    out << MakeSafetensorsHeader(entries);
    for (const float x : weight.values) {
      const std::uint16_t bits = FloatToBf16(x);
      out.write(reinterpret_cast<const char*>(&bits), 2);
    }
  }
}

class QuantizedModelTest : public ::testing::Test {
 protected:
  Weight Random(std::int64_t rows, std::int64_t columns) {
    Weight weight{{rows, columns}, std::vector<float>(static_cast<std::size_t>(rows * columns))};
    std::normal_distribution<float> normal(0, 0.02F);
    for (float& x : weight.values) x = Bf16ToFloat(FloatToBf16(normal(generator_)));
    return weight;
  }
  Weights Llama() {
    return {{"lm_head.weight", Random(96, 48)},
            {"model.embed_tokens.weight", Random(96, 48)},
            {"model.layers.0.mlp.up_proj.weight", Random(200, 48)},
            {"model.layers.0.self_attn.q_proj.weight", Random(48, 48)},
            {"model.layers.11.mlp.down_proj.weight", Random(48, 201)},
            {"model.norm.weight", {{48}, std::vector<float>(48, 1)}}};
  }
  Result<ModelSource> Source(const std::string& folder) {
    return ModelSource::Open(connection_, (root() / folder).string(), std::nullopt, {});
  }
  Result<QuantizedModel> Open(const std::string& folder, Quantization kind, std::uint64_t memory = 64 * kMiB) {
    const ModelSource source = MR_TRY(Source(folder));
    MemoryBudget budget(memory);
    return OpenQuantizedModel(connection_, source, kind, root() / "cache", budget, {});
  }
  fs::path root() const { return directory_.path(); }

  std::mt19937 generator_{3};
  TempDir directory_ = *TempDir::Create();
  testing::StoreConnection connection_{*object::OpenFileStore({.root = "/", .durable = false})};
};

constexpr const char* kLlamaConfig = R"({"model_type": "llama", "torch_dtype": "bfloat16"})";

/// Returns the distance of the matrix from the weight, as a share of the weight's norm.
double Error(const engine::QuantizedMatrix& matrix, const Weight& weight) {
  std::vector<float> out(weight.values.size());
  matrix.Dequantize({.rows = matrix.rows(), .columns = matrix.columns()}, out.data(), matrix.columns());
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    error += std::pow(out[i] - weight.values[i], 2);
    norm += std::pow(weight.values[i], 2);
  }
  return std::sqrt(error / norm);
}

TEST_F(QuantizedModelTest, MatricesOfBlocksAreQuantizedAndNoOthers) {
  const Weights weights = Llama();
  WriteFolder(root() / "llama", kLlamaConfig, weights);
  for (const auto& [kind, most] :
       {std::pair{Quantization::kNf4, 0.11}, {Quantization::kInt8, 0.01}, {Quantization::kFp8, 0.03}}) {
    const auto model = Open("llama", kind);
    ASSERT_TRUE(model) << model.error().ToString();
    std::vector<std::string> names;
    for (const auto& [name, matrix] : *model->weights) {
      names.push_back(name);
      EXPECT_LT(Error(*matrix, weights.at(name)), most) << name;
      EXPECT_GT(Error(*matrix, weights.at(name)), 0);
    }
    EXPECT_EQ(names,
              (std::vector<std::string>{"model.layers.0.mlp.up_proj.weight", "model.layers.0.self_attn.q_proj.weight",
                                        "model.layers.11.mlp.down_proj.weight"}));
    // The others are read from the folder as they were.
    const auto rest = Source("cache/" + model->folder.filename().string());
    ASSERT_TRUE(rest) << rest.error().ToString();
    const Weight& head = weights.at("lm_head.weight");
    std::vector<std::uint16_t> bits(head.values.size());
    ASSERT_TRUE(rest->reader().Read("model/lm_head.weight", 0, std::as_writable_bytes(std::span(bits))));
    for (std::size_t i = 0; i < bits.size(); ++i) ASSERT_EQ(Bf16ToFloat(bits[i]), head.values[i]);
  }
}

/// Also where a killed process has left its folder.
TEST_F(QuantizedModelTest, AFolderForOneLoadGoesWithIt) {
  WriteFolder(root() / "llama", kLlamaConfig, Llama());
  const auto kept = Open("llama", Quantization::kNf4);
  ASSERT_TRUE(kept) << kept.error().ToString();
  fs::create_directories(root() / "other" / "one-load");
  std::ofstream(root() / "other" / "one-load" / "left.safetensors") << "of a killed process";
  fs::permissions(root() / "other", fs::perms::owner_all);
  const ModelSource source = Source("llama").value();
  MemoryBudget budget(64 * kMiB);
  auto once = QuantizeForOneLoad(connection_, source, Quantization::kNf4, root() / "other", budget, {});
  ASSERT_TRUE(once) << once.error().ToString();
  const fs::path folder = once->folder;
  EXPECT_TRUE(fs::exists(folder / "config.json"));
  EXPECT_FALSE(fs::exists(folder / "left.safetensors"));
  const auto weights = once->weights;
  *once = {};
  EXPECT_FALSE(fs::exists(folder));
  ASSERT_EQ(weights->size(), kept->weights->size());
  for (const auto& [name, matrix] : *weights) {
    EXPECT_TRUE(std::ranges::equal(matrix->codes(), kept->weights->at(name)->codes())) << name;
  }
  const auto again = QuantizeForOneLoad(connection_, source, Quantization::kInt8, root() / "other", budget, {});
  EXPECT_TRUE(again) << again.error().ToString();
}

TEST_F(QuantizedModelTest, CodesDoNotDependOnHowTheWeightStreams) {
  Weights weights = Llama();
  weights["model.layers.3.mlp.up_proj.weight"] = Random(700, 1000);  // more than a window of the stream
  WriteFolder(root() / "llama", kLlamaConfig, weights);
  const auto model = Open("llama", Quantization::kNf4, 24 * kMiB);
  ASSERT_TRUE(model) << model.error().ToString();
  for (const auto& [name, matrix] : *model->weights) {
    const std::vector<float>& values = weights.at(name).values;
    std::vector<std::uint8_t> codes((values.size() + 1) / 2);
    std::vector<float> scales((values.size() + engine::kNf4Block - 1) / engine::kNf4Block);
    engine::QuantizeNf4(values, codes, scales);
    EXPECT_TRUE(std::ranges::equal(codes, matrix->codes())) << name;
  }
}

TEST_F(QuantizedModelTest, EveryTensorIsAligned) {
  // 3 elements of BF16 and odd numbers of codes stand in front of the scales.
  Weights weights{{"model.layers.0.a.weight", Random(3, 7)}, {"model.layers.0.b.weight", Random(5, 13)}};
  weights["model.norm.weight"] = {{3}, {1, 2, 3}};
  WriteFolder(root() / "llama", kLlamaConfig, weights);
  const auto model = Open("llama", Quantization::kNf4);
  ASSERT_TRUE(model) << model.error().ToString();
  const std::string text = *ReadFile(model->folder / "model.safetensors");
  const std::uint64_t length = *ParseSafetensorsLength(AsBytes(text).first(8), text.size(), "");
  const auto entries = ParseSafetensorsHeader(text.substr(8, length), text.size(), "");
  ASSERT_TRUE(entries) << entries.error().ToString();
  for (const SafetensorsEntry& entry : *entries) {
    EXPECT_EQ(entry.offset % DTypeBytes(entry.meta.dtype), 0U) << entry.name;
  }
}

TEST_F(QuantizedModelTest, Int8HasAScaleForEachRow) {
  const Weights weights{{"model.layers.0.a.weight", Random(16, 32)}, {"model.norm.weight", Random(4, 4)}};
  WriteFolder(root() / "llama", kLlamaConfig, weights);
  const auto model = Open("llama", Quantization::kInt8);
  ASSERT_TRUE(model) << model.error().ToString();
  ASSERT_EQ(model->weights->size(), 1U);
  EXPECT_LT(Error(*model->weights->begin()->second, weights.begin()->second), 0.01);
}

TEST_F(QuantizedModelTest, ScalesOfInt8ThatCannotBeAlignedAreRefused) {
  WriteFolder(root() / "llama", kLlamaConfig, {{"model.layers.0.a.weight", Random(3, 7)}});
  const auto model = Open("llama", Quantization::kInt8);
  ASSERT_FALSE(model);
  EXPECT_EQ(model.error().code(), Code::kUnsupported);
}

/// As vLLM's users have them: scales of the model's type, or one for a matrix.
TEST_F(QuantizedModelTest, Fp8OfOthersIsRead) {
  constexpr const char* kConfig =
      R"({"model_type": "llama", "quantization_config": {"quant_method": "compressed-tensors",
    "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}}}})";
  const auto write = [&](const std::vector<std::uint16_t>& scales, std::int64_t rows) {
    const std::vector<std::uint8_t> codes{0x38, 0xb8, 0x40, 0x7e,
                                          0,    1,    0x30, 0x3c};  // 1, -1, 2, 448, 0, 2^-9, 0.5, 1.5
    std::vector<SafetensorsEntry> entries{
        {"model.layers.0.a.weight", {DType::kF8E4M3, {2, 4}}},
        {"model.layers.0.a.weight_scale", {DType::kBF16, {rows, 1}}},
    };
    fs::remove_all(root() / "theirs");
    fs::create_directories(root() / "theirs");
    std::ofstream(root() / "theirs/config.json") << kConfig;
    std::ofstream file(root() / "theirs/model.safetensors", std::ios::binary);
    file << MakeSafetensorsHeader(entries, {}) << AsText(std::as_bytes(std::span(codes)))
         << AsText(std::as_bytes(std::span(scales)));
  };
  for (const bool one : {false, true}) {
    write(one ? std::vector<std::uint16_t>{0x3f00} : std::vector<std::uint16_t>{0x3f00, 0x4080}, one ? 1 : 2);
    const auto model = Open("theirs", Quantization::kFp8);
    ASSERT_TRUE(model) << model.error().ToString();
    ASSERT_EQ(model->weights->size(), 1U);
    std::vector<float> out(8);
    model->weights->begin()->second->Dequantize({.rows = 2, .columns = 4}, out.data(), 4);
    const float second = one ? 0.5F : 4;
    EXPECT_EQ(out, (std::vector<float>{0.5F, -0.5F, 1, 224, 0, second / 512, second / 2, second * 1.5F}));
  }
  const auto refused = Open("theirs", Quantization::kInt8);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().ToString(), ::testing::HasSubstr("fp8"));
}

TEST_F(QuantizedModelTest, Gpt2sMatricesAreTurned) {
  const Weight stored = Random(48, 20);  // [in, out]
  WriteFolder(root() / "gpt2", R"({"model_type": "gpt2"})",
              {{"transformer.h.0.mlp.c_fc.weight", stored}, {"transformer.wte.weight", Random(64, 48)}});
  const auto model = Open("gpt2", Quantization::kNf4);
  ASSERT_TRUE(model) << model.error().ToString();
  Weight turned{{20, 48}, std::vector<float>(stored.values.size())};
  for (std::size_t i = 0; i < 48; ++i) {
    for (std::size_t j = 0; j < 20; ++j) turned.values[j * 48 + i] = stored.values[i * 20 + j];
  }
  EXPECT_LT(Error(*model->weights->at("transformer.h.0.mlp.c_fc.weight"), turned), 0.11);
}

TEST_F(QuantizedModelTest, AFolderIsMadeOnceForEachVersion) {
  WriteFolder(root() / "llama", kLlamaConfig, Llama());
  const auto first = Open("llama", Quantization::kNf4), again = Open("llama", Quantization::kNf4);
  ASSERT_TRUE(first && again);
  EXPECT_EQ(first->folder, again->folder);
  EXPECT_EQ(engine::Fingerprint(*first->weights), engine::Fingerprint(*again->weights));
  fs::remove_all(root() / "llama");
  WriteFolder(root() / "llama", kLlamaConfig, Llama());  // other numbers
  const auto other = Open("llama", Quantization::kNf4);
  ASSERT_TRUE(other) << other.error().ToString();
  EXPECT_NE(first->folder, other->folder);
  EXPECT_NE(engine::Fingerprint(*first->weights), engine::Fingerprint(*other->weights));
}

TEST_F(QuantizedModelTest, AnInterruptedOneIsMadeAgain) {
  WriteFolder(root() / "llama", kLlamaConfig, Llama());
  const auto whole = Open("llama", Quantization::kNf4);
  ASSERT_TRUE(whole);
  const std::string name = whole->folder.filename();
  const std::uint64_t fingerprint = engine::Fingerprint(*whole->weights);
  fs::rename(whole->folder, root() / "cache" / (name + ".unfinished"));
  fs::resize_file(root() / "cache" / (name + ".unfinished") / "model.safetensors", 100);
  const auto again = Open("llama", Quantization::kNf4);
  ASSERT_TRUE(again) << again.error().ToString();
  EXPECT_EQ(fingerprint, engine::Fingerprint(*again->weights));
  EXPECT_FALSE(fs::exists(root() / "cache" / (name + ".unfinished")));
}

TEST_F(QuantizedModelTest, AQuantizedFolderKeepsItsCodes) {
  const Weights weights = Llama();
  WriteFolder(root() / "llama", kLlamaConfig, weights);
  const auto source = Source("llama");
  ASSERT_TRUE(source);
  const object::Location to = *object::Locate(connection_, (root() / "nf4").string());
  MemoryBudget budget(64 * kMiB);
  const auto exported =
      Export(source->reader(), to, budget, {.file_bytes = 10'000, .quantization = Quantization::kNf4});
  ASSERT_TRUE(exported) << exported.error().ToString();
  ASSERT_TRUE(fs::exists(root() / "nf4/model.safetensors.index.json")) << "several shards";
  const auto direct = Open("llama", Quantization::kNf4), copied = Open("nf4", Quantization::kNf4);
  ASSERT_TRUE(copied) << copied.error().ToString();
  EXPECT_EQ(engine::Fingerprint(*direct->weights), engine::Fingerprint(*copied->weights));
  const auto refused = Open("nf4", Quantization::kInt8);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().ToString(), ::testing::HasSubstr("is quantized as nf4, not as int8"));
}

TEST_F(QuantizedModelTest, WeightsThatAreNotFiniteAreRefusedByName) {
  Weights weights = Llama();
  weights["model.layers.0.mlp.up_proj.weight"].values[70] = INFINITY;
  WriteFolder(root() / "llama", kLlamaConfig, weights);
  const auto model = Open("llama", Quantization::kNf4);
  ASSERT_FALSE(model);
  EXPECT_THAT(model.error().ToString(), ::testing::HasSubstr("model.layers.0.mlp.up_proj.weight"));
}

TEST(StoredQuantizationTest, OtherMethodsAreRefusedByName) {
  const auto stored = [](const char* text) { return StoredQuantization(*ParseJson(text, "config"), "s3://b/m"); };
  EXPECT_EQ(*stored("{}"), std::nullopt);
  EXPECT_EQ(*stored(R"({"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": true}})"),
            Quantization::kInt8);
  EXPECT_EQ(*stored(R"({"quantization_config": {"load_in_4bit": true, "bnb_4bit_quant_type": "nf4"}})"),
            Quantization::kNf4);
  EXPECT_EQ(*stored(R"({"quantization_config": {"quant_method": "fbgemm_fp8"}})"), Quantization::kFp8);
  for (const char* text : {R"({"quantization_config": {"quant_method": "gptq", "bits": 4}})",
                           R"({"quantization_config": {"quant_method": "compressed-tensors"}})",
                           R"({"quantization_config": {"quant_method": "compressed-tensors", "config_groups":
                               {"group_0": {"weights": {"num_bits": 8, "type": "int", "strategy": "channel"}}}}})",
                           R"({"quantization_config": {"quant_method": "compressed-tensors", "config_groups":
                               {"group_0": {"weights": {"num_bits": 8, "type": "float", "strategy": "block"}}}}})",
                           R"({"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": true}})"}) {
    const auto refused = stored(text);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), Code::kUnsupported);
  }
}

TEST(ParseStateTest, WhatBitsandbytesWritesIsRead) {
  const auto state = ParseState(
      R"({"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [64, 64], "nested_blocksize": 256, )"
      R"("nested_dtype": "float32", "nested_offset": 0.044})",
      "w");
  ASSERT_TRUE(state) << state.error().ToString();
  EXPECT_EQ(state->shape, (std::vector<std::int64_t>{64, 64}));
  EXPECT_FLOAT_EQ(*state->scale_offset, 0.044F);
  for (const char* damaged :
       {R"({"blocksize": 64})", R"({"blocksize": 0, "shape": [2, 2]})", R"({"blocksize": 64, "shape": [2]})",
        R"({"blocksize": 64, "shape": [-1, 2]})", R"({"blocksize": 64, "shape": [9999999999, 9999999999]})",
        R"({"blocksize": 64, "shape": [2, 2], "nested_offset": 1})", "[]", "x"}) {
    EXPECT_FALSE(ParseState(damaged, "w")) << damaged;
  }
}

}  // namespace
}  // namespace millrace::checkpoint
