#include "millrace/checkpoint/convert/huggingface/adapter_merge.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "millrace/checkpoint/format/safetensors.h"
#include "millrace/checkpoint/read/open_safetensors.h"
#include "millrace/checkpoint/testing/thread_group.h"
#include "millrace/engine/config/peft_config.h"
#include "millrace/object/blocking.h"
#include "millrace/object/local/memory_store.h"

namespace millrace::checkpoint {
namespace {

using ::testing::HasSubstr;

constexpr std::uint64_t kOut = 6, kIn = 5, kRank = 2;

struct Matrix {
  std::vector<std::int64_t> shape;
  std::vector<float> values;
};
Matrix Noise(std::int64_t rows, std::int64_t columns, float step) {
  Matrix matrix{{rows, columns}, {}};
  for (std::int64_t i = 0; i < rows * columns; ++i)
    matrix.values.push_back(step * static_cast<float>((i * 37) % 19 - 9));
  return matrix;
}

class AdapterMergeTest : public ::testing::Test {
 protected:
  /// Writes float32 tensors as a folder's model.safetensors, and opens it.
  std::unique_ptr<Reader> Folder(const std::string& name, const std::map<std::string, Matrix>& tensors) {
    std::vector<SafetensorsEntry> entries;
    std::string body;
    for (const auto& [tensor, matrix] : tensors) {
      entries.push_back({.name = tensor, .meta = {.dtype = DType::kF32, .shape = matrix.shape}});
      body.append(reinterpret_cast<const char*>(matrix.values.data()), matrix.values.size() * sizeof(float));
    }
    const std::string header = MakeSafetensorsHeader(entries, {});
    EXPECT_TRUE(object::Put(*store_, name + "/model.safetensors", AsBytes(header + body)));
    return OpenSafetensors(connection_, "s3://bucket/" + name).value();
  }
  static Json Config(engine::LoraOptions options = {.rank = kRank, .alpha = 3}, bool transposed = false) {
    return engine::PeftConfig(options, {.transposed = transposed});
  }
  std::string Refusal(const std::map<std::string, Matrix>& base, const std::map<std::string, Matrix>& adapter,
                      const Json& config) {
    auto b = Folder(fmt::format("base-{}", ++folders_), base), a = Folder(fmt::format("adapter-{}", folders_), adapter);
    const auto merge = AdapterMerge::Open(*a, config, *b);
    return merge ? "accepted" : merge.error().ToString();
  }

