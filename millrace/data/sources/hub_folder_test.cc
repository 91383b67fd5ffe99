#include "millrace/data/sources/hub_folder.h"

#include <gmock/gmock.h>

#include "millrace/data/sources/sources.h"
#include "millrace/data/testing/testing.h"

namespace millrace::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::PutText;

/// Returns the splits of the paths as "train: a b; test: c".
std::string Told(const std::vector<std::string_view>& paths) {
  std::string told;
  for (const NamedSplit& split : SplitsByNames(paths)) {
    told += fmt::format("{}{}:", told.empty() ? "" : "; ", split.name);
    for (std::size_t i : split.paths) told += fmt::format(" {}", paths[i]);
  }
  return told;
}

/// python/tests/test_hub_folders.py compares with datasets itself.
TEST(HubFolder, NamesTellTheSplit) {
  EXPECT_EQ(Told({"testing1.jsonl", "Train.jsonl", "my_train.jsonl", "retrain.jsonl"}),
            "train: my_train.jsonl; test: testing1.jsonl");
  EXPECT_EQ(Told({"a.jsonl", "Train/b.jsonl", "contest.jsonl"}), "train: a.jsonl Train/b.jsonl contest.jsonl");
  EXPECT_EQ(Told({"data/train_sft-00000-of-00002.parquet", "data/x.y-00000-of-00001.parquet", "data/test.parquet"}),
            "train_sft: data/train_sft-00000-of-00002.parquet; x.y: data/x.y-00000-of-00001.parquet");
  EXPECT_EQ(Told({"train_sft-00000-of-00002.parquet", "dev-1.parquet"}),
            "train: train_sft-00000-of-00002.parquet; validation: dev-1.parquet");
  EXPECT_EQ(Told({"en/dev/x.jsonl", "en/my train/x.jsonl", "test.jsonl"}),
            "train: en/my train/x.jsonl; validation: en/dev/x.jsonl");
  EXPECT_EQ(Told({"train/test/x.jsonl", "train"}), "train: train/test/x.jsonl; test: train/test/x.jsonl");
  EXPECT_EQ(Told({"openassistant-guanaco-train.arrow"}), "train: openassistant-guanaco-train.arrow");
  EXPECT_EQ(Told({"train", "wiki.train"}), "train: train wiki.train") << "a file's name ends with a separator and more";
  EXPECT_EQ(Told({}), "");
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
  /// Returns the objects of a source as keys, or the error.
  std::vector<std::string> Resolve(const std::string& url, const std::string& split = "") {
    std::vector<DataSource> sources = {{.url = url, .format = "jsonl", .split = split}};
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
              ElementsAre(HasSubstr("unknown split \"dev\"; choose one that the names tell of: test, train")));
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

TEST_F(HubFolderSources, FoldersWithoutSplitNamesAnswerToTrain) {
  Put({"q/a.jsonl", "q/sub/b.jsonl", "q/__pycache__/c.jsonl", "q/__MACOSX/d.jsonl", "q/more/e__.jsonl"});
  EXPECT_THAT(Resolve("s3://bucket/q/sub/#train"), ElementsAre("q/sub/b.jsonl"));
  EXPECT_THAT(Resolve("s3://bucket/q/a.jsonl#train"), ElementsAre("q/a.jsonl"));
  EXPECT_THAT(Resolve("s3://bucket/q/"), ElementsAre("q/a.jsonl", "q/more/e__.jsonl", "q/sub/b.jsonl"));
  EXPECT_THAT(Resolve("s3://bucket/q/#Test"), ElementsAre(HasSubstr("unknown split")));
  EXPECT_THAT(Resolve("s3://bucket/q/#sub"), ElementsAre("q/sub/b.jsonl")) << "a folder";
}

TEST_F(HubFolderSources, AnyOtherFolderIsTakenWholeUnlessASplitIsAskedFor) {
  Put({"p/train.jsonl", "p/test.jsonl", "p/more.jsonl"});
  EXPECT_EQ(Resolve("s3://bucket/p/").size(), 3u);
  EXPECT_THAT(Resolve("s3://bucket/p/#train"), ElementsAre("p/train.jsonl"));
  EXPECT_THAT(Resolve("s3://bucket/p/*.jsonl#test"), ElementsAre("p/test.jsonl"));
}

}  // namespace
}  // namespace millrace::data
