// The store against answers that lack something, or that say more than was asked for.
#include <gmock/gmock.h>

#include <atomic>
#include <future>

#include "millrace/object/s3/scripted_store.h"
#include "millrace/object/support/early_pages.h"

namespace millrace::object::s3 {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::string_view kNoLength = "HTTP/1.1 200 OK\r\nETag: \"e\"\r\nx-amz-meta-a: 1\r\n\r\n";

/// The answer to a Get of one byte of `total`.
Reply FirstByteOf(int total, std::string_view etag = "e") {
  return {fmt::format("HTTP/1.1 206 P\r\nETag: \"{}\"\r\nContent-Range: bytes 0-0/{}\r\nContent-Length: 1\r\n\r\nx",
                      etag, total)};
}

TEST_F(S3StoreTest, AHeadWithoutALengthGetsTheSizeFromAGetOfOneByte) {
  Serve(
      [](const Seen& seen) { return seen.method == "HEAD" ? Reply{std::string(kNoLength)} : FirstByteOf(20'000'000); });
  auto info = Head(*store_, "k");
  ASSERT_TRUE(info) << info.error().ToString();
  EXPECT_EQ((*info)->size, 20'000'000u);
  EXPECT_EQ((*info)->metadata["a"], "1");
  EXPECT_EQ(server_->seen().at(1).headers.Get("range"), "bytes=0-0");
}

TEST_F(S3StoreTest, AHeadWithoutALengthOfAnEmptyObjectIsOfSizeZero) {
  Reply got = Refuse(416, "InvalidRange");
  Serve([&](const Seen& seen) { return seen.method == "HEAD" ? Reply{std::string(kNoLength)} : got; });
  EXPECT_EQ((*Head(*store_, "k"))->size, 0u);
  got = {Answer(200, "", "ETag: \"e\"\r\n")};
  EXPECT_EQ((*Head(*store_, "k"))->size, 0u);
}

TEST_F(S3StoreTest, ASizeThatNobodyTellsIsAnError) {
  Reply got;
  Serve([&](const Seen& seen) { return seen.method == "HEAD" ? Reply{std::string(kNoLength)} : got; });
  const std::pair<Reply, Code> cases[] = {
      {{"HTTP/1.1 200 OK\r\nETag: \"e\"\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"}, Code::kUnsupported},
      {{Answer(200, "more than one byte", "ETag: \"e\"\r\n")}, Code::kCorrupt},
      {FirstByteOf(5, "another"), Code::kUnavailable},
      {Refuse(403, "AccessDenied"), Code::kPermissionDenied}};
  for (const auto& [reply, code] : cases) {
    got = reply;
    auto info = Head(*store_, "k");
    ASSERT_FALSE(info) << reply.bytes;
    EXPECT_EQ(info.error().code(), code) << info.error().ToString();
  }
  got = Refuse(404, "NoSuchKey");
  auto gone = Head(*store_, "k");
  ASSERT_TRUE(gone) << gone.error().ToString();
  EXPECT_FALSE(*gone);
}

/// A page of a listing with these keys and common prefixes.
std::string Page(const std::vector<std::string>& keys, const std::vector<std::string>& prefixes = {},
                 std::string_view next = {}) {
  std::string page = "<ListBucketResult>";
  if (!next.empty()) {
    page += fmt::format("<IsTruncated>true</IsTruncated><NextContinuationToken>{}</NextContinuationToken>", next);
  }
  for (const std::string& key : keys) {
    page += fmt::format(
        "<Contents><Key>{}</Key><Size>1</Size><LastModified>2026-01-01T00:00:00Z</LastModified></Contents>", key);
  }
  for (const std::string& prefix : prefixes)
    page += fmt::format("<CommonPrefixes><Prefix>{}</Prefix></CommonPrefixes>", prefix);
  return page + "</ListBucketResult>";
}
std::vector<std::string> KeysOf(const ListPage& page) {
  std::vector<std::string> keys;
  for (const ObjectInfo& object : page.objects) keys.push_back(object.key);
  return keys;
}

TEST_F(S3StoreTest, AListingLeavesOutWhatItsPrefixDoesNotAskFor) {
  Serve([](const Seen&) {
    return Reply{Answer(200, Page({"a", "foo/x", "foobar/y"}, {"foo/", "foo/d/", "foo/e", "foobar/", "g/"}))};
  });
  auto page = List(*store_, {.prefix = "foo/", .delimiter = "/"});
  ASSERT_TRUE(page) << page.error().ToString();
  EXPECT_THAT(KeysOf(*page), ElementsAre("foo/x"));
  EXPECT_THAT(page->common_prefixes, ElementsAre("foo/d/"));
  page = List(*store_, {.prefix = "foo/x/y/z"});
  ASSERT_TRUE(page) << page.error().ToString();
  EXPECT_THAT(KeysOf(*page), IsEmpty());
}

TEST_F(S3StoreTest, AListingWhoseTokenRepeatsIsAnError) {
  Serve([](const Seen&) { return Reply{Answer(200, Page({"a"}, {}, "t"))}; });
  int pages = 0;
  Status listed = ListAll(*store_, {}, [&](const ListPage&) { return ++pages < 10; });
  ASSERT_FALSE(listed);
  EXPECT_EQ(listed.error().code(), Code::kCorrupt);
  EXPECT_THAT(listed.error().ToString(), HasSubstr("s3://b does not end"));
  EXPECT_EQ(pages, 1);
  std::promise<Result<ListPage>> page;
  EarlyPages::List(
      *store_, {.continuation = "t"}, {},
      [](const std::string& token) { ADD_FAILURE() << token << " was a page's own"; },
      [&](auto got) { page.set_value(std::move(got)); });
  EXPECT_FALSE(page.get_future().get());
}

TEST_F(S3StoreTest, AListingThatIsCutWithoutATokenIsAnError) {
  Serve([](const Seen&) {
    return Reply{Answer(200, "<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>")};
  });
  EXPECT_EQ(List(*store_, {}).error().code(), Code::kCorrupt);
}

TEST_F(S3StoreTest, VersionsAndUploadsBelowAnotherPrefixAreLeftOut) {
  Serve([](const Seen& seen) {
    if (seen.target.find("versions") != std::string::npos) {
      std::string versions;
      for (const char* key : {"foo/x", "foobar/y"}) {
        versions += fmt::format(
            "<Version><Key>{}</Key><VersionId>1</VersionId><Size>1</Size>"
            "<LastModified>2026-01-01T00:00:00Z</LastModified></Version>",
            key);
      }
      return Reply{Answer(200, "<ListVersionsResult><CommonPrefixes><Prefix>g/</Prefix></CommonPrefixes>" + versions +
                                   "</ListVersionsResult>")};
    }
    std::string uploads;
    for (const char* key : {"foo/x", "foobar/y"}) {
      uploads += fmt::format(
          "<Upload><Key>{}</Key><UploadId>1</UploadId><Initiated>2026-01-01T00:00:00Z</Initiated>"
          "</Upload>",
          key);
    }
    return Reply{Answer(200, "<ListMultipartUploadsResult>" + uploads + "</ListMultipartUploadsResult>")};
  });
  auto versions = ListVersions(*store_, {.prefix = "foo/", .delimiter = "/"});
  ASSERT_TRUE(versions) << versions.error().ToString();
  ASSERT_EQ(versions->versions.size(), 1u);
  EXPECT_EQ(versions->versions.front().info.key, "foo/x");
  EXPECT_THAT(versions->common_prefixes, IsEmpty());
  auto uploads = ListUploads(*store_, "foo/");
  ASSERT_TRUE(uploads) << uploads.error().ToString();
  ASSERT_EQ(uploads->size(), 1u);
  EXPECT_EQ(uploads->front().key, "foo/x");
}

TEST_F(S3StoreTest, AListingSaysThatItsPrefixIsEmpty) {
  Serve([](const Seen&) { return Reply{Answer(200, Page({"a"}))}; });
  ASSERT_TRUE(List(*store_, {}));
  EXPECT_THAT(server_->seen().front().target, HasSubstr("prefix="));
}

TEST_F(S3StoreTest, APageOutOfOrderIsSorted) {
  Serve([](const Seen&) { return Reply{Answer(200, Page({"c", "a", "b"}, {"z/", "y/"}))}; });
  auto page = List(*store_, {.delimiter = "/"});
  ASSERT_TRUE(page) << page.error().ToString();
  EXPECT_THAT(KeysOf(*page), ElementsAre("a", "b", "c"));
  EXPECT_THAT(page->common_prefixes, ElementsAre("y/", "z/"));
}

TEST_F(S3StoreTest, AServerThatKnowsOnlyMarkersIsListedToItsEnd) {
  Serve([](const Seen& seen) {
    const bool second = seen.target.find("marker=b%2F") != std::string::npos;
    std::string page = second ? Page({"c"}) : Page({"a"}, {"b/"});
    if (!second) page.replace(page.find("<Contents>"), 0, "<IsTruncated>true</IsTruncated>");
    return Reply{Answer(200, page)};
  });
  std::vector<std::string> keys;
  Status listed = ListAll(*store_, {.delimiter = "/"}, [&](const ListPage& page) {
    for (const ObjectInfo& object : page.objects) keys.push_back(object.key);
    return true;
  });
  ASSERT_TRUE(listed) << listed.error().ToString();
  EXPECT_THAT(keys, ElementsAre("a", "c"));
  EXPECT_EQ(server_->seen().back().target.find("list-type"), std::string::npos);
}

TEST_F(S3StoreTest, AnAnswerToAWriteWithoutETagIsAskedFor) {
  Serve([](const Seen& seen) {
    if (seen.method == "HEAD") return Reply{"HTTP/1.1 200 OK\r\nETag: \"e\"\r\nContent-Length: 3\r\n\r\n"};
    if (seen.method == "POST")
      return Reply{Answer(200, "<CompleteMultipartUploadResult><ETag/></CompleteMultipartUploadResult>")};
    return Reply{Answer(200, seen.headers.Has("x-amz-copy-source") ? "<CopyObjectResult/>" : "")};
  });
  EXPECT_EQ(Put(*store_, "k", AsBytes(std::string_view("abc")))->etag, "e");
  EXPECT_EQ(Copy(*store_, "k", "l", {})->etag, "e");
  EXPECT_EQ(CompleteMultipart(*store_, "k", "u", {{.number = 1, .etag = "p"}}, {})->etag, "e");
}

TEST_F(S3StoreTest, ARefusedHeadIsSentAgainWhenAListingHasRepairedTheClock) {
  bool adjusted = false;
  Serve([&](const Seen& seen) {
    if (seen.method == "HEAD")
      return adjusted ? Reply{std::string(kNoLength).insert(17, "Content-Length: 3\r\n")} : Reply{Answer(403, "")};
    if (adjusted) return Reply{Answer(200, Page({"k"}))};
    adjusted = true;
    return Refuse(403, "RequestTimeTooSkewed", "Date: Tue, 01 Jan 2030 00:00:00 GMT\r\n");
  });
  auto info = Head(*store_, "k");
  ASSERT_TRUE(info) << info.error().ToString();
  EXPECT_EQ((*info)->size, 3u);
}

TEST_F(S3StoreTest, ARefusedHeadHasTheReasonOfTheListing) {
  Serve([](const Seen& seen) {
    return seen.method == "HEAD" ? Reply{Answer(403, "")} : Refuse(403, "InvalidAccessKeyId");
  });
  auto info = Head(*store_, "k");
  ASSERT_FALSE(info);
  EXPECT_EQ(info.error().code(), Code::kPermissionDenied);
  EXPECT_THAT(info.error().ToString(), HasSubstr("does not know this access key"));
}

TEST_F(S3StoreTest, AnUnknownUserIsNoMissingBucket) {
  Serve([](const Seen& seen) {
    return seen.method == "HEAD" ? Reply{Answer(404, "")} : Refuse(404, "XAdminUserNotFound");
  });
  EXPECT_EQ(Head(*store_, "k").error().code(), Code::kPermissionDenied);
}

TEST_F(S3StoreTest, ObjectsAreDeletedSinglyWhereDeleteObjectsIsUnknown) {
  for (const int status : {400, 404, 405, 501}) {
    Serve([&](const Seen& seen) { return seen.method == "POST" ? Refuse(status, "") : Reply{Answer(204, "")}; });
    std::vector<std::string> keys;
    for (int i = 0; i < 50; ++i) keys.push_back(fmt::format("k{}", i));
    for (int round = 0; round < 2; ++round) {
      auto failures = DeleteMany(*store_, keys);
      ASSERT_TRUE(failures) << status << failures.error().ToString();
      EXPECT_THAT(*failures, IsEmpty());
    }
    // It is asked once; a refusal that may be due to the checksum headers, once more without them.
    EXPECT_EQ(server_->seen().size(), status == 404 ? 101u : 102u);
  }
}

TEST_F(S3StoreTest, AKeyThatIsAbsentAlreadyIsDeleted) {
  Serve([&](const Seen& seen) {
    if (seen.method == "POST") return Refuse(501, "NotImplemented");
    return seen.target.ends_with("/k1")   ? Refuse(404, "NoSuchKey")
           : seen.target.ends_with("/k2") ? Refuse(403, "AccessDenied")
                                          : Reply{Answer(204, "")};
  });
  auto failures = DeleteMany(*store_, {"k0", "k1", "k2", "k3"});
  ASSERT_TRUE(failures) << failures.error().ToString();
  ASSERT_EQ(failures->size(), 1u);
  EXPECT_EQ(failures->front().key, "k2");
}

TEST_F(S3StoreTest, AnUploadMayHaveTheTagsOfAnotherObject) {
  Serve([](const Seen& seen) {
    if (seen.method == "GET")
      return Reply{Answer(200, "<Tagging><TagSet><Tag><Key>a b</Key><Value>x&amp;y</Value></Tag></TagSet></Tagging>")};
    return Reply{Answer(200, "<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>")};
  });
  auto upload = CreateMultipart(*store_, "k", {.tags_of = PutOptions::TaggedObject{"from", "source"}});
  ASSERT_TRUE(upload) << upload.error().ToString();
  EXPECT_THAT(server_->seen().front().target, HasSubstr("/from/source?tagging"));
  EXPECT_EQ(server_->seen().back().headers.Get("x-amz-tagging"), "a%20b=x%26y");
}

TEST_F(S3StoreTest, ChecksumHeadersThatAreRefusedAreReplacedByMd5) {
  Serve([](const Seen& seen) {
    return seen.headers.Has("x-amz-checksum-crc32c") ? Refuse(400, "InvalidArgument")
                                                     : Reply{Answer(200, "", "ETag: \"e\"\r\n")};
  });
  for (int i = 0; i < 2; ++i) {
    auto put = Put(*store_, "k", AsBytes(std::string_view("abc")));
    ASSERT_TRUE(put) << put.error().ToString();
  }
  EXPECT_EQ(server_->seen().size(), 3u);
  EXPECT_EQ(server_->seen().back().headers.Get("content-md5"), "kAFQmDzST7DWlj99KOF/cg==");
}

TEST_F(S3StoreTest, ARefusalThatIsNotOfChecksumsTeachesNothing) {
  bool refuses = true;
  Serve([&](const Seen&) {
    return refuses ? Refuse(400, "InvalidArgument") : Reply{Answer(200, "", "ETag: \"e\"\r\n")};
  });
  EXPECT_FALSE(Put(*store_, "k", AsBytes(std::string_view("abc"))));
  refuses = false;
  EXPECT_TRUE(Put(*store_, "k", AsBytes(std::string_view("abc"))));
  EXPECT_TRUE(server_->seen().back().headers.Has("x-amz-checksum-crc32c"));
}

TEST_F(S3StoreTest, AnETagThatMatchesOnlyWithoutQuotesIsSentWithout) {
  Serve([](const Seen& seen) {
    if (seen.method == "HEAD") return Reply{"HTTP/1.1 200 OK\r\nETag: \"e\"\r\nContent-Length: 3\r\n\r\n"};
    return seen.headers.Get("if-match") == "e" ? Reply{Answer(200, "", "ETag: \"e\"\r\n")}
                                               : Refuse(412, "PreconditionFailed");
  });
  const auto other = Put(*store_, "k", AsBytes(std::string_view("abc")), {.if_match = "other"});
  EXPECT_EQ(other.error().code(), Code::kPreconditionFailed);
  for (int i = 0; i < 2; ++i) {
    auto put = Put(*store_, "k", AsBytes(std::string_view("abc")), {.if_match = "e"});
    ASSERT_TRUE(put) << put.error().ToString();
  }
  EXPECT_EQ(server_->seen().size(), 6u) << "a Put and a Head; a Put, a Head and a Put; a Put";
}

}  // namespace
}  // namespace millrace::object::s3
