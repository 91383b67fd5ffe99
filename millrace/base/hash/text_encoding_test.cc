#include "millrace/base/hash/text_encoding.h"

#include <gtest/gtest.h>

#include "millrace/base/hash/random.h"

namespace millrace {
namespace {

TEST(Base64, KnownValues) {
  EXPECT_EQ(Base64Encode(AsBytes("")), "");
  EXPECT_EQ(Base64Encode(AsBytes("f")), "Zg==");
  EXPECT_EQ(Base64Encode(AsBytes("fo")), "Zm8=");
  EXPECT_EQ(Base64Encode(AsBytes("foobar")), "Zm9vYmFy");
}

TEST(Encodings, RoundTrip) {
  Random random(1);
  for (int i = 0; i < 500; ++i) {
    std::vector<std::byte> bytes(random.Below(100));
    for (std::byte& b : bytes) b = static_cast<std::byte>(random.Next());
    EXPECT_EQ(Base64Decode(Base64Encode(bytes)), bytes);
    EXPECT_EQ(HexDecode(HexEncode(bytes)), bytes);
  }
}

TEST(Encodings, NonsenseIsRefused) {
  for (auto text : {"Zg=", "Z", "Zg==Zg==", "Z===", " Zg==", "Zg==\n", "Z*==", "===="})
    EXPECT_FALSE(Base64Decode(text)) << text;
  for (auto text : {"a", "zz", "0g"}) EXPECT_FALSE(HexDecode(text)) << text;
}

}  // namespace
}  // namespace millrace
