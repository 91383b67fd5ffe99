// What uploads send to a server, and what they make of its answers.
#include <gmock/gmock.h>

#include <algorithm>
#include <future>
#include <utility>
#include <vector>

#include "millrace/base/hash/digest.h"
#include "millrace/base/hash/text_encoding.h"
#include "millrace/object/s3/protocol/checksums.h"
#include "millrace/object/s3/scripted_store.h"

namespace millrace::object::s3 {
namespace {

using ::testing::HasSubstr;

TEST_F(S3StoreTest, CompletionWithin200ThatFailsForGood) {
  Serve([](const Seen&) { return Reply{Answer(200, "   " + ErrorBody("InvalidPart"))}; });
  auto done = CompleteMultipart(*store_, "k", "id", {{.number = 1, .etag = "e"}});
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code(), Code::kInvalidArgument);
}

TEST_F(S3StoreTest, ACompletionWhoseAnswerWasLostIsFound) {
  std::string part = std::string(32, 'a');
  std::string etag = fmt::format("{}-1", HexEncode(Md5(*HexDecode(part))));
  Serve([&](const Seen& seen) {
    if (seen.method == "HEAD")
      return Reply{fmt::format("HTTP/1.1 200 OK\r\nETag: \"{}\"\r\nContent-Length: 3\r\n\r\n", etag)};
    return seen.number == 0 ? Reply{"", Then::kReset} : Refuse(404, "NoSuchUpload");
  });
  auto done = CompleteMultipart(*store_, "k", "id", {{.number = 1, .etag = part}});
  ASSERT_TRUE(done) << done.error().ToString();
  EXPECT_EQ(done->etag, etag);
}

TEST_F(S3StoreTest, AConditionalPutWhoseAnswerWasLostDoesNotClaimThatAnotherWon) {
  Serve(
      [](const Seen& seen) { return seen.number == 0 ? Reply{"", Then::kReset} : Refuse(412, "PreconditionFailed"); });
  auto put = Put(*store_, "k", AsBytes("x"), {.if_none_match = true});
  ASSERT_FALSE(put);
  EXPECT_EQ(put.error().code(), Code::kUnavailable);
  EXPECT_THAT(put.error().message(), HasSubstr("may be what this very call wrote"));
}

TEST_F(S3StoreTest, ADefiniteRefusalBeforeIsNotAmbiguous) {
  Serve(
      [](const Seen& seen) { return seen.number == 0 ? Refuse(503, "SlowDown") : Refuse(412, "PreconditionFailed"); });
  EXPECT_EQ(Put(*store_, "k", AsBytes("x"), {.if_none_match = true}).error().code(), Code::kPreconditionFailed);
}

// --- Checksums ---

TEST_F(S3StoreTest, BodiesCarryTheirChecksum) {
  Serve([](const Seen&) { return Reply{Answer(200, "", "ETag: \"e\"\r\nx-amz-checksum-crc32c: yZRlqg==\r\n")}; });
  ASSERT_TRUE(Put(*store_, "k", AsBytes("hello world")));
  auto part = UploadPart(*store_, "k", "id", 1, AsBytes("hello world"));
  ASSERT_TRUE(part);
  EXPECT_EQ(part->checksum, "yZRlqg==");
  for (const Seen& seen : server_->seen()) EXPECT_EQ(seen.headers.Get("x-amz-checksum-crc32c"), "yZRlqg==");
}

TEST_F(S3StoreTest, AKnownChecksumIsSentAsItIs) {
  Serve([](const Seen&) { return Reply{Answer(200, "", "ETag: \"e\"\r\n")}; });
  const Payload body(AsBytes("hello world"), 0x01020304);  // no other way shows that it was not found out once more
  ASSERT_TRUE(Put(*store_, "k", body));
  ASSERT_TRUE(UploadPart(*store_, "k", "id", 1, body));
  for (const Seen& seen : server_->seen()) EXPECT_EQ(seen.headers.Get("x-amz-checksum-crc32c"), "AQIDBA==");
}

class TextSource final : public Source {
 public:
  explicit TextSource(std::string text) : text_(std::move(text)) {}
  std::uint64_t size() const override { return text_.size(); }
  Status Read(std::uint64_t offset, MutableByteSpan into) override {
    std::ranges::copy(AsBytes(text_).subspan(offset, into.size()), into.begin());
    return {};
  }
  void OnSent(std::uint64_t end) override { sent_.push_back(end); }
  std::vector<std::uint64_t> TakeSent() { return std::exchange(sent_, {}); }

