#include "millrace/checkpoint/convert/model_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "millrace/base/hash/random.h"
#include "millrace/checkpoint/convert/export.h"
#include "millrace/checkpoint/convert/import.h"
#include "millrace/checkpoint/convert/open_source.h"
#include "millrace/checkpoint/convert/tensors/meta_names.h"
#include "millrace/checkpoint/format/manifest.h"
#include "millrace/checkpoint/save/writer.h"
#include "millrace/checkpoint/testing/thread_group.h"
#include "millrace/engine/config/families.h"
#include "millrace/object/local/memory_store.h"

namespace millrace::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::int64_t kHeads = 4, kKeyHeads = 2, kHeadRows = 6, kHidden = 24;

Json SmallModel(const std::string& type, bool tied = false) {
  return {{"model_type", type},     {"vocab_size", 10},           {"hidden_size", kHidden},
          {"intermediate_size", 5}, {"num_hidden_layers", 2},     {"num_attention_heads", kHeads},
          {"head_dim", kHeadRows},  {"rms_norm_eps", 1e-5},       {"num_key_value_heads", kKeyHeads},
          {"rope_theta", 10000.0},  {"tie_word_embeddings", tied}};
}

/// The shapes of such a model, by Meta's names.
std::map<std::string, std::vector<std::int64_t>> MetaShapes(bool has_head_norms = false) {
  std::map<std::string, std::vector<std::int64_t>> shapes{
      {"tok_embeddings.weight", {10, kHidden}}, {"norm.weight", {kHidden}}, {"output.weight", {10, kHidden}}};
  for (const std::string layer : {"layers.0.", "layers.1."}) {
    shapes[layer + "attention.wq.weight"] = {kHeads * kHeadRows, kHidden};
    shapes[layer + "attention.wk.weight"] = {kKeyHeads * kHeadRows, kHidden};
    shapes[layer + "attention.wv.weight"] = {kKeyHeads * kHeadRows, kHidden};
    shapes[layer + "attention.wo.weight"] = {kHidden, kHeads * kHeadRows};
    shapes[layer + "feed_forward.w1.weight"] = shapes[layer + "feed_forward.w3.weight"] = {5, kHidden};
    shapes[layer + "feed_forward.w2.weight"] = {kHidden, 5};
    shapes[layer + "attention_norm.weight"] = shapes[layer + "ffn_norm.weight"] = {kHidden};
    if (has_head_norms)
      shapes[layer + "attention.q_norm.weight"] = shapes[layer + "attention.k_norm.weight"] = {kHeadRows};
  }
  return shapes;
}

/// A state with tensors of these names and no bytes.
ImportSource StateOfNames(const std::vector<std::string>& names) {
  ImportSource source{.name = "state"};
  for (const std::string& name : names) source.tensors[name] = {DType::kF32, {2, 2}};
  return source;
}
std::vector<std::string> ParameterNamesOf(const Json& config, const std::string& prefix) {
  std::vector<std::string> names;
  for (const std::string& name : (*engine::ParseModelConfig(config, "config"))->Shape().ParameterNames())
    names.push_back(prefix + name);
  return names;
}
std::string RefusalOf(ImportSource source, const Json& config) {
  const Status taken = TakeModel(config, source);
  return taken ? "accepted" : taken.error().ToString();
}

/// Row 2i + p of a head is row i + p · head_dim/2 there.
std::uint64_t MetaRow(std::uint64_t row) {
  const std::uint64_t head = row / kHeadRows * kHeadRows, at = row % kHeadRows, half = kHeadRows / 2;
  return head + 2 * (at % half) + at / half;
}

class ModelStateTest : public ::testing::Test {
 protected:
  /// Saves random tensors as a checkpoint, exports it to another program's file or folder, and imports that.
  Result<std::unique_ptr<Reader>> Through(ForeignFormat format, const std::string& prefix, const Json& config,
                                          const std::map<std::string, std::vector<std::int64_t>>& shapes) {
    const std::string name = fmt::format("state-{}", ++states_);
    Random random(7);
    std::vector<SaveSlice> slices;
    values_.clear();
    for (const auto& [tensor, shape] : shapes) {
      const TensorMeta meta{DType::kF32, shape};
      std::vector<float>& values = values_[tensor];
      values.resize(meta.elements());
      for (float& value : values) value = static_cast<float>(random.Uniform());
      slices.push_back({prefix + tensor, meta, 0, std::as_bytes(std::span(values))});
    }
    auto ranks = testing::ThreadRanks(1);
    Writer::Options options;
    options.url = "s3://bucket/" + name;
    auto writer = MR_TRY(Writer::Open(connection_, ranks.Rank(0), budget_, options));
    MR_TRY(writer->Save(1, slices, DumpJson({{std::string(kMetaValues), {{"epoch", 3}}}})));
    MR_TRY(writer->Wait());
    const auto saved = MR_TRY(Reader::Open(connection_, options.url));
    const std::string to = name + (format == ForeignFormat::kTorch ? ".pt" : "-dcp/");
    MR_TRY(Export(*saved, {store_, to}, budget_, {.format = format}));
    auto source = MR_TRY(OpenSource(connection_, "s3://bucket/" + to, format, {}, {.config = config}));
    notes_ = source.notes;
    MR_TRY(Import(connection_, std::move(source), options.url + "-back", budget_));
    return Reader::Open(connection_, options.url + "-back");
  }
  static std::vector<float> Values(Reader& reader, const std::string& tensor) {
    std::vector<float> values(reader.manifest().tensors.at(tensor).elements());
    EXPECT_TRUE(reader.Read(tensor, 0, std::as_writable_bytes(std::span(values))));
    return values;
  }

