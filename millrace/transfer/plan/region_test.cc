#include "millrace/transfer/plan/region.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "millrace/base/files/files.h"
#include "millrace/object/local/file_store.h"
#include "millrace/object/local/memory_store.h"

namespace millrace::transfer {
namespace {

namespace fs = std::filesystem;

Overlap Of(const fs::path& first, const fs::path& second) {
  auto a = RegionsOf(first.string()), b = RegionsOf(second.string());
  EXPECT_TRUE(a && b);
  return Compare(*a, *b);
}

TEST(Region, FoldersOverlapByWhateverName) {
  TempDir folder = std::move(*TempDir::Create());
  const fs::path data = folder.path() / "data", alias = folder.path() / "alias";
  fs::create_directories(data / "sub");
  fs::create_directory_symlink(data, alias);
  EXPECT_EQ(Of(data, alias), Overlap::kSame);
  EXPECT_EQ(Of(alias / "sub", data), Overlap::kFirstInSecond);
  EXPECT_EQ(Of(data, alias / "not" / "there"), Overlap::kSecondInFirst);
  EXPECT_EQ(Of(data, folder.path() / "data2"), Overlap::kNone);
  EXPECT_EQ(Of(data, folder.path() / "other"), Overlap::kNone);
}

TEST(Region, EndpointsAreTheSameByTheirAddresses) {
  const Region by_name{"http://localhost:9000", "bucket/a"};
  EXPECT_EQ(Compare(by_name, {"http://127.0.0.1:9000", "bucket/a"}), Overlap::kSame);
  EXPECT_EQ(Compare(by_name, {"http://127.0.0.1:9000", "bucket"}), Overlap::kFirstInSecond);
  EXPECT_EQ(Compare(by_name, {"http://127.0.0.1:9001", "bucket/a"}), Overlap::kNone);
  EXPECT_EQ(Compare(by_name, {"http://127.0.0.1:9000", "bucket/ab"}), Overlap::kNone);
  EXPECT_EQ(Compare(by_name, {"8:1", "bucket/a"}), Overlap::kNone);
}

TEST(Region, AccessPointsMayBeAnyBucket) {
  const std::string arn = "arn:aws:s3:us-west-2:123456789012:accesspoint/team";
  EXPECT_EQ(Compare(Region{"s3:", "bucket/a"}, {"s3:", arn + "/a"}), Overlap::kSame);
  EXPECT_EQ(Compare(Region{"s3:", "bucket/a/b"}, {"s3:", arn + "/a"}), Overlap::kFirstInSecond);
  EXPECT_EQ(Compare(Region{"s3:", "bucket/a"}, {"s3:", arn + "/ab"}), Overlap::kNone);
  EXPECT_EQ(Compare(Region{"s3:", "bucket/a"}, {"s3:", arn}), Overlap::kFirstInSecond);
  EXPECT_EQ(Compare(Region{"s3:", arn + "/a"}, {"s3:", arn + "/a"}), Overlap::kSame);
  EXPECT_EQ(Compare(Region{"s3:", "x-hrzrlukc5m36ft7okagglf3gmw-s3alias/a"}, {"s3:", "bucket/a"}), Overlap::kSame);
  EXPECT_EQ(Compare(Region{"http://h", "bucket/a"}, {"s3:", arn + "/a"}), Overlap::kNone);
  EXPECT_EQ(Compare(Region{"s3:", "bucket/a"}, {"s3:", "other/a"}), Overlap::kNone);
}

TEST(SameFileCheck, ComparesDevicesAndInodesNotNames) {
  TempDir folder = std::move(*TempDir::Create());
  fs::create_directory(folder.path() / "data");
  fs::create_directory_symlink("data", folder.path() / "alias");
  for (const char* name : {"data/a", "data/b"}) std::ofstream(folder.path() / name) << "same bytes";
  auto files = object::OpenFileStore({.root = "/"});
  ASSERT_TRUE(files);
  SameFileCheck check;
  auto same = [&](const std::string& a, const std::string& b) {
    const std::string first = (folder.path() / a).string().substr(1), second = (folder.path() / b).string().substr(1);
    return check.Same({**files, true, first}, {**files, true, second});
  };
  EXPECT_TRUE(same("data/a", "alias/a"));
  EXPECT_TRUE(same("data/a", "data/a"));
  EXPECT_FALSE(same("data/a", "data/b"));
  EXPECT_FALSE(same("data/a", "alias/c")) << "which does not exist";
}

TEST(SameFileCheck, ComparesKeysOfOneStore) {
  auto store = object::MakeMemoryStore();
  const std::string key = "a", folder = "a/";
  SameFileCheck check;
  EXPECT_TRUE(check.Same({*store, false, key}, {*store, false, key}));
  EXPECT_FALSE(check.Same({*store, false, key}, {*store, false, folder})) << "another key";
}

}  // namespace
}  // namespace millrace::transfer
