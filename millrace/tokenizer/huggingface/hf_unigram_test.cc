// Unigram models of tokenizer.json, and what they stand on. tests/interop holds them against Hugging Face's library.
#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "millrace/tokenizer/formats/load.h"
#include "millrace/tokenizer/unicode/graphemes.h"
#include "millrace/tokenizer/unicode/nfc.h"

namespace millrace::tokenizer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Model(const std::string& words = R"({"type":"Metaspace","replacement":"▁","prepend_scheme":"always"})",
                  const std::string& normalizer = "null", bool fallback = false) {
  std::string bytes;
  for (int i = 0; fallback && i < 256; ++i) bytes += fmt::format(",[\"<0x{:02X}>\",0]", i);
  return fmt::format(
      R"({{"added_tokens":[{{"id":0,"content":"<unk>","special":true,"normalized":false}},
      {{"id":1,"content":"</s>","special":true,"normalized":false}}],"normalizer":{},"pre_tokenizer":{},
      "decoder":{{"type":"Metaspace","replacement":"▁","prepend_scheme":"always"}},
      "model":{{"type":"Unigram","unk_id":0,"byte_fallback":{},"vocab":[["<unk>",0],["</s>",0],["▁",-3],["a",-2],["b",-2],
      ["ab",-3.5],["▁ab",-4],["▁a",-4.5],["fi",-5]{}]}}}})",
      normalizer, words, fallback, bytes);
}

std::shared_ptr<const Tokenizer> Loaded(const std::string& json) {
  auto loaded = Load(AsBytes(json), "tokenizer.json");
  EXPECT_TRUE(loaded.has_value()) << loaded.error().ToString();
  return *loaded;
}

std::vector<TokenId> IdsOf(const Tokenizer& tokenizer, std::string_view text, bool specials = false) {
  std::vector<TokenId> ids;
  EXPECT_TRUE(specials ? tokenizer.EncodeWithSpecials(text, ids) : tokenizer.Encode(text, ids));
  return ids;
}

TEST(HfUnigram, TakesTheBestWayThroughEachWord) {
  auto tokenizer = Loaded(Model());
  EXPECT_THAT(IdsOf(*tokenizer, "ab ab"), ElementsAre(6, 6));
  EXPECT_THAT(IdsOf(*tokenizer, "aab  b"), ElementsAre(7, 5, 2, 2, 4));
  EXPECT_THAT(IdsOf(*tokenizer, " ab"), ElementsAre(6)) << "a space is a mark already";
  EXPECT_THAT(IdsOf(*tokenizer, "xyab zz"), ElementsAre(2, 0, 5, 2, 0)) << "unknown characters side by side are one";
  EXPECT_THAT(IdsOf(*tokenizer, "</s>"), ::testing::Not(::testing::Contains(1))) << "text forges no special token";
  EXPECT_THAT(IdsOf(*tokenizer, "a</s>ab", true), ElementsAre(7, 1, 6)) << "each part has its prefix";
  EXPECT_EQ(tokenizer->Decode(std::vector<TokenId>{6, 2, 5, 1}).value(), "ab ab");
}

TEST(HfUnigram, FallsBackToBytesAndDividesAtWhiteSpace) {
  auto bytes = Loaded(Model(R"({"type":"Metaspace","replacement":"▁","prepend_scheme":"never"})", "null", true));
  EXPECT_THAT(IdsOf(*bytes, "aé"), ElementsAre(3, 9 + 0xC3, 9 + 0xA9));
  auto words = Loaded(Model(R"({"type":"Sequence","pretokenizers":[{"type":"WhitespaceSplit"},
      {"type":"Metaspace","replacement":"▁","add_prefix_space":true}]})"));
  EXPECT_THAT(IdsOf(*words, "\t ab\n\u3000ab "), ElementsAre(6, 6));
}

TEST(HfUnigram, NormalizesInOrder) {
  auto tokenizer = Loaded(Model(R"({"type":"Metaspace","replacement":"▁","prepend_scheme":"never"})",
                                R"({"type":"Sequence","normalizers":[{"type":"NFKC"},{"type":"Strip","strip_left":true,
                                "strip_right":true},{"type":"Replace","pattern":{"String":"q"},"content":"b"},
                                {"type":"Replace","pattern":{"Regex":" {2,}"},"content":" "}]})"));
  EXPECT_THAT(IdsOf(*tokenizer, " \t\uFB01 \u00A0 q\u2003"), ElementsAre(8, 2, 4));
}

TEST(HfUnigram, TakesApartDropsMarksAndLowersCase) {
  auto tokenizer = Loaded(Model(R"({"type":"Metaspace","replacement":"▁","prepend_scheme":"never"})",
                                R"({"type":"Sequence","normalizers":[{"type":"NFKD"},{"type":"StripAccents"},
                                {"type":"Lowercase"}]})"));
  EXPECT_THAT(IdsOf(*tokenizer, "\u00C1B \uFB01A\u0301"), ElementsAre(5, 2, 8, 3));
  auto only_marks =
      Loaded(Model(R"({"type":"Metaspace","replacement":"▁","prepend_scheme":"never"})",
                   R"({"type":"Sequence","normalizers":[{"type":"StripAccents"},{"type":"NFD"}]})", true));
  EXPECT_THAT(IdsOf(*only_marks, "a\u0301\u00C1"), ElementsAre(3, 9 + 'A', 9 + 0xCC, 9 + 0x81));
}

