#include "millrace/base/hash/digest.h"

#include <gtest/gtest.h>

#include "millrace/base/hash/text_encoding.h"

namespace millrace {
namespace {

TEST(Digest, KnownValues) {
  EXPECT_EQ(HexEncode(Sha256(AsBytes(""))), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(HexEncode(Md5(AsBytes("abc"))), "900150983cd24fb0d6963f7d28e17f72");
  // RFC 4231, test case 2
  EXPECT_EQ(HexEncode(HmacSha256(AsBytes("Jefe"), AsBytes("what do ya want for nothing?"))),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
}

TEST(Digest, Sha1OfAGitBlob) {
  Hasher hasher(Hasher::Algorithm::kSha1);
  hasher.Update(AsBytes(std::string("blob 14\0", 8)));
  hasher.Update(AsBytes("Hello, World!\n"));
  EXPECT_EQ(HexEncode(hasher.Finish()), "8ab686eafeb1f44702738c8b0f24f2567c36da6d");  // git hash-object
}

TEST(Digest, HasherMatchesOneShotAndCanBeReused) {
  Hasher hasher(Hasher::Algorithm::kSha256);
  for (int round = 0; round < 2; ++round) {
    hasher.Update(AsBytes("ab"));
    hasher.Update(AsBytes("c"));
    EXPECT_EQ(HexEncode(hasher.Finish()), HexEncode(Sha256(AsBytes("abc"))));
  }
}

}  // namespace
}  // namespace millrace
