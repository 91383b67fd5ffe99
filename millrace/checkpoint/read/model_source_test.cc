#include "millrace/checkpoint/read/model_source.h"
#include "millrace/checkpoint/commit/collect.h"
#include "millrace/checkpoint/format/checkpoint_keys.h"
#include "millrace/checkpoint/format/safetensors.h"
#include "millrace/checkpoint/save/save_slice.h"
#include "millrace/checkpoint/testing/checkpoint_test_base.h"

#include <gmock/gmock.h>

namespace millrace::checkpoint {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ModelSourceTest : public testing::CheckpointTest {
 protected:
  /// A checkpoint as an import makes it.
  void SaveModel(std::uint64_t step, std::map<std::string, std::string> files) {
    std::vector<SaveSlice> slices;
    files.emplace("model/weight", "abcd");
    for (const auto& [name, content] : files)
      slices.push_back({name, {DType::kU8, {static_cast<std::int64_t>(content.size())}}, 0, AsBytes(content)});
    clock_.Advance(testing::kSecond);
    auto writer = Open();
    ASSERT_TRUE(writer->Save(step, slices, R"({"model_config": {"model_type": "llama"}})"));
    ASSERT_TRUE(writer->Wait());
  }
  void PutFolder(const std::map<std::string, std::string>& files) {
    std::vector<SafetensorsEntry> entries{{"weight", {DType::kU8, {4}}}};
    Put("hf/model.safetensors", MakeSafetensorsHeader(entries) + "abcd");
    for (const auto& [name, content] : files) Put("hf/" + name, content);
  }
  void Put(const std::string& key, std::string_view content) {
    ASSERT_TRUE(object::Put(*store_, key, AsBytes(content)));
  }
  Result<ModelSource> OpenModel(std::string_view url = testing::kUrl, std::optional<std::uint64_t> step = {}) {
    return ModelSource::Open(connection_, url, step, {});
  }
  std::vector<std::string> Marks() { return Keys(CheckpointKeys("runs/a").MarksPrefix(1)); }
  std::vector<std::uint64_t> Collect() {
    auto collected = CollectGarbage({store_, "runs/a"}, {.keep_last = 1}, false);
    EXPECT_TRUE(collected);
    return collected->removed_steps;
  }
};

TEST_F(ModelSourceTest, ACheckpointStaysWhileItIsOpen) {
  SaveModel(1, {});
  {
    auto source = OpenModel();
    ASSERT_TRUE(source) << source.error().ToString();
    EXPECT_EQ(source->step(), 1u);
    SaveModel(2, {});
    EXPECT_THAT(Collect(), IsEmpty());
    char weight[4];
    EXPECT_TRUE(source->reader().Read("model/weight", 0, AsWritableBytes(weight)));
  }
  EXPECT_THAT(Collect(), ElementsAre(1));
}

TEST_F(ModelSourceTest, OpensTheNextWhereACollectorWasQuicker) {
  SaveModel(1, {});
  SaveModel(2, {});
  // The collector announces itself between the look at the manifest and the hold.
  Put("runs/a/step-00000002.going-0123456789abcdef", "{}");
  auto busy = OpenModel();
  ASSERT_TRUE(busy) << busy.error().ToString();
  EXPECT_EQ(busy->step(), 2u) << "of a collector that was killed there: read without a hold";
  ASSERT_TRUE(RemoveAfter({store_, "runs/a"}, 1, false));
  EXPECT_EQ(OpenModel()->step(), 1u);
  EXPECT_EQ(OpenModel(testing::kUrl, 2).error().code(), Code::kNotFound);
}

TEST_F(ModelSourceTest, WhoMayNotWriteReadsWithoutAHold) {
  SaveModel(1, {});
  store_->Add({.operation = object::Operation::kPut, .times = -1, .fault = {.code = Code::kPermissionDenied}});
  auto source = OpenModel();
  ASSERT_TRUE(source) << source.error().ToString();
  EXPECT_EQ(source->step(), 1u);
}

TEST_F(ModelSourceTest, FilesThatCameWithTheModel) {
  SaveModel(1, {{"files/tokenizer_config.json", "{}"}, {"files/empty", ""}});
  auto kept = OpenModel();
  EXPECT_EQ(*kept->File("tokenizer_config.json", 10), "{}");
  EXPECT_EQ(*kept->File("empty", 10), "");
  EXPECT_EQ(*kept->File("tokenizer.json", 10), std::nullopt);
  EXPECT_EQ(kept->File("tokenizer_config.json", 1).error().code(), Code::kResourceExhausted);

  PutFolder({{"tokenizer_config.json", "{}"}});
  for (const char* url : {"s3://bucket/hf", "s3://bucket/hf/", "s3://bucket/hf/model.safetensors"}) {
    auto folder = OpenModel(url);
    ASSERT_TRUE(folder) << folder.error().ToString();
    EXPECT_EQ(folder->step(), std::nullopt);
    EXPECT_EQ(*folder->File("tokenizer_config.json", 10), "{}");
    EXPECT_EQ(*folder->File("tokenizer.json", 10), std::nullopt);
  }
  EXPECT_THAT(OpenModel("s3://bucket/none").error().ToString(), HasSubstr("no model at s3://bucket/none"));
  EXPECT_EQ(OpenModel("s3://bucket/hf", 1).error().code(), Code::kNotFound) << "a folder has no steps";
}

}  // namespace
}  // namespace millrace::checkpoint