/// A model with another added token, of the id 9.
std::string WithAdded(std::string model, const std::string& content, const std::string& flags) {
  const std::string before = R"("added_tokens":[)";
  model.insert(model.find(before) + before.size(), fmt::format(R"({{"id":9,"content":"{}",{}}},)", content, flags));
  return model;
}

TEST(HfUnigram, FindsAddedTokensInNormalizedText) {
  const std::string space = R"({"type":"Metaspace","replacement":"▁","prepend_scheme":"always"})";
  const std::string lower = R"({"type":"Sequence","normalizers":[{"type":"NFKD"},{"type":"Lowercase"}]})";
  auto tokenizer = Loaded(WithAdded(Model(space, lower), "\u212Bb", R"("special":false,"normalized":true)"));
  EXPECT_THAT(IdsOf(*tokenizer, "ab\u00C5Bb"), ElementsAre(6, 9, 2, 4)) << "each part has its prefix";
  EXPECT_THAT(IdsOf(*tokenizer, "A\u030AB"), ElementsAre(9));
  auto special = Loaded(WithAdded(Model(space, lower), "<M>", R"("special":true,"normalized":true,"lstrip":true)"));
  EXPECT_THAT(IdsOf(*special, "a <m>b", true), ElementsAre(7, 9, 2, 4));
  EXPECT_THAT(IdsOf(*special, "a <m>b"), ::testing::Not(::testing::Contains(9)));

  auto refused = [](const std::string& json) { return Load(AsBytes(json), "t.json").error().ToString(); };
  EXPECT_THAT(refused(WithAdded(Model(space, R"({"type":"Strip"})"), " ", R"("special":false,"normalized":true)")),
              HasSubstr("leaves nothing"));
  const std::string two = WithAdded(Model(space, lower), "x\",\"special\":false},{\"id\":10,\"content\":\"X",
                                    R"("special":false,"normalized":true)");
  EXPECT_THAT(refused(two), HasSubstr("are one"));
}

TEST(HfUnigram, NamesWhatItCannotDo) {
  auto refused = [](const std::string& json) { return Load(AsBytes(json), "t.json").error().ToString(); };
  EXPECT_THAT(refused(Model(R"({"type":"UnicodeScripts"})")), HasSubstr("pre_tokenizer"));
  EXPECT_THAT(refused(Model(R"({"type":"Metaspace","replacement":"__"})")), HasSubstr("replacement"));
  EXPECT_THAT(refused(Model(R"({"type":"Metaspace","replacement":"▁"})", R"({"type":"Odd"})")), HasSubstr("Odd"));
  EXPECT_THAT(refused(Model(R"({"type":"Metaspace","replacement":"▁"})",
                            R"({"type":"Precompiled","precompiled_charsmap":"AAAA"})")),
              HasSubstr("character map"));
}

TEST(Graphemes, AreWhatReadersTakeForOneCharacter) {
  const Graphemes graphemes;
  auto split = [&](std::string_view text) {
    std::vector<std::string> parts;
    for (std::size_t length; !text.empty(); text.remove_prefix(length)) {
      length = graphemes.Length(text);
      parts.emplace_back(text.substr(0, length));
    }
    return parts;
  };
  EXPECT_THAT(split("a\r\nb\n\r"), ElementsAre("a", "\r\n", "b", "\n", "\r"));
  EXPECT_THAT(split("e\u0301\u0302x\u200d"), ElementsAre("e\u0301\u0302", "x\u200d"));
  EXPECT_THAT(split("\u1100\u1161\u11A8\uAC00\u11A8\uAC01"),
              ElementsAre("\u1100\u1161\u11A8", "\uAC00\u11A8", "\uAC01"));
  EXPECT_THAT(split("🇩🇪🇫🇷🇮"), ElementsAre("🇩🇪", "🇫🇷", "🇮"));
  EXPECT_THAT(split("👩\u200d👧👧©\u200d©"), ElementsAre("👩\u200d👧", "👧", "©\u200d©"));
  EXPECT_THAT(split("\u0915\u094D\u0937\u0915\u0937"), ElementsAre("\u0915\u094D\u0937", "\u0915", "\u0937"));
  EXPECT_THAT(split("\xff\xff"
                    "a"),
              ElementsAre("\xff", "\xff", "a"));
}

TEST(Nfkc, TakesAllApart) {
  const Nfkc nfkc;
  auto apart = [&](std::string_view text) {
    std::string to = "<";
    nfkc.Decompose(text, to);
    return to;
  };
  EXPECT_EQ(apart("plain \uFB01"), "<plain fi");
  EXPECT_EQ(apart("\u00E9\uAC01\u1E69"), "<e\u0301\u1100\u1161\u11A8s\u0323\u0307");
  EXPECT_EQ(apart("a\u0345\u0344b"), "<a\u0308\u0301\u0345b") << "marks of one that is two are sorted too";
  EXPECT_EQ(apart("\xFF\u0301"), "<\xFF\u0301");
}

TEST(Nfkc, TakesCompatibleCharactersApartAndPutsTheRestTogether) {
  const Nfkc nfkc;
  std::string buffer;
  EXPECT_EQ(nfkc.Normalize("plain", buffer), "plain");
  EXPECT_EQ(nfkc.Normalize("\uFB01n \u2460 \uFF76\uFF9E e\u0301 \u3300", buffer),
            "fin 1 \u30AC \u00E9 \u30A2\u30D1\u30FC\u30C8");
}

}  // namespace
}  // namespace millrace::tokenizer
