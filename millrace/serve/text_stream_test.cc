#include "millrace/serve/text_stream.h"

#include <gtest/gtest.h>

#include "millrace/base/hash/random.h"
#include "millrace/base/text.h"
#include "millrace/serve/testing.h"

namespace millrace::serve {
namespace {

std::vector<std::string> Pieces(std::string_view bytes) {
  ByteTokenizer tokenizer;
  Detokenizer detokenizer(tokenizer, Bytes("prompt "));
  std::vector<std::string> pieces;
  for (TokenId id : Bytes(bytes)) pieces.push_back(*detokenizer.Add(id));
  pieces.push_back(*detokenizer.Finish());
  return pieces;
}

std::string Join(const std::vector<std::string>& pieces) {
  std::string text;
  for (const std::string& piece : pieces) text += piece;
  return text;
}

TEST(Detokenizer, NeverSplitsACharacter) {
  std::string text = "a é 中文 😀 z";
  auto pieces = Pieces(text);
  EXPECT_EQ(Join(pieces), text);
  for (const std::string& piece : pieces) EXPECT_TRUE(IsValidUtf8(piece)) << piece;
}

TEST(Detokenizer, BytesThatAreNoTextBecomeReplacements) {
  EXPECT_EQ(Join(Pieces("a\xFF"
                        "b")),
            "a\xEF\xBF\xBD"
            "b");
  EXPECT_EQ(Join(Pieces("a\xE4\xB8")), "a\xEF\xBF\xBD\xEF\xBF\xBD") << "cut off within a character";
}

TEST(Detokenizer, AnyBytesGiveTheTextOfAllOfThem) {
  Random random(4);
  ByteTokenizer tokenizer;
  for (int round = 0; round < 300; ++round) {
    std::string bytes;
    for (std::uint64_t i = random.Below(40); i > 0; --i) {
      bytes += random.Below(3) == 0 ? std::string(1, static_cast<char>(random.Below(256))) : "中";
    }
    auto pieces = Pieces(bytes);
    for (const std::string& piece : pieces) ASSERT_TRUE(IsValidUtf8(piece));
    // Bytes that are no text may be cut where eight tokens have waited; text must come out as it is.
    if (IsValidUtf8(bytes)) {
      ASSERT_EQ(Join(pieces), bytes);
    }
  }
}

TEST(Detokenizer, RefusesTokensOutsideTheVocabulary) {
  ByteTokenizer tokenizer;
  Detokenizer detokenizer(tokenizer, {});
  EXPECT_FALSE(detokenizer.Add(9999));
}

TEST(UnfinishedTail, CountsTheBytesOfABegunCharacter) {
  EXPECT_EQ(UnfinishedTail(""), 0u);
  EXPECT_EQ(UnfinishedTail("abc"), 0u);
  EXPECT_EQ(UnfinishedTail("中"), 0u);
  EXPECT_EQ(UnfinishedTail("a\xE4"), 1u);
  EXPECT_EQ(UnfinishedTail("a\xE4\xB8"), 2u);
  EXPECT_EQ(UnfinishedTail("a\xF0\x9F\x98"), 3u);
  EXPECT_EQ(UnfinishedTail("a\xBF"), 0u);
}

TEST(StopMatcher, EndsBeforeTheFirstStop) {
  StopMatcher matcher({"\n\n", "END"});
  EXPECT_EQ(matcher.Add("one\n"), "one");
  EXPECT_EQ(matcher.Add("two EN"), "\ntwo ");
  EXPECT_EQ(matcher.Add("ough E"), "ENough ");
  EXPECT_EQ(matcher.Add("ND and more"), "");
  EXPECT_TRUE(matcher.stopped());
  EXPECT_EQ(matcher.Add("x"), "");
  EXPECT_EQ(matcher.Finish(), "");
}

TEST(StopMatcher, GivesBackWhatNeverBecameAStop) {
  StopMatcher matcher({"STOP"});
  EXPECT_EQ(matcher.Add("go STO"), "go ");
  EXPECT_EQ(matcher.Finish(), "STO");
  EXPECT_FALSE(matcher.stopped());
}

TEST(StopMatcher, CuttingDoesNotMatter) {
  Random random(8);
  for (int round = 0; round < 500; ++round) {
    std::string text;
    for (std::uint64_t i = random.Below(30); i > 0; --i) text += "abA"[random.Below(3)];
    std::vector<std::string> stops = {"ab", "aaA", "bAb"};
    std::size_t end = std::string::npos;
    for (const std::string& stop : stops) end = std::min(end, text.find(stop));
    StopMatcher matcher(stops);
    std::string out;
    for (std::size_t at = 0; at < text.size();) {
      std::size_t piece = 1 + random.Below(4);
      out += matcher.Add(text.substr(at, piece));
      at += piece;
    }
    out += matcher.Finish();
    // A piece may complete a later, shorter stop before an earlier, longer one: nothing of any stop may ever show.
    ASSERT_EQ(matcher.stopped(), end != std::string::npos) << text;
    ASSERT_TRUE(text.starts_with(out)) << text;
    if (end == std::string::npos) {
      ASSERT_EQ(out, text);
    }
    for (const std::string& stop : stops) ASSERT_EQ(out.find(stop), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace millrace::serve