 private:
  const std::string text_;
  std::vector<std::uint64_t> sent_;
};

Status PutFrom(Store& store, Source& body, PutOptions options = {}) {
  std::promise<Status> done;
  store.PutFrom("k", body, std::move(options), {},
                [&](Result<PutResult> put) { done.set_value(put ? Status() : Status(std::unexpected(put.error()))); });
  return done.get_future().get();
}
Result<PartInfo> UploadPartFrom(Store& store, Source& body) {
  std::promise<Result<PartInfo>> done;
  store.UploadPartFrom("k", "upload", 1, body, {}, [&](Result<PartInfo> part) { done.set_value(std::move(part)); });
  return done.get_future().get();
}

constexpr char kTrailing[] = "STREAMING-UNSIGNED-PAYLOAD-TRAILER";
constexpr std::string_view kMinIO = "Server: MinIO\r\nETag: \"e\"\r\nx-amz-checksum-crc32c: 4waSgw==\r\n";

TEST_F(S3StoreTest, ChecksumsFollowBodiesOnceTheServerIsKnownToTakeThem) {
  Serve([](const Seen&) { return Reply{Answer(200, "", kMinIO)}; });
  TextSource text("123456789");
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(PutFrom(*store_, text));
  auto part = UploadPartFrom(*store_, text);
  ASSERT_TRUE(part) << part.error().ToString();
  EXPECT_EQ(part->size, 9u);
  PutOptions encoded;
  encoded.attributes.content_encoding = "gzip";
  ASSERT_TRUE(PutFrom(*store_, text, encoded));
  ASSERT_TRUE(PutFrom(*store_, text, {.if_none_match = true}));
  auto seen = server_->seen();
  ASSERT_EQ(seen.size(), 5u);
  EXPECT_EQ(seen[0].body, "123456789") << "nothing is known yet";
  EXPECT_EQ(seen[0].headers.Get("x-amz-checksum-crc32c"), "4waSgw==");
  for (std::size_t i : {1, 2}) {
    EXPECT_EQ(seen[i].body, "9\r\n123456789\r\n0\r\nx-amz-checksum-crc32c:4waSgw==\r\n\r\n");
    EXPECT_EQ(seen[i].headers.Get("x-amz-content-sha256"), kTrailing);
    EXPECT_EQ(seen[i].headers.Get("x-amz-decoded-content-length"), "9");
    EXPECT_EQ(seen[i].headers.Get("content-encoding"), "aws-chunked");
  }
  EXPECT_EQ(seen[3].body, "123456789") << "the user's coding is kept apart";
  EXPECT_EQ(seen[4].body, "123456789") << "the condition would not hold a second time";
}

TEST_F(S3StoreTest, ASourceLearnsHowMuchOfItWasSent) {
  const std::string text(kMiB, 'x');
  const std::string checksum = EncodeCrc32c(AsBytes(text));
  Serve([&](const Seen&) {
    return Reply{Answer(200, "", "Server: MinIO\r\nETag: \"e\"\r\nx-amz-checksum-crc32c: " + checksum + "\r\n")};
  });
  TextSource source(text);
  for (const char* coding : {"plain", "with a trailing checksum"}) {
    ASSERT_TRUE(UploadPartFrom(*store_, source)) << coding;
    const std::vector<std::uint64_t> sent = source.TakeSent();
    EXPECT_GE(sent.size(), 4u) << coding << ": not the whole part at once";
    EXPECT_TRUE(std::ranges::is_sorted(sent)) << coding << ": reading for a checksum sends nothing";
    EXPECT_EQ(sent.back(), text.size()) << coding;
  }
}

TEST_F(S3StoreTest, AServerThatRefusesTrailersGetsChecksumsAhead) {
  Serve([](const Seen& seen) {
    if (seen.headers.Get("x-amz-content-sha256") == kTrailing) {
      return Reply{Answer(400, ErrorBody("InvalidRequest"), "Server: MinIO\r\n")};
    }
    return Reply{Answer(200, "", kMinIO)};
  });
  TextSource text("123456789");
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(PutFrom(*store_, text));
  ASSERT_TRUE(UploadPartFrom(*store_, text));
  EXPECT_EQ(server_->seen().size(), 5u) << "one was refused, and none after it was sent that way";
}

TEST_F(S3StoreTest, AServerWithTheNameThatRepeatsNoChecksumGetsNoTrailers) {
  Serve([](const Seen&) { return Reply{Answer(200, "", "Server: AmazonS3\r\nETag: \"e\"\r\n")}; });
  TextSource text("123456789");
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(PutFrom(*store_, text));
    ASSERT_TRUE(UploadPartFrom(*store_, text));
  }
  for (const Seen& seen : server_->seen()) EXPECT_EQ(seen.body, "123456789");
}

