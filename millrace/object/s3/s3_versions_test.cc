// Requests about versions, archives and tags.
#include <gmock/gmock.h>

#include "millrace/object/s3/scripted_store.h"

namespace millrace::object::s3 {
namespace {

using ::testing::HasSubstr;

TEST_F(S3StoreTest, AVersionIsNamedInEachReadOfIt) {
  Serve([](const Seen& seen) { return Reply{Answer(200, seen.method == "HEAD" ? "" : "old", "ETag: \"e\"\r\n")}; });
  ASSERT_TRUE(HeadVersion(*store_, "k", "v/1"));
  std::string text(3, ' ');
  ASSERT_TRUE(GetText(text, {.version = "v/1"}));
  EXPECT_EQ(text, "old");
  for (const Seen& seen : server_->seen()) EXPECT_THAT(seen.target, HasSubstr("versionId=v%2F1"));
}

TEST_F(S3StoreTest, AWrongVersionIsAnErrorThatNamesIt) {
  Serve([](const Seen&) { return Reply{Answer(400, "")}; });
  const auto head = HeadVersion(*store_, "k", "no-such");
  ASSERT_FALSE(head);
  EXPECT_THAT(head.error().ToString(), HasSubstr("version no-such of k"));
}

TEST_F(S3StoreTest, VersionsAreDeletedInOneRequest) {
  Serve([](const Seen&) {
    return Reply{Answer(200,
                        "<DeleteResult><Error><Key>b</Key><VersionId>2</VersionId><Code>AccessDenied</Code>"
                        "<Message>locked</Message></Error></DeleteResult>")};
  });
  const auto failures = DeleteVersions(*store_, {{"a", "1"}, {"b", "2"}});
  ASSERT_TRUE(failures) << failures.error().ToString();
  ASSERT_EQ(failures->size(), 1u);
  EXPECT_EQ(failures->front().key, "b");
  EXPECT_EQ(failures->front().version, "2");
  EXPECT_THAT(server_->seen().at(0).body, HasSubstr("<Key>a</Key><VersionId>1</VersionId>"));
}

TEST_F(S3StoreTest, ACopyOfAVersionNamesIt) {
  Serve([](const Seen&) { return Reply{Answer(200, "<CopyObjectResult><ETag>\"e\"</ETag></CopyObjectResult>")}; });
  ASSERT_TRUE(Copy(*store_, "a b", "k", {.source_version = "v+1", .attributes = {.tagging = "x=1"}}));
  const http::Headers headers = server_->seen().at(0).headers;
  EXPECT_EQ(headers.Get("x-amz-copy-source"), "/b/a%20b?versionId=v%2B1");
  EXPECT_EQ(headers.Get("x-amz-tagging"), "x=1");
  EXPECT_EQ(headers.Get("x-amz-tagging-directive"), "REPLACE");
}

TEST_F(S3StoreTest, AnArchivedObjectIsRestored) {
  Reply reply{Answer(202, "")};
  Serve([&](const Seen&) { return reply; });
  EXPECT_EQ(Restore(*store_, "k", {.days = 7, .tier = "Bulk"}), true);
  EXPECT_THAT(server_->seen().at(0).target, HasSubstr("/k?restore"));
  EXPECT_THAT(server_->seen().at(0).body,
              HasSubstr("<Days>7</Days><GlacierJobParameters><Tier>Bulk</Tier></GlacierJobParameters>"));
  reply = Refuse(409, "RestoreAlreadyInProgress");
  EXPECT_EQ(Restore(*store_, "k", {}), false);
}

TEST_F(S3StoreTest, AHeadTellsLocksAndRestores) {
  Serve([](const Seen&) {
    return Reply{
        Answer(200, "",
               "ETag: \"e\"\r\nx-amz-restore: ongoing-request=\"true\"\r\nx-amz-object-lock-mode: GOVERNANCE\r\n"
               "x-amz-object-lock-legal-hold: ON\r\n")};
  });
  const auto info = Head(*store_, "k");
  ASSERT_TRUE(info && *info);
  EXPECT_EQ((*info)->attributes->restore, "ongoing-request=\"true\"");
  EXPECT_EQ((*info)->attributes->lock_mode, "GOVERNANCE");
  EXPECT_EQ((*info)->attributes->legal_hold, "ON");
}

TEST_F(S3StoreTest, AReadOfAnArchivedObjectNamesTheCommand) {
  Serve([](const Seen&) { return Refuse(403, "InvalidObjectState"); });
  std::string text(3, ' ');
  EXPECT_THAT(GetText(text).error().ToString(), HasSubstr("millrace restore"));
}

}  // namespace
}  // namespace millrace::object::s3
