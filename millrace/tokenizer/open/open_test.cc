#include "millrace/tokenizer/open/open.h"

#include <gmock/gmock.h>

#include <map>
#include <string>

#include "millrace/checkpoint/format/safetensors.h"
#include "millrace/checkpoint/gguf/gguf_header.h"
#include "millrace/checkpoint/testing/checkpoint_test_base.h"
#include "millrace/tokenizer/byte_level/byte_alphabet.h"

namespace millrace::tokenizer {
namespace {

using checkpoint::DType;
using ::testing::HasSubstr;

constexpr std::string_view kJson =
    R"({"model": {"type": "WordLevel", "vocab": {"a": 0, "[UNK]": 1}, "unk_token": "[UNK]"},
 "pre_tokenizer": {"type": "Whitespace"}})";
constexpr std::string_view kUnsupportedJson = R"({"model":{"type":"Unknown"}})";
constexpr std::string_view kVocabulary = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n";

class OpenTokenizerTest : public checkpoint::testing::CheckpointTest {
 protected:
  /// Saves a checkpoint like those that an import makes.
  void SaveModel(std::uint64_t step, std::map<std::string, std::string_view> files) {
    std::vector<checkpoint::SaveSlice> slices;
    files.emplace("model/weight", "abcd");
    for (const auto& [name, content] : files)
      slices.push_back({name, {DType::kU8, {static_cast<std::int64_t>(content.size())}}, 0, AsBytes(content)});
    clock_.Advance(checkpoint::testing::kSecond);
    auto writer = Open();
    ASSERT_TRUE(writer->Save(step, slices, R"({"model_config": {"model_type": "llama"}})"));
    ASSERT_TRUE(writer->Wait());
  }
  void Put(const std::string& key, std::string_view content) {
    ASSERT_TRUE(object::Put(*store_, key, AsBytes(content)));
  }
  /// Returns the kind of the tokenizer at `url`, or the error.
  std::string KindAt(std::string_view url) {
    const auto opened = OpenTokenizer(connection_, url, {});
    return opened ? std::string((*opened)->kind()) : opened.error().ToString();
  }
};

TEST_F(OpenTokenizerTest, OpensTheFirstSupportedFormOfACheckpointsTokenizer) {
  SaveModel(1, {{"files/tokenizer.json", kJson}, {"files/tokenizer.model", kVocabulary}});
  EXPECT_EQ(KindAt(checkpoint::testing::kUrl), "wordlevel");
  SaveModel(2, {{"files/tokenizer.json", kUnsupportedJson}, {"files/vocab.txt", kVocabulary}});
  EXPECT_EQ(KindAt(checkpoint::testing::kUrl), "wordpiece");
  SaveModel(3, {{"files/tokenizer.json", kUnsupportedJson}});
  EXPECT_THAT(KindAt(checkpoint::testing::kUrl),
              HasSubstr("tokenizer.json: the tokenizer's model (Unknown) is not supported"));
  SaveModel(4, {});
  EXPECT_THAT(KindAt(checkpoint::testing::kUrl), HasSubstr("has no tokenizer"));
}

TEST_F(OpenTokenizerTest, OpensFoldersAndFiles) {
  std::vector<checkpoint::SafetensorsEntry> weights{{"weight", {DType::kU8, {4}}}};
  Put("hf/model.safetensors", checkpoint::MakeSafetensorsHeader(weights) + "abcd");
  Put("hf/tokenizer.json", kJson);
  for (const char* url : {"s3://bucket/hf", "s3://bucket/hf/", "s3://bucket/hf/tokenizer.json"})
    EXPECT_EQ(KindAt(url), "wordlevel") << url;
  Put("vocabulary", kVocabulary);
  EXPECT_EQ(KindAt("s3://bucket/vocabulary"), "wordpiece");
  Put("broken", "{}");
  EXPECT_THAT(KindAt("s3://bucket/broken"), HasSubstr("loading the tokenizer s3://bucket/broken: "));
  EXPECT_THAT(KindAt("s3://bucket/none"), HasSubstr("there is no tokenizer at s3://bucket/none"));
}

