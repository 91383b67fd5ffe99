#include "millrace/checkpoint/convert/huggingface/adapted_base.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "millrace/base/hash/random.h"
#include "millrace/checkpoint/format/half.h"
#include "millrace/checkpoint/format/manifest.h"
#include "millrace/checkpoint/save/writer.h"
#include "millrace/checkpoint/testing/thread_group.h"
#include "millrace/engine/config/families.h"
#include "millrace/engine/config/frozen_sample.h"
#include "millrace/object/local/memory_store.h"

namespace millrace::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// A weight as the model has it: [out, in].
struct ModelWeight {
  std::vector<std::int64_t> shape;
  std::vector<float> values;
};
using ModelWeights = std::map<std::string, ModelWeight>;

const Json kGpt2{{"model_type", "gpt2"}, {"vocab_size", 11}, {"n_embd", 8},      {"n_inner", 12},
                 {"n_layer", 2},         {"n_head", 2},      {"n_positions", 6}, {"torch_dtype", "float32"}};

ModelWeights RandomGpt2(std::uint64_t seed) {
  std::map<std::string, std::vector<std::int64_t>> shapes{{"wte.weight", {11, 8}}, {"wpe.weight", {6, 8}}};
  for (const std::string norm : {"h.0.ln_1.", "h.0.ln_2.", "h.1.ln_1.", "h.1.ln_2.", "ln_f."})
    shapes[norm + "weight"] = shapes[norm + "bias"] = {8};
  for (const std::string block : {"h.0.", "h.1."}) {
    const std::pair<const char*, std::pair<std::int64_t, std::int64_t>> layers[] = {
        {"attn.c_attn", {24, 8}}, {"attn.c_proj", {8, 8}}, {"mlp.c_fc", {12, 8}}, {"mlp.c_proj", {8, 12}}};
    for (const auto& [layer, sizes] : layers) {
      shapes[block + layer + ".weight"] = {sizes.first, sizes.second};
      shapes[block + layer + ".bias"] = {sizes.first};
    }
  }
  Random random(seed);
  ModelWeights weights;
  for (const auto& [name, shape] : shapes) {
    ModelWeight& weight = weights["transformer." + name] = {shape, {}};
    weight.values.resize(TensorMeta{DType::kF32, shape}.elements());
    for (float& value : weight.values) value = static_cast<float>(random.Uniform() - 0.5);
  }
  return weights;
}

std::string FingerprintOf(const ModelWeights& weights, bool rounded) {
  std::uint64_t sum = 0;
  for (const auto& [name, weight] : weights) {
    for (const engine::SampledElement& element : engine::SampleWeight(name, weight.values.size())) {
      const float value = weight.values[element.place];
      sum += element.Hash(rounded ? Bf16ToFloat(FloatToBf16(value)) : value);
    }
  }
  return fmt::format("{:016x}", sum);
}

class AdaptedBaseTest : public ::testing::Test {
 protected:
  std::unique_ptr<Reader> Save(const std::string& run, const ModelWeights& weights, const Json& meta) {
    std::vector<SaveSlice> slices;
    for (const auto& [name, weight] : weights)
      slices.push_back({name, {DType::kF32, weight.shape}, 0, std::as_bytes(std::span(weight.values))});
    auto ranks = testing::ThreadRanks(1);
    Writer::Options options;
    options.url = "s3://bucket/" + run;
    auto writer = Writer::Open(connection_, ranks.Rank(0), budget_, options).value();
    EXPECT_TRUE(writer->Save(1, slices, DumpJson(meta)));
    EXPECT_TRUE(writer->Wait());
    return Reader::Open(connection_, options.url).value();
  }
  /// Saves a model. Imported ones have the matrices of blocks as Hugging Face's files do: [in, out].
  std::unique_ptr<Reader> SaveBase(const std::string& run, const ModelWeights& weights, bool imported) {
    ModelWeights stored;
    Json transposed = Json::array();
    for (const auto& [name, weight] : weights) {
      ModelWeight& to = stored["model/" + name] = weight;
      if (!name.contains(".h.") || weight.shape.size() != 2) continue;
      transposed.push_back(name);
      if (!imported) continue;
      const std::int64_t out = weight.shape[0], in = weight.shape[1];
      to.shape = {in, out};
      for (std::int64_t i = 0; i < out * in; ++i)
        to.values[static_cast<std::size_t>(i % in * out + i / in)] = weight.values[static_cast<std::size_t>(i)];
    }
    Json meta{{std::string(kMetaModelConfig), kGpt2}};
    if (!imported) meta[std::string(kMetaTransposed)] = transposed;
    return Save(run, stored, meta);
  }
  std::unique_ptr<Reader> SaveAdapter(const std::string& run, const std::string& fingerprint, const Json& config,
                                      const ModelWeights& whole = {}) {
    ModelWeights stored{{"adapter/base_model.model.transformer.h.0.attn.c_attn.lora_A.weight", {{1, 1}, {1}}}};
    for (const auto& [name, weight] : whole) stored["adapter/base_model.model." + name] = weight;
    Json meta{{std::string(kMetaModelConfig), config}};
    if (!fingerprint.empty()) meta["train"] = {{"base_fingerprint", fingerprint}};
    return Save(run, stored, meta);
  }

