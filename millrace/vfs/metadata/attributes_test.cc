#include "millrace/vfs/metadata/attributes.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "millrace/base/hash/random.h"

namespace millrace::vfs {
namespace {

WallTime At(std::int64_t seconds, std::int64_t nanos = 0) {
  return WallTime(
      std::chrono::duration_cast<WallTime::duration>(std::chrono::seconds(seconds) + std::chrono::nanoseconds(nanos)));
}

TEST(AttributesTest, ComeBackAsTheyWere) {
  Random random(7);
  for (int i = 0; i < 300; ++i) {
    StoredAttributes a;
    const std::uint32_t types[] = {S_IFREG, S_IFLNK, S_IFDIR};
    if (random.Below(2)) a.mode = types[random.Below(3)] | static_cast<std::uint32_t>(random.Below(07777));
    if (random.Below(2)) a.uid = static_cast<std::uint32_t>(random.Next());
    if (random.Below(2)) a.gid = static_cast<std::uint32_t>(random.Next());
    if (random.Below(2)) a.modified = At(static_cast<std::int64_t>(random.Below(1ULL << 33)) - (1LL << 32), 5);
    if (random.Below(2)) a.accessed = At(-1, 999'999'999);
    if (random.Below(2)) a.changed = At(1'700'000'000, 120);
    if (random.Below(2)) a.xattrs["user.\xC3\xA9\"x"] = std::string("\0\xFF bytes", 8);
    UserMetadata metadata = {{"colour", "blue"}, {"mtime", "of before"}};
    ASSERT_TRUE(ToMetadata(a, metadata));
    EXPECT_EQ(FromMetadata(metadata), a);
    EXPECT_EQ(metadata.at("colour"), "blue") << "what others store stays";
    for (const auto& [name, value] : metadata) {
      for (char c : value) EXPECT_TRUE(c > ' ' && c < 127) << "a header can carry it";
    }
  }
}

TEST(AttributesTest, AreWrittenAsS3fsDoes) {
  UserMetadata metadata;
  ASSERT_TRUE(ToMetadata({.mode = S_IFREG | 0644,
                          .uid = 1000,
                          .gid = 0,
                          .modified = At(1'600'000'000, 50),
                          .accessed = {},
                          .changed = {},
                          .xattrs = {{"user.k", "v"}}},
                         metadata));
  EXPECT_EQ(metadata, (UserMetadata{{"mode", "33188"},
                                    {"uid", "1000"},
                                    {"gid", "0"},
                                    {"mtime", "1600000000.000000050"},
                                    {"xattr", "%7B%22user.k%22%3A%22dg%3D%3D%22%7D"}}));
}

TEST(AttributesTest, AreReadAsS3fsAndRcloneWriteThem) {
  auto mode = [](std::string text) { return FromMetadata({{"mode", std::move(text)}}).mode; };
  EXPECT_EQ(mode("33188"), S_IFREG | 0644u) << "s3fs";
  EXPECT_EQ(mode("16877"), S_IFDIR | 0755u);
  EXPECT_EQ(mode("41471"), S_IFLNK | 0777u);
  EXPECT_EQ(mode("100644"), S_IFREG | 0644u) << "rclone";
  EXPECT_EQ(mode("0100755"), S_IFREG | 0755u);
  EXPECT_EQ(mode("40755"), S_IFDIR | 0755u);
  EXPECT_EQ(mode("120777"), S_IFLNK | 0777u);
  EXPECT_EQ(mode("0640"), 0640u) << "others";
  for (std::string bad : {"", "rw-r--r--", "-1", "99999999999", "888", "1 "}) EXPECT_EQ(mode(bad), std::nullopt) << bad;

  auto modified = [](std::string text) { return FromMetadata({{"mtime", std::move(text)}}).modified; };
  EXPECT_EQ(modified("1354040105"), At(1'354'040'105));
  EXPECT_EQ(modified("1354040105.123456789"), At(1'354'040'105, 123'456'789));
  EXPECT_EQ(modified("1354040105.5"), At(1'354'040'105, 500'000'000));
  EXPECT_EQ(modified("-0.25"), At(-1, 750'000'000));
  EXPECT_EQ(modified("2012-11-27T18:15:05.123456789Z"), At(1'354'040'105, 123'456'789));
  EXPECT_EQ(modified("2012-11-27T20:15:05+02:00"), At(1'354'040'105));
  for (std::string bad : {"", "now", "1.x", ".5", "99999999999999999999", "2012-11-27T20:15:05", "T"}) {
    EXPECT_EQ(modified(bad), std::nullopt) << bad;
  }
  EXPECT_TRUE(FromMetadata({{"xattr", "%7B%22user.k%22%3A5%7D"}, {"uid", "root"}, {"gid", "-2"}}).empty());
  EXPECT_TRUE(FromMetadata({{"xattr", "%zz"}}).empty());
}

TEST(AttributesTest, AnObjectHoldsTwoKilobytes) {
  UserMetadata metadata = {{"other", "x"}};
  const UserMetadata before = metadata;
  StoredAttributes attributes;
  attributes.xattrs["user.large"] = std::string(2000, 'x');
  EXPECT_EQ(ToMetadata(attributes, metadata).error().code(), Code::kNoSpace);
  EXPECT_EQ(metadata, before);
  attributes.xattrs["user.large"].resize(1000);
  EXPECT_TRUE(ToMetadata(attributes, metadata));
}

TEST(AttributesTest, NewContentHasNewTimes) {
  UserMetadata metadata = {{"mtime", "1"}, {"atime", "1"}, {"ctime", "1"}, {"mode", "33188"}, {"x", "y"}};
  ForgetTimes(metadata);
  EXPECT_EQ(metadata, (UserMetadata{{"mode", "33188"}, {"x", "y"}}));
}

}  // namespace
}  // namespace millrace::vfs
