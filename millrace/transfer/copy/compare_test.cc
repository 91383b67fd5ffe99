#include "millrace/transfer/copy/compare.h"

#include <gtest/gtest.h>

#include "millrace/base/files/files.h"
#include "millrace/base/hash/crc.h"
#include "millrace/object/blocking.h"
#include "millrace/object/local/memory_store.h"
#include "millrace/transfer/copy/verify.h"

namespace millrace::transfer {
namespace {

class CompareTest : public testing::Test {
 protected:
  ComparedItem File(const std::string& name, const std::string& content) {
    std::string path = (folder_.path() / name).string();
    EXPECT_TRUE(WriteFileAtomic(path, AsBytes(content)));
    return {.local = true, .info = {.key = path.substr(1), .size = content.size()}};
  }
  static ComparedItem Object(const std::string& content, const std::string& etag) {
    return {
        .info = {
            .key = "k", .size = content.size(), .etag = etag, .checksum = Crc32cChecksum(Crc32c(AsBytes(content)))}};
  }
  bool Same(const ComparedItem& a, const ComparedItem& b) {
    auto same = SameContent(a, b, {});
    EXPECT_TRUE(same) << (same ? "" : same.error().ToString());
    auto other = SameContent(b, a, {});
    EXPECT_EQ(*same, *other);
    return *same;
  }
  TempDir folder_ = *TempDir::Create();
};

TEST_F(CompareTest, FilesAndObjectsByChecksum) {
  EXPECT_TRUE(Same(File("a", "content"), Object("content", "1")));
  EXPECT_FALSE(Same(File("a", "content"), Object("CONTENT", "1")));
  EXPECT_FALSE(Same(File("a", "content"), Object("longer content", "1")));
  EXPECT_TRUE(Same(Object("content", "1"), Object("content", "2")));
  EXPECT_FALSE(Same(Object("content", "1"), Object("CONTENT", "2")));
  EXPECT_TRUE(Same(File("a", "content"), File("b", "content")));
  EXPECT_FALSE(Same(File("a", "content"), File("b", "CONTENT")));
  EXPECT_TRUE(Same(File("a", ""), Object("", "1")));
}

TEST_F(CompareTest, WhatAListingDidNotTellIsAskedFor) {
  auto store = object::MakeMemoryStore();
  ASSERT_TRUE(object::Put(*store, "k", AsBytes("content")));
  ComparedItem there{.store = store.get(), .info = **object::Head(*store, "k")};
  EXPECT_FALSE(Same(File("a", "content"), there)) << "this store has no checksums";
  there.info.etag = "another";
  EXPECT_EQ(SameContent(File("a", "content"), there, {}).error().code(), Code::kStale);
}

TEST_F(CompareTest, OneConditionIsEnough) {
  WallTime now(std::chrono::seconds(1000));
  ComparedItem source = File("a", "content"), destination = Object("content", "1");
  source.info.modified = now;
  destination.info.modified = now + std::chrono::milliseconds(900);
  EXPECT_TRUE(*NeedsCopy(source, destination, {}, {}));
  CopyWhen all{.newer = true, .size_differs = true, .checksum = true};
  EXPECT_FALSE(*NeedsCopy(source, destination, all, {}));
  source.info.modified += std::chrono::seconds(1);
  EXPECT_TRUE(*NeedsCopy(source, destination, {.newer = true}, {}));
  EXPECT_FALSE(*NeedsCopy(source, destination, {.size_differs = true, .checksum = true}, {}));
  EXPECT_TRUE(*NeedsCopy(source, Object("CONTENT", "1"), {.checksum = true}, {}));
  EXPECT_FALSE(*NeedsCopy(source, Object("CONTENT", "1"), {.size_differs = true}, {}));
}

}  // namespace
}  // namespace millrace::transfer