  std::shared_ptr<object::Store> store_ = object::MakeMemoryStore();
  testing::StoreConnection connection_{store_};
  MemoryBudget budget_{64 * kMiB};
};

TEST_F(AdaptedBaseTest, TheRunsModelIsKnownHoweverItIsStored) {
  const ModelWeights weights = RandomGpt2(3);
  for (const bool imported : {false, true}) {
    const auto base = SaveBase(imported ? "folder" : "run", weights, imported);
    for (const char* dtype : {"float32", "bfloat16"}) {
      Json config = kGpt2;
      config["torch_dtype"] = dtype;
      const std::string name = fmt::format("adapter-{}-{}", imported, dtype);
      const auto adapter = SaveAdapter(name, FingerprintOf(weights, config["torch_dtype"] == "bfloat16"), config);
      const Status same = CheckAdaptedBase(*adapter, *base, nullptr);
      EXPECT_TRUE(same) << name << ": " << same.error().ToString();
    }
  }
}

TEST_F(AdaptedBaseTest, AnotherModelIsRefusedWithBothNames) {
  const ModelWeights weights = RandomGpt2(3);
  const auto adapter = SaveAdapter("adapter", FingerprintOf(weights, false), kGpt2);
  ModelWeights tuned = weights;
  for (float& value : tuned["transformer.h.1.mlp.c_fc.weight"].values) value += 0.001F;
  const Status refused = CheckAdaptedBase(*adapter, *SaveBase("tuned", tuned, true), nullptr);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kPreconditionFailed);
  EXPECT_THAT(refused.error().ToString(),
              AllOf(HasSubstr("/adapter/step-00000001"), HasSubstr("other weights than those of"),
                    HasSubstr("/tuned/step-00000001"), HasSubstr("--base")));
  ModelWeights shorter = weights;
  shorter.erase("transformer.h.1.ln_2.bias");
  EXPECT_THAT(CheckAdaptedBase(*adapter, *SaveBase("shorter", shorter, true), nullptr).error().ToString(),
              HasSubstr("lacks the weight transformer.h.1.ln_2.bias"));
}

TEST_F(AdaptedBaseTest, WeightsThatTheAdapterHasWholeWereNotFrozen) {
  ModelWeights weights = RandomGpt2(3), frozen = weights, whole;
  whole.insert(frozen.extract("transformer.ln_f.weight"));
  const auto adapter = SaveAdapter("adapter", FingerprintOf(frozen, false), kGpt2, whole);
  for (float& value : weights["transformer.ln_f.weight"].values) value += 1;
  EXPECT_TRUE(CheckAdaptedBase(*adapter, *SaveBase("base", weights, false), nullptr));
}

TEST_F(AdaptedBaseTest, AdaptersOfWhichNothingIsKnownAreTaken) {
  const auto base = SaveBase("base", RandomGpt2(3), true);
  EXPECT_TRUE(CheckAdaptedBase(*SaveAdapter("peft", "", kGpt2), *base, nullptr));
  Json quantized = {{std::string(kMetaModelConfig), kGpt2},
                    {"train", {{"base_fingerprint", "0000000000000000"}, {"base_quantization", "nf4"}}}};
  EXPECT_TRUE(CheckAdaptedBase(*Save("nf4", {{"adapter/x", {{1}, {1}}}}, quantized), *base, nullptr));
}

}  // namespace
}  // namespace millrace::checkpoint
