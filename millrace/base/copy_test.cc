#include "millrace/base/copy.h"

#include <gtest/gtest.h>

#include <vector>

#include "millrace/base/hash/random.h"

namespace millrace {
namespace {

// Lengths around a cache line and beyond a page, wherever source and destination begin in one.
TEST(CopyNonTemporal, CopiesAllAndNothingElse) {
  Random random(1);
  std::vector<std::byte> from(20'000);
  for (std::byte& byte : from) byte = static_cast<std::byte>(random.Below(256));
  for (int round = 0; round < 2'000; ++round) {
    const std::size_t length = random.Below(round % 2 == 0 ? 200 : from.size() - 200);
    const std::size_t read = random.Below(100), write = random.Below(100);
    std::vector<std::byte> to(from.size(), std::byte{0xAA}), expected = to;
    std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(read), length,
                expected.begin() + static_cast<std::ptrdiff_t>(write));
    CopyNonTemporal(to.data() + write, ByteSpan(from).subspan(read, length));
    ASSERT_EQ(to, expected) << length << " bytes from " << read << " to " << write;
  }
}

}  // namespace
}  // namespace millrace
