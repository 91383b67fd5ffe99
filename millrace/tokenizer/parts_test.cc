// The data structures beneath the encoders.
#include <gtest/gtest.h>

#include <map>

#include "millrace/base/hash/random.h"
#include "millrace/base/result.h"
#include "millrace/tokenizer/bpe/adjacent_characters.h"
#include "millrace/tokenizer/tables/byte_trie.h"
#include "millrace/tokenizer/unicode/nfc.h"
#include "millrace/tokenizer/unicode/utf8.h"
#include "millrace/tokenizer/vocabulary/added_tokens.h"
#include "millrace/tokenizer/vocabulary/encode_workspace.h"
#include "millrace/tokenizer/vocabulary/token_strings.h"
#include "millrace/tokenizer/vocabulary/word_cache.h"

namespace millrace::tokenizer {
namespace {

TEST(Nfc, PutsMarksAndCharactersTogether) {
  Nfc nfc;
  std::string buffer;
  auto normal = [&](std::string_view text) { return std::string(nfc.Normalize(text, buffer)); };
  EXPECT_EQ(normal("caf\u00E9 cafe\u0301!"), "caf\u00E9 caf\u00E9!");
  EXPECT_EQ(normal("q\u0307\u0323"), "q\u0323\u0307") << "sorted";
  EXPECT_EQ(normal("a\u0307\u0323"), "\u1EA1\u0307") << "the nearer joins first";
  EXPECT_EQ(normal("a\u0300\u0300"), "\u00E0\u0300");
  EXPECT_EQ(normal("\u1112\u1161\u11AB\uAE00\u11A8"), "\uD55C\uAE00\u11A8") << "Hangul";
  EXPECT_EQ(normal("\u0915\u093C \u0958 \u212B"), "\u0915\u093C \u0915\u093C \u00C5") << "some never come out whole";
  EXPECT_EQ(normal("\u0301\xCC\x81\xFF\u0301"), "\u0301\u0301\xFF\u0301") << "no character to join";
  std::string_view same = "plain, \u00FCber \u6570\xE6\x95";
  EXPECT_EQ(nfc.Normalize(same, buffer).data(), same.data()) << "nothing is copied";
}

TEST(Nfc, IsStable) {
  Nfc nfc;
  Random random(4);
  std::string once, twice;
  for (int i = 0; i < 3000; ++i) {
    std::string text;
    for (std::uint64_t n = 1 + random.Below(12); n > 0; --n) {
      static constexpr std::pair<char32_t, char32_t> kRanges[] = {
          {'a', 26}, {0xC0, 0x180}, {0x300, 0x70}, {0x1100, 0x100}, {0xAC00, 100}, {0x900, 0x100}, {0x1E00, 0x200}};
      auto [first, count] = kRanges[random.Below(std::size(kRanges))];
      AppendUtf8(first + static_cast<char32_t>(random.Below(count)), text);
    }
    std::string normal(nfc.Normalize(text, once));
    ASSERT_EQ(nfc.Normalize(normal, twice), normal) << testing::PrintToString(text);
  }
}

TEST(AddedTokens, AreFoundFromTheLeftAndTheLongestFirst) {
  AddedTokens tokens({{.text = "<a>", .id = 1},
                      {.text = "<a><b>", .id = 2},
                      {.text = "b>", .id = 3, .special = false},
                      {.text = "<l>", .id = 4, .special = false, .lstrip = true},
                      {.text = "<r>", .id = 5, .special = false, .rstrip = true},
                      {.text = "w", .id = 6, .special = false, .single_word = true}});
  auto found = [&](std::string_view text, bool specials) {
    std::string parts;
    auto part = [&](std::string_view between, bool first) {
      parts += fmt::format("{}({})", first ? "^" : "", between);
      return true;
    };
    auto token = [&](TokenId id) {
      parts += fmt::format("{}", id);
      return true;
    };
    tokens.ForEach(text, specials, part, token);
    return parts;
  };
  EXPECT_EQ(found("x<a><b><a>y", true), "^(x)21(y)");
  EXPECT_EQ(found("x<a><b><a>b>", false), "^(x<a><b><a>)3") << "what lies within a special token is not looked at";
  EXPECT_EQ(found("x \u3000<l> <r>\n <l>y", true), "^(x)4( )54(y)");
  EXPECT_EQ(found("w-w \u00E9w w1 w", false), "6(-)6( \u00E9w w1 )6") << "words end where letters and digits do";
  EXPECT_EQ(found("", true), "");
}

TEST(ByteTrie, FindsWhatAMapFinds) {
  Random random(2);
  std::map<std::string, std::int32_t> keys;
  for (int i = 0; i < 3000; ++i) {
    std::string key;
    for (std::uint64_t n = 1 + random.Below(6); n > 0; --n) key += static_cast<char>(random.Below(3) * 85);
    keys.emplace(key, static_cast<std::int32_t>(keys.size()));
  }
  std::vector<ByteTrie::Key> list;
  for (auto& [key, value] : keys) list.push_back({key, value});
  ByteTrie trie(list);
  for (int i = 0; i < 3000; ++i) {
    std::string text;
    for (std::uint64_t n = random.Below(9); n > 0; --n) text += static_cast<char>(random.Below(4) * 85);
    ByteTrie::Match expected;
    for (std::size_t length = 1; length <= text.size(); ++length) {
      auto found = keys.find(text.substr(0, length));
      if (found != keys.end()) expected = {length, found->second};
    }
    auto match = trie.Longest(text);
    ASSERT_EQ(match.length, expected.length);
    ASSERT_EQ(match.value, expected.value);
  }
  ByteTrie::Match match;
  EXPECT_EQ(ByteTrie().Find("abc", 0, match), 3u);
}

TEST(AdjacentCharacters, KnowEveryPlaceInsideOfATokenAndNoOther) {
  AdjacentCharacters joints;
  joints.AddToken("the数据");
  EXPECT_TRUE(joints.MayJoin('t', 'h'));
  EXPECT_TRUE(joints.MayJoin('e', U'数'));
  EXPECT_TRUE(joints.MayJoin(U'数', U'据'));
  EXPECT_FALSE(joints.MayJoin(U'据', U'数'));
  EXPECT_FALSE(joints.MayJoin('h', 't'));
  EXPECT_FALSE(joints.MayJoin(U'据', U'一'));
  EXPECT_TRUE(joints.MayJoin(kInvalid, 'a')) << "broken text is never cut";
}

TEST(AdjacentCharacters, KnowCharactersOfWhichATokenHasOnlyAPart) {
  AdjacentCharacters joints;
  joints.AddToken("\xAE\xE9\xAD\x94");  // the end of の and 魔
  EXPECT_TRUE(joints.MayJoin(U'の', U'魔'));
  EXPECT_TRUE(joints.MayJoin(U'宮', U'魔')) << "ends with the same byte";
  EXPECT_FALSE(joints.MayJoin(U'一', U'魔'));
  EXPECT_FALSE(joints.MayJoin(U'の', U'一'));
  joints.AddToken("a\xE4\xB8");
  EXPECT_TRUE(joints.MayJoin('a', U'一'));
  EXPECT_FALSE(joints.MayJoin('b', U'一'));
}

TEST(WordCache, KeysTellLengthFromContent) {
  const std::string text = "word_word and more than sixteen bytes", nul("word\0", 5);
  const char* end = text.data() + text.size();
  auto key = [&](std::size_t at, std::size_t size) { return WordCache::MakeKey(text.data() + at, size, end); };
  EXPECT_EQ(key(0, 4), key(5, 4));
  EXPECT_NE(key(0, 4), WordCache::MakeKey(nul.data(), 5, nul.data() + 5)) << "a NUL is a byte";
  for (std::size_t size = 1; size <= WordCache::kMaxBytes; ++size) {
    std::string alone = text.substr(0, size);
    EXPECT_EQ(WordCache::MakeKey(alone.data(), size, alone.data() + size), key(0, size)) << "at the end of the text";
  }
}

TEST(LongWordCache, KnowsAWordByAllOfItsBytes) {
  LongWordCache cache;
  for (std::size_t size = LongWordCache::kMinBytes; size <= LongWordCache::kMaxBytes; ++size) {
    std::string word(size, '-');
    TokenId ids[] = {static_cast<TokenId>(size), 7};
    LongWordCache::Put(cache.At(word), word, ids);
    for (std::size_t change = 0; change < size; ++change) {
      std::string other = word;
      other[change] = '=';
      EXPECT_FALSE(cache.At(other).Holds(other));
    }
    ASSERT_TRUE(cache.At(word).Holds(word));
    EXPECT_EQ(cache.At(word).count, 2u);
    EXPECT_EQ(cache.At(word).ids[0], static_cast<TokenId>(size));
  }
}

TEST(TokenStrings, AreCopiedWithWhatLiesBehindThem) {
  TokenStrings pieces;
  std::string expected, copied(400, '?');
  for (std::size_t size : {0u, 1u, 15u, 16u, 17u, 100u, 3u}) {
    std::string piece(size, static_cast<char>('a' + size % 26));
    pieces.Add(piece);
    expected += piece;
  }
  char* at = copied.data();
  for (TokenId id = 0; id < pieces.size(); ++id) at = pieces.Copy(id, at);
  EXPECT_EQ(std::string_view(copied.data(), at), expected);
}

TEST(Utf8, TellsWhatMayBecomeWhole) {
  EXPECT_TRUE(MayBecomeWhole("\xE2"));
  EXPECT_TRUE(MayBecomeWhole("\xF0\x9F\xA6"));
  for (const char* never : {"", "a", "\x80", "\xC0", "\xED\xA0", "\xE0\x80", "\xF4\x90", "\xF5", "\xE2\x96\x81"}) {
    EXPECT_FALSE(MayBecomeWhole(never)) << testing::PrintToString(never);
  }
  EXPECT_EQ(UnfinishedEnd("ab\xE2\x96"), 2u);
  EXPECT_EQ(UnfinishedEnd("ab\xE2\x96\x81"), 0u);
}

}  // namespace
}  // namespace millrace::tokenizer
