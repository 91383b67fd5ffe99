// All buckets of an endpoint as one store, and as one tree.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/base/files/files.h"
#include "millrace/object/blocking.h"
#include "millrace/object/open/open.h"
#include "millrace/s3d/server.h"
#include "tests/integration/s3_bucket.h"

namespace millrace::object {
namespace {

using testing::ElementsAre;

class AllBucketsTest : public testing::Test {
 protected:
  void SetUp() override {
    UseTestKeys();
    auto server = s3d::Server::Start(
        {.root = folder_.path(), .access_key = kTestAccessKey, .secret_key = kTestSecretKey, .sync = false});
    ASSERT_TRUE(server) << server.error().ToString();
    server_ = *std::move(server);
    ConnectOptions options;
    options.endpoint_url = server_->endpoint();
    connection_ = *OpenConnection(options);
    service_ = *connection_->OpenService();
    for (const char* name : {"one", "two", "void"}) ASSERT_TRUE(service_->MakeBucket(name, {}));
    store_ = *OpenAllBuckets(*connection_);
    for (const char* key : {"one/a", "one/d/b", "two/c"}) ASSERT_TRUE(Put(*store_, key, AsBytes(key)));
  }
  std::string Content(const std::string& key) {
    auto content = GetAll(*store_, key, 100);
    return content && *content ? (*content)->bytes : "<none>";
  }
  /// Keys and prefixes of all pages, in order.
  std::vector<std::string> Names(ListRequest request) {
    std::vector<std::string> names;
    EXPECT_TRUE(ListAll(*store_, std::move(request), [&](const ListPage& page) {
      std::vector<std::string> some = page.common_prefixes;
      for (const ObjectInfo& object : page.objects) some.push_back(object.key);
      std::ranges::sort(some);
      names.insert(names.end(), some.begin(), some.end());
      return true;
    }));
    return names;
  }

  TempDir folder_ = *TempDir::Create();
  std::unique_ptr<s3d::Server> server_;
  std::unique_ptr<Connection> connection_;
  std::shared_ptr<Service> service_;
  std::shared_ptr<Store> store_;
};

TEST_F(AllBucketsTest, BucketsAreFoldersAtTheTop) {
  for (int page = 1; page < 5; ++page) {
    EXPECT_THAT(Names({.delimiter = "/", .max_keys = page}), ElementsAre("one/", "two/", "void/"));
    EXPECT_THAT(Names({.prefix = "t", .delimiter = "/", .max_keys = page}), ElementsAre("two/"));
    EXPECT_THAT(Names({.delimiter = "/", .start_after = "one/", .max_keys = page}), ElementsAre("two/", "void/"));
    EXPECT_THAT(Names({.prefix = "one/", .max_keys = page}), ElementsAre("one/", "one/a", "one/d/b"));
    EXPECT_THAT(Names({.prefix = "one/", .delimiter = "/", .max_keys = page}), ElementsAre("one/", "one/a", "one/d/"));
    EXPECT_THAT(Names({.prefix = "one/", .start_after = "one/a", .max_keys = page}), ElementsAre("one/d/b"));
    EXPECT_THAT(Names({.prefix = "one/d", .start_after = "nothing", .max_keys = page}), ElementsAre("one/d/b"));
    EXPECT_THAT(Names({.prefix = "one/", .start_after = "p", .max_keys = page}), ElementsAre());
    EXPECT_THAT(Names({.prefix = "void/", .max_keys = page}), ElementsAre("void/"));
    EXPECT_THAT(Names({.prefix = "absent/", .max_keys = page}), ElementsAre());
    EXPECT_THAT(Names({.prefix = ".git/", .max_keys = page}), ElementsAre());
  }
  EXPECT_EQ(List(*store_, {}).error().code(), Code::kUnsupported);
}

TEST_F(AllBucketsTest, KeysReachTheirBuckets) {
  EXPECT_EQ(Content("one/d/b"), "one/d/b");
  EXPECT_EQ((*Head(*store_, "two/c"))->key, "two/c");
  EXPECT_EQ(store_->Identity(), server_->endpoint() + "/");
  EXPECT_EQ((*Head(*store_, "void/"))->size, 0u);
  for (const char* absent : {"two/x", "two", "absent/", "absent/x", ".git", ".git/x"}) {
    auto info = Head(*store_, absent);
    ASSERT_TRUE(info) << absent << ": " << info.error().ToString();
    EXPECT_FALSE(*info) << absent;
    EXPECT_EQ(Content(absent), "<none>");
  }
  ASSERT_TRUE(Copy(*store_, "one/a", "two/copied/a"));
  ASSERT_TRUE(Copy(*store_, "one/a", "one/copy"));
  EXPECT_EQ(Content("two/copied/a"), "one/a");
  EXPECT_EQ(Content("one/copy"), "one/a");
  auto upload = CreateMultipart(*store_, "two/parts", {});
  ASSERT_TRUE(upload);
  EXPECT_THAT(*ListUploads(*store_, "two/"), ElementsAre(testing::Field(&UploadInfo::key, "two/parts")));
  std::vector<PartInfo> parts = {*CopyPart(*store_, "two/parts", *upload, 1, "one/d/b", {0, 7})};
  ASSERT_TRUE(CompleteMultipart(*store_, "two/parts", *upload, parts, {}));
  EXPECT_EQ(Content("two/parts"), "one/d/b");
}

TEST_F(AllBucketsTest, WhatConcernsNoKeyOfABucketIsRefused) {
  for (const char* path : {"file", "new/", "one/"}) {
    EXPECT_EQ(Put(*store_, path, {}).error().code(), Code::kPermissionDenied) << path;
    EXPECT_EQ(Delete(*store_, path).error().code(), Code::kPermissionDenied) << path;
  }
  auto failures = DeleteMany(*store_, {"one/a", "two/c", "void/", "nowhere/x", "one/absent"});
  ASSERT_TRUE(failures) << failures.error().ToString();
  std::vector<std::string> failed;
  for (const DeleteFailure& failure : *failures) failed.push_back(failure.key);
  EXPECT_THAT(failed, testing::UnorderedElementsAre("void/", "nowhere/x"));
  EXPECT_EQ(Content("one/a"), "<none>");
  EXPECT_EQ(Content("two/c"), "<none>");
  EXPECT_EQ(Put(*store_, "nowhere/x", {}).error().code(), Code::kNotFound);
}

}  // namespace
}  // namespace millrace::object
