#include "millrace/base/text.h"

#include <gtest/gtest.h>

#include <array>

#include "millrace/base/glob.h"
#include "millrace/base/hash/random.h"

namespace millrace {
namespace {

using namespace std::chrono_literals;

TEST(ParseBytes, UnitsAndNonsense) {
  EXPECT_EQ(*ParseBytes("4096"), 4096u);
  EXPECT_EQ(*ParseBytes("512MiB"), 512u << 20);
  EXPECT_EQ(*ParseBytes("8m"), 8u << 20);
  EXPECT_EQ(*ParseBytes("1.5GB"), 1'500'000'000u);
  for (auto text : {"", "MiB", "-1", "1XB", "1e30", "nan", "5 MiB x"}) EXPECT_FALSE(ParseBytes(text)) << text;
}

TEST(ParseDuration, UnitsAndNonsense) {
  EXPECT_EQ(*ParseDuration("250ms"), 250ms);
  EXPECT_EQ(*ParseDuration("1.5s"), 1500ms);
  EXPECT_EQ(*ParseDuration("2h"), 2h);
  for (auto text : {"", "10", "10 s", "-1s", "1w"}) EXPECT_FALSE(ParseDuration(text)) << text;
}

TEST(Format, ReadsWell) {
  EXPECT_EQ(FormatBytes(999), "999 B");
  EXPECT_EQ(FormatBytes(12'345'678), "12.3 MB");
  EXPECT_EQ(FormatDuration(1234ms), "1.2 s");
  EXPECT_EQ(FormatDuration(185s), "3m05s");
  EXPECT_EQ(FormatDuration(2h + 5min), "2h05m");
  EXPECT_EQ(FormatCount(12'345'678), "12,345,678");
  EXPECT_EQ(FormatCount(123), "123");
}

TEST(NearestName, FindsSlipsButNotStrangers) {
  static constexpr std::array<std::string_view, 3> kKeys = {"learning_rate", "warmup_steps", "seed"};
  EXPECT_EQ(NearestName("lerning_rate", kKeys), "learning_rate");
  EXPECT_EQ(NearestName("sed", kKeys), "seed");
  EXPECT_EQ(NearestName("banana", kKeys), "");
  EXPECT_EQ(UnknownName("key", "sed", kKeys), "unknown key \"sed\"; did you mean \"seed\"?");
  EXPECT_EQ(UnknownName("key", "banana", kKeys), "unknown key \"banana\"");
}

TEST(PercentCoding, AsS3WantsIt) {
  EXPECT_EQ(PercentEncode("a b/ü+~", true), "a%20b/%C3%BC%2B~");
  EXPECT_EQ(PercentEncode("a/b", false), "a%2Fb");
  EXPECT_EQ(*PercentDecode("a+b", true), "a b");
  EXPECT_EQ(*PercentDecode("a+b"), "a+b");
  for (auto text : {"%", "%4", "%zz", "abc%2"}) EXPECT_FALSE(PercentDecode(text)) << text;
  Random random(5);
  for (int i = 0; i < 300; ++i) {
    std::string text(random.Below(40), '\0');
    for (char& c : text) c = static_cast<char>(random.Next());
    EXPECT_EQ(*PercentDecode(PercentEncode(text, i % 2)), text);
  }
}

TEST(Utf8, Validity) {
  for (auto text : {"", "plain", "ü", "中文", "🦙", "\xf4\x8f\xbf\xbf"}) EXPECT_TRUE(IsValidUtf8(text)) << text;
  for (auto text :
       {"\x80", "\xc0\xaf", "\xc2", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xf5", "a\xe4\xb8"})
    EXPECT_FALSE(IsValidUtf8(text)) << text;
}

TEST(Split, KeepsEmptyParts) {
  EXPECT_EQ(Split("a//b", '/'), (std::vector<std::string_view>{"a", "", "b"}));
  EXPECT_EQ(Split("", '/'), (std::vector<std::string_view>{""}));
  EXPECT_EQ(Trim("  x y \r\n"), "x y");
  EXPECT_EQ(Trim(" \t"), "");
}

TEST(Glob, MatchesAsShellsDoButAcrossSlashes) {
  EXPECT_TRUE(GlobMatches("a/*.jsonl", "a/b.jsonl"));
  EXPECT_TRUE(GlobMatches("a/*.jsonl", "a/b/c.jsonl"));
  EXPECT_FALSE(GlobMatches("a/*.jsonl", "a/b.json"));
  EXPECT_TRUE(GlobMatches("*", ""));
  EXPECT_TRUE(GlobMatches("a?c*", "abc"));
  EXPECT_FALSE(GlobMatches("a?c", "ac"));
  EXPECT_TRUE(GlobMatches("*a*b*", "xxaxxbxx"));
  EXPECT_FALSE(GlobMatches("*a*b", "ba"));
  EXPECT_FALSE(GlobMatches(std::string(40, '*') + "b", std::string(5000, 'a'))) << "and in reasonable time";
}

}  // namespace
}  // namespace millrace
