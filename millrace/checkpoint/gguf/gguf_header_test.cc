#include "millrace/checkpoint/gguf/gguf_header.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/base/hash/random.h"
#include "millrace/checkpoint/gguf/gguf_model.h"
#include "millrace/checkpoint/gguf/gguf_names.h"
#include "millrace/checkpoint/gguf/gguf_vocabulary.h"

namespace millrace::checkpoint {
namespace {

using ::testing::HasSubstr;

const std::map<std::string, GgufValue> kMetadata{
    {"general.architecture", std::string("llama")},
    {"llama.block_count", std::int64_t{3}},
    {"llama.rope.freq_base", 500000.0},
    {"flag", true},
    {"tokens", std::vector<std::string>{"<unk>", "", "▁the"}},
    {"scores", std::vector<double>{0, -1.5}},
    {"types", std::vector<std::int64_t>{2, 3, -1}},
};

std::string Small(std::vector<GgufTensor>& tensors) {
  tensors = {{"token_embd.weight", GgmlType::kQ8_0, {3, 64}}, {"output_norm.weight", GgmlType::kF32, {5}}};
  return MakeGgufHeader(kMetadata, tensors);
}

std::string Refusal(std::string_view bytes, std::uint64_t file_bytes) {
  const auto header = ParseGgufHeader(bytes, file_bytes, "m.gguf");
  return header ? "accepted" : header.error().ToString();
}

TEST(GgufHeader, ComesBackAsItWasWritten) {
  std::vector<GgufTensor> tensors;
  const std::string bytes = Small(tensors);
  EXPECT_EQ(bytes.size() % 32, 0u);
  const std::uint64_t size = bytes.size() + 224 + 20;
  const auto header = ParseGgufHeader(bytes, size, "m.gguf").value();
  ASSERT_TRUE(header);
  EXPECT_EQ(header->metadata, kMetadata);
  ASSERT_EQ(header->tensors.size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(header->tensors[i].name, tensors[i].name);
    EXPECT_EQ(header->tensors[i].shape, tensors[i].shape);
    EXPECT_EQ(header->tensors[i].type, tensors[i].type);
    EXPECT_EQ(header->tensors[i].offset, tensors[i].offset);
  }
  EXPECT_EQ(tensors[0].bytes(), 3 * 2 * 34u);
  EXPECT_EQ(tensors[1].offset, bytes.size() + 224) << "aligned to 32";
}

TEST(GgufHeader, ABeginningAsksForMoreOfTheFile) {
  std::vector<GgufTensor> tensors;
  const std::string bytes = Small(tensors);
  for (std::size_t size = 0; size + 32 < bytes.size(); ++size) {
    const auto header = ParseGgufHeader(std::string_view(bytes).substr(0, size), bytes.size() + 300, "m.gguf");
    ASSERT_TRUE(header) << size << header.error().ToString();
    EXPECT_FALSE(*header) << size;
    EXPECT_THAT(Refusal(std::string_view(bytes).substr(0, size), size), HasSubstr("m.gguf")) << size;
  }
}

TEST(GgufHeader, SizesAreCheckedBeforeMemoryIsAllocated) {
  std::vector<GgufTensor> tensors;
  std::string bytes = Small(tensors);
  const std::uint64_t size = bytes.size() + 244;
  EXPECT_THAT(Refusal(bytes, size - 1), HasSubstr("output_norm.weight does not lie inside"));
  EXPECT_THAT(Refusal("GGML" + bytes.substr(4), size), HasSubstr("not a GGUF file"));
  const auto changed = [&](std::size_t at, std::uint8_t byte) {
    std::string other = bytes;
    other[at] = static_cast<char>(byte);
    other.resize(size);
    return Refusal(other, size);
  };
  EXPECT_THAT(changed(4, 1), HasSubstr("version 1"));
  EXPECT_THAT(changed(15, 0x7f), HasSubstr("does not end")) << "2^62 tensors";
  const std::size_t key = bytes.find("general.architecture");
  EXPECT_THAT(changed(key - 1, 0x7f), HasSubstr("a string of"));
  const std::size_t list = bytes.find("tokens") + 6 + 4 + 4;
  EXPECT_THAT(changed(list + 5, 1), HasSubstr("an array of"));
  const std::size_t name = bytes.find("token_embd.weight") + 17;
  EXPECT_THAT(changed(name, 9), HasSubstr("9 dimensions"));
  EXPECT_THAT(changed(name + 4, 65), HasSubstr("no whole blocks of q8_0"));
  EXPECT_THAT(changed(name + 4 + 7, 1), HasSubstr("too large"));
  EXPECT_THAT(changed(name + 4 + 16, 16), HasSubstr("type 16 cannot be read"));
  EXPECT_THAT(changed(name + 4 + 16, 12), HasSubstr("no whole blocks of q4_K"));
  EXPECT_THAT(changed(name + 4 + 16 + 4 + 7, 0x80), HasSubstr("does not lie inside"));
}

TEST(GgufHeader, DamageIsRefusedOrHarmless) {
  std::vector<GgufTensor> tensors;
  const std::string bytes = Small(tensors);
  Random random(3);
  for (int i = 0; i < 3000; ++i) {
    std::string other = bytes;
    for (int k = 0; k < 3; ++k) other[random.Below(other.size())] = static_cast<char>(random.Below(256));
    const auto header = ParseGgufHeader(other, bytes.size() + 244, "m.gguf");
    if (header && *header) std::ignore = DescribeGgufModel(**header, std::nullopt, {}, "m.gguf");
  }
}

TEST(GgufNames, NamesOfOthersAreNone) {
  EXPECT_EQ(HuggingFaceNameOf("llama", "blk.2.attn_q.weight", 3), "model.layers.2.self_attn.q_proj.weight");
  EXPECT_EQ(GgufNameOf("llama", "model.layers.2.self_attn.q_proj.weight", 3), "blk.2.attn_q.weight");
  EXPECT_EQ(HuggingFaceNameOf("gpt2", "blk.0.attn_qkv.bias", 1), "transformer.h.0.attn.c_attn.bias");
  for (const char* name : {"blk.3.attn_q.weight", "blk.-1.attn_q.weight", "blk.02.attn_q.weight", "blk..attn_q.weight",
                           "../x.weight", "blk.1/../../x.attn_q.weight", "token_embd", "token_embd.scale", ""})
    EXPECT_EQ(HuggingFaceNameOf("llama", name, 3), std::nullopt) << name;
  EXPECT_TRUE(HasTurnedRows("llama", "model.layers.0.self_attn.k_proj.bias"));
  EXPECT_FALSE(HasTurnedRows("llama", "model.layers.0.self_attn.v_proj.weight"));
  EXPECT_FALSE(HasTurnedRows("qwen2", "model.layers.0.self_attn.k_proj.bias"));
  EXPECT_EQ(HuggingFaceNameOf("qwen3", "blk.2.attn_k_norm.weight", 3), "model.layers.2.self_attn.k_norm.weight");
  EXPECT_EQ(HuggingFaceNameOf("qwen2", "blk.2.attn_k_norm.weight", 3), std::nullopt);
  EXPECT_TRUE(IsStoredTransposed("gpt2", "transformer.h.0.mlp.c_fc.weight"));
  EXPECT_FALSE(IsStoredTransposed("gpt2", "transformer.h.0.mlp.c_fc.bias"));
}

TEST(GgufVocabulary, ComesBackAsATokenizerModel) {
  std::map<std::string, GgufValue> metadata;
  EXPECT_FALSE(AddSentencePiece("no protocol buffer", 5, metadata));
  EXPECT_TRUE(metadata.empty());
  metadata = {{"tokenizer.ggml.model", std::string("llama")},
              {"tokenizer.ggml.tokens", std::vector<std::string>{"<unk>", "<s>", "</s>", "<0x00>", "▁the"}},
              {"tokenizer.ggml.scores", std::vector<double>{0, 0, 0, 0, -1.25}},
              {"tokenizer.ggml.token_type", std::vector<std::int64_t>{2, 3, 3, 6, 1}},
              {"tokenizer.ggml.add_space_prefix", false}};
  GgufHeader header{.metadata = metadata};
  header.metadata["tokenizer.ggml.eot_token_id"] = std::int64_t{3};
  header.metadata["tokenizer.chat_template"] = std::string("{{ messages }}");
  auto files = TokenizerOf(header).files;
  const Json config = ParseJson(files["tokenizer_config.json"], "config").value();
  EXPECT_EQ(config["chat_template"], "{{ messages }}");
  EXPECT_EQ(config["bos_token"], "<s>");
  EXPECT_EQ(config["add_bos_token"], true);
  header.metadata["tokenizer.ggml.add_bos_token"] = false;
  files = TokenizerOf(header).files;
  EXPECT_THAT(files["tokenizer_config.json"], ::testing::HasSubstr("\"add_bos_token\": false"));
  EXPECT_EQ(ParseJson(files["generation_config.json"], "config").value(), Json({{"eos_token_id", {3}}}));
  const std::string model = SentencePieceOf(header).value();
  std::map<std::string, GgufValue> again;
  ASSERT_TRUE(AddSentencePiece(model, 6, again));
  EXPECT_EQ(std::get<std::vector<std::string>>(again["tokenizer.ggml.tokens"]).back(), "[PAD5]");
  EXPECT_EQ(std::get<std::vector<std::int64_t>>(again["tokenizer.ggml.token_type"]),
            (std::vector<std::int64_t>{2, 3, 3, 6, 1, 5}));
  EXPECT_EQ(std::get<std::vector<double>>(again["tokenizer.ggml.scores"])[4], -1.25);
  EXPECT_EQ(std::get<bool>(again["tokenizer.ggml.add_space_prefix"]), false);
  EXPECT_EQ(std::get<std::int64_t>(again["tokenizer.ggml.eos_token_id"]), 2);
  EXPECT_FALSE(AddSentencePiece(model, 4, again)) << "more pieces than the model has tokens";
  for (std::size_t size = 0; size < model.size(); size += 7) {
    std::ignore = AddSentencePiece(std::string_view(model).substr(0, size), 6, again);
  }
}

}  // namespace
}  // namespace millrace::checkpoint
