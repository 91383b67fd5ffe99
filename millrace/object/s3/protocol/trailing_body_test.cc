#include "millrace/object/s3/protocol/trailing_body.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "millrace/object/s3/protocol/checksums.h"

namespace millrace::object::s3 {
namespace {

class CountedSource final : public Source {
 public:
  explicit CountedSource(std::string text) : text_(std::move(text)) {}
  std::uint64_t size() const override { return text_.size(); }
  Status Read(std::uint64_t offset, MutableByteSpan into) override {
    std::memcpy(into.data(), text_.data() + offset, into.size());
    read_ += into.size();
    return {};
  }
  const std::string& text() const { return text_; }
  std::uint64_t read() const { return read_; }

 private:
  const std::string text_;
  std::uint64_t read_ = 0;
};

std::string RandomText(std::size_t size) {
  std::mt19937_64 random(size);
  std::string text(size, '\0');
  for (char& c : text) c = static_cast<char>(random());
  return text;
}

std::string ReadAll(TrailingBody& body, std::size_t step) {
  std::string all(body.size(), '\0');
  for (std::size_t at = 0; at < all.size(); at += step) {
    EXPECT_TRUE(body.Read(at, AsWritableBytes(all).subspan(at, std::min(step, all.size() - at))));
  }
  return all;
}

/// What a server makes of it: the bytes, or "" when the coding is wrong; the trailer's field apart.
std::string Decode(std::string_view coded, std::string& field) {
  std::string bytes;
  while (true) {
    std::size_t end = coded.find("\r\n");
    if (end == coded.npos) return "";
    std::size_t length = std::stoull(std::string(coded.substr(0, end)), nullptr, 16);
    coded.remove_prefix(end + 2);
    if (length == 0) break;
    bytes += coded.substr(0, length);
    if (coded.substr(length, 2) != "\r\n") return "";
    coded.remove_prefix(length + 2);
  }
  if (!coded.ends_with("\r\n\r\n")) return "";
  field = coded.substr(0, coded.size() - 4);
  return bytes;
}

TEST(TrailingBody, PiecesHoldTheBytesAndTheTrailerTheirChecksum) {
  for (std::size_t size : {1, 100, 65535, 65536, 65537, 131072, 200000}) {
    for (std::size_t step : {7, 1000, 65536, 1 << 20}) {
      CountedSource source(RandomText(size));
      TrailingBody body(source);
      std::string field, coded = ReadAll(body, step);
      EXPECT_EQ(Decode(coded, field), source.text()) << size << " in steps of " << step;
      EXPECT_EQ(field, "x-amz-checksum-crc32c:" + EncodeCrc32c(AsBytes(source.text()))) << size;
      EXPECT_EQ(source.read(), size) << "read once";
    }
  }
}

TEST(TrailingBody, MayBeReadAgainFromTheFrontAndAnywhere) {
  CountedSource source(RandomText(150000));
  TrailingBody body(source);
  const std::string coded = ReadAll(body, 10000);
  EXPECT_EQ(ReadAll(body, 65536), coded);
  std::mt19937 random(1);
  for (int i = 0; i < 50; ++i) {
    std::size_t at = random() % coded.size(), length = 1 + random() % (coded.size() - at);
    std::string part(length, '\0');
    ASSERT_TRUE(body.Read(at, AsWritableBytes(part)));
    ASSERT_EQ(part, coded.substr(at, length)) << at;
  }
}

}  // namespace
}  // namespace millrace::object::s3