/// The form of GPT-2's first publication.
TEST_F(OpenTokenizerTest, OpensAVocabularyWithItsMerges) {
  std::string vocab = "{";
  for (int byte = 0; byte < 256; ++byte) {
    std::string piece;
    TheByteAlphabet().Append(std::string(1, static_cast<char>(byte)), piece);
    vocab += fmt::format("{}:{},", DumpJson(piece), byte);
  }
  vocab += R"("ab":256,"</s>":257,"<|endoftext|>":258})";
  Put("o/vocab.json", vocab);
  EXPECT_THAT(KindAt("s3://bucket/o/vocab.json"), HasSubstr("no merges.txt beside it"));
  Put("o/merges.txt", "#version: 0.2\na b\n");
  const auto ids = [&](std::string_view url) {
    std::vector<TokenId> encoded;
    const auto opened = OpenTokenizer(connection_, url, {});
    if (!opened) return std::pair(encoded, opened.error().ToString());
    EXPECT_TRUE((*opened)->EncodeWithSpecials("cab</s>", encoded));
    return std::pair(encoded, std::to_string((*opened)->eos()));
  };
  EXPECT_EQ(ids("s3://bucket/o/vocab.json").first.size(), 6u) << "without a declaration </s> is text";
  Put("o/tokenizer_config.json", R"({"tokenizer_class":"GPT2Tokenizer","eos_token":{"content":"</s>"}})");
  EXPECT_EQ(ids("s3://bucket/o/vocab.json"), std::pair(std::vector<TokenId>({'c', 256, 257}), std::string("257")));
  std::vector<checkpoint::SafetensorsEntry> weights{{"weight", {DType::kU8, {4}}}};
  Put("o/model.safetensors", checkpoint::MakeSafetensorsHeader(weights) + "abcd");
  EXPECT_EQ(ids("s3://bucket/o/").second, "257");
  Put("o/tokenizer_config.json", R"({"tokenizer_class":"CLIPTokenizer"})");
  EXPECT_THAT(KindAt("s3://bucket/o/"), HasSubstr("a CLIPTokenizer"));
}

TEST_F(OpenTokenizerTest, TokensThatTheFolderDeclaresAreTheTokenizers) {
  constexpr std::string_view kTokens =
      R"({"model": {"type": "WordLevel", "vocab": {"[UNK]": 0, "</s>": 1, "<end>": 2}, "unk_token": "[UNK]"},
 "pre_tokenizer": {"type": "Whitespace"}, "added_tokens": [{"id": 1, "content": "</s>", "special": true}]})";
  constexpr std::string_view kConfig = R"({"eos_token": "<end>"})";
  const auto eos = [&](std::string_view url) { return OpenTokenizer(connection_, url, {}).value()->eos(); };
  std::vector<checkpoint::SafetensorsEntry> weights{{"weight", {DType::kU8, {4}}}};
  Put("hf/model.safetensors", checkpoint::MakeSafetensorsHeader(weights) + "abcd");
  Put("hf/tokenizer.json", kTokens);
  Put("hf/another.json", kTokens);
  EXPECT_EQ(eos("s3://bucket/hf"), 1);
  Put("hf/special_tokens_map.json", kConfig);
  EXPECT_EQ(eos("s3://bucket/hf"), 2);
  EXPECT_EQ(eos("s3://bucket/hf/tokenizer.json"), 2);
  EXPECT_EQ(eos("s3://bucket/hf/another.json"), 1) << "another tokenizer than the folder's";
  SaveModel(1, {{"files/tokenizer.json", kTokens}, {"files/tokenizer_config.json", kConfig}});
  EXPECT_EQ(eos(checkpoint::testing::kUrl), 2);
  Put("hf/tokenizer_config.json", "{");
  EXPECT_THAT(OpenTokenizer(connection_, "s3://bucket/hf", {}).error().ToString(), HasSubstr("tokenizer_config.json"));
}

/// The file's model may be one that cannot be loaded.
TEST_F(OpenTokenizerTest, OpensGgufFiles) {
  std::vector<std::string> tokens(256);
  for (int byte = 0; byte < 256; ++byte)
    TheByteAlphabet().Append(std::string(1, static_cast<char>(byte)), tokens[byte]);
  tokens.insert(tokens.end(), {"ab", "<|end|>"});
  std::vector<std::int64_t> types(258, 1);
  types.back() = 3;
  std::map<std::string, checkpoint::GgufValue> metadata = {
      {"general.architecture", std::string("mamba")}, {"tokenizer.ggml.model", std::string("gpt2")},
      {"tokenizer.ggml.pre", std::string("qwen2")},   {"tokenizer.ggml.tokens", tokens},
      {"tokenizer.ggml.token_type", types},           {"tokenizer.ggml.merges", std::vector<std::string>{"a b"}}};
  std::vector<checkpoint::GgufTensor> none;
  Put("m.gguf", checkpoint::MakeGgufHeader(metadata, none));
  const auto opened = OpenTokenizer(connection_, "s3://bucket/m.gguf", {});
  ASSERT_TRUE(opened) << opened.error().ToString();
  std::vector<TokenId> ids;
  ASSERT_TRUE((*opened)->EncodeWithSpecials("cab<|end|>", ids));
  EXPECT_EQ(ids, (std::vector<TokenId>{'c', 256, 257}));
  metadata["tokenizer.ggml.pre"] = std::string("poro-chat");
  Put("other.gguf", checkpoint::MakeGgufHeader(metadata, none));
  EXPECT_THAT(KindAt("s3://bucket/other.gguf"), HasSubstr("splits texts as \"poro-chat\""));
  EXPECT_THAT(KindAt("s3://bucket/none.gguf"), HasSubstr("does not exist"));
}

}  // namespace
}  // namespace millrace::tokenizer
