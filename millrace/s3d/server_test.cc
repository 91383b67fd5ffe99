#include "millrace/s3d/server.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "millrace/base/files/files.h"
#include "millrace/base/hash/digest.h"
#include "millrace/base/hash/random.h"
#include "millrace/base/hash/text_encoding.h"
#include "millrace/base/text.h"
#include "millrace/http/client/client.h"

namespace millrace::s3d {
namespace {

using Fields = std::vector<std::pair<std::string, std::string>>;

/// An endpoint without sync and signatures, and a client that says exactly what it is told.
class S3dServer : public testing::Test {
 protected:
  S3dServer() : folder_(*TempDir::Create()), client_({}) {
    Start();
    EXPECT_EQ(Do("PUT", "/bucket").status, 200);
  }
  void Start() {
    server_.reset();
    auto started =
        Server::Start({.root = folder_.path() / "root", .anonymous = true, .sync = false, .min_part_bytes = 4});
    ASSERT_TRUE(started) << started.error().ToString();
    server_ = std::move(*started);
  }
  http::Response Do(std::string method, std::string target, std::string_view body = "", const Fields& fields = {}) {
    auto response = TryDo(std::move(method), std::move(target), body, fields);
    EXPECT_TRUE(response) << response.error().ToString();
    return response ? std::move(*response) : http::Response();
  }
  Result<http::Response> TryDo(std::string method, std::string target, std::string_view body = "",
                               const Fields& fields = {}) {
    http::Request request{.method = std::move(method), .url = server_->endpoint() + target, .body = AsBytes(body)};
    for (const auto& [name, value] : fields) request.headers.Set(name, value);
    return client_.Send(std::move(request));
  }
  static std::string Between(const std::string& text, std::string_view open, std::string_view close) {
    std::size_t begin = text.find(open);
    if (begin == std::string::npos) return "";
    begin += open.size();
    return text.substr(begin, text.find(close, begin) - begin);
  }
  static std::string CodeOf(const http::Response& response) { return Between(response.body, "<Code>", "</Code>"); }
  static std::vector<std::string> All(const std::string& text, std::string_view element) {
    std::vector<std::string> values;
    std::string open = fmt::format("<{}>", element);
    for (std::size_t at = 0; (at = text.find(open, at)) != std::string::npos;) {
      at += open.size();
      values.push_back(text.substr(at, text.find('<', at) - at));
    }
    return values;
  }

