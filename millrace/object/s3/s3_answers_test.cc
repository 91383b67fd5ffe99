// The store against answers that lack something, or that say more than was asked for.
#include <gmock/gmock.h>

#include "millrace/object/s3/testing/scripted_store.h"

namespace millrace::object::s3 {
namespace {

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

}  // namespace
}  // namespace millrace::object::s3
