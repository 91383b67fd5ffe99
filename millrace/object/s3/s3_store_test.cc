// The store against a server that misbehaves on purpose. What a well-behaved one sees is in tests/integration.
#include <gmock/gmock.h>

#include <atomic>
#include <future>
#include <latch>
#include <map>

#include "millrace/base/hash/text_encoding.h"
#include "millrace/object/s3/protocol/checksums.h"
#include "millrace/object/s3/scripted_store.h"
#include "millrace/object/support/early_pages.h"

namespace millrace::object::s3 {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

/// K1, K2, … each with the promise of an hour.
class RenewedKeys final : public CredentialSource {
 public:
  explicit RenewedKeys(Clock& clock) : clock_(clock) {}
  Result<Credentials> Fetch(std::stop_token) override {
    return Credentials{.access_key = fmt::format("K{}", ++fetched_),
                       .secret_key = "s",
                       .session_token = "t",
                       .expires = clock_.Wall() + std::chrono::hours(1)};
  }
  std::string Describe() const override { return "test"; }

 private:
  Clock& clock_;
  int fetched_ = 0;
};

TEST_F(S3StoreTest, EveryKindOfTransientFailureIsTriedAgain) {
  const std::vector<Reply> failures = {
      Refuse(503, "SlowDown"),
      Refuse(500, "InternalError"),
      {Answer(502, "<html>Bad Gateway</html>")},
      {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel", Then::kClose},
      {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel", Then::kReset},
      {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel", Then::kHang},
      {"", Then::kHang},
  };
  Serve(
      [&](const Seen& seen) {
        std::size_t number = static_cast<std::size_t>(seen.number);
        return number < failures.size() ? failures[number] : Reply{Answer(200, "hello", "ETag: \"e\"\r\n")};
      },
      10);
  std::string into(5, '?');
  auto got = GetText(into);
  ASSERT_TRUE(got) << got.error().ToString();
  EXPECT_EQ(into, "hello");
  EXPECT_EQ((*got)->info.etag, "e");
  EXPECT_EQ(server_->seen().size(), failures.size() + 1);
}

TEST_F(S3StoreTest, CustomersKeysGoWithWhatReadsOrWrites) {
  customer_key_ = std::string(32, 'k');
  copy_source_key_ = std::string(32, 's');
  const std::string document = "<CopyPartResult><ETag>e</ETag></CopyPartResult>";
  Serve([&](const Seen& seen) {
    return Reply{Answer(200, seen.headers.Has("x-amz-copy-source") ? document : "", "ETag: \"e\"\r\n")};
  });
  std::string body = "hello";
  (void)Head(*store_, "k");
  (void)Put(*store_, "k", AsBytes(body));
  (void)UploadPart(*store_, "k", "u", 1, AsBytes(body));
  (void)Copy(*store_, "a", "b");
  (void)CopyPart(*store_, "k", "u", 1, "a", {0, 5});
  for (const Seen& seen : server_->seen()) {
    EXPECT_EQ(seen.headers.Get("X-Amz-Server-Side-Encryption-Customer-Algorithm"), "AES256") << seen.target;
    EXPECT_EQ(seen.headers.Get("X-Amz-Server-Side-Encryption-Customer-Key"), Base64Encode(AsBytes(customer_key_)));
    EXPECT_EQ(seen.headers.Get("X-Amz-Server-Side-Encryption-Customer-Key-Md5"), "mT2HRsMGJ5IX5C+0rreZ8Q==");
    EXPECT_EQ(seen.headers.Get("X-Amz-Copy-Source-Server-Side-Encryption-Customer-Key"),
              seen.headers.Has("x-amz-copy-source") ? Base64Encode(AsBytes(copy_source_key_)) : "");
    EXPECT_THAT(std::string(seen.headers.Get("authorization")), HasSubstr("x-amz-server-side-encryption-customer-key"));
  }
  EXPECT_EQ(server_->seen().size(), 5u);
  (void)List(*store_, {});
  (void)Delete(*store_, "k");
  for (std::size_t i = 5; i < 7; ++i) {
    EXPECT_FALSE(server_->seen()[i].headers.Has("X-Amz-Server-Side-Encryption-Customer-Key"));
  }
}

TEST_F(S3StoreTest, NewObjectsHaveTheAttributesOfTheConnection) {
  new_objects_ = {.storage_class = "STANDARD_IA", .encryption = "aws:kms", .kms_key = "arn:aws:kms:r:1:key/k"};
  expected_bucket_owner_ = "123456789012";
  Serve([&](const Seen&) {
    return Reply{Answer(200, "<CopyObjectResult><ETag>e</ETag></CopyObjectResult>", "ETag: \"e\"\r\n")};
  });
  std::string body = "hello";
  (void)Put(*store_, "k", AsBytes(body));
  (void)Put(*store_, "k", AsBytes(body), {.attributes = {.storage_class = "STANDARD"}});
  (void)Copy(*store_, "a", "b");
  (void)Head(*store_, "k");
  const std::vector<Seen> seen = server_->seen();
  ASSERT_EQ(seen.size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) {
    const http::Headers& headers = seen[i].headers;
    const bool writes = i < 3;
    EXPECT_EQ(headers.Get("x-amz-server-side-encryption"), writes ? "aws:kms" : "");
    EXPECT_EQ(headers.Get("x-amz-server-side-encryption-aws-kms-key-id"), writes ? "arn:aws:kms:r:1:key/k" : "");
    EXPECT_EQ(headers.Get("x-amz-storage-class"), i == 1 ? "STANDARD" : writes ? "STANDARD_IA" : "");
    EXPECT_EQ(headers.Get("x-amz-expected-bucket-owner"), "123456789012");
  }
}

TEST(Settings, CustomersKeysAreKeptFromTheNetwork) {
  Environment nowhere{.getenv = [](const char*) { return std::nullopt; },
                      .read_file = [](const auto&) -> Result<std::string> { return Fail(Code::kNotFound, "none"); },
                      .write_file = nullptr,
                      .run = nullptr,
                      .fetch = nullptr};
  Profiles none;
  auto resolve = [&](const char* url, std::size_t bytes) {
    return Settings::Resolve({.endpoint_url = url, .customer_key = std::string(bytes, 'k')}, none, nowhere);
  };
  EXPECT_TRUE(resolve("https://store.example", 32));
  EXPECT_TRUE(resolve("http://127.0.0.1:9000", 32));
  EXPECT_FALSE(resolve("https://store.example", 16));
  auto plain = resolve("http://store.example", 32);
  ASSERT_FALSE(plain);
  EXPECT_THAT(plain.error().ToString(), HasSubstr("use https"));
  EXPECT_EQ(plain.error().ToString().find("kkkk"), std::string::npos);
}

TEST_F(S3StoreTest, PartsOfAnObjectAndTheirChecksums) {
  std::string fields = "ETag: \"0123456789abcdef0123456789abcdef-3\"\r\n";
  Serve([&](const Seen& seen) {
    const bool part = seen.target.find("partNumber=") != std::string::npos;
    if (!part) return Reply{Answer(200, "", fields)};
    if (seen.target.find("partNumber=4") != std::string::npos) return Refuse(416, "InvalidPartNumber");
    return Reply{Answer(206, "", "Content-Range: bytes 10-24/40\r\nx-amz-mp-parts-count: 3\r\n")};
  });
  auto head = [&](const std::string& more) {
    fields = "ETag: \"0123456789abcdef0123456789abcdef-3\"\r\n" + more;
    return (*Head(*store_, "k"))->checksum;
  };
  using Algorithm = Checksum::Algorithm;
  EXPECT_EQ(head("").algorithm, Algorithm::kMd5);
  EXPECT_EQ(head("").parts, 3);
  EXPECT_EQ(head("").value.size(), 16u);
  EXPECT_EQ(head("x-amz-server-side-encryption: AES256\r\n").algorithm, Algorithm::kMd5);
  EXPECT_EQ(head("x-amz-server-side-encryption: aws:kms\r\n").algorithm, Algorithm::kNone);
  EXPECT_EQ(head("x-amz-server-side-encryption-customer-algorithm: AES256\r\n").algorithm, Algorithm::kNone);
  Checksum composite = head("x-amz-checksum-crc32c: AAAAAA==-3\r\nx-amz-checksum-type: COMPOSITE\r\n");
  EXPECT_EQ(composite.algorithm, Algorithm::kCrc32c);
  EXPECT_EQ(composite.parts, 3);
  Checksum whole = head("x-amz-checksum-crc64nvme: AAAAAAAAAAA=\r\nx-amz-checksum-type: FULL_OBJECT\r\n");
  EXPECT_EQ(whole.algorithm, Algorithm::kCrc64Nvme);
  EXPECT_EQ(whole.parts, 0);
  EXPECT_EQ(head("x-amz-checksum-crc32c: AAAAAA==-0\r\nx-amz-checksum-type: COMPOSITE\r\n").algorithm, Algorithm::kMd5);
  auto part = [&](int number) {
    std::promise<Result<std::optional<std::uint64_t>>> told;
    store_->HeadPart("k", "e", number, {}, [&](auto size) { told.set_value(std::move(size)); });
    return told.get_future().get();
  };
  EXPECT_EQ(part(2)->value(), 15u);
  EXPECT_EQ(server_->seen().back().headers.Get("if-match"), "\"e\"");
  EXPECT_FALSE(part(4)->has_value());
}

TEST_F(S3StoreTest, PermanentFailuresAreNot) {
  Serve([](const Seen&) { return Refuse(403, "AccessDenied", "x-amz-request-id: R1\r\n"); });
  std::string into(5, '?');
  auto got = GetText(into);
  ASSERT_FALSE(got);
  EXPECT_EQ(got.error().code(), Code::kPermissionDenied);
  EXPECT_THAT(got.error().ToString(), ::testing::AllOf(HasSubstr("GetObject s3://b/k"), HasSubstr("scripted"),
                                                       HasSubstr("AccessDenied, HTTP 403, request R1")));
  EXPECT_EQ(server_->seen().size(), 2u) << "a listing could have told that the key is absent";
}

TEST_F(S3StoreTest, AKeyThatMayNotBeReadIsAbsentIfAListingSaysSo) {
  std::string listed;
  Serve([&](const Seen& seen) {
    if (seen.target.find("list-type=2") == std::string::npos) return Refuse(403, "AccessDenied");
    return Reply{Answer(200, "<ListBucketResult>" + listed + "</ListBucketResult>")};
  });
  std::string into(5, '?');
  for (const char* others :
       {"", "<Contents><Key>k2</Key><Size>1</Size><LastModified>2026-01-01T00:00:00Z</LastModified></Contents>"}) {
    listed = others;
    auto got = GetText(into);
    ASSERT_TRUE(got) << got.error().ToString();
    EXPECT_FALSE(*got);
    auto head = Head(*store_, "k");
    ASSERT_TRUE(head) << head.error().ToString();
    EXPECT_FALSE(*head);
  }
  listed = "<Contents><Key>k</Key><Size>1</Size><LastModified>2026-01-01T00:00:00Z</LastModified></Contents>";
  EXPECT_EQ(GetText(into).error().code(), Code::kPermissionDenied);
  EXPECT_EQ(Head(*store_, "k").error().code(), Code::kPermissionDenied);
}

TEST_F(S3StoreTest, TriesAreCounted) {
  Serve([](const Seen&) { return Refuse(503, "SlowDown"); }, 4);
  auto head = Put(*store_, "k", AsBytes("x"));
  ASSERT_FALSE(head);
  EXPECT_EQ(head.error().code(), Code::kThrottled);
  EXPECT_THAT(head.error().ToString(), HasSubstr("tried 4 times"));
  EXPECT_EQ(server_->seen().size(), 4u);
}

TEST_F(S3StoreTest, RetriesBeyondTheSharedBudgetComeSlowly) {
  constexpr int kCovered = 100;  // 500 tokens of 5 each
  Serve([](const Seen&) { return Refuse(500, "InternalError"); }, kCovered + 1 + 20);
  TimePoint before = clock_.Now();
  EXPECT_EQ(Put(*store_, "k", AsBytes("x")).error().code(), Code::kUnavailable);
  EXPECT_EQ(server_->seen().size(), kCovered + 1u + 20);
  before = clock_.Now();
  EXPECT_FALSE(Delete(*store_, "other"));
  EXPECT_GE(clock_.Now() - before, (kCovered + 20) * std::chrono::seconds(5)) << "the budget is the endpoint's";
}

TEST_F(S3StoreTest, RetryAfterIsHonoured) {
  Serve([](const Seen& seen) {
    return seen.number == 0 ? Refuse(503, "SlowDown", "Retry-After: 9\r\n") : Reply{Answer(200, "", "ETag: \"e\"\r\n")};
  });
  TimePoint before = clock_.Now();
  ASSERT_TRUE(Put(*store_, "k", AsBytes("x")));
  EXPECT_GE(clock_.Now() - before, std::chrono::seconds(9));
}

TEST_F(S3StoreTest, CancellingEndsTheWaitForARetry) {
  Serve([](const Seen&) { return Refuse(503, "SlowDown", "Retry-After: 30\r\n"); });
  clock_.AdvanceOnSleep(false);
  std::stop_source stop;
  std::jthread canceller([&] {
    clock_.AwaitSleepers(1);
    stop.request_stop();
  });
  auto put = Put(*store_, "k", AsBytes("x"), {}, {.stop = stop.get_token()});
  ASSERT_FALSE(put);
  EXPECT_EQ(put.error().code(), Code::kCancelled);
}

TEST_F(S3StoreTest, DestructionEndsTheWaitForARetryAndRunsTheCompletion) {
  Serve([](const Seen&) { return Refuse(503, "SlowDown", "Retry-After: 30\r\n"); });
  clock_.AdvanceOnSleep(false);
  std::optional<Code> code;
  store_->Put("k", AsBytes("x"), {}, {}, [&](Result<PutResult> put) { code = put.error().code(); });
  clock_.AwaitSleepers(1);
  store_.reset();
  EXPECT_EQ(code, Code::kCancelled);
}

TEST_F(S3StoreTest, TheNextPageCanBeAskedForWhileOneIsRead) {
  std::atomic<int> asked = 0;
  Serve([&](const Seen&) -> Reply {
    const bool last = ++asked == 2;
    return {
        Answer(200, fmt::format("<ListBucketResult><IsTruncated>{}</IsTruncated>{}<Contents><Key>k{}</Key>"
                                "<LastModified>2026-01-01T00:00:00.000Z</LastModified><Size>1</"
                                "Size><LastModified>2026-01-01T00:00:00Z</LastModified></Contents>"
                                "</ListBucketResult>",
                                !last, last ? "" : "<NextContinuationToken>t</NextContinuationToken>", asked.load()))};
  });
  std::promise<Result<ListPage>> first, second;
  EarlyPages::List(
      *store_, {}, {},
      [&](std::string token) {
        EXPECT_EQ(token, "t");
        EarlyPages::List(
            *store_, {.continuation = token}, {}, [](std::string) { ADD_FAILURE() << "there is no third"; },
            [&](auto page) { second.set_value(std::move(page)); });
      },
      [&](auto page) { first.set_value(std::move(page)); });
  auto page = first.get_future().get();
  ASSERT_TRUE(page) << page.error().ToString();
  EXPECT_EQ(page->objects.at(0).key, "k1");
  EXPECT_EQ(page->continuation, "t");
  EXPECT_EQ(second.get_future().get()->objects.at(0).key, "k2");
}

TEST_F(S3StoreTest, AnErrorWithin200IsAnError) {
  Serve([](const Seen& seen) {
    return Reply{Answer(200, seen.number == 0 ? ErrorBody("InternalError")
                                              : "<CopyObjectResult><ETag>\"e\"</ETag></CopyObjectResult>")};
  });
  auto copied = Copy(*store_, "from", "to");
  ASSERT_TRUE(copied) << copied.error().ToString();
  EXPECT_EQ(copied->etag, "e");
  EXPECT_EQ(server_->seen().size(), 2u);
}

TEST_F(S3StoreTest, DamagedBytesAreNoticedAndReadAgain) {
  std::string checksum = "x-amz-checksum-crc32c: " + EncodeCrc32c(AsBytes("hello")) + "\r\nETag: \"e\"\r\n";
  Serve([&](const Seen& seen) { return Reply{Answer(200, seen.number == 0 ? "hellO" : "hello", checksum)}; });
  std::string into(5, '?');
  ASSERT_TRUE(GetText(into));
  EXPECT_EQ(into, "hello");
  EXPECT_EQ(server_->seen().size(), 2u);
}

TEST_F(S3StoreTest, BytesDamagedInTheBucketAreCorrupt) {
  std::string checksum = "x-amz-checksum-crc64nvme: AAAAAAAAAAA=\r\n";
  Serve([&](const Seen&) { return Reply{Answer(200, "hello", checksum)}; });
  std::string into(5, '?');
  auto got = GetText(into);
  ASSERT_FALSE(got);
  EXPECT_EQ(got.error().code(), Code::kCorrupt);
  EXPECT_EQ(server_->seen().size(), 3u);
}

TEST_F(S3StoreTest, ChecksumsOfPartsAreNoChecksumsOfBytes) {
  Serve([&](const Seen&) { return Reply{Answer(200, "hello", "x-amz-checksum-crc32c: AAAAAA==-2\r\n")}; });
  std::string into(5, '?');
  EXPECT_TRUE(GetText(into));
}

TEST_F(S3StoreTest, AnAnswerWithAnotherRangeIsCorrupt) {
  Serve([](const Seen&) {
    return Reply{"HTTP/1.1 206 P\r\nContent-Length: 3\r\nContent-Range: bytes 0-2/10\r\n\r\nabc"};
  });
  std::string into(3, '?');
  EXPECT_EQ(GetText(into, {.range = ByteRange{4, 3}}).error().code(), Code::kCorrupt);
}

TEST_F(S3StoreTest, AnEndpointThatIgnoresRangesIsFoundOut) {
  Serve([](const Seen&) { return Reply{Answer(200, "abc")}; });
  std::string into(3, '?');
  EXPECT_EQ(GetText(into, {.range = ByteRange{4, 3}}).error().code(), Code::kUnsupported);
}

TEST_F(S3StoreTest, ABucketInAnotherRegionIsSignedForAgain) {
  Serve([](const Seen& seen) {
    bool right = seen.headers.Get("authorization").find("/eu-west-1/s3/") != std::string_view::npos;
    if (right) return Reply{Answer(200, "", "ETag: \"e\"\r\n")};
    return Refuse(400, "AuthorizationHeaderMalformed", "x-amz-bucket-region: eu-west-1\r\n");
  });
  ASSERT_TRUE(Put(*store_, "k", AsBytes("x")));
  ASSERT_TRUE(Put(*store_, "k", AsBytes("x")));
  EXPECT_EQ(server_->seen().size(), 3u) << "the region is remembered";
}

TEST_F(S3StoreTest, AHostileRegionIsNotFollowed) {
  Serve([](const Seen&) { return Refuse(301, "PermanentRedirect", "x-amz-bucket-region: evil.example/\r\n"); });
  EXPECT_EQ(Put(*store_, "k", AsBytes("x")).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(server_->seen().size(), 1u);
}

TEST_F(S3StoreTest, RedirectsWithinTheEndpointAreFollowedAndSignedAnew) {
  Serve([](const Seen&) { return Reply{Answer(200, "", "ETag: \"new\"\r\n")}; });
  auto destination = std::move(server_);
  Serve([&](const Seen&) {
    return Refuse(307, "TemporaryRedirect",
                  fmt::format("Location: http://127.0.0.1:{}/moved/k?ignored=1\r\n", destination->port()));
  });
  auto put = Put(*store_, "k", AsBytes("body"));
  ASSERT_TRUE(put) << put.error().ToString();
  EXPECT_EQ(put->etag, "new");
  auto seen = destination->seen();
  ASSERT_EQ(seen.size(), 1u);
  EXPECT_EQ(seen[0].target, "/moved/k");
  EXPECT_EQ(seen[0].body, "body");
  EXPECT_EQ(seen[0].headers.Get("host"), fmt::format("127.0.0.1:{}", destination->port()));
  EXPECT_NE(seen[0].headers.Get("authorization"), server_->seen()[0].headers.Get("authorization"));
}

TEST_F(S3StoreTest, RedirectsOutOfTheEndpointOrWithoutEndAreNot) {
  Serve([](const Seen&) { return Refuse(307, "TemporaryRedirect", "Location: http://evil.example/b/k\r\n"); });
  EXPECT_EQ(Put(*store_, "k", AsBytes("x")).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(server_->seen().size(), 1u);
  Serve([&](const Seen&) {
    return Refuse(307, "TemporaryRedirect", fmt::format("Location: {}/b/k\r\n", server_->url()));
  });
  EXPECT_FALSE(Put(*store_, "k", AsBytes("x")));
  EXPECT_EQ(server_->seen().size(), 4u);
}

TEST_F(S3StoreTest, AnEndpointThatComplainsOfTheLoadIsAskedLessAtOnce) {
  // Every request of the first twenty is refused once.
  Serve([](const Seen& seen) {
    return seen.number < 20 ? Refuse(503, "SlowDown") : Reply{Answer(200, "", "ETag: \"e\"\r\n")};
  });
  int before = session_->client().stats().most_active;
  for (int i = 0; i < 4; ++i) {
    auto put = Put(*store_, "k", AsBytes("x"), {}, {});
    EXPECT_FALSE(put) << "five tries are not enough";
  }
  EXPECT_LT(session_->client().stats().most_active, before);
}

TEST_F(S3StoreTest, AWrongClockIsPutRight) {
  Serve([](const Seen& seen) {
    if (seen.headers.Get("x-amz-date").starts_with("20260131T12")) return Reply{Answer(200, "", "ETag: \"e\"\r\n")};
    return Refuse(403, "RequestTimeTooSkewed", "Date: Sat, 31 Jan 2026 12:00:00 GMT\r\n");
  });
  EXPECT_TRUE(Put(*store_, "k", AsBytes("x")));
  EXPECT_TRUE(Put(*store_, "k", AsBytes("x")));
  EXPECT_EQ(server_->seen().size(), 3u);
}

TEST_F(S3StoreTest, CredentialsThatExpireInTheMiddleAreReplaced) {
  // The server revokes each key after ten requests, without having said so before.
  std::map<std::string, int> used;
  Serve(
      [&](const Seen& seen) {
        std::string_view authorization = seen.headers.Get("authorization");
        std::size_t at = authorization.find("Credential=") + 11;
        std::string key(authorization.substr(at, authorization.find('/', at) - at));
        if (++used[key] > 10) return Refuse(400, "ExpiredToken");
        return Reply{Answer(200, "", "ETag: \"e\"\r\n")};
      },
      5, std::make_unique<RenewedKeys>(clock_));
  constexpr int kParts = 45;
  std::atomic<int> good = 0;
  std::latch ended(kParts);
  for (int i = 1; i <= kParts; ++i) {
    store_->UploadPart("k", "id", i, AsBytes("part"), {}, [&](Result<PartInfo> part) {
      good += part.has_value();
      if (!part) ADD_FAILURE() << part.error().ToString();
      ended.count_down();
    });
  }
  ended.wait();
  EXPECT_EQ(good, kParts);
  EXPECT_EQ(used.size(), 5u);
}

TEST_F(S3StoreTest, CredentialsThatCannotBeReplacedAreAnError) {
  Serve([](const Seen&) { return Refuse(400, "ExpiredToken"); });
  auto put = Put(*store_, "k", AsBytes("x"));
  ASSERT_FALSE(put);
  EXPECT_EQ(put.error().code(), Code::kPermissionDenied);
  EXPECT_THAT(put.error().ToString(), HasSubstr("sign in again"));
  EXPECT_EQ(server_->seen().size(), 1u);
}

TEST_F(S3StoreTest, AMissingBucketIsAnErrorAlsoForHead) {
  Serve([](const Seen&) { return Reply{"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"}; });
  auto head = Head(*store_, "k");
  ASSERT_FALSE(head);
  EXPECT_EQ(head.error().code(), Code::kNotFound);
  EXPECT_THAT(head.error().ToString(), HasSubstr("make it: millrace mb s3://"));
  Serve([](const Seen&) { return Refuse(404, "NoSuchBucket"); });
  std::string into(1, '?');
  EXPECT_EQ(GetText(into).error().code(), Code::kNotFound);
}

TEST_F(S3StoreTest, HeadersCannotBeSmuggledIn) {
  Serve([](const Seen&) { return Reply{Answer(200, "", "ETag: \"e\"\r\n")}; });
  EXPECT_EQ(Put(*store_, "k", AsBytes("x"), {.content_type = "a\r\nX-Evil: 1"}).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(Put(*store_, "k", AsBytes("x"), {.metadata = {{"a b", "1"}}}).error().code(), Code::kInvalidArgument);
  EXPECT_TRUE(server_->seen().empty());
}

TEST_F(S3StoreTest, DeletingManyGoesInBatchesAndNamesWhatFailed) {
  Serve([](const Seen& seen) {
    if (seen.method == "DELETE") return Reply{"HTTP/1.1 204 No Content\r\n\r\n"};
    bool first = seen.body.find("<Key>k0</Key>") != std::string::npos;
    return Reply{Answer(200, first ? "<DeleteResult><Error><Key>k0</Key><Code>AccessDenied</Code><Message>no</Message>"
                                     "</Error></DeleteResult>"
                                   : "<DeleteResult/>")};
  });
  std::vector<std::string> keys = {"bell\x07"};
  for (int i = 0; i < 2500; ++i) keys.push_back(fmt::format("k{}", i));
  auto failures = DeleteMany(*store_, keys);
  ASSERT_TRUE(failures) << failures.error().ToString();
  ASSERT_EQ(failures->size(), 1u);
  EXPECT_EQ((*failures)[0].key, "k0");
  EXPECT_EQ((*failures)[0].error.code(), Code::kPermissionDenied);
  EXPECT_EQ(server_->seen().size(), 4u) << "three batches, and one key that no XML can name";
}

TEST_F(S3StoreTest, DeletingManyTriesKeysAgainThatFailedForAMoment) {
  auto error = [](std::string_view key, std::string_view code) {
    return fmt::format("<Error><Key>{}</Key><Code>{}</Code><Message>no</Message></Error>", key, code);
  };
  Serve([&](const Seen& seen) {
    std::string errors;
    if (seen.number == 0) errors = error("a", "InternalError") + error("b", "SlowDown") + error("c", "AccessDenied");
    if (seen.number == 1) errors = error("b", "SlowDown");
    return Reply{Answer(200, "<DeleteResult>" + errors + "</DeleteResult>")};
  });
  auto failures = DeleteMany(*store_, {"a", "b", "c", "d"});
  ASSERT_TRUE(failures) << failures.error().ToString();
  ASSERT_EQ(failures->size(), 1u);
  EXPECT_EQ((*failures)[0].key, "c");
  auto seen = server_->seen();
  ASSERT_EQ(seen.size(), 3u);
  EXPECT_THAT(seen[1].body, ::testing::AllOf(HasSubstr("<Key>a</Key>"), HasSubstr("<Key>b</Key>")));
  EXPECT_THAT(seen[1].body, ::testing::Not(HasSubstr("<Key>c</Key>")));
  EXPECT_THAT(seen[2].body, ::testing::Not(HasSubstr("<Key>a</Key>")));
}

TEST_F(S3StoreTest, DeletingManyGivesUpOnKeysThatFailEachTime) {
  Serve([](const Seen&) {
    return Reply{Answer(200, "<DeleteResult><Error><Key>a</Key><Code>SlowDown</Code></Error></DeleteResult>")};
  });
  auto failures = DeleteMany(*store_, {"a"});
  ASSERT_TRUE(failures) << failures.error().ToString();
  ASSERT_EQ(failures->size(), 1u);
  EXPECT_EQ((*failures)[0].error.code(), Code::kThrottled);
  EXPECT_EQ(server_->seen().size(), 5u);
}

TEST_F(S3StoreTest, DeletingManyFailsWhenNothingCouldBeAsked) {
  Serve([](const Seen&) { return Refuse(404, "NoSuchBucket"); });
  auto failures = DeleteMany(*store_, {"a", "b"});
  ASSERT_FALSE(failures);
  EXPECT_EQ(failures.error().code(), Code::kNotFound);
}

// --- Faults: errors are right, nothing hangs past its deadline, nothing is lost -------------------------------------

TEST_F(S3StoreTest, AServerThatIsGoneForAMinuteIsWaitedFor) {
  const TimePoint back = clock_.Now() + std::chrono::minutes(1);
  std::map<std::string, std::string> objects;
  Serve(
      [&](const Seen& seen) {
        if (clock_.Now() < back) return Reply{"", Then::kReset};
        objects[seen.target] = seen.body;
        return Reply{Answer(200, "", "ETag: \"e\"\r\n")};
      },
      /*max_attempts=*/30);
  constexpr int kPuts = 40;
  std::vector<std::string> bodies;
  for (int i = 0; i < kPuts; ++i) bodies.push_back(fmt::format("body {}", i));
  std::latch ended(kPuts);
  for (int i = 0; i < kPuts; ++i) {
    store_->Put(fmt::format("k{}", i), AsBytes(bodies[static_cast<std::size_t>(i)]), {}, {},
                [&](Result<PutResult> put) {
                  EXPECT_TRUE(put) << put.error().ToString();
                  ended.count_down();
                });
  }
  ended.wait();
  ASSERT_EQ(objects.size(), static_cast<std::size_t>(kPuts));
  for (int i = 0; i < kPuts; ++i) EXPECT_EQ(objects[fmt::format("/b/k{}", i)], fmt::format("body {}", i));
}

TEST_F(S3StoreTest, NobodyThereIsAnErrorThatSaysSo) {
  Serve([](const Seen&) { return Reply{""}; });
  server_.reset();
  auto put = Put(*store_, "k", AsBytes("x"));
  ASSERT_FALSE(put);
  EXPECT_EQ(put.error().code(), Code::kUnavailable);
  EXPECT_THAT(put.error().ToString(),
              ::testing::AllOf(HasSubstr("PutObject s3://b/k (tried 5 times)"),
                               HasSubstr("check that the endpoint's address and port are right")));
}

TEST_F(S3StoreTest, AnEndpointThatHasNeverAnsweredIsNotWaitedFor) {
  first_contact_ = std::chrono::seconds(3);
  Serve([](const Seen&) { return Reply{""}; }, /*max_attempts=*/1000);
  server_.reset();
  const TimePoint before = clock_.Now();
  auto put = Put(*store_, "k", AsBytes("x"));
  ASSERT_FALSE(put);
  EXPECT_EQ(put.error().code(), Code::kUnavailable);
  EXPECT_LE(clock_.Now() - before, std::chrono::seconds(3));
  EXPECT_THAT(put.error().ToString(),
              ::testing::AllOf(HasSubstr("no S3 endpoint answers at http://127.0.0.1:"),
                               HasSubstr("check that the endpoint's address and port are right"),
                               HasSubstr("--wait-for-endpoint")));
}

TEST_F(S3StoreTest, AnEndpointThatHasAnsweredIsWaitedForWhenItIsGone) {
  first_contact_ = std::chrono::seconds(3);
  std::optional<TimePoint> back;
  Serve(
      [&](const Seen&) {
        if (back && clock_.Now() < *back) return Reply{"", Then::kReset};
        return Reply{Answer(200, "", "ETag: \"e\"\r\n")};
      },
      /*max_attempts=*/30);
  ASSERT_TRUE(Put(*store_, "k", AsBytes("x")));
  back = clock_.Now() + std::chrono::minutes(1);
  EXPECT_TRUE(Put(*store_, "k", AsBytes("x")));
}

TEST_F(S3StoreTest, AWebServerThatIsNoEndpointIsNamed) {
  constexpr std::string_view kPage = "<!DOCTYPE html>\n<html><body>It works!</html>";
  for (const std::string_view body : {kPage, std::string_view("{\"status\": \"ok\"}")}) {
    Serve([&](const Seen&) { return Reply{Answer(200, std::string(body))}; });
    auto list = List(*store_, {});
    ASSERT_FALSE(list);
    EXPECT_EQ(list.error().code(), Code::kInvalidArgument);
    EXPECT_THAT(list.error().ToString(), ::testing::AllOf(HasSubstr(fmt::format("127.0.0.1:{}", server_->port())),
                                                          HasSubstr("check that --endpoint-url is an S3 endpoint")));
  }
  Serve([&](const Seen&) { return Reply{Answer(404, std::string(kPage))}; });
  EXPECT_THAT(List(*store_, {}).error().ToString(), HasSubstr("answers with a web page: is it an S3 endpoint?"));
}

TEST_F(S3StoreTest, AnEndpointOfHttpsThatIsAskedInHttpIsNamed) {
  const Reply alert{"\x15\x03\x01\x00\x02\x02\x46" + std::string(3, '\0'), Then::kClose};  // a record of TLS
  for (const Reply& reply : {Reply{"", Then::kReset}, Reply{"", Then::kClose}, alert}) {
    Serve([&](const Seen&) { return reply; });
    EXPECT_THAT(List(*store_, {}).error().ToString(),
                HasSubstr("the URL of one that speaks https begins with https://"));
  }
  for (const char* page : {"Client sent an HTTP request to an HTTPS server.\n",
                           "<html><title>400 The plain HTTP request was sent to HTTPS port</title></html>",
                           "You're speaking plain HTTP to an SSL-enabled server port.<br />"}) {
    Serve([&](const Seen&) { return Reply{Answer(400, page)}; });
    const auto list = List(*store_, {});
    EXPECT_EQ(list.error().code(), Code::kInvalidArgument);
    EXPECT_THAT(list.error().ToString(), HasSubstr("speaks https: its URL begins with https://"));
  }
}

/// Whatever the server does, a call with a deadline ends by it, with an error that says what was wrong.
TEST_F(S3StoreTest, NothingHangsPastItsDeadline) {
  const std::vector<Reply> mischief = {
      {"", Then::kHang},
      {"", Then::kDrip},
      {"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\nab", Then::kHang},
      {"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\nab", Then::kDrip},
      {"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\nX-", Then::kDrip},
      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", Then::kDrip},
      Refuse(503, "SlowDown"),
      Refuse(503, "SlowDown", "Retry-After: 86400\r\n"),
      {"", Then::kReset},
      {Answer(200, "short", "ETag: \"e\"\r\nx-amz-checksum-crc32c: AAAAAA==\r\n")},
  };
  store_clock_ = &SystemClock();  // waits for retries must end as well
  for (const Reply& reply : mischief) {
    SCOPED_TRACE(reply.bytes);
    Serve([&](const Seen&) { return reply; }, 1000);
    std::string into(100'000, '?');
    TimePoint started = SystemClock().Now();
    auto call = [&] { return Call{.deadline = Deadline::After(SystemClock(), milliseconds(100))}; };
    auto got = Get(*store_, "k", {}, AsWritableBytes(into), call());
    auto put = Put(*store_, "k", AsBytes(into), {}, call());
    EXPECT_LT(SystemClock().Now() - started, std::chrono::seconds(2));
    ASSERT_FALSE(got && *got && (*got)->bytes == into.size());
    auto is_fair = [](const Error& error) {
      Code code = error.code();
      return IsRetryable(code) || code == Code::kDeadlineExceeded || code == Code::kCorrupt;
    };
    EXPECT_TRUE(got || is_fair(got.error())) << got.error().ToString();
    EXPECT_TRUE(put || is_fair(put.error())) << put.error().ToString();
  }
}

TEST_F(S3StoreTest, ABodyThatIsCutAndOneThatIsTooLongAreNoticed) {
  std::string whole(5000, 'w');
  const std::vector<Reply> bad = {
      {"HTTP/1.1 200 OK\r\nETag: \"e\"\r\nContent-Length: 5000\r\n\r\n" + whole.substr(0, 4999), Then::kClose},
      {"HTTP/1.1 200 OK\r\nETag: \"e\"\r\nTransfer-Encoding: chunked\r\n\r\n1000\r\n" + whole.substr(0, 100),
       Then::kReset},
      {Answer(200, whole.substr(0, 4999) + "x", "x-amz-checksum-crc32c: " + EncodeCrc32c(AsBytes(whole)) + "\r\n")},
      {Answer(500, whole)},
  };
  Serve(
      [&](const Seen& seen) {
        auto number = static_cast<std::size_t>(seen.number);
        return number < bad.size() ? bad[number] : Reply{Answer(200, whole, "ETag: \"e\"\r\n")};
      },
      10);
  std::string into(5000, '?');
  auto got = GetText(into);
  ASSERT_TRUE(got) << got.error().ToString();
  EXPECT_EQ(into, whole);
  EXPECT_EQ(server_->seen().size(), bad.size() + 1);
}

}  // namespace
}  // namespace millrace::object::s3