TEST_F(S3StoreTest, ATrailerThatIsNotAnsweredIsSentAgainAsAHeader) {
  Serve([](const Seen& seen) {
    const bool understood = seen.headers.Has("x-amz-checksum-crc32c");
    return Reply{Answer(200, "", understood ? kMinIO : "Server: MinIO\r\nETag: \"framed\"\r\n")};
  });
  TextSource text("123456789");
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(PutFrom(*store_, text));
  auto part = UploadPartFrom(*store_, text);
  ASSERT_TRUE(part) << part.error().ToString();
  EXPECT_EQ(part->etag, "e");
  const auto seen = server_->seen();
  ASSERT_EQ(seen.size(), 5u) << "one was sent twice, and none after it was sent that way";
  EXPECT_EQ(seen[1].headers.Get("x-amz-content-sha256"), kTrailing);
  for (std::size_t i : {0, 2, 3, 4}) EXPECT_EQ(seen[i].body, "123456789");
}

TEST_F(S3StoreTest, APartWhoseTrailerIsNotAnsweredIsSentAgainAsAHeader) {
  Serve([](const Seen& seen) {
    const bool understood = seen.headers.Has("x-amz-checksum-crc32c");
    return Reply{Answer(200, "", understood ? kMinIO : "Server: MinIO\r\nETag: \"framed\"\r\n")};
  });
  TextSource text("123456789");
  ASSERT_TRUE(UploadPartFrom(*store_, text));
  auto part = UploadPartFrom(*store_, text);
  ASSERT_TRUE(part) << part.error().ToString();
  EXPECT_EQ(part->etag, "e");
  EXPECT_EQ(server_->seen().size(), 3u);
}

TEST_F(S3StoreTest, ServersThatNobodyKnowsGetNoTrailers) {
  Serve([](const Seen&) { return Reply{Answer(200, "", "Server: other\r\nETag: \"e\"\r\n")}; });
  TextSource text("123456789");
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(PutFrom(*store_, text));
  for (const Seen& seen : server_->seen()) EXPECT_EQ(seen.body, "123456789");
}

TEST_F(S3StoreTest, AServerThatStoredOtherBytesIsAskedAgain) {
  Serve([](const Seen& seen) {
    std::string_view sum = seen.number == 1 ? "AAAAAA==" : "4waSgw==";
    return Reply{Answer(200, "", fmt::format("Server: MinIO\r\nETag: \"e\"\r\nx-amz-checksum-crc32c: {}\r\n", sum))};
  });
  TextSource text("123456789");
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(PutFrom(*store_, text));
  EXPECT_EQ(server_->seen().size(), 3u);
}

}  // namespace
}  // namespace millrace::object::s3
