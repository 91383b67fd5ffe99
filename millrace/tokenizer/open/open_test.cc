#include "millrace/tokenizer/open/open.h"

#include <gmock/gmock.h>

#include <map>
#include <string>

#include "millrace/checkpoint/format/safetensors.h"
#include "millrace/checkpoint/testing/checkpoint_test_base.h"

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
    ASSERT_TRUE(writer->Save(step, slices, {{std::string(checkpoint::kMetaModelConfig), {{"model_type", "llama"}}}}));
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
  EXPECT_THAT(KindAt(checkpoint::testing::kUrl), HasSubstr("tokenizer.json: its model (Unknown) is not supported"));
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

}  // namespace
}  // namespace millrace::tokenizer