  std::shared_ptr<object::Store> store_ = object::MakeMemoryStore();
  testing::StoreConnection connection_{store_};
  MemoryBudget budget_{64 * kMiB};
  std::map<std::string, std::vector<float>> values_;
  std::vector<std::string> notes_;
  int states_ = 0;
};

TEST_F(ModelStateTest, MetasLlamaGetsHuggingFacesNamesAndRows) {
  for (const ForeignFormat format : {ForeignFormat::kTorch, ForeignFormat::kDcp}) {
    for (const char* prefix : {"", "model/"}) {
      const auto model = Through(format, prefix, SmallModel("llama"), MetaShapes());
      ASSERT_TRUE(model) << model.error().ToString();
      const auto& tensors = (*model)->manifest().tensors;
      EXPECT_EQ(tensors.size(), values_.size());
      EXPECT_EQ((*model)->manifest().meta.at(std::string(kMetaModelConfig)), SmallModel("llama"));
      EXPECT_EQ(Values(**model, "model/model.embed_tokens.weight"), values_["tok_embeddings.weight"]);
      EXPECT_EQ(Values(**model, "model/lm_head.weight"), values_["output.weight"]);
      EXPECT_EQ(Values(**model, "model/model.layers.1.mlp.down_proj.weight"),
                values_["layers.1.feed_forward.w2.weight"]);
      EXPECT_EQ(Values(**model, "model/model.layers.1.self_attn.v_proj.weight"),
                values_["layers.1.attention.wv.weight"]);
      for (const auto& [meta, ours, heads] : {std::tuple("wq", "q_proj", kHeads), {"wk", "k_proj", kKeyHeads}}) {
        const auto& from = values_[fmt::format("layers.1.attention.{}.weight", meta)];
        const auto to = Values(**model, fmt::format("model/model.layers.1.self_attn.{}.weight", ours));
        for (std::uint64_t row = 0; row < static_cast<std::uint64_t>(heads * kHeadRows); ++row) {
          for (std::uint64_t column = 0; column < kHidden; ++column)
            ASSERT_EQ(to[row * kHidden + column], from[MetaRow(row) * kHidden + column]) << ours << " row " << row;
        }
      }
      EXPECT_THAT(notes_, ::testing::ElementsAre("plain values beside the model are not imported"));
    }
  }
}

TEST_F(ModelStateTest, TorchtitansQwenKeepsItsRows) {
  auto shapes = MetaShapes(true);
  shapes.erase("output.weight");
  const auto model = Through(ForeignFormat::kDcp, "", SmallModel("qwen3", true), shapes);
  ASSERT_TRUE(model) << model.error().ToString();
  EXPECT_EQ(Values(**model, "model/model.layers.0.self_attn.q_proj.weight"), values_["layers.0.attention.wq.weight"]);
  EXPECT_EQ(Values(**model, "model/model.layers.0.self_attn.k_norm.weight"),
            values_["layers.0.attention.k_norm.weight"]);
}

