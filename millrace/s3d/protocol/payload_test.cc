#include "millrace/s3d/protocol/payload.h"

#include <gtest/gtest.h>

#include "millrace/base/hash/digest.h"
#include "millrace/base/hash/text_encoding.h"
#include "millrace/s3d/operations/fake_request.h"

namespace millrace::s3d {
namespace {

using Fields = std::vector<std::pair<std::string, std::string>>;

/// What becomes of an upload: the code of the error, or "ok:" and the body.
std::string Outcome(std::string content_sha256, std::string body, const Fields& fields, std::uint64_t limit = kMiB) {
  FakeRequest request("PUT", "/b/k", std::move(body));
  for (const auto& [name, value] : fields) request.mutable_headers().Set(name, value);
  request.set_piece(7);
  Authenticated who{.anonymous = true, .content_sha256 = std::move(content_sha256)};
  auto payload = Payload::Open(request, who, limit);
  if (!payload) return payload.error().code;
  std::string all;
  Buffer buffer(5);
  for (;;) {
    auto got = payload->Read(buffer.span());
    if (!got) return got.error().code;
    if (*got == 0) return "ok:" + all;
    all.append(AsText(buffer.span().first(*got)));
  }
}

constexpr char kTrailing[] = "STREAMING-UNSIGNED-PAYLOAD-TRAILER";

TEST(Payload, PlainBodies) {
  EXPECT_EQ(Outcome("UNSIGNED-PAYLOAD", "hello world", {}), "ok:hello world");
  EXPECT_EQ(Outcome("UNSIGNED-PAYLOAD", "", {}), "ok:");
  EXPECT_EQ(Outcome("UNSIGNED-PAYLOAD", "hello world", {}, 10), "EntityTooLarge");
  EXPECT_EQ(Outcome(HexEncode(Sha256(AsBytes("hello"))), "hello", {}), "ok:hello");
  EXPECT_EQ(Outcome(HexEncode(Sha256(AsBytes("hello"))), "hullo", {}), "XAmzContentSHA256Mismatch");
  EXPECT_EQ(Outcome("nonsense", "hello", {}), "InvalidRequest");
}

TEST(Payload, HoldsContentMd5) {
  std::string right = Base64Encode(Md5(AsBytes("hello")));
  EXPECT_EQ(Outcome("UNSIGNED-PAYLOAD", "hello", {{"Content-MD5", right}}), "ok:hello");
  EXPECT_EQ(Outcome("UNSIGNED-PAYLOAD", "hullo", {{"Content-MD5", right}}), "BadDigest");
  EXPECT_EQ(Outcome("UNSIGNED-PAYLOAD", "hello", {{"Content-MD5", "abc"}}), "InvalidDigest");
}

TEST(Payload, HoldsChecksums) {
  // CRC-32 of "123456789" is cbf43926, CRC-32C e3069283, CRC-64/NVME ae8b14860a799888: the check values of their
  // catalogue.
  const Fields right[] = {
      {{"x-amz-checksum-crc32", "y/Q5Jg=="}},
      {{"x-amz-checksum-crc32c", "4waSgw=="}},
      {{"x-amz-checksum-crc64nvme", "rosUhgp5mIg="}},
      {{"x-amz-checksum-sha1", "98O8HYCOBHMq32eZZczDTKeuNEE="}},
      {{"x-amz-checksum-sha256", Base64Encode(Sha256(AsBytes("123456789")))}},
  };
  for (const Fields& fields : right) {
    EXPECT_EQ(Outcome("UNSIGNED-PAYLOAD", "123456789", fields), "ok:123456789") << fields[0].first;
    EXPECT_EQ(Outcome("UNSIGNED-PAYLOAD", "123456780", fields), "BadDigest") << fields[0].first;
  }
  EXPECT_EQ(Outcome("UNSIGNED-PAYLOAD", "x", {{"x-amz-checksum-crc32", "AAAA"}, {"x-amz-checksum-crc32c", "AAAA"}}),
            "InvalidRequest");
}

TEST(Payload, TrailingChecksums) {
  Fields fields{{"x-amz-decoded-content-length", "9"}, {"x-amz-trailer", "x-amz-checksum-crc32"}};
  EXPECT_EQ(Outcome(kTrailing, "9\r\n123456789\r\n0\r\nx-amz-checksum-crc32:y/Q5Jg==\r\n\r\n", fields), "ok:123456789");
  EXPECT_EQ(Outcome(kTrailing, "4\r\n1234\r\n5\r\n56789\r\n0\r\nx-amz-checksum-crc32:y/Q5Jg==\r\n\r\n", fields),
            "ok:123456789");
  EXPECT_EQ(Outcome(kTrailing, "9\r\n123456780\r\n0\r\nx-amz-checksum-crc32:y/Q5Jg==\r\n\r\n", fields), "BadDigest");
  EXPECT_EQ(Outcome(kTrailing, "9\r\n123456789\r\n0\r\n\r\n", fields), "MalformedTrailerError");
  EXPECT_EQ(Outcome("UNSIGNED-PAYLOAD", "123456789", {fields[1]}), "MalformedTrailerError");
}

TEST(Payload, RefusesBrokenChunks) {
  Fields fields{{"x-amz-decoded-content-length", "3"}};
  const std::pair<std::string_view, std::string_view> cases[] = {
      {"3\r\nabc\r\n0\r\n\r\n", "ok:abc"},
      {"3\r\nabc\r\n0\r\n", "ok:abc"},  // without the last empty line
      {"4\r\nabcd\r\n0\r\n\r\n", "IncompleteBody"},
      {"2\r\nab\r\n0\r\n\r\n", "IncompleteBody"},
      {"3\r\nabcd\r\n0\r\n\r\n", "InvalidRequest"},
      {"x\r\nabc\r\n0\r\n\r\n", "InvalidRequest"},
      {"3\r\nab", "IncompleteBody"},
      {"3\r\nabc\r\n", "IncompleteBody"},
      {"3\r\nabc\r\n0\r\n\r\nmore", "InvalidRequest"},
      {"ffffffffffffffff\r\nabc", "InvalidRequest"},
      {"3\r\nabc\r\n0\r\nno colon\r\n\r\n", "InvalidRequest"},
  };
  for (const auto& [body, outcome] : cases) EXPECT_EQ(Outcome(kTrailing, std::string(body), fields), outcome) << body;
  EXPECT_EQ(Outcome(kTrailing, "3\r\nabc\r\n0\r\n\r\n", {}), "MissingContentLength");
  EXPECT_EQ(Outcome("STREAMING-AWS4-HMAC-SHA256-PAYLOAD", "", fields), "AccessDenied");
  EXPECT_EQ(Outcome("STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD", "", fields), "NotImplemented");
}

TEST(Checksum, OfPartsEqualsThatOfTheWhole) {
  const std::string a(1000, 'a'), b(77, 'b'), whole = a + b;
  for (ChecksumKind kind : {ChecksumKind::kCrc32, ChecksumKind::kCrc32c, ChecksumKind::kCrc64Nvme}) {
    auto of = [kind](std::string_view text) {
      ChecksumHasher hasher(kind);
      hasher.Update(AsBytes(text));
      return Base64Encode(hasher.Finish());
    };
    auto combined = CombineChecksums(kind, ChecksumType::kFullObject, {{of(a), a.size()}, {of(b), b.size()}});
    ASSERT_TRUE(combined);
    EXPECT_EQ(combined->value, of(whole)) << ChecksumName(kind);
    auto composite = CombineChecksums(kind, ChecksumType::kComposite, {{of(a), a.size()}, {of(b), b.size()}});
    ASSERT_TRUE(composite);
    EXPECT_TRUE(composite->value.ends_with("-2"));
  }
  EXPECT_FALSE(CombineChecksums(ChecksumKind::kSha256, ChecksumType::kFullObject, {}));
  EXPECT_FALSE(CombineChecksums(ChecksumKind::kCrc32, ChecksumType::kComposite, {{"", 5}}));
}

}  // namespace
}  // namespace millrace::s3d