  TempDir folder_;
  std::unique_ptr<Server> server_;
  http::Client client_;
};

TEST_F(S3dServer, AnonymousStaysOnLoopback) {
  for (const char* listen : {"0.0.0.0:0", "[::]:0", "127.evil.com:0"}) {
    auto refused = Server::Start({.root = folder_.path() / "other", .listen = listen, .anonymous = true});
    ASSERT_FALSE(refused) << listen;
    EXPECT_NE(refused.error().message().find("--insecure"), std::string::npos) << refused.error().message();
  }
  EXPECT_TRUE(
      Server::Start({.root = folder_.path() / "other", .listen = "0.0.0.0:0", .anonymous = true, .insecure = true}));
}

TEST_F(S3dServer, PagesOfOtherSitesGetAndChangeNothing) {
  EXPECT_EQ(CodeOf(Do("PUT", "/bucket/k", "x", {{"Origin", "https://evil.com"}})), "AccessDenied");
  EXPECT_EQ(CodeOf(Do("GET", "/bucket", "", {{"Host", "evil.com"}})), "AccessDenied");
  EXPECT_EQ(Do("GET", "/bucket/k").status, 404);
}

TEST_F(S3dServer, ObjectsComeBackAsTheyWere) {
  Random random(1);
  for (std::size_t size : {0, 1, 1000, 65'536, 65'537, 3'000'000}) {
    std::string body(size, '\0');
    for (char& c : body) c = static_cast<char>(random.Next());
    auto put =
        Do("PUT", "/bucket/some/key%20%C3%A9%2F..%2Fx", body, {{"x-amz-meta-a", "b"}, {"Content-Type", "text/x"}});
    EXPECT_EQ(put.status, 200);
    EXPECT_EQ(put.headers.Get("ETag"), "\"" + HexEncode(Md5(AsBytes(body))) + "\"");
    for (bool reopened : {false, true}) {
      if (reopened) Start();
      auto got = Do("GET", "/bucket/some/key%20%C3%A9%2F..%2Fx");
      EXPECT_EQ(got.status, 200);
      EXPECT_EQ(got.body, body);
      EXPECT_EQ(got.headers.Get("x-amz-meta-a"), "b");
      EXPECT_EQ(got.headers.Get("Content-Type"), "text/x");
    }
    EXPECT_EQ(Do("HEAD", "/bucket/some/key%20%C3%A9%2F..%2Fx").headers.Get("Content-Length"), std::to_string(size));
  }
}

TEST_F(S3dServer, RangesAndConditions) {
  Do("PUT", "/bucket/k", "0123456789");
  auto range = Do("GET", "/bucket/k", "", {{"Range", "bytes=2-4"}});
  EXPECT_EQ(range.status, 206);
  EXPECT_EQ(range.body, "234");
  EXPECT_EQ(range.headers.Get("Content-Range"), "bytes 2-4/10");
  EXPECT_EQ(Do("GET", "/bucket/k", "", {{"Range", "bytes=-3"}}).body, "789");
  EXPECT_EQ(Do("GET", "/bucket/k", "", {{"Range", "bytes=10-"}}).status, 416);
  std::string etag(range.headers.Get("ETag"));
  EXPECT_EQ(Do("GET", "/bucket/k", "", {{"If-None-Match", etag}}).status, 304);
  EXPECT_EQ(Do("GET", "/bucket/k", "", {{"If-Match", "\"x\""}}).status, 412);
  EXPECT_EQ(Do("PUT", "/bucket/k", "new", {{"If-None-Match", "*"}}).status, 412);
  EXPECT_EQ(Do("PUT", "/bucket/k", "new", {{"If-Match", etag}}).status, 200);
  EXPECT_EQ(Do("PUT", "/bucket/k", "newer", {{"If-Match", etag}}).status, 412);
  EXPECT_EQ(Do("GET", "/bucket/k").body, "new");
}

TEST_F(S3dServer, AKeyAndAKeyBelowItAreBothObjects) {
  for (std::string key : {"a", "a/", "a/b", "a/b/c", "../x", "/", "//"}) {
    std::string target = "/bucket/" + PercentEncode(key, false);
    EXPECT_EQ(Do("PUT", target, key).status, 200);
    EXPECT_EQ(Do("GET", target).body, key);
  }
  auto listing = Do("GET", "/bucket?list-type=2");
  EXPECT_EQ(All(listing.body, "Key"), (std::vector<std::string>{"../x", "/", "//", "a", "a/", "a/b", "a/b/c"}));
}

TEST_F(S3dServer, ListsInPages) {
  for (int i = 0; i < 25; ++i) Do("PUT", fmt::format("/bucket/{}/{:02}", i % 5, i), "x");
  std::vector<std::string> keys;
  std::string token;
  do {
    auto page = Do("GET", "/bucket?list-type=2&max-keys=7" +
                              (token.empty() ? "" : "&continuation-token=" + PercentEncode(token, false)));
    for (std::string& key : All(page.body, "Key")) keys.push_back(std::move(key));
    token = Between(page.body, "<NextContinuationToken>", "<");
  } while (!token.empty());
  EXPECT_EQ(keys.size(), 25u);
  EXPECT_TRUE(std::ranges::is_sorted(keys));
  auto folders = Do("GET", "/bucket?list-type=2&delimiter=%2F");
  EXPECT_EQ(All(Between(folders.body, "<CommonPrefixes>", "</ListBucketResult>"), "Prefix"),
            (std::vector<std::string>{"0/", "1/", "2/", "3/", "4/"}));
  EXPECT_EQ(All(Do("GET", "/bucket?prefix=3%2F&marker=3%2F08").body, "Key"),
            (std::vector<std::string>{"3/13", "3/18", "3/23"}));
  Do("PUT", "/bucket/%01%20%2B", "x");
  EXPECT_EQ(All(Do("GET", "/bucket?encoding-type=url&max-keys=1").body, "Key"),
            (std::vector<std::string>{"%01%20%2B"}));
}

TEST_F(S3dServer, MultipartUploads) {
  auto created = Do("POST", "/bucket/big?uploads", "", {{"x-amz-meta-a", "b"}, {"x-amz-checksum-algorithm", "CRC32C"}});
  std::string id = Between(created.body, "<UploadId>", "<");
  ASSERT_FALSE(id.empty());
  std::map<std::string, std::string> checksums;  // by ETag
  auto part = [&](int number, std::string_view body) {
    auto answer = Do("PUT", fmt::format("/bucket/big?partNumber={}&uploadId={}", number, id), body);
    std::string etag(answer.headers.Get("ETag"));
    checksums[etag] = answer.headers.Get("x-amz-checksum-crc32c");
    return etag;
  };
  auto complete = [&](const std::vector<std::pair<int, std::string>>& parts) {
    std::string body = "<CompleteMultipartUpload>";
    for (const auto& [number, etag] : parts) {
      body += fmt::format("<Part><PartNumber>{}</PartNumber><ETag>{}</ETag>", number, etag);
      if (!checksums[etag].empty()) body += "<ChecksumCRC32C>" + checksums[etag] + "</ChecksumCRC32C>";
      body += "</Part>";
    }
    return Do("POST", "/bucket/big?uploadId=" + id, body + "</CompleteMultipartUpload>");
  };
  std::string one = part(1, "12345"), three = part(3, "abc"), small = part(7, "x");
  Do("PUT", "/bucket/source", "source bytes");
  auto copied = Do("PUT", fmt::format("/bucket/big?partNumber=2&uploadId={}", id), "",
                   {{"x-amz-copy-source", "/bucket/source"}, {"x-amz-copy-source-range", "bytes=7-11"}});
  std::string two = "\"" + Between(copied.body, "<ETag>&quot;", "&quot;") + "\"";
  EXPECT_EQ(CodeOf(complete({{1, one}, {2, two}})), "InvalidRequest")
      << "a composite checksum needs those of all parts";
  checksums[two] = Between(copied.body, "<ChecksumCRC32C>", "<");
  EXPECT_EQ(All(Do("GET", "/bucket/big?uploadId=" + id).body, "PartNumber"),
            (std::vector<std::string>{"1", "2", "3", "7"}));
  EXPECT_EQ(All(Do("GET", "/bucket?uploads").body, "UploadId"), std::vector<std::string>{id});

  EXPECT_EQ(CodeOf(complete({{2, two}, {1, one}})), "InvalidPartOrder");
  EXPECT_EQ(CodeOf(complete({{1, two}})), "InvalidPart");
  EXPECT_EQ(CodeOf(complete({{1, one}, {3, three}, {7, small}})), "EntityTooSmall");
  auto done = complete({{1, one}, {2, two}, {3, three}});
  EXPECT_EQ(done.status, 200);
  EXPECT_EQ(complete({{1, one}, {2, two}, {3, three}}).status, 200) << "a repeated completion";
  auto got = Do("GET", "/bucket/big", "", {{"x-amz-checksum-mode", "ENABLED"}});
  EXPECT_EQ(got.body, "12345bytesabc");
  EXPECT_TRUE(got.headers.Get("ETag").ends_with("-3\""));
  EXPECT_EQ(got.headers.Get("x-amz-meta-a"), "b");
  EXPECT_TRUE(got.headers.Get("x-amz-checksum-crc32c").ends_with("-3"));
  auto second = Do("GET", "/bucket/big?partNumber=2");
  EXPECT_EQ(second.body, "bytes");
  EXPECT_EQ(second.headers.Get("x-amz-mp-parts-count"), "3");
  EXPECT_EQ(Do("GET", "/bucket/big", "", {{"Range", "bytes=4-10"}}).body, "5bytesa");
  EXPECT_EQ(CodeOf(Do("DELETE", "/bucket/big?uploadId=" + id)), "NoSuchUpload");
}

TEST_F(S3dServer, AttributesThatS3RefusesAreRefused) {
  const auto put = [&](const char* name, const char* value) {
    const auto response = Do("PUT", "/bucket/k", "x", {{name, value}});
    return response.status == 200 ? "" : CodeOf(response);
  };
  EXPECT_EQ(put("x-amz-storage-class", "STANDARD_IA"), "");
  EXPECT_EQ(put("x-amz-storage-class", "COLD"), "InvalidStorageClass");
  EXPECT_EQ(put("x-amz-acl", "private"), "");
  EXPECT_EQ(put("x-amz-acl", "bucket-owner-full-control"), "");
  EXPECT_EQ(put("x-amz-acl", "public-read"), "AccessControlListNotSupported");
  EXPECT_EQ(put("x-amz-grant-read", "id=\"x\""), "AccessControlListNotSupported");
  EXPECT_EQ(put("x-amz-acl", "publik"), "InvalidArgument");
  EXPECT_EQ(CodeOf(Do("POST", "/bucket/k?uploads", "", {{"x-amz-storage-class", "COLD"}})), "InvalidStorageClass");
}

TEST_F(S3dServer, CopiesAndDeletes) {
  Do("PUT", "/bucket/a", "content", {{"x-amz-meta-x", "1"}});
  EXPECT_EQ(Do("PUT", "/bucket/b", "", {{"x-amz-copy-source", "bucket/a"}}).status, 200);
  EXPECT_EQ(Do("PUT", "/bucket/c", "",
               {{"x-amz-copy-source", "bucket/a"}, {"x-amz-metadata-directive", "REPLACE"}, {"x-amz-meta-y", "2"}})
                .status,
            200);
  EXPECT_EQ(CodeOf(Do("PUT", "/bucket/a", "", {{"x-amz-copy-source", "bucket/a"}})), "InvalidRequest");
  EXPECT_EQ(CodeOf(Do("PUT", "/bucket/d", "", {{"x-amz-copy-source", "bucket/none"}})), "NoSuchKey");
  EXPECT_EQ(Do("PUT", "/bucket/d", "", {{"x-amz-copy-source", "bucket/a"}, {"x-amz-copy-source-if-match", "x"}}).status,
            412);
  EXPECT_EQ(Do("DELETE", "/bucket/a").status, 204);
  EXPECT_EQ(Do("GET", "/bucket/b").headers.Get("x-amz-meta-x"), "1");
  auto c = Do("GET", "/bucket/c");
  EXPECT_EQ(c.body, "content");
  EXPECT_EQ(c.headers.Get("x-amz-meta-y"), "2");
  EXPECT_FALSE(c.headers.Has("x-amz-meta-x"));
  EXPECT_EQ(CodeOf(Do("DELETE", "/bucket")), "BucketNotEmpty");
  auto deleted =
      Do("POST", "/bucket?delete",
         "<Delete><Object><Key>b</Key></Object><Object><Key>c</Key></Object><Object><Key>none</Key></Object></Delete>");
  EXPECT_EQ(All(deleted.body, "Key").size(), 3u);
  EXPECT_EQ(Do("DELETE", "/bucket").status, 204);
  EXPECT_EQ(CodeOf(Do("GET", "/bucket/b")), "NoSuchBucket");
}

TEST_F(S3dServer, ErrorsAreThoseOfS3) {
  EXPECT_EQ(CodeOf(Do("GET", "/bucket/none")), "NoSuchKey");
  EXPECT_EQ(CodeOf(Do("GET", "/nobucket/none")), "NoSuchBucket");
  EXPECT_EQ(CodeOf(Do("PUT", "/bucket")), "BucketAlreadyOwnedByYou");
  EXPECT_EQ(CodeOf(Do("PUT", "/Bad_Name")), "InvalidBucketName");
  EXPECT_EQ(CodeOf(Do("PUT", "/bucket/" + std::string(1025, 'k'), "x")), "KeyTooLongError");
  EXPECT_EQ(CodeOf(Do("GET", "/bucket?policy")), "NoSuchBucketPolicy");
  EXPECT_EQ(CodeOf(Do("PUT", "/bucket?policy", "{}")), "NotImplemented");
  EXPECT_EQ(CodeOf(Do("POST", "/bucket/k", "x")), "MethodNotAllowed");
  EXPECT_EQ(CodeOf(Do("POST", "/bucket?delete", "<Delete>")), "MalformedXML");
  EXPECT_EQ(CodeOf(Do("GET", "/bucket?list-type=2&max-keys=x")), "InvalidArgument");
  EXPECT_EQ(CodeOf(Do("GET", "/bucket/k?versionId=abc")), "NoSuchVersion");
  EXPECT_EQ(CodeOf(Do("PUT", "/bucket/k", "x", {{"x-amz-tagging", "a=b"}})), "NotImplemented");
  auto error = Do("GET", "/bucket/none");
  EXPECT_EQ(Between(error.body, "<RequestId>", "<"), error.headers.Get("x-amz-request-id"));
}

TEST_F(S3dServer, BucketInTheHostName) {
  Do("PUT", "/bucket/a/b", "x");
  EXPECT_EQ(Do("GET", "/a/b", "", {{"Host", fmt::format("bucket.localhost:{}", server_->port())}}).body, "x");
}

TEST_F(S3dServer, FaultsBefallWhomTheyShould) {
  const std::string body(100'000, 'x');
  Do("PUT", "/bucket/k", body);
  ASSERT_TRUE(server_->SetFaults("error=503,op=GetObject,count=1"));
  EXPECT_EQ(CodeOf(Do("GET", "/bucket/k")), "SlowDown");
  EXPECT_EQ(Do("GET", "/bucket/k").status, 200);
  for (std::string_view cut : {"truncate", "reset=body", "reset=request", "reset=answer"}) {
    ASSERT_TRUE(server_->SetFaults(fmt::format("{},op=GetObject", cut)));
    EXPECT_FALSE(TryDo("GET", "/bucket/k")) << cut;
  }
  ASSERT_TRUE(server_->SetFaults("damage"));
  const std::string damaged = Do("GET", "/bucket/k").body;
  EXPECT_EQ(damaged.size(), body.size());
  EXPECT_EQ(damaged.find_first_not_of('x'), body.size() / 2);
  EXPECT_EQ(damaged.find_last_not_of('x'), body.size() / 2);
  Do("PUT", "/bucket/damaged", "zzz");
  ASSERT_TRUE(server_->SetFaults(""));
  EXPECT_EQ(Do("GET", "/bucket/damaged").body, "z{z");
  ASSERT_TRUE(server_->SetFaults("reset=answer,op=PutObject"));
  EXPECT_FALSE(TryDo("PUT", "/bucket/done", "written"));
  ASSERT_TRUE(server_->SetFaults("reset=request,op=PutObject"));
  EXPECT_FALSE(TryDo("PUT", "/bucket/undone", "not written"));
  ASSERT_TRUE(server_->SetFaults("latency=1ms;bandwidth=100MB"));
  EXPECT_EQ(Do("GET", "/bucket/done").body, "written");
  EXPECT_EQ(Do("GET", "/bucket/undone").status, 404);
  EXPECT_EQ(Do("GET", "/bucket/k").body, body);
  EXPECT_EQ(Do("PUT", "/bucket/done", "again", {{"If-None-Match", "*"}}).status, 412);
  ASSERT_TRUE(server_->SetFaults("unconditional"));
  EXPECT_EQ(Do("PUT", "/bucket/done", "again", {{"If-None-Match", "*"}}).status, 200);
  EXPECT_EQ(Do("PUT", "/bucket/done", "more", {{"If-Match", "00000000000000000000000000000000"}}).status, 200);
  EXPECT_EQ(Do("GET", "/bucket/done").body, "more");
  EXPECT_FALSE(server_->SetFaults("nonsense"));
}

TEST(S3dStart, RefusesWithoutASignatureUnlessToldOtherwise) {
  TempDir folder = *TempDir::Create();
  auto server = Server::Start({.root = folder.path(), .access_key = "k", .secret_key = "s", .sync = false});
  ASSERT_TRUE(server);
  EXPECT_TRUE((*server)->CreateBucket("bucket"));
  EXPECT_EQ((*server)->CreateBucket("bucket").error().code(), Code::kAlreadyExists);
  http::Client client({});
  auto response = client.Send({.url = (*server)->endpoint() + "/bucket/k"});
  ASSERT_TRUE(response);
  EXPECT_EQ(response->status, 403);
  EXPECT_FALSE(Server::Start({.root = folder.path()})) << "the root is in use";
}

}  // namespace
}  // namespace millrace::s3d
