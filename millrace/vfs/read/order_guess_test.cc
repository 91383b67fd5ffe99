#include "millrace/vfs/read/order_guess.h"

#include <gtest/gtest.h>

#include <set>

#include "millrace/base/hash/random.h"

namespace millrace::vfs {
namespace {

using std::chrono::milliseconds;

/// Opens positions one after another and reads ahead all that is planned.
struct Reader {
  explicit Reader(OrderGuess::Options options = {}) : guess(options) {}

  OrderGuess::Plan Open(std::uint64_t position, Duration later = milliseconds(1)) {
    now += later;
    const bool hit = ahead.erase(position) > 0;
    hits += hit;
    auto plan = guess.OnOpen(position, hit, now);
    for (int i = 0; i < plan.count && guess.credit() > 0; ++i) {
      if (!ahead.insert(plan.first + plan.step * static_cast<std::uint64_t>(i)).second) continue;
      guess.OnGuess();
      ++guesses;
    }
    return plan;
  }

  OrderGuess guess;
  TimePoint now{};
  std::set<std::uint64_t> ahead;
  int hits = 0, guesses = 0;
};

TEST(OrderGuessTest, InOrderAllButTheFirstAreReadAheadFarEnough) {
  Reader reader;
  for (std::uint64_t i = 0; i < 1000; ++i) reader.Open(i);
  EXPECT_EQ(reader.hits, 999);
  EXPECT_EQ(reader.ahead.size(), 64u);
}

TEST(OrderGuessTest, AnyOrderCostsTheFirstGuessesAndLittleMore) {
  Reader reader;
  Random random(3);
  for (int i = 0; i < 5000; ++i) reader.Open(random.Below(100'000));
  EXPECT_LE(reader.guesses, 8 + 2 * reader.hits + 8);
}

TEST(OrderGuessTest, OneOfNReadersIsServedItsShare) {
  Reader reader;
  for (std::uint64_t i = 3; i < 4000; i += 8) reader.Open(i);
  EXPECT_GE(reader.hits, 480);
  EXPECT_LE(reader.guesses - reader.hits, 64 + 16);
}

TEST(OrderGuessTest, SeveralPlacesAreFollowedAtOnce) {
  Reader reader;
  for (std::uint64_t i = 0; i < 500; ++i) {
    for (std::uint64_t stream = 0; stream < 4; ++stream) reader.Open(stream * 10'000 + i);
  }
  EXPECT_GE(reader.hits, 1800);
}

TEST(OrderGuessTest, SlowReadersAreServedNoFurtherThanTheHorizon) {
  Reader reader;
  for (std::uint64_t i = 0; i < 100; ++i) reader.Open(i, milliseconds(100));
  EXPECT_GE(reader.hits, 98);
  EXPECT_LE(reader.ahead.size(), 8u);
}

TEST(OrderGuessTest, AReaderThatTakesUpTheOrderIsServedAgain) {
  Reader reader;
  Random random(5);
  for (int i = 0; i < 100; ++i) reader.Open(random.Below(1'000'000));
  const int before = reader.hits;
  for (std::uint64_t i = 2'000'000; i < 2'000'100; ++i) reader.Open(i);
  EXPECT_GE(reader.hits - before, 80);
}

}  // namespace
}  // namespace millrace::vfs
