// Models that are exported to GGUF files and imported again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "millrace/base/hash/random.h"
#include "millrace/checkpoint/convert/export.h"
#include "millrace/checkpoint/convert/huggingface/hf_tokenizer.h"
#include "millrace/checkpoint/convert/import.h"
#include "millrace/checkpoint/convert/open_source.h"
#include "millrace/checkpoint/gguf/gguf_byte_level.h"
#include "millrace/checkpoint/gguf/gguf_header.h"
#include "millrace/checkpoint/gguf/gguf_model.h"
#include "millrace/checkpoint/read/gguf_reader.h"
#include "millrace/checkpoint/read/model_source.h"
#include "millrace/checkpoint/save/save_slice.h"
#include "millrace/checkpoint/save/writer.h"
#include "millrace/checkpoint/testing/random_state.h"
#include "millrace/checkpoint/testing/thread_group.h"
#include "millrace/engine/config/families.h"
#include "millrace/object/blocking.h"
#include "millrace/object/local/memory_store.h"

namespace millrace::checkpoint {
namespace {

using ::testing::HasSubstr;

const Json kLlama{{"model_type", "llama"},
                  {"architectures", {"LlamaForCausalLM"}},
                  {"vocab_size", 37},
                  {"hidden_size", 64},
                  {"intermediate_size", 96},
                  {"num_hidden_layers", 2},
                  {"num_attention_heads", 4},
                  {"num_key_value_heads", 2},
                  {"head_dim", 16},
                  {"max_position_embeddings", 128},
                  {"rms_norm_eps", 1e-5},
                  {"rope_theta", 500000.0},
                  {"tie_word_embeddings", false}};

class GgufTest : public ::testing::Test {
 protected:
  /// Saves float tensors with these shapes, by name behind "model/".
  void Save(const Json& config, const std::map<std::string, std::vector<std::int64_t>>& shapes, Json meta = {},
            std::uint64_t step = 1) {
    Random random(5);
    meta[std::string(kMetaModelConfig)] = config;
    std::vector<SaveSlice> slices;
    for (const auto& [name, shape] : shapes) {
      const TensorMeta tensor{DType::kF32, shape};
      std::vector<float>& values = values_["model/" + name];
      values.resize(tensor.elements());
      for (float& value : values) value = static_cast<float>(random.Uniform() - 0.5);
      slices.push_back({"model/" + name, tensor, 0, std::as_bytes(std::span(values))});
    }
    auto ranks = testing::ThreadRanks(1);
    Writer::Options options;
    options.url = "s3://bucket/run";
    auto writer = Writer::Open(connection_, ranks.Rank(0), budget_, options).value();
    ASSERT_TRUE(writer->Save(step, slices, DumpJson(meta)));
    ASSERT_TRUE(writer->Wait());
  }
  void SaveLlama() {
    std::map<std::string, std::vector<std::int64_t>> shapes{
        {"model.embed_tokens.weight", {37, 64}}, {"model.norm.weight", {64}}, {"lm_head.weight", {37, 64}}};
    for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
      shapes[layer + "input_layernorm.weight"] = shapes[layer + "post_attention_layernorm.weight"] = {64};
      shapes[layer + "self_attn.q_proj.weight"] = shapes[layer + "self_attn.o_proj.weight"] = {64, 64};
      shapes[layer + "self_attn.k_proj.weight"] = shapes[layer + "self_attn.v_proj.weight"] = {32, 64};
      shapes[layer + "mlp.gate_proj.weight"] = shapes[layer + "mlp.up_proj.weight"] = {96, 64};
      shapes[layer + "mlp.down_proj.weight"] = {64, 96};
    }
    Save(kLlama, shapes);
  }
  Result<ExportResult> ExportTo(const std::string& key, std::optional<GgmlType> type) {
    auto reader = MR_TRY(Reader::Open(connection_, "s3://bucket/run"));
    return Export(*reader, {store_, key}, budget_, {.format = ForeignFormat::kGguf, .gguf_type = type});
  }
  Result<std::unique_ptr<Reader>> ImportFrom(const std::string& key, const std::string& run) {
    const std::string url = "s3://bucket/" + key;
    auto source = MR_TRY(OpenSource(connection_, url, MR_TRY(DetectForeignFormat(connection_, url))));
    MR_TRY(Import(connection_, std::move(source), run, budget_, {}));
    return Reader::Open(connection_, run);
  }
  static std::vector<float> Values(Reader& reader, const std::string& tensor) {
    const TensorMeta& meta = reader.manifest().tensors.at(tensor);
    Buffer bytes(meta.bytes());
    EXPECT_TRUE(reader.Read(tensor, 0, bytes.span()));
    std::vector<float> values(meta.elements());
    const GgmlType type = meta.dtype == DType::kF32   ? GgmlType::kF32
                          : meta.dtype == DType::kF16 ? GgmlType::kF16
                                                      : GgmlType::kBF16;
    Dequantize(type, bytes, values);
    return values;
  }
  /// The values of a tensor whose rows went through `type`.
  static std::vector<float> Rounded(const std::vector<float>& values, GgmlType type) {
    Buffer blocks(values.size() / BlockElements(type) * BlockBytes(type));
    std::vector<float> rounded(values.size());
    Quantize(type, values, blocks.span());
    Dequantize(type, blocks, rounded);
    return rounded;
  }