  std::shared_ptr<object::Store> store_ = object::MakeMemoryStore();
  testing::StoreConnection connection_{store_};
  int folders_ = 0;
};

TEST_F(AdapterMergeTest, AddsTheProductInAnyPieces) {
  const Matrix a = Noise(kRank, kIn, 0.25F), b = Noise(kOut, kRank, 0.5F);
  for (const bool transposed : {false, true}) {
    const Matrix w = transposed ? Noise(kIn, kOut, 1) : Noise(kOut, kIn, 1);
    auto base = Folder(fmt::format("base-{}", transposed), {{"h.q.weight", w}, {"h.k.weight", w}});
    auto adapter = Folder(
        fmt::format("adapter-{}", transposed),
        {{"base_model.model.transformer.h.q.lora_A.weight", a}, {"base_model.model.transformer.h.q.lora_B.weight", b}});
    const auto merge = AdapterMerge::Open(*adapter, Config({.rank = kRank, .alpha = 3}, transposed), *base);
    ASSERT_TRUE(merge) << merge.error().ToString();
    EXPECT_EQ(merge->tensors(), 1u);
    std::vector<float> want = w.values;
    for (std::uint64_t i = 0; i < kOut; ++i) {
      for (std::uint64_t j = 0; j < kIn; ++j) {
        float sum = 0;
        for (std::uint64_t k = 0; k < kRank; ++k) sum += b.values[i * kRank + k] * a.values[k * kIn + j];
        want[transposed ? j * kOut + i : i * kIn + j] += 1.5F * sum;  // exact: all are small multiples of 1/16
      }
    }
    for (std::uint64_t piece = 1; piece <= want.size(); ++piece) {
      std::vector<float> got = w.values;
      for (std::uint64_t first = 0; first < got.size(); first += piece) {
        const std::uint64_t count = std::min(piece, got.size() - first);
        merge->Apply("model/h.q.weight", first, std::as_writable_bytes(std::span(got).subspan(first, count)));
      }
      ASSERT_EQ(got, want) << "in pieces of " << piece;
    }
    std::vector<float> other = w.values;
    merge->Apply("model/h.k.weight", 0, std::as_writable_bytes(std::span(other)));
    EXPECT_EQ(other, w.values) << "has no adapter";
  }
}

TEST_F(AdapterMergeTest, MagnitudesAreTheNormsOfTheSumsRows) {
  const Matrix a = Noise(kRank, kIn, 0.25F), b = Noise(kOut, kRank, 0.5F), magnitudes{{kOut}, {1, 2, 3, 4, 5, 6}};
  for (const bool transposed : {false, true}) {
    const Matrix w = transposed ? Noise(kIn, kOut, 1) : Noise(kOut, kIn, 1);
    auto base = Folder(fmt::format("base-{}", transposed), {{"q.weight", w}});
    const engine::LoraOptions plain{.rank = kRank, .alpha = 3}, dora{.rank = kRank, .alpha = 3, .dora = true};
    const auto merged = [&](const engine::LoraOptions& options) {
      std::map<std::string, Matrix> tensors{{"base_model.model.q.lora_A.weight", a},
                                            {"base_model.model.q.lora_B.weight", b}};
      if (options.dora) tensors.emplace("base_model.model.q.lora_magnitude_vector", magnitudes);
      const auto adapter = Folder(fmt::format("adapter-{}-{}", transposed, options.dora), tensors);
      const auto merge = AdapterMerge::Open(*adapter, Config(options, transposed), *base).value();
      std::vector<float> got = w.values;
      for (std::uint64_t first = 0; first < got.size(); first += 7) {
        const std::uint64_t count = std::min<std::uint64_t>(7, got.size() - first);
        merge.Apply("model/q.weight", first, std::as_writable_bytes(std::span(got).subspan(first, count)));
      }
      return got;
    };
    const std::vector<float> sums = merged(plain), scaled = merged(dora);
    for (std::uint64_t i = 0; i < kOut; ++i) {
      const auto at = [&](std::uint64_t j) { return transposed ? j * kOut + i : i * kIn + j; };
      double squares = 0;
      for (std::uint64_t j = 0; j < kIn; ++j) squares += sums[at(j)] * sums[at(j)];
      for (std::uint64_t j = 0; j < kIn; ++j) {
        EXPECT_NEAR(scaled[at(j)], sums[at(j)] * magnitudes.values[i] / std::sqrt(squares), 1e-5) << i << ", " << j;
      }
    }
  }
}

TEST_F(AdapterMergeTest, WholeWeightsReplaceTheModels) {
  const Matrix a = Noise(kRank, kIn, 0.25F), b = Noise(kOut, kRank, 0.5F), head = Noise(2, kIn, 3);
  auto base = Folder("base", {{"q.weight", Noise(kOut, kIn, 1)}, {"classifier.weight", Noise(2, kIn, 1)}});
  auto adapter = Folder("adapter", {{"base_model.model.q.lora_A.weight", a},
                                    {"base_model.model.q.lora_B.weight", b},
                                    {"base_model.model.classifier.weight", head}});
  const auto merge = AdapterMerge::Open(*adapter, Config(), *base);
  ASSERT_TRUE(merge) << merge.error().ToString();
  std::vector<float> got(2 * kIn);
  merge->Apply("model/classifier.weight", 0, std::as_writable_bytes(std::span(got)));
  EXPECT_EQ(got, head.values);
}

TEST_F(AdapterMergeTest, WhatDoesNotFitIsNamed) {
  const Matrix w = Noise(kOut, kIn, 1), a = Noise(kRank, kIn, 1), b = Noise(kOut, kRank, 1);
  const std::string down = "base_model.model.q.lora_A.weight", up = "base_model.model.q.lora_B.weight";
  EXPECT_THAT(Refusal({{"k.weight", w}}, {{down, a}, {up, b}}, Config()),
              HasSubstr("the model has no weight q.weight"));
  const std::string head = "base_model.model.lm_head.lora_A.weight";
  EXPECT_THAT(Refusal({{"q.weight", w}}, {{head, a}}, Config()), HasSubstr("a merge would change both"));
  EXPECT_EQ(Refusal({{"q.weight", w}}, {{down, a}, {up, b}, {"base_model.model.q.base_layer.weight", w}}, Config()),
            "accepted");
  EXPECT_THAT(Refusal({{"q.weight", w}}, {{down, a}}, Config()), HasSubstr("has no model/base_model.model.q.lora_B"));
  EXPECT_THAT(Refusal({{"q.weight", w}}, {{down, a}, {up, b}}, Config({.rank = kRank, .dora = true})),
              HasSubstr("lora_magnitude_vector [6], which use_dora asks for"));
  EXPECT_THAT(Refusal({{"q.weight", w}}, {{down, a}, {up, b}}, Config({.rank = 3})), HasSubstr("no pair of rank 3"));
  EXPECT_THAT(Refusal({{"q.weight", Noise(kIn, kOut, 1)}}, {{down, a}, {up, b}}, Config()),
              HasSubstr("model/q.weight is [5, 6], but"));
  EXPECT_THAT(Refusal({{"q.weight", w}}, {{"other", a}}, Config()), HasSubstr("has other, which is no tensor of an"));
  EXPECT_THAT(Refusal({{"q.weight", w}}, {{up, b}}, Config()), HasSubstr("and no model/base_model.model.q.lora_A"));
  EXPECT_THAT(Refusal({{"q.weight", w}},
                      {{down, a}, {up, b}, {"base_model.model.q.lora_magnitude_vector", Noise(kOut, 1, 1)}}, Config()),
              HasSubstr("has no use_dora"));
  EXPECT_THAT(Refusal({{"q.weight", w}},
                      {{down, a}, {up, b}, {"base_model.model.q.base_layer.weight", Noise(kOut, kIn, 2)}}, Config()),
              HasSubstr("q.base_layer.weight, which is not the base model's weight q.weight"));
}

TEST_F(AdapterMergeTest, TheEmbeddingOfATiedModelIsNotReplaced) {
  const Matrix table = Noise(kOut, kIn, 1);
  for (const bool tied : {false, true}) {
    const std::string name = fmt::format("tied-{}", tied);
    const Json config = {{"model_type", "llama"},      {"vocab_size", kOut},     {"hidden_size", 4},
                         {"intermediate_size", 4},     {"num_hidden_layers", 1}, {"num_attention_heads", 1},
                         {"tie_word_embeddings", tied}};
    ASSERT_TRUE(object::Put(*store_, name + "/config.json", AsBytes(DumpJson(config))));
    const auto base = Folder(name, {{"model.embed_tokens.weight", table}});
    const auto adapter =
        Folder(name + "-adapter", {{"base_model.model.model.embed_tokens.weight", Noise(kOut, kIn, 2)}});
    const auto merge = AdapterMerge::Open(*adapter, Config(), *base);
    EXPECT_EQ(merge.has_value(), !tied);
    if (tied) {
      EXPECT_THAT(merge.error().ToString(), HasSubstr("model.embed_tokens.weight for the embedding alone"));
    }
  }
}

}  // namespace
}  // namespace millrace::checkpoint
