#include "millrace/transfer/plan/glob.h"

#include <gtest/gtest.h>

#include "millrace/base/hash/random.h"

namespace millrace::transfer {
namespace {

TEST(Glob, StarsCrossSlashes) {
  EXPECT_TRUE(Glob("logs/*.gz").Matches("logs/2026/01/a.gz"));
  EXPECT_TRUE(Glob("logs/**/a.gz").Matches("logs/2026/01/a.gz"));
  EXPECT_TRUE(Glob("*").Matches(""));
  EXPECT_FALSE(Glob("logs/*.gz").Matches("logs/a.gz.part"));
  EXPECT_FALSE(Glob("").Matches("x"));
}

TEST(Glob, OneCharacterIsACodePoint) {
  EXPECT_TRUE(Glob("?.txt").Matches("中.txt"));
  EXPECT_TRUE(Glob("??").Matches("é\U0001F999"));
  EXPECT_FALSE(Glob("?").Matches("ab"));
  EXPECT_TRUE(Glob("?").Matches("\xff"));
}

TEST(Glob, Sets) {
  EXPECT_TRUE(Glob("part-[0-3][!a-f]").Matches("part-2g"));
  EXPECT_FALSE(Glob("part-[0-3]").Matches("part-4"));
  EXPECT_FALSE(Glob("[^x]").Matches("x"));
  EXPECT_TRUE(Glob("[]]").Matches("]"));
  EXPECT_TRUE(Glob("[a-]").Matches("-"));
  EXPECT_TRUE(Glob("[中-文]").Matches("国") == (U'国' >= U'中' && U'国' <= U'文'));
  EXPECT_TRUE(Glob("a[b").Matches("a[b")) << "without its end it stands for itself";
}

TEST(Glob, EscapesAndPrefixes) {
  EXPECT_TRUE(Glob("a\\*b").Matches("a*b"));
  EXPECT_FALSE(Glob("a\\*b").Matches("axb"));
  EXPECT_FALSE(Glob("a\\*b").has_wildcard());
  EXPECT_EQ(Glob("a\\*b").literal_prefix(), "a*b");
  EXPECT_EQ(Glob("data/百科-*.txt").literal_prefix(), "data/百科-");
  EXPECT_FALSE(HasWildcard("plain/key-1.txt"));
  EXPECT_TRUE(HasWildcard("x?"));
}

/// The definition, by recursion.
bool Model(std::string_view pattern, std::string_view text) {
  if (pattern.empty()) return text.empty();
  if (pattern[0] == '*') return Model(pattern.substr(1), text) || (!text.empty() && Model(pattern, text.substr(1)));
  return !text.empty() && (pattern[0] == '?' || pattern[0] == text[0]) && Model(pattern.substr(1), text.substr(1));
}

TEST(Glob, AgreesWithTheDefinition) {
  Random random(3);
  for (int round = 0; round < 20'000; ++round) {
    std::string pattern, text;
    for (auto n = random.Below(8); n > 0; --n) pattern += "ab*?"[random.Below(4)];
    for (auto n = random.Below(10); n > 0; --n) text += "ab"[random.Below(2)];
    ASSERT_EQ(Glob(pattern).Matches(text), Model(pattern, text)) << pattern << " on " << text;
  }
}

TEST(Glob, HostilePatternsStayFast) {
  std::string pattern, text(20'000, 'a');
  for (int i = 0; i < 50; ++i) pattern += "a*";
  EXPECT_FALSE(Glob(pattern + "b").Matches(text));
}

FilterRule Include(std::string pattern) { return {true, std::move(pattern)}; }
FilterRule Exclude(std::string pattern) { return {false, std::move(pattern)}; }

TEST(NameFilter, TheLastPatternThatMatchesDecides) {
  const NameFilter texts({Exclude("*"), Include("*.txt"), Exclude("*secret*")});
  EXPECT_TRUE(texts.Passes("a/b.txt"));
  EXPECT_FALSE(texts.Passes("a.bin"));
  EXPECT_FALSE(texts.Passes("secret.txt"));
  EXPECT_FALSE(NameFilter({Include("*.txt"), Exclude("*")}).Passes("a.txt"));
  EXPECT_TRUE(NameFilter().Passes("anything"));
}

TEST(NameFilter, TheFirstPatternDecidesAboutNamesThatMatchNone) {
  const NameFilter only({Include("*.txt"), Include("keep/*"), Exclude("*secret*")});
  EXPECT_TRUE(only.Passes("a/b.txt"));
  EXPECT_TRUE(only.Passes("keep/x"));
  EXPECT_FALSE(only.Passes("a.bin"));
  EXPECT_FALSE(only.Passes("keep/secret.txt"));
  const NameFilter all_but({Exclude("*.tmp"), Include("keep/*")});
  EXPECT_TRUE(all_but.Passes("a.bin"));
  EXPECT_FALSE(all_but.Passes("a.tmp"));
  EXPECT_TRUE(all_but.Passes("keep/a.tmp"));
}

TEST(NameFilter, LeavesOutWhatIsKeptBesideData) {
  const NameFilter hides({}, /*bookkeeping=*/false);
  EXPECT_FALSE(hides.Passes(".millrace/a.index"));
  EXPECT_FALSE(hides.Passes("d/.millrace/a.index"));
  EXPECT_TRUE(hides.Passes("d/a.millrace/b"));
  EXPECT_TRUE(hides.Passes("d/.millrace"));
  EXPECT_TRUE(NameFilter().Passes(".millrace/a.index"));
}

TEST(NameFilter, SaysWhichFoldersAreExcludedForCertain) {
  EXPECT_TRUE(NameFilter({Exclude("a/*")}).ExcludesFolder("a"));
  EXPECT_TRUE(NameFilter({Exclude("*")}).ExcludesFolder("a/b"));
  EXPECT_TRUE(NameFilter({Include("*"), Exclude("a/*"), Exclude("*.tmp")}).ExcludesFolder("a"));
  EXPECT_FALSE(NameFilter({Exclude("a/*.tmp")}).ExcludesFolder("a"));
  EXPECT_FALSE(NameFilter({Exclude("a/b*")}).ExcludesFolder("a"));
  EXPECT_FALSE(NameFilter({Include("b/*")}).ExcludesFolder("a"));
  EXPECT_FALSE(NameFilter({Exclude("a/*"), Include("*.txt")}).ExcludesFolder("a"));
}

}  // namespace
}  // namespace millrace::transfer
