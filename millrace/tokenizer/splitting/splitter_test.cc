// Tests the patterns with examples. tests/interop compares them with the regular expressions.
#include "millrace/tokenizer/splitting/splitter.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "millrace/base/hash/random.h"
#include "millrace/tokenizer/unicode/utf8.h"

namespace millrace::tokenizer {
namespace {

std::vector<std::string> Words(const Splitter& splitter, std::string_view text) {
  std::vector<std::string> words;
  for (const char *at = text.data(), *end = at + text.size(); at != end;) {
    const char* next = splitter.WordEnd(at, end);
    words.emplace_back(at, next);
    at = next;
  }
  return words;
}
std::vector<std::string> Words(SplitPattern pattern, std::string_view text) { return Words(Splitter(pattern), text); }
using Strings = std::vector<std::string>;

TEST(Splitter, Gpt2) {
  auto split = [](std::string_view text) { return Words(SplitPattern::kGpt2, text); };
  EXPECT_EQ(split("I'll don't  x"), (Strings{"I", "'ll", " don", "'t", " ", " x"}));
  EXPECT_EQ(split("I'LL"), (Strings{"I", "'", "LL"}));
  EXPECT_EQ(split("a \n\n b"), (Strings{"a", " \n\n", " b"}));
  EXPECT_EQ(split("a\n\nb  "), (Strings{"a", "\n", "\n", "b", "  "}));
  EXPECT_EQ(split("x\xC2\xA0y 12ab"), (Strings{"x", "\xC2\xA0", "y", " 12", "ab"}));
  EXPECT_EQ(split("数据。é!?' '"), (Strings{"数据", "。", "é", "!?'", " '"}));
  EXPECT_EQ(split(" "), (Strings{" "}));
  EXPECT_EQ(split("\xFF\xE4x"), (Strings{"\xFF\xE4", "x"})) << "broken bytes are neither letters nor spaces";
}

TEST(Splitter, Llama3AndCl100k) {
  auto split = [](std::string_view text) { return Words(SplitPattern::kLlama3, text); };
  EXPECT_EQ(split("I'LL don'T"), (Strings{"I", "'LL", " don", "'T"}));
  EXPECT_EQ(split("12345 678"), (Strings{"123", "45", " ", "678"}));
  EXPECT_EQ(split("\tx !ab"), (Strings{"\tx", " !", "ab"}));
  EXPECT_EQ(split("a!\r\n\n b"), (Strings{"a", "!\r\n\n", " b"}));
  EXPECT_EQ(split("a \n \n  b"), (Strings{"a", " \n \n", " ", " b"}));
  EXPECT_EQ(split("a\n  "), (Strings{"a", "\n", "  "}));
  EXPECT_EQ(Words(SplitPattern::kCl100k, "a\n  "), (Strings{"a", "\n  "}));
  EXPECT_EQ(Words(SplitPattern::kCl100k, "a\n  b"), (Strings{"a", "\n", " ", " b"}));
  EXPECT_EQ(split("'\xC5\xBFx"), (Strings{"'\xC5\xBF", "x"})) << "U+017F is an s without case";
}

TEST(Splitter, Qwen2) {
  auto split = [](std::string_view text) { return Words(SplitPattern::kQwen2, text); };
  EXPECT_EQ(split("12 345x"), (Strings{"1", "2", " ", "3", "4", "5", "x"}));
  EXPECT_EQ(split("a!\r\n\n b'LL"), (Strings{"a", "!\r\n\n", " b", "'LL"}));
}

TEST(Splitter, O200k) {
  auto split = [](std::string_view text) { return Words(SplitPattern::kO200k, text); };
  EXPECT_EQ(split("camelCase HTTPServer"), (Strings{"camel", "Case", " HTTPServer"}));
  EXPECT_EQ(split("don't I'LLx ABC's"), (Strings{"don't", " I'LL", "x", " ABC's"}));
  EXPECT_EQ(split("数ABC数 数ABC"), (Strings{"数ABC数", " 数", "ABC"})) << "characters without case are both kinds";
  EXPECT_EQ(split("\xCC\x81"
                  "AB"),
            (Strings{"\xCC\x81", "AB"}))
      << "a mark alone is U*L+";
  EXPECT_EQ(split("\xCC\x81"
                  "aB"),
            (Strings{"\xCC\x81"
                     "a",
                     "B"}))
      << "but may lead a word";
  EXPECT_EQ(split("_ABC _1234 /\n/x"), (Strings{"_ABC", " _", "123", "4", " /\n/", "x"}));
  EXPECT_EQ(split("\tX \n\r\n  '"), (Strings{"\tX", " \n\r\n", " ", " '"}));
}

TEST(Splitter, DigitsApart) {
  auto gpt2 = [](std::string_view text) { return Words(SplitPattern::kGpt2Digits, text); };
  EXPECT_EQ(gpt2("ab12  3 4c don't  x"), (Strings{"ab", "1", "2", "  ", "3", " ", "4", "c", " don", "'t", " ", " x"}));
  EXPECT_EQ(gpt2("? \U00011DE3\U00016FF5?"), (Strings{"?", " ", "\U00011DE3", "\U00016FF5", "?"}))
      << "numbers since Unicode 17.0";
  auto tekken = [](std::string_view text) { return Words(SplitPattern::kTekken, text); };
  EXPECT_EQ(tekken("don't 12 HTTPServer /\n/"), (Strings{"don", "'t", " ", "1", "2", " HTTPServer", " /\n/"}));
}

TEST(Splitter, DeepSeek3) {
  auto split = [](std::string_view text) { return Words(SplitPattern::kDeepSeek3, text); };
  EXPECT_EQ(split("Hello, world 12345x"), (Strings{"Hello", ",", " world", " ", "123", "45", "x"}));
  EXPECT_EQ(split("a  b\n\n c \n"), (Strings{"a", " ", " b", "\n\n", " c", " \n"}));
  EXPECT_EQ(split("it's #tag ... x"), (Strings{"it", "'s", " #", "tag", " ...", " x"}));
  EXPECT_EQ(split("数据の・テスト abc数"), (Strings{"数据の", "・", "テスト", " abc", "数"}));
  EXPECT_EQ(split("  数"), (Strings{"  ", "数"})) << "a run of the other script ends what is looked ahead at";
  EXPECT_EQ(split("\x01\x02z"), (Strings{"\x01", "\x02z"}));
  EXPECT_EQ(split("?\U00011DE3\U00011DE3"), (Strings{"?", "\U00011DE3\U00011DE3"})) << "no number to \\p{N}";
}

TEST(Splitter, DeepSeek2AndCoder) {
  auto split = [](std::string_view text) { return Words(SplitPattern::kDeepSeek2, text); };
  EXPECT_EQ(split("Hello, world 12x"), (Strings{"Hello", ",", " world", " ", "1", "2", "x"}));
  EXPECT_EQ(split("a  b\n\n c \n"), (Strings{"a", " ", " b", "\n", "\n", " c", " ", "\n"}));
  EXPECT_EQ(split("née x"), (Strings{"n", "é", "e", " x"})) << "ASCII's letters are marks too";
  EXPECT_EQ(split("数据。x　y　é"), (Strings{"数据", "。", "x", "　", "y", "　", "é"}));
  EXPECT_EQ(split("ب ب  \t"), (Strings{"ب ب", "  \t"})) << "what matches nothing ends in front of the last white space";
  EXPECT_EQ(split("!\xFF\xFE "), (Strings{"!", "\xFF\xFE", " "}));
  auto coder = [](std::string_view text) { return Words(SplitPattern::kDeepSeekCoder, text); };
  EXPECT_EQ(coder("née, x == 12 数据"), (Strings{"née", ",", " x", " == ", "1", "2", " ", "数据"}));
  EXPECT_EQ(coder("ب ب+  \t"), (Strings{"ب", " ب", "+  \t"}));
}

/// Splits every part at its matches. `match` returns the length of the match at a position, or 0.
template <class Match>
Strings Apply(const Strings& parts, Match match) {
  Strings split;
  for (const std::string& part : parts) {
    std::size_t done = 0;
    for (std::size_t at = 0; at < part.size();) {
      const std::size_t length = match(std::string_view(part), at);
      if (length == 0) {
        at += DecodeUtf8(part.data() + at, part.data() + part.size()).length;
        continue;
      }
      if (done < at) split.push_back(part.substr(done, at - done));
      split.push_back(part.substr(at, length));
      done = at += length;
    }
    if (done < part.size()) split.push_back(part.substr(done));
  }
  return split;
}

TEST(Splitter, DeepSeek2DoesOnePatternAfterTheOther) {
  // Characters of each kind, and characters of several kinds.
  const std::string kLetters = "aZéß", kMarks = "aZ!。　", kEast = "。　数は\u2003", kDigits = "1٣",
                    kSpaces = " \t　\u2003";
  const Strings kAlphabet = {"a",      "Z", "é", "ß", "!",  "。", "　", "数", "は",
                             "\u2003", "1", "٣", " ", "\t", "ب",  "\n", "\r"};
  auto character = [](std::string_view text, std::size_t at) {
    return at < text.size() ? text.substr(at, DecodeUtf8(text.data() + at, text.data() + text.size()).length)
                            : std::string_view();
  };
  auto run = [&](std::string_view text, std::size_t at, const std::string& of) {
    std::size_t end = at;
    for (auto next = character(text, end); !next.empty() && of.find(next) != of.npos; next = character(text, end)) {
      end += next.size();
    }
    return end - at;
  };
  auto with_blank = [&](const std::string& of) {
    return [&](std::string_view text, std::size_t at) {
      const std::string_view first = character(text, at);
      if (kSpaces.find(first) != kSpaces.npos) {
        if (const std::size_t behind = run(text, at + first.size(), of)) return first.size() + behind;
      }
      return run(text, at, of);
    };
  };
  const Splitter splitter(SplitPattern::kDeepSeek2);
  Random random(4);
  for (int round = 0; round < 20'000; ++round) {
    std::string text;
    for (std::uint64_t n = random.Below(12); n > 0; --n) text += kAlphabet[random.Below(kAlphabet.size())];
    Strings words = {text};
    words = Apply(words, [](auto part, auto at) { return std::size_t{part[at] == '\n' || part[at] == '\r'}; });
    words = Apply(words, with_blank(kLetters));
    words = Apply(words, with_blank(kMarks));
    words = Apply(words, [&](auto part, auto at) {
      const std::size_t blanks = run(part, at, kSpaces + "\n\r");
      return at + blanks == part.size() ? blanks : 0;
    });
    words = Apply(words, [&](auto part, auto at) { return run(part, at, kEast); });
    words = Apply(words, [&](auto part, auto at) {
      return kDigits.find(character(part, at)) != kDigits.npos ? character(part, at).size() : 0;
    });
    ASSERT_EQ(Words(splitter, text), words) << ::testing::PrintToString(text);
  }
}

TEST(Splitter, LongStretchesTakeLinearTime) {
  for (SplitPattern pattern : {SplitPattern::kDeepSeek2, SplitPattern::kDeepSeekCoder}) {
    for (std::string_view part : {" \u2003", "ب\u2003 ", "ب数", "  ", "é!", "a 　"}) {
      std::string text = "ب";
      while (text.size() < (1 << 20)) text += part;
      EXPECT_GE(Words(pattern, text).size(), 1u);
    }
  }
}

}  // namespace
}  // namespace millrace::tokenizer