  std::shared_ptr<object::Store> store_ = object::MakeMemoryStore();
  testing::StoreConnection connection_{store_};
  MemoryBudget budget_{64 * kMiB};
  std::map<std::string, std::vector<float>> values_;
};

TEST_F(GgufTest, ALlamaComesBackInEveryType) {
  SaveLlama();
  for (const GgmlType type : {GgmlType::kF32, GgmlType::kF16, GgmlType::kBF16, GgmlType::kQ8_0, GgmlType::kQ4_0}) {
    const std::string name(GgmlTypeName(type));
    const auto exported = ExportTo(name + ".gguf", type);
    ASSERT_TRUE(exported) << exported.error().ToString();
    auto imported = ImportFrom(name + ".gguf", "s3://bucket/" + name);
    ASSERT_TRUE(imported) << imported.error().ToString();
    ASSERT_EQ((*imported)->manifest().tensors.size(), values_.size());
    auto model = ModelSource::Open(connection_, "s3://bucket/" + name + ".gguf", std::nullopt, {});
    ASSERT_TRUE(model) << model.error().ToString();
    for (const auto& [tensor, values] : values_) {
      const TensorMeta& meta = (*imported)->manifest().tensors.at(tensor);
      const GgmlType stored = meta.shape.size() == 1 ? GgmlType::kF32 : type;
      EXPECT_EQ(meta.dtype, StoredType(stored)) << tensor;
      EXPECT_TRUE(Values(**imported, tensor) == Rounded(values, stored)) << name << " " << tensor;
      EXPECT_TRUE(Values(model->reader(), tensor) == Rounded(values, stored)) << name << " " << tensor;
    }
    const Json& config = (*imported)->manifest().meta.at(std::string(kMetaModelConfig));
    for (const auto& [key, value] : kLlama.items()) EXPECT_EQ(DumpJson(config.at(key)), DumpJson(value)) << key;
  }
}

/// A rank reads only its part of a tensor: rows, columns, or a run of elements.
TEST_F(GgufTest, PartsOfTensorsAreReadAlone) {
  SaveLlama();
  ASSERT_TRUE(ExportTo("m.gguf", GgmlType::kQ8_0));
  auto model = ModelSource::Open(connection_, "s3://bucket/m.gguf", std::nullopt, {}).value();
  Random random(11);
  for (int i = 0; i < 200; ++i) {
    const std::string tensor =
        std::string("model/model.layers.1.") + (i % 2 == 0 ? "self_attn.q_proj.weight" : "mlp.down_proj.weight");
    const std::uint64_t rows = 64, columns = i % 2 == 0 ? 64 : 96;
    const std::uint64_t row = random.Below(rows), column = random.Below(columns);
    const std::uint64_t height = 1 + random.Below(rows - row), width = 1 + random.Below(columns - column);
    const std::uint64_t begin = random.Below(height * width), count = 1 + random.Below(height * width - begin);
    std::vector<float> part(count);
    const std::span<float> into(part);
    ASSERT_TRUE(model.reader().ReadMany({{tensor,
                                          begin,
                                          {reinterpret_cast<std::byte*>(into.data()), into.size_bytes()},
                                          {{row, column}, {height, width}}}}));
    const std::vector<float> whole = Rounded(values_[tensor], GgmlType::kQ8_0);
    for (std::uint64_t k = 0; k < count; ++k) {
      const std::uint64_t r = row + (begin + k) / width, c = column + (begin + k) % width;
      ASSERT_EQ(part[k], whole[r * columns + c]);
    }
  }
}

/// Linear layers of GPT-2 are transposed in Hugging Face's folders, and not in checkpoints of a run or GGUF files.
TEST_F(GgufTest, AGpt2ComesBackWhicheverWayItIsStored) {
  const Json config{{"model_type", "gpt2"}, {"vocab_size", 37}, {"n_embd", 32},      {"n_inner", 64},
                    {"n_layer", 1},         {"n_head", 2},      {"n_positions", 16}, {"layer_norm_epsilon", 1e-5}};
  for (const bool run : {false, true}) {
    const auto matrix = [&](std::int64_t in, std::int64_t out) {
      return run ? std::vector<std::int64_t>{out, in} : std::vector<std::int64_t>{in, out};
    };
    std::map<std::string, std::vector<std::int64_t>> shapes{{"transformer.wte.weight", {37, 32}},
                                                            {"transformer.wpe.weight", {16, 32}},
                                                            {"transformer.h.0.attn.c_attn.weight", matrix(32, 96)},
                                                            {"transformer.h.0.attn.c_proj.weight", matrix(32, 32)},
                                                            {"transformer.h.0.mlp.c_fc.weight", matrix(32, 64)},
                                                            {"transformer.h.0.mlp.c_proj.weight", matrix(64, 32)},
                                                            {"transformer.h.0.attn.c_attn.bias", {96}},
                                                            {"transformer.h.0.attn.c_proj.bias", {32}},
                                                            {"transformer.h.0.mlp.c_fc.bias", {64}},
                                                            {"transformer.h.0.mlp.c_proj.bias", {32}}};
    for (const std::string norm : {"h.0.ln_1.", "h.0.ln_2.", "ln_f."}) {
      shapes["transformer." + norm + "weight"] = shapes["transformer." + norm + "bias"] = {32};
    }
    Json transposed = Json::array();
    for (const char* name : {"attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"})
      transposed.push_back(fmt::format("transformer.h.0.{}.weight", name));
    values_.clear();
    Save(config, shapes, run ? Json{{std::string(kMetaTransposed), transposed}} : Json::object(), run ? 2 : 1);
    ASSERT_TRUE(ExportTo("m.gguf", GgmlType::kQ8_0));
    auto imported = ImportFrom("m.gguf", run ? "s3://bucket/from-run" : "s3://bucket/from-folder").value();
    EXPECT_EQ(imported->manifest().meta.at(std::string(kMetaTransposed)).size(), 4u);
    EXPECT_EQ(imported->manifest().tensors.at("model/transformer.wpe.weight").dtype, DType::kF32);
    for (const auto& [tensor, shape] : shapes) {
      const std::vector<float> got = Values(*imported, "model/" + tensor);
      std::vector<float> want = values_["model/" + tensor];
      const bool is_linear = shape.size() == 2 && tensor.find(".h.") != tensor.npos;
      if (is_linear && !run) {
        std::vector<float> turned;
        for (std::int64_t c = 0; c < shape[1]; ++c) {
          for (std::int64_t r = 0; r < shape[0]; ++r)
            turned.push_back(want[static_cast<std::size_t>(r * shape[1] + c)]);
        }
        want = turned;
      }
      if (shape.size() == 2 && tensor != "transformer.wpe.weight") want = Rounded(want, GgmlType::kQ8_0);
      EXPECT_TRUE(got == want) << tensor << run;
    }
    EXPECT_EQ(imported->manifest().meta.at(std::string(kMetaModelConfig)).at("tie_word_embeddings"), true);
  }
}

/// A tokenizer whose tokens are the letters from a to z, two more, and special ones behind them.
std::map<std::string, std::string> LetterTokenizer() {
  std::vector<std::string> tokens;
  for (char letter = 'a'; letter <= 'z'; ++letter) tokens.emplace_back(1, letter);
  tokens.insert(tokens.end(), {"ab", "abc", "<s>", "</s>"});
  std::vector<std::int64_t> types(tokens.size(), 1);
  types[28] = types[29] = 3;
  return *ByteLevelFilesOf({.metadata = {{"tokenizer.ggml.pre", std::string("llama-bpe")},
                                         {"tokenizer.ggml.tokens", tokens},
                                         {"tokenizer.ggml.token_type", types},
                                         {"tokenizer.ggml.merges", std::vector<std::string>{"a b", "ab c"}},
                                         {"tokenizer.ggml.bos_token_id", std::int64_t{28}},
                                         {"tokenizer.ggml.eos_token_id", std::int64_t{29}},
                                         {"tokenizer.ggml.add_bos_token", true}}});
}

TEST_F(GgufTest, AByteLevelTokenizerComesBack) {
  SaveLlama();
  const auto files = LetterTokenizer();
  auto reader = Reader::Open(connection_, "s3://bucket/run").value();
  const auto with = Export(*reader, {store_, "m.gguf"}, budget_, {.format = ForeignFormat::kGguf, .files = files});
  ASSERT_TRUE(with) << with.error().ToString();
  EXPECT_THAT(with->notes, ::testing::IsEmpty());
  // Where a model is loaded, where it is imported, and where it is written to a folder.
  const auto model = ModelSource::Open(connection_, "s3://bucket/m.gguf", std::nullopt, {}).value();
  EXPECT_EQ(*model.File("tokenizer.json", kMiB), files.at("tokenizer.json"));
  EXPECT_EQ(*model.File("tokenizer.model", kMiB), std::nullopt);
  const auto imported = ImportFrom("m.gguf", "s3://bucket/imported").value();
  for (const auto& [name, text] : files) {
    std::string kept(text.size(), '\0');
    ASSERT_EQ(imported->manifest().tensors.at(std::string(kFilesGroup) + name).bytes(), text.size());
    ASSERT_TRUE(imported->Read(std::string(kFilesGroup) + name, 0, AsWritableBytes(kept)));
    EXPECT_EQ(kept, text);
  }
  EXPECT_EQ(*TokenizerFilesAt(connection_, "s3://bucket/m.gguf", {}), files);

  // What llama.cpp would read as another tokenizer is left out, with a reason.
  auto other = files;
  const std::size_t at = other["tokenizer.json"].find("\"ignore_merges\":true");
  other["tokenizer.json"].replace(at, 20, "\"ignore_merges\":false");
  const auto without = Export(*reader, {store_, "n.gguf"}, budget_, {.format = ForeignFormat::kGguf, .files = other});
  ASSERT_TRUE(without);
  EXPECT_THAT(without->notes, ::testing::ElementsAre(HasSubstr("ignore_merges")));
  const auto bare = ModelSource::Open(connection_, "s3://bucket/n.gguf", std::nullopt, {}).value();
  EXPECT_THAT(bare.File("tokenizer.json", kMiB).error().ToString(), HasSubstr("no tokenizer"));
}

TEST_F(GgufTest, Llama31sScalingOfPositionsComesBack) {
  Json config = kLlama;
  config["head_dim"] = 128;  // as Llama 3.1's
  config["rope_scaling"] = {{"rope_type", "llama3"},
                            {"factor", 8.0},
                            {"low_freq_factor", 1.0},
                            {"high_freq_factor", 4.0},
                            {"original_max_position_embeddings", 8192}};
  Save(config, {{"model.embed_tokens.weight", {37, 64}}, {"model.norm.weight", {64}}, {"lm_head.weight", {37, 64}}});
  ASSERT_TRUE(ExportTo("m.gguf", std::nullopt));
  auto model = ModelSource::Open(connection_, "s3://bucket/m.gguf", std::nullopt, {});
  ASSERT_TRUE(model) << model.error().ToString();
  const Json& read = model->reader().manifest().meta.at(std::string(kMetaModelConfig));
  EXPECT_EQ(DumpJson(read.at("rope_scaling")), DumpJson(config["rope_scaling"]));
  EXPECT_TRUE(engine::ParseModelConfig(read, "m.gguf"));
  EXPECT_EQ(model->reader().manifest().tensors.count("model/rope_freqs.weight"), 0u);

  // Other factors are refused, unless the user gives the configuration.
  std::string file = (*object::GetAll(*store_, "m.gguf", kMiB))->bytes;
  const auto header = **ParseGgufHeader(file, file.size(), "m.gguf");
  const auto factors = std::ranges::find(header.tensors, "rope_freqs.weight", &GgufTensor::name);
  ASSERT_NE(factors, header.tensors.end());
  const float other = 5;
  std::memcpy(file.data() + factors->offset, &other, sizeof other);
  ASSERT_TRUE(object::Put(*store_, "other.gguf", AsBytes(file)));
  EXPECT_THAT(ImportFrom("other.gguf", "s3://bucket/other").error().ToString(), HasSubstr("--config"));
  const std::string url = "s3://bucket/other.gguf";
  EXPECT_TRUE(OpenSource(connection_, url, ForeignFormat::kGguf, {}, {.config = config}));
}

TEST_F(GgufTest, AFactorOfPositionsWithoutATypeScalesLinearly) {
  Json config = kLlama;
  config["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 4.0}};
  Save(config, {{"model.embed_tokens.weight", {37, 64}}, {"model.norm.weight", {64}}, {"lm_head.weight", {37, 64}}});
  ASSERT_TRUE(ExportTo("m.gguf", std::nullopt));
  std::string file = (*object::GetAll(*store_, "m.gguf", kMiB))->bytes;
  constexpr std::string_view kType = "llama.rope.scaling.type";
  ASSERT_NE(file.find(kType), file.npos);
  file.replace(file.find(kType), kType.size(), "other.rope.scaling.type");  // of another architecture
  ASSERT_TRUE(object::Put(*store_, "untyped.gguf", AsBytes(file)));
  const auto model = ModelSource::Open(connection_, "s3://bucket/untyped.gguf", std::nullopt, {});
  ASSERT_TRUE(model) << model.error().ToString();
  const Json& read = model->reader().manifest().meta.at(std::string(kMetaModelConfig));
  EXPECT_EQ(DumpJson(read.at("rope_scaling")), DumpJson(config["rope_scaling"]));
}

TEST_F(GgufTest, MembersThatNobodyReadsAreRefusedByName) {
  GgufHeader header{.metadata = {{"general.architecture", std::string("llama")},
                                 {"llama.attention.head_count", std::int64_t{4}},
                                 {"llama.attention.layer_norm_rms_epsilon", 1e-5},
                                 {"llama.block_count", std::int64_t{1}},
                                 {"llama.context_length", std::int64_t{16}},
                                 {"llama.embedding_length", std::int64_t{64}},
                                 {"llama.feed_forward_length", std::int64_t{32}}},
                    .tensors = {{.name = "token_embd.weight", .shape = {37, 64}}}};
  const std::map<std::string, std::pair<GgufValue, GgufValue>> members{
      {"llama.attention.sliding_window", {std::int64_t{0}, std::int64_t{128}}},
      {"llama.attention.value_length", {std::int64_t{16}, std::int64_t{8}}},
      {"llama.logit_scale", {0.0, 0.5}},
      {"llama.rope.dimension_count", {std::int64_t{16}, std::int64_t{8}}},
      {"llama.use_parallel_residual", {false, true}}};
  for (const auto& [key, values] : members) {
    header.metadata[key] = values.first;
    const auto neutral = DescribeGgufModel(header, std::nullopt, {}, "m.gguf");
    EXPECT_TRUE(neutral) << key << ": " << neutral.error().ToString();
    header.metadata[key] = values.second;
    const auto refused = DescribeGgufModel(header, std::nullopt, {}, "m.gguf");
    ASSERT_FALSE(refused) << key;
    EXPECT_THAT(refused.error().ToString(), HasSubstr(key));
    EXPECT_TRUE(DescribeGgufModel(header, kLlama, {}, "m.gguf")) << "the user knows the model";
    header.metadata.erase(key);
  }
  header.metadata["general.name"] = std::string("any");
  EXPECT_TRUE(DescribeGgufModel(header, std::nullopt, {}, "m.gguf"));
}

TEST_F(GgufTest, OtherModelsAreRefusedByName) {
  Save({{"model_type", "bert"}, {"vocab_size", 8}, {"hidden_size", 4}, {"num_attention_heads", 2}},
       {{"bert.pooler.dense.weight", {4, 4}}});
  EXPECT_THAT(ExportTo("m.gguf", std::nullopt).error().ToString(), HasSubstr("a bert model cannot be exported"));
  EXPECT_THAT(ImportFrom("none.gguf", "s3://bucket/x").error().ToString(), HasSubstr("does not exist"));
  ASSERT_TRUE(object::Put(*store_, "text.gguf", AsBytes(std::string_view("plain text"))));
  EXPECT_THAT(ImportFrom("text.gguf", "s3://bucket/x").error().ToString(), HasSubstr("not a GGUF file"));
}

}  // namespace
}  // namespace millrace::checkpoint
