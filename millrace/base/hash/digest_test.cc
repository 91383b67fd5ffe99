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

TEST(Digest, AHashGoesOnFromASavedState) {
  std::string text(300, '\0');
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * i);
  for (const auto algorithm : {Hasher::Algorithm::kSha256, Hasher::Algorithm::kSha1, Hasher::Algorithm::kMd5}) {
    Hasher whole(algorithm);
    whole.Update(AsBytes(text));
    const std::vector<std::byte> expected = whole.Finish();
    for (std::size_t cut = 0; cut <= text.size(); ++cut) {
      Hasher first(algorithm), second(algorithm);
      first.Update(AsBytes(text).first(cut));
      second.Update(AsBytes("of another message"));
      ASSERT_TRUE(second.RestoreState(first.SaveState())) << cut;
      second.Update(AsBytes(text).subspan(cut));
      ASSERT_EQ(second.Finish(), expected) << cut;
      first.Update(AsBytes(text).subspan(cut));
      ASSERT_EQ(first.Finish(), expected) << "saving changes nothing";
    }
    Hasher other(algorithm);
    other.Update(AsBytes(text));
    for (const std::string& wrong : {std::string(), std::string(20, 'x'), other.SaveState() + "x"}) {
      EXPECT_FALSE(other.RestoreState(wrong));
    }
    EXPECT_EQ(other.Finish(), expected) << "a broken state changes nothing";
  }
}

TEST(Digest, StatesAreNumbersInTheOrderOfTheNetwork) {
  Hasher hasher(Hasher::Algorithm::kSha256);
  hasher.Update(AsBytes("abc"));  // FIPS 180-4: the initial words, then three bytes that wait for a block
  EXPECT_EQ(HexEncode(AsBytes(hasher.SaveState())),
            "6a09e667bb67ae853c6ef372a54ff53a510e527f9b05688c1f83d9ab5be0cd19"
            "0000000000000003"
            "616263");
  // Beyond 512 MiB the number of bits has two words.
  std::string state = hasher.SaveState().substr(0, 32) + std::string("\0\0\0\x12\x34\x56\x78\x40", 8);
  ASSERT_TRUE(hasher.RestoreState(state));
  EXPECT_EQ(hasher.SaveState(), state);
}

}  // namespace
}  // namespace millrace
