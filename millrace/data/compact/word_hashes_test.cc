#include "millrace/data/compact/word_hashes.h"

#include <gmock/gmock.h>

#include <set>
#include <string>

#include "millrace/base/hash/random.h"
#include "millrace/data/compact/held_out_runs.h"

namespace millrace::data {
namespace {

using ::testing::SizeIs;

std::vector<std::uint64_t> Words(std::string_view text) {
  std::vector<std::uint64_t> words;
  HashWords(text, words);
  return words;
}

TEST(WordHashes, WordsAreLettersAndDigits) {
  EXPECT_EQ(Words("The mill, 7 stones."), Words("  the\nMILL -- 7\t“stones”…"));
  EXPECT_THAT(Words("The mill, 7 stones."), SizeIs(4));
  EXPECT_NE(Words("ab c"), Words("a bc"));
  EXPECT_THAT(Words("Größe мельница"), SizeIs(2));
  EXPECT_THAT(Words("."), SizeIs(0));
  EXPECT_THAT(Words(""), SizeIs(0));
}

TEST(WordHashes, EachIdeographIsAWord) {
  EXPECT_THAT(Words("水车磨面，很慢。"), SizeIs(6));
  EXPECT_EQ(Words("水车"), Words("水 车"));
  EXPECT_THAT(Words("GPU数据2"), SizeIs(4));
}

TEST(WordHashes, ACutCharacterEndsTheText) {
  for (const std::string_view text : {"\xE6", "\xE6\xB0", "a\xF0\x9F\x98"})
    EXPECT_THAT(Words(text), SizeIs(::testing::Le(2)));
}

/// A run has the same hash wherever it stands, and another one than all other runs.
TEST(WordHashes, RunsAreTheirWordsAlone) {
  Random random(1);
  std::vector<std::uint64_t> words(500);
  for (std::uint64_t& word : words) word = random.Next();
  for (std::size_t length = 1; length < 20; ++length) {
    std::vector<std::uint64_t> all, one;
    HashRuns(words, length, all);
    ASSERT_THAT(all, SizeIs(words.size() - length + 1));
    EXPECT_EQ(std::set<std::uint64_t>(all.begin(), all.end()).size(), all.size());
    for (std::size_t i = 0; i < all.size(); ++i) {
      HashRuns(std::span(words).subspan(i, length), length, one);
      ASSERT_THAT(one, SizeIs(1));
      ASSERT_EQ(one[0], all[i]);
    }
  }
  std::vector<std::uint64_t> runs;
  HashRuns(std::span(words).first(3), 5, runs);
  EXPECT_THAT(runs, SizeIs(1)) << "a short text is one run";
  HashRuns({}, 5, runs);
  EXPECT_THAT(runs, SizeIs(0));
}

TEST(HeldOutRuns, FindsSharedRunsOfWords) {
  HeldOutRuns held_out(4);
  std::vector<std::uint64_t> runs;
  EXPECT_FALSE(held_out.Shares(Words("one two three four"), runs)) << "nothing is held out";
  held_out.Add("one two three four five");
  held_out.Add("short text");
  EXPECT_EQ(held_out.size(), 3u);
  EXPECT_TRUE(held_out.Shares(Words("zero ONE two, three four!"), runs));
  EXPECT_TRUE(held_out.Shares(Words("two three four five six"), runs));
  EXPECT_FALSE(held_out.Shares(Words("one two three 4 five"), runs));
  EXPECT_TRUE(held_out.Shares(Words("Short text."), runs));
  EXPECT_FALSE(held_out.Shares(Words("a short text that is longer"), runs));
  EXPECT_FALSE(held_out.Shares(Words(""), runs));
}

TEST(HeldOutRuns, KeepsManyRuns) {
  HeldOutRuns held_out(3);
  std::vector<std::uint64_t> runs;
  for (int i = 0; i < 5000; ++i) held_out.Add(fmt::format("a{} b{} c{}", i, i, i));
  EXPECT_EQ(held_out.size(), 5000u);
  for (int i = 0; i < 10'000; ++i) {
    EXPECT_EQ(held_out.Shares(Words(fmt::format("x a{} b{} c{}", i, i, i)), runs), i < 5000) << i;
  }
}

}  // namespace
}  // namespace millrace::data
