#include "millrace/data/hub_folder.h"

#include <gmock/gmock.h>

#include "millrace/data/sources.h"
#include "millrace/data/testing.h"

namespace millrace::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::PutText;

TEST(HubFolder, NamesTellTheSplit) {
  const std::pair<const char*, const char*> cases[] = {
      {"data/train-00000-of-00005.parquet", "train"},
      {"openassistant-guanaco-train.arrow", "train"},
      {"openassistant-guanaco-test-00000-of-00002.arrow", "test"},
      {"train/data-00000-of-00001.arrow", "train"},
      {"data-00000-of-00001.arrow", ""},
      {"data/train_sft-00000-of-00002.parquet", "train_sft"},
      {"en/dev.jsonl", "validation"},
      {"validation/0003.parquet", "validation"},
      {"My_Training_set.jsonl", "train"},
      {"contest.jsonl", ""},
      {"wiki/part-00000-of-00003.jsonl", ""},
      {"retrain.jsonl", ""},
  };
  for (auto [path, split] : cases) EXPECT_EQ(SplitOf(path), split) << path;
}

TEST(HubFolder, TheSplitStandsBehindTheUrl) {
  EXPECT_EQ(ParseSplitUrl("s3://b/d/#train").url, "s3://b/d/");
  EXPECT_EQ(ParseSplitUrl("s3://b/d/#train").split, "train");
  EXPECT_EQ(ParseSplitUrl("s3://b/d/").split, "");
  EXPECT_EQ(ParseSplitUrl("s3://b/c#/x.jsonl").url, "s3://b/c#/x.jsonl");
}

class HubFolderSources : public ::testing::Test {
 protected:
  void SetUp() override { connection_["bucket"] = store_; }
  void Put(std::initializer_list<const char*> keys) {
    for (const char* key : keys) PutText(*store_, key, "{}\n");
  }
  /// What a source is, as keys, or why it is nothing.
  std::vector<std::string> Resolve(const std::string& url, const std::string& split = "") {
    std::vector<Source> sources = {{.url = url, .format = "jsonl", .split = split}};
    auto resolved = ResolveSources(connection_, sources);
    if (!resolved) return {resolved.error().ToString()};
    std::vector<std::string> keys;
    for (const DataObject& object : resolved->objects) keys.push_back(object.info.key);
    return keys;
  }
  std::shared_ptr<object::Store> store_ = object::MakeMemoryStore();
  testing::TestConnection connection_;
};

TEST_F(HubFolderSources, OfTheHub) {
  Put({"d/README.md", "d/data/train-00000-of-00002.parquet", "d/data/train-00001-of-00002.parquet",
       "d/data/test-00000-of-00001.parquet"});
  EXPECT_THAT(Resolve("s3://bucket/d/#train"),
              ElementsAre("d/data/train-00000-of-00002.parquet", "d/data/train-00001-of-00002.parquet"));
  EXPECT_THAT(Resolve("s3://bucket/d#test"), ElementsAre("d/data/test-00000-of-00001.parquet"));
  EXPECT_THAT(Resolve("s3://bucket/d/"), ElementsAre(HasSubstr("the splits test, train; say which, as URL#train")));
  EXPECT_THAT(Resolve("s3://bucket/d/#dev"),
              ElementsAre(HasSubstr("unknown split \"dev\"; names tell of test, train")));
}

TEST_F(HubFolderSources, ASplitMayBeSaidBesideTheUrl) {
  Put({"d/train.jsonl", "d/test.jsonl"});
  EXPECT_THAT(Resolve("s3://bucket/d/", "train"), ElementsAre("d/train.jsonl"));
  EXPECT_THAT(Resolve("s3://bucket/d/#test", "test"), ElementsAre("d/test.jsonl"));
  EXPECT_THAT(Resolve("s3://bucket/d/#test", "train"), ElementsAre(HasSubstr("say one of them")));
  EXPECT_THAT(Resolve("s3://bucket/d/", "trian"), ElementsAre(HasSubstr("did you mean \"train\"?")));
  PutText(*store_, "lists/all", "s3://bucket/d/\ns3://bucket/d/#test\n");
  EXPECT_THAT(Resolve("@s3://bucket/lists/all", "train"), ElementsAre(HasSubstr("say one of them")));
}

TEST_F(HubFolderSources, OfSaveToDisk) {
  Put({"one/data-00000-of-00002.arrow", "one/data-00001-of-00002.arrow", "one/dataset_info.json", "one/state.json",
       "one/cache-0123456789abcdef.arrow"});
  EXPECT_THAT(Resolve("s3://bucket/one/"),
              ElementsAre("one/data-00000-of-00002.arrow", "one/data-00001-of-00002.arrow"));
  Put({"dict/dataset_dict.json", "dict/train/data-00000-of-00001.arrow", "dict/train/state.json",
       "dict/holdout/data-00000-of-00001.arrow", "dict/holdout/state.json"});
  EXPECT_THAT(Resolve("s3://bucket/dict/#train"), ElementsAre("dict/train/data-00000-of-00001.arrow"));
  EXPECT_THAT(Resolve("s3://bucket/dict/#holdout"), ElementsAre("dict/holdout/data-00000-of-00001.arrow"));
}

TEST_F(HubFolderSources, AnyOtherFolderIsTakenWholeUnlessASplitIsAskedFor) {
  Put({"p/train.jsonl", "p/test.jsonl", "p/more.jsonl"});
  EXPECT_EQ(Resolve("s3://bucket/p/").size(), 3u);
  EXPECT_THAT(Resolve("s3://bucket/p/#train"), ElementsAre("p/train.jsonl"));
  EXPECT_THAT(Resolve("s3://bucket/p/*.jsonl#test"), ElementsAre("p/test.jsonl"));
}

}  // namespace
}  // namespace millrace::data
