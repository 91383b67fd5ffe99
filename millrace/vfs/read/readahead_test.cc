#include "millrace/vfs/read/readahead.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace millrace::vfs {
namespace {

constexpr std::uint64_t kBound = 64 * kMiB, kRead = 128 * kKiB;

/// Feeds reads to a window and takes all it plans.
struct WindowReader {
  ReadaheadWindow window{{}};
  std::uint64_t planned = 0, largest = 0;
  bool Read(std::uint64_t offset, std::uint64_t length = kRead, std::uint64_t bound = kBound) {
    auto plan = window.OnRead(offset, length, bound);
    if (plan.prefetch_length > 0) window.OnPrefetched(plan, plan.prefetch_length);
    planned += plan.prefetch_length;
    largest = std::max(largest, plan.prefetch_length);
    return !plan.exact;
  }
};

TEST(ReadaheadWindow, GrowsWhileReadsFollowEachOther) {
  WindowReader reader;
  std::uint64_t ahead = 0;
  for (std::uint64_t at = 0; at < 512 * kMiB; at += kRead) {
    ASSERT_TRUE(reader.Read(at));
    ahead = reader.planned - (at + kRead);
    ASSERT_GE(reader.planned, at + kRead);
    ASSERT_LE(ahead, kBound + 8 * kMiB);
  }
  EXPECT_EQ(reader.window.window(), kBound);
}

TEST(ReadaheadWindow, StartsSmall) {
  WindowReader reader;
  reader.Read(0);
  EXPECT_LE(reader.planned, 1 * kMiB);
}

TEST(ReadaheadWindow, LargePlansEndAtParts) {
  ReadaheadWindow window{{}};
  for (std::uint64_t at = 0; at < 256 * kMiB; at += kRead) {
    auto plan = window.OnRead(at, kRead, kBound);
    window.OnPrefetched(plan, plan.prefetch_length);
    if (plan.prefetch_length >= 8 * kMiB) {
      ASSERT_EQ((plan.prefetch_from + plan.prefetch_length) % (8 * kMiB), 0u) << at;
    }
  }
}

TEST(ReadaheadWindow, JumpsFetchNothingAhead) {
  WindowReader reader;
  for (int i = 1; i < 100; ++i) EXPECT_FALSE(reader.Read((i * 7919 % 100) * 10 * kMiB + 1));
  EXPECT_EQ(reader.planned, 0u);
}

TEST(ReadaheadWindow, TwoReadsInARowAfterAJumpStartASequence) {
  WindowReader reader;
  EXPECT_FALSE(reader.Read(100 * kMiB));
  EXPECT_TRUE(reader.Read(100 * kMiB + kRead));
  EXPECT_GT(reader.planned, 0u);
}

TEST(ReadaheadWindow, ReadsOutOfOrderAndSmallSkipsAreOneSequence) {
  WindowReader reader;
  for (std::uint64_t at = 0; at < 64 * kMiB; at += 4 * kRead) {
    for (std::uint64_t i : {1, 0, 3, 2}) {
      EXPECT_TRUE(reader.Read(at + i * kRead));
    }
  }
  EXPECT_TRUE(reader.Read(64 * kMiB + 3 * kMiB));
  EXPECT_FALSE(reader.Read(500 * kMiB)) << "too far";
}

TEST(ReadaheadWindow, ShortMemoryShrinksIt) {
  ReadaheadWindow window{{}};
  for (std::uint64_t at = 0; at < 128 * kMiB; at += kRead) {
    auto plan = window.OnRead(at, kRead, kBound);
    window.OnPrefetched(plan, plan.prefetch_length);
  }
  const std::uint64_t before = window.window();
  for (std::uint64_t at = 128 * kMiB; at < 512 * kMiB; at += kRead) {
    auto plan = window.OnRead(at, kRead, kBound);
    window.OnPrefetched(plan, std::min<std::uint64_t>(plan.prefetch_length, 64 * kKiB));
  }
  EXPECT_LT(window.window(), before / 8);
}

TEST(ReadaheadWindow, KeepsWithinItsBound) {
  WindowReader reader;
  for (std::uint64_t at = 0; at < 64 * kMiB; at += kRead) reader.Read(at, kRead, 4 * kMiB);
  EXPECT_LE(reader.window.window(), 4 * kMiB);
}

}  // namespace
}  // namespace millrace::vfs