/// Ranks of FSDP save rows of their own; the boxes of a chunk say where each row comes from.
TEST_F(ModelStateTest, RowsOfAnyChunksAreOrdered) {
  Random random(3);
  for (int round = 0; round < 100; ++round) {
    ImportSource source = StateOfNames({});
    for (const auto& [name, shape] : MetaShapes()) source.tensors[name] = {DType::kF32, shape};
    const std::string tensor = "layers.0.attention.wq.weight";
    constexpr std::uint64_t kRows = kHeads * kHeadRows, kRowBytes = 4 * kHidden;
    for (std::uint64_t row = 0; row < kRows;) {
      const std::uint64_t rows = std::min<std::uint64_t>(1 + random.Below(9), kRows - row);
      source.boxes.push_back({tensor, {{row, 0}, {rows, kHidden}}, "file", row * kRowBytes, {}});
      row += rows;
    }
    ASSERT_TRUE(TakeModel(SmallModel("llama"), source));
    std::map<std::uint64_t, std::uint64_t> from;  // Meta's row, by Hugging Face's
    for (const SourceBox& box : source.boxes) {
      ASSERT_EQ(box.tensor, "model/model.layers.0.self_attn.q_proj.weight");
      ASSERT_EQ(box.strides, (std::vector<std::int64_t>{2 * kHidden, 1}));
      for (std::uint64_t i = 0; i < box.box.lengths[0]; ++i)
        ASSERT_TRUE(from.emplace(box.box.offsets[0] + i, box.offset / kRowBytes + 2 * i).second);
    }
    ASSERT_EQ(from.size(), kRows);
    for (const auto& [row, meta_row] : from) ASSERT_EQ(meta_row, MetaRow(row));
  }
}

TEST_F(ModelStateTest, TheModelIsFoundWhereTrainersPutIt) {
  for (const char* type : {"llama", "gpt2", "bert"}) {
    Json config = {{"model_type", type}};
    if (config["model_type"] == "llama") config = SmallModel("llama");
    const auto plain = ParameterNamesOf(config, "");
    for (const char* prefix :
         {"", "model/", "module.", "state_dict/model.", "app/net._orig_mod.", "model/_fsdp_wrapped_module."}) {
      std::vector<std::string> names = ParameterNamesOf(config, prefix);
      names.push_back("optimizer/state/0/exp_avg");
      ImportSource source = StateOfNames(names);
      ASSERT_EQ(RefusalOf(source, config), "accepted") << type << " below " << prefix;
      ASSERT_TRUE(TakeModel(config, source));
      EXPECT_EQ(source.tensors.size(), plain.size());
      for (const std::string& name : plain) EXPECT_TRUE(source.tensors.contains("model/" + name)) << name;
      ASSERT_EQ(source.notes.size(), 1U);
      EXPECT_THAT(source.notes[0], HasSubstr("1 tensors that are not the model's weights"));
    }
  }
}

TEST_F(ModelStateTest, AnAverageBesideTheModelIsNotTheModel) {
  const Json config = SmallModel("llama");
  auto names = ParameterNamesOf(config, "model/");
  for (const std::string& name : ParameterNamesOf(config, "ema/")) names.push_back(name);
  ImportSource source = StateOfNames(names);
  source.tensors["model/model.norm.weight"] = {DType::kF32, {3}};
  ASSERT_TRUE(TakeModel(config, source));
  EXPECT_EQ(source.tensors.at("model/model.norm.weight").shape, std::vector<std::int64_t>{3});
  names.clear();
  for (const char* prefix : {"student/", "teacher/"}) {
    for (const std::string& name : ParameterNamesOf(config, prefix)) names.push_back(name);
  }
  EXPECT_THAT(RefusalOf(StateOfNames(names), config), HasSubstr("the model twice, below student. and teacher."));
}

TEST_F(ModelStateTest, WhatIsNoSuchModelIsRefusedByName) {
  const Json config = SmallModel("llama");
  auto names = ParameterNamesOf(config, "model/");
  EXPECT_THAT(RefusalOf(StateOfNames({"a", "b/c"}), config), HasSubstr("no weights of the model that --config"));
  names.push_back("model/model.layers.1.self_attn.q_proj.bias");
  EXPECT_THAT(RefusalOf(StateOfNames(names), config),
              AllOf(HasSubstr("layers.1.self_attn.q_proj.bias"), HasSubstr("no place")));
  names.pop_back();
  std::erase(names, "model/model.layers.1.mlp.up_proj.weight");
  EXPECT_THAT(RefusalOf(StateOfNames(names), config),
              HasSubstr("lacks the weight model.model.layers.1.mlp.up_proj.weight"));
  ImportSource source = StateOfNames({});
  for (const auto& [name, shape] : MetaShapes()) source.tensors[name] = {DType::kF32, shape};
  source.tensors["rope.freqs"] = {DType::kF32, {3}};
  EXPECT_EQ(RefusalOf(source, config), "accepted");
  source.tensors["layers.0.attention.wk.weight"].shape[0] = 7;
  EXPECT_THAT(RefusalOf(source, config), HasSubstr("has 7 rows, which are not those of 2 heads"));
  EXPECT_THAT(RefusalOf(source, {{"model_type", "mamba"}}), HasSubstr("mamba"));
}

}  // namespace
}  // namespace millrace::checkpoint
