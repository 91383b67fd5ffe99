#include "millrace/base/hash/crc.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "millrace/base/hash/random.h"

namespace millrace {
namespace {

/// The definition, a bit at a time.
template <class Word>
Word Reference(ByteSpan bytes, Word poly) {
  Word crc = ~Word{0};
  for (std::byte b : bytes) {
    crc ^= static_cast<Word>(b);
    for (int i = 0; i < 8; ++i) crc = (crc >> 1) ^ ((crc & 1) ? poly : 0);
  }
  return ~crc;
}

std::vector<std::byte> RandomBytes(Random& random, std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random.Next());
  return bytes;
}

TEST(Crc32c, KnownValues) {
  EXPECT_EQ(Crc32c({}), 0u);
  EXPECT_EQ(Crc32c(AsBytes("123456789")), 0xe3069283u);
  std::string zeros(32, '\0'), ones(32, '\xff');
  EXPECT_EQ(Crc32c(AsBytes(zeros)), 0x8a9136aau);  // RFC 3720, B.4
  EXPECT_EQ(Crc32c(AsBytes(ones)), 0x62a8ab43u);
}

TEST(Crc64Nvme, KnownValues) {
  EXPECT_EQ(Crc64Nvme({}), 0u);
  EXPECT_EQ(Crc64Nvme(AsBytes("123456789")), 0xae8b14860a799888u);
}

TEST(Crc, EveryLengthAndAlignmentMatchesTheDefinition) {
  Random random(1);
  auto bytes = RandomBytes(random, 20'000);
  for (std::size_t size :
       {1u, 7u, 8u, 9u, 63u, 64u, 127u, 128u, 129u, 191u, 192u, 255u, 2048u, 6143u, 6144u, 6145u, 12'288u, 19'000u})
    for (std::size_t offset : {0u, 1u, 3u, 8u}) {
      ByteSpan part = ByteSpan(bytes).subspan(offset, size);
      EXPECT_EQ(Crc32c(part), Reference<std::uint32_t>(part, 0x82f63b78)) << size;
      EXPECT_EQ(Crc64Nvme(part), Reference<std::uint64_t>(part, 0x9a6c9329ac4bc9b5)) << size;
    }
}

TEST(Crc, SeedContinuesAndCombineJoins) {
  Random random(2);
  for (int i = 0; i < 200; ++i) {
    auto bytes = RandomBytes(random, 1 + random.Below(9000));
    ByteSpan a = ByteSpan(bytes).first(random.Below(bytes.size())), b = ByteSpan(bytes).subspan(a.size());
    EXPECT_EQ(Crc32c(b, Crc32c(a)), Crc32c(bytes));
    EXPECT_EQ(Crc64Nvme(b, Crc64Nvme(a)), Crc64Nvme(bytes));
    EXPECT_EQ(Crc32cCombine(Crc32c(a), Crc32c(b), b.size()), Crc32c(bytes));
    EXPECT_EQ(Crc64NvmeCombine(Crc64Nvme(a), Crc64Nvme(b), b.size()), Crc64Nvme(bytes));
  }
}

}  // namespace
}  // namespace millrace
