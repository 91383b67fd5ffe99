#include "millrace/data/reading/chunk_disk.h"

#include <gmock/gmock.h>

#include <fstream>

#include "millrace/base/files/files.h"
#include "millrace/data/testing/dataset_fixture.h"
#include "millrace/data/testing/stored_object.h"
#include "millrace/object/testing/fault_store.h"

namespace millrace::data {
namespace {

using testing::MakeTexts;
using testing::PutText;
using testing::ToJsonl;

class ChunkDiskTest : public testing::DatasetTest {
 protected:
  void SetUp() override {
    DatasetTest::SetUp();
    faults_ = object::FaultStore::Create(store_);
    connection_["corpus"] = faults_;
    PutText(*store_, "set/a.jsonl", ToJsonl(MakeTexts("a", 4000, 600, 1)));
    PutText(*store_, "set/b.jsonl.gz", testing::Gzip(ToJsonl(MakeTexts("b", 9000, 600, 2))));
  }

  Result<std::shared_ptr<Dataset>> OpenCached(std::uint64_t bytes = kGiB) {
    DatasetOptions options = Options("s3://corpus/set/", SequenceMode::kPad, 500);
    options.disk_cache = folder_.path() / "cache";
    options.disk_cache_bytes = bytes;
    return Open(std::move(options));
  }
  std::vector<std::vector<TokenId>> Expected() {
    return Rows(**Open(Options("s3://corpus/set/", SequenceMode::kPad, 500)), 0);
  }
  /// From now on, all reads of records fail.
  void CutOff() {
    for (const char* key : {"set/a", "set/b"}) {
      faults_->Add({.operation = object::Operation::kGet,
                    .key_prefix = key,
                    .times = -1,
                    .fault = {.code = Code::kPermissionDenied}});
    }
  }

  TempDir folder_ = TempDir::Create().value();
  std::shared_ptr<object::FaultStore> faults_;
};

TEST_F(ChunkDiskTest, ALaterRunNeedsNothingOfTheStoreButItsIndexes) {
  const auto expected = Expected();
  EXPECT_EQ(Rows(**OpenCached(), 0), expected);
  CutOff();
  EXPECT_EQ(Rows(**OpenCached(), 0), expected);
  EXPECT_EQ(Rows(**OpenCached(), 1).size(), expected.size()) << "and so with other epochs";
}

TEST_F(ChunkDiskTest, AnotherVersionOfAnObjectIsReadFromTheStore) {
  (void)Rows(**OpenCached(), 0);
  PutText(*store_, "set/a.jsonl", ToJsonl(MakeTexts("c", 4000, 600, 1)));
  EXPECT_EQ(Rows(**OpenCached(), 0), Expected());
}

TEST_F(ChunkDiskTest, DamagedBlocksAreReadFromTheStoreAgain) {
  const auto expected = Expected();
  (void)Rows(**OpenCached(16 * kMiB), 0);
  for (const auto& file : std::filesystem::directory_iterator(folder_.path() / "cache")) {
    if (!file.path().filename().string().starts_with("blocks-")) continue;
    std::fstream blocks(file.path(), std::ios::in | std::ios::out | std::ios::binary);
    for (std::uint64_t at = 0; at < file.file_size(); at += 64 * kKiB) {
      blocks.seekp(static_cast<std::streamoff>(at));
      blocks.put('?');
    }
  }
  EXPECT_EQ(Rows(**OpenCached(16 * kMiB), 0), expected);
}

TEST_F(ChunkDiskTest, AFolderThatIsTooSmallForTheDataServesWhatItHolds) {
  const auto expected = Expected();
  for (int run = 0; run < 2; ++run) EXPECT_EQ(Rows(**OpenCached(3 * kMiB), 0), expected);
}

TEST_F(ChunkDiskTest, AFolderThatCannotBeUsedIsNamed) {
  std::ofstream(folder_.path() / "cache") << "a file";
  auto opened = OpenCached();
  ASSERT_FALSE(opened.has_value());
  EXPECT_THAT(opened.error().ToString(), ::testing::HasSubstr((folder_.path() / "cache").string()));
  std::filesystem::remove(folder_.path() / "cache");
  auto first = OpenCached().value();
  EXPECT_EQ(OpenCached(2 * kGiB).error().code(), Code::kBusy) << "in use with another size";
}

TEST_F(ChunkDiskTest, LinesOfLocalFilesAreNotKeptTwice) {
  const DataObject local{
      .store = store_, .info = {.key = "local.jsonl", .size = 9, .etag = "e"}, .url = "/local.jsonl"};
  DataObject remote = local;
  remote.url = "s3://corpus/local.jsonl";
  const Buffer content(5);
  {
    auto disk = ChunkDisk::Open(folder_.path() / "cache", kGiB, {}).value();
    disk->Save({&local, 0, 5}, content, nullptr);
    disk->Save({&remote, 0, 5}, content, nullptr);
  }
  auto disk = ChunkDisk::Open(folder_.path() / "cache", kGiB, {}).value();
  EXPECT_FALSE(disk->Load({&local, 0, 5}).has_value());
  EXPECT_TRUE(disk->Load({&remote, 0, 5}).has_value());
  EXPECT_FALSE(disk->Load({&remote, 0, 4}).has_value());
  EXPECT_FALSE(disk->Load({&remote, 1, 5}).has_value());
}

}  // namespace
}  // namespace millrace::data
