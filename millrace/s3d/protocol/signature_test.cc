#include "millrace/s3d/protocol/signature.h"

#include <gtest/gtest.h>

#include "millrace/base/text.h"
#include "millrace/s3d/operations/fake_request.h"
#include "millrace/s3d/protocol/payload.h"

namespace millrace::s3d {
namespace {

using namespace std::chrono_literals;

// The requests and signatures of Amazon's documentation of Signature Version 4 for S3.
const Credentials kExample{"AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"};
constexpr std::string_view kEmptyHash = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

class Signature : public testing::Test {
 protected:
  Reply<Authenticated> Check(const FakeRequest& request, bool anonymous = false) {
    using enum Authenticator::Anonymous;
    Authenticator authenticator(kExample, anonymous ? kThisMachine : kRefused, clock_);
    return authenticator.Check(request, *http::ParseQuery(request.query()));
  }
  static std::string CodeOf(const Reply<Authenticated>& reply) { return reply ? "" : reply.error().code; }

  /// Amazon's example of a GET with a Range.
  static FakeRequest ExampleGet() {
    FakeRequest request("GET", "/test.txt");
    http::Headers& headers = request.mutable_headers();
    headers.Set("Host", "examplebucket.s3.amazonaws.com");
    headers.Set("Range", "bytes=0-9");
    headers.Set("x-amz-content-sha256", std::string(kEmptyHash));
    headers.Set("x-amz-date", "20130524T000000Z");
    headers.Set("Authorization",
                "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,"
                "SignedHeaders=host;range;x-amz-content-sha256;x-amz-date,"
                "Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
    return request;
  }
  static FakeRequest ExamplePresigned() {
    FakeRequest request(
        "GET",
        "/test.txt?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-"
        "east-1%2Fs3%2Faws4_request&X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders="
        "host&X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404");
    request.mutable_headers().Set("Host", "examplebucket.s3.amazonaws.com");
    return request;
  }

  FakeClock clock_{*ParseIso8601("20130524T000000Z")};
};

TEST_F(Signature, AcceptsTheExampleOfAHeader) {
  auto who = Check(ExampleGet());
  ASSERT_TRUE(who) << who.error().message;
  EXPECT_FALSE(who->anonymous);
  EXPECT_EQ(who->content_sha256, kEmptyHash);
  EXPECT_EQ(who->scope, "20130524/us-east-1/s3/aws4_request");
}

TEST_F(Signature, AcceptsTheExampleOfAQuery) {
  FakeRequest request("GET", "/?max-keys=2&prefix=J");
  http::Headers& headers = request.mutable_headers();
  headers.Set("Host", "examplebucket.s3.amazonaws.com");
  headers.Set("x-amz-content-sha256", std::string(kEmptyHash));
  headers.Set("x-amz-date", "20130524T000000Z");
  headers.Set("Authorization",
              "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,"
              "SignedHeaders=host;x-amz-content-sha256;x-amz-date,"
              "Signature=34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
  EXPECT_EQ(CodeOf(Check(request)), "");
}

TEST_F(Signature, AcceptsTheExampleOfAPresignedUrl) {
  EXPECT_EQ(CodeOf(Check(ExamplePresigned())), "");
  clock_.Advance(24h);
  EXPECT_EQ(CodeOf(Check(ExamplePresigned())), "");
  clock_.Advance(1s);
  EXPECT_EQ(CodeOf(Check(ExamplePresigned())), "AccessDenied");
}

TEST_F(Signature, RefusesAnyChange) {
  FakeRequest other_range = ExampleGet();
  other_range.mutable_headers().Set("Range", "bytes=0-10");
  EXPECT_EQ(CodeOf(Check(other_range)), "SignatureDoesNotMatch");

  FakeRequest more = ExampleGet();
  more.mutable_headers().Set("x-amz-copy-source", "/a/b");
  EXPECT_EQ(CodeOf(Check(more)), "AccessDenied");

  FakeRequest other_key = ExampleGet();
  std::string authorization(other_key.headers().Get("Authorization"));
  other_key.mutable_headers().Set("Authorization", authorization.replace(authorization.find("AKIA"), 4, "BKIA"));
  EXPECT_EQ(CodeOf(Check(other_key)), "InvalidAccessKeyId");

  FakeRequest no_hash = ExampleGet();
  no_hash.mutable_headers().Remove("x-amz-content-sha256");
  EXPECT_EQ(CodeOf(Check(no_hash)), "InvalidRequest");
}

TEST_F(Signature, RefusesClocksThatAreFarOff) {
  clock_.Advance(16min);
  EXPECT_EQ(CodeOf(Check(ExampleGet())), "RequestTimeTooSkewed");
}

TEST_F(Signature, RefusesMalformedAuthorizations) {
  for (std::string_view text :
       {"AWS AKIA:abc", "AWS4-HMAC-SHA256", "AWS4-HMAC-SHA256 ",
        "AWS4-HMAC-SHA256 Credential=/,SignedHeaders=,Signature=",
        "AWS4-HMAC-SHA256 Credential=a/b/c,SignedHeaders=host,Signature=00",
        "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/r/ec2/aws4_request,SignedHeaders=host,Signature=00",
        "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130525/r/s3/aws4_request,SignedHeaders=host,Signature=00",
        "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/r/s3/aws4_request,SignedHeaders=x,Signature=00"}) {
    FakeRequest request = ExampleGet();
    request.mutable_headers().Set("Authorization", std::string(text));
    EXPECT_FALSE(Check(request, true)) << text;
  }
}

TEST_F(Signature, AnonymousRequestsNeedLeave) {
  FakeRequest request("GET", "/test.txt");
  EXPECT_EQ(CodeOf(Check(request)), "AccessDenied");
  EXPECT_EQ(CodeOf(Check(request, true)), "AccessDenied") << "no Host that this machine has";
  request.mutable_headers().Set("Host", "127.0.0.1:9000");
  auto who = Check(request, true);
  ASSERT_TRUE(who);
  EXPECT_TRUE(who->anonymous);
  request.mutable_headers().Set("Origin", "https://evil.com");
  EXPECT_EQ(CodeOf(Check(request, true)), "AccessDenied");
}

FakeRequest PresignedV2(std::string method, std::string target, std::string host = "127.0.0.1:9000") {
  FakeRequest request(std::move(method), std::move(target));
  request.mutable_headers().Set("Host", std::move(host));
  return request;
}

// Amazon's example, at the time when it was valid.
TEST_F(Signature, AcceptsTheExampleOfAUrlOfVersion2) {
  const FakeRequest request = PresignedV2("GET",
                                          "/photos/puppy.jpg?AWSAccessKeyId=AKIAIOSFODNN7EXAMPLE&Signature="
                                          "NpgCjnDzrM%2BWFzoENXmpNDUsSn8%3D&Expires=1175139620",
                                          "johnsmith.localhost:9000");
  EXPECT_EQ(CodeOf(Check(request)), "AccessDenied") << "it expired in 2007";
  FakeClock then(WallTime(std::chrono::seconds(1175139620)));
  const Authenticator authenticator(kExample, Authenticator::Anonymous::kRefused, then);
  EXPECT_EQ(CodeOf(authenticator.Check(request, *http::ParseQuery(request.query()))), "");
}

// What generate_presigned_url of boto3 makes with the same key.
TEST_F(Signature, AcceptsTheDefaultUrlsOfBoto3) {
  const std::string key = "AWSAccessKeyId=AKIAIOSFODNN7EXAMPLE&Signature=", end = "&Expires=1369357200";
  const std::string get = "/b/a%20b/%C3%BC%2B.txt?response-content-type=text%2Fplain%3B%20x%3D1&" + key +
                          "x0ilBPnTbyFLFU2Hem4P6pxoGzI%3D" + end;
  EXPECT_EQ(CodeOf(Check(PresignedV2("GET", get))), "");
  EXPECT_EQ(CodeOf(Check(PresignedV2("PUT", get))), "SignatureDoesNotMatch");
  EXPECT_EQ(CodeOf(Check(PresignedV2("GET", get + "&acl"))), "SignatureDoesNotMatch");
  EXPECT_EQ(CodeOf(Check(PresignedV2("GET", get + "&renameObject"))), "AccessDenied");
  EXPECT_EQ(CodeOf(Check(PresignedV2(
                "GET", "/b?list-type=2&prefix=p&encoding-type=url&" + key + "uFVu53See%2FtiVRo4RGjrVZJPbIc%3D" + end))),
            "");
  EXPECT_EQ(CodeOf(Check(PresignedV2(
                "PUT", "/b/k?partNumber=2&uploadId=id%3D%3D&" + key + "aqjOBJ362hIX4RvP9y%2Fg%2B5jQQdE%3D" + end))),
            "");
  clock_.Advance(1h + 1s);
  EXPECT_EQ(CodeOf(Check(PresignedV2("GET", get))), "AccessDenied");
}

TEST_F(Signature, FieldsOfVersion2MustBeSent) {
  FakeRequest request =
      PresignedV2("PUT",
                  "/b/k?AWSAccessKeyId=AKIAIOSFODNN7EXAMPLE&Signature=OrIEon%2BbzNqYY0sEYZ4MIyJ6Atc%3D"
                  "&content-type=text%2Fplain&x-amz-meta-a=1&Expires=1369357200");
  auto refused = Check(request);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("content-type: text/plain"), std::string::npos) << refused.error().message;
  request.mutable_headers().Set("Content-Type", "text/plain");
  request.mutable_headers().Set("x-amz-meta-a", "1");
  EXPECT_EQ(CodeOf(Check(request)), "");
  request.mutable_headers().Set("x-amz-copy-source", "/a/b");
  EXPECT_EQ(CodeOf(Check(request)), "SignatureDoesNotMatch");
}

/// Amazon's example of an upload in signed chunks: 65 KiB of 'a' as 64 KiB, 1 KiB and nothing.
FakeRequest ExampleChunks() {
  std::string body = "10000;chunk-signature=ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648\r\n" +
                     std::string(65536, 'a') +
                     "\r\n400;chunk-signature=0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497\r\n" +
                     std::string(1024, 'a') +
                     "\r\n0;chunk-signature=b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9\r\n\r\n";
  FakeRequest request("PUT", "/examplebucket/chunkObject.txt", std::move(body));
  http::Headers& headers = request.mutable_headers();
  headers.Set("Host", "s3.amazonaws.com");
  headers.Set("x-amz-date", "20130524T000000Z");
  headers.Set("x-amz-storage-class", "REDUCED_REDUNDANCY");
  headers.Set("x-amz-content-sha256", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD");
  headers.Set("Content-Encoding", "aws-chunked");
  headers.Set("x-amz-decoded-content-length", "66560");
  headers.Set("Content-Length", "66824");
  headers.Set("Authorization",
              "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,SignedHeaders="
              "content-encoding;content-length;host;x-amz-content-sha256;x-amz-date;x-amz-decoded-content-length;x-amz-"
              "storage-class,Signature=4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9");
  return request;
}

Reply<std::string> ReadAll(Payload& payload, std::size_t piece) {
  std::string all;
  Buffer buffer(piece);
  while (std::size_t got = MR_TRY(payload.Read(buffer.span()))) all.append(AsText(buffer.span().first(got)));
  return all;
}

TEST_F(Signature, AcceptsTheExampleOfSignedChunks) {
  for (std::size_t piece : {1000, 1'000'000}) {
    FakeRequest request = ExampleChunks();
    request.set_piece(piece);
    auto who = Check(request);
    ASSERT_TRUE(who) << who.error().message;
    auto payload = Payload::Open(request, *who, kGiB);
    ASSERT_TRUE(payload);
    auto body = ReadAll(*payload, 70'000);
    ASSERT_TRUE(body) << body.error().message;
    EXPECT_EQ(*body, std::string(66560, 'a'));
  }
}

TEST_F(Signature, RefusesAChangedChunk) {
  FakeRequest honest = ExampleChunks();
  std::string body = *honest.ReadAllBody(kGiB);
  body.replace(5000, 1, "b");
  FakeRequest request("PUT", "/examplebucket/chunkObject.txt", body);
  request.mutable_headers() = honest.headers();
  auto who = Check(request);
  ASSERT_TRUE(who);
  auto payload = Payload::Open(request, *who, kGiB);
  auto read = ReadAll(*payload, 70'000);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code, "SignatureDoesNotMatch");
}

}  // namespace
}  // namespace millrace::s3d
