// Tests files that only hf_pipeline.h supports. The expected ids are those of Hugging Face's library.
// tests/interop/tokenizer_files.py compares random files.
#include <gmock/gmock.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "millrace/base/hash/text_encoding.h"
#include "millrace/tokenizer/formats/load.h"
#include "millrace/tokenizer/huggingface/regex.h"

namespace millrace::tokenizer {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

struct FileParts {
  std::string model, added, normalizer = "null", pre_tokenizer = "null", decoder = "null";
};

std::string Written(const FileParts& parts) {
  return fmt::format(
      R"({{"added_tokens":[{}],"normalizer":{},"pre_tokenizer":{},"post_processor":null,"decoder":{},"model":{}}})",
      parts.added, parts.normalizer, parts.pre_tokenizer, parts.decoder, parts.model);
}

std::shared_ptr<const Tokenizer> LoadedFile(const FileParts& parts) {
  auto loaded = Load(AsBytes(Written(parts)), "tokenizer.json");
  EXPECT_TRUE(loaded.has_value()) << loaded.error().ToString();
  return loaded.value_or(nullptr);
}

std::string Refusal(const FileParts& parts) {
  auto loaded = Load(AsBytes(Written(parts)), "tokenizer.json");
  if (loaded) return "accepted";
  EXPECT_EQ(loaded.error().code(), Code::kUnsupported);
  return loaded.error().ToString();
}

std::vector<TokenId> Encoded(const Tokenizer& tokenizer, std::string_view text, bool specials = false) {
  std::vector<TokenId> ids;
  EXPECT_TRUE(specials ? tokenizer.EncodeWithSpecials(text, ids) : tokenizer.Encode(text, ids));
  return ids;
}

/// Returns the text of `ids`. Expects a StreamDecoder to yield the same text.
std::string DecodedBothWays(const Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
  StreamDecoder stream(tokenizer);
  std::string streamed;
  for (const TokenId id : ids) EXPECT_TRUE(stream.Add(id, streamed));
  stream.Finish(streamed);
  std::string text = tokenizer.Decode(ids).value();
  EXPECT_EQ(streamed, text);
  return text;
}

/// <unk>, <s>, </s>, the bytes from 3 on, then ▁ (259), a (260), b (261) and ▁a (262).
FileParts LlamaParts() {
  std::string bytes;
  for (int byte = 0; byte < 256; ++byte) bytes += fmt::format(R"("<0x{:02X}>":{},)", byte, byte + 3);
  return {.model = fmt::format(R"({{"type":"BPE","unk_token":"<unk>","fuse_unk":true,"byte_fallback":true,
              "vocab":{{"<unk>":0,"<s>":1,"</s>":2,{}"▁":259,"a":260,"b":261,"▁a":262}},"merges":["▁ a"]}})",
                               bytes),
          .added = R"({"id":0,"content":"<unk>","special":true,"normalized":false})",
          .pre_tokenizer = R"({"type":"Metaspace","replacement":"▁","prepend_scheme":"first","split":false})",
          .decoder = R"({"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"▁"},"content":" "},
              {"type":"ByteFallback"},{"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":0}]})"};
}

TEST(HfPipeline, MetaspacePutsNoSecondMarkInFrontOfASpace) {
  auto tokenizer = LoadedFile(LlamaParts());
  EXPECT_EQ(tokenizer->kind(), "sentencepiece-bpe");
  EXPECT_THAT(Encoded(*tokenizer, "a"), ElementsAre(262));
  EXPECT_THAT(Encoded(*tokenizer, " a"), ElementsAre(262));
  EXPECT_THAT(Encoded(*tokenizer, "▁a"), ElementsAre(262));
  EXPECT_THAT(Encoded(*tokenizer, "ba"), ElementsAre(259, 261, 260));
  EXPECT_EQ(tokenizer->Decode(Encoded(*tokenizer, " a b")).value(), "a b");
}

TEST(HfPipeline, AddedCharactersTakeNoPartInMerging) {
  FileParts parts = LlamaParts();
  parts.added += R"(,{"id":263,"content":"c","special":false,"normalized":false,"single_word":true})";
  auto tokenizer = LoadedFile(parts);
  EXPECT_THAT(Encoded(*tokenizer, "a c"), ElementsAre(262, 259, 263));
  EXPECT_THAT(Encoded(*tokenizer, "ac"), ElementsAre(262, 'c' + 3)) << "no word of its own";
  EXPECT_EQ(tokenizer->Decode(std::vector<TokenId>{262, 259, 263}).value(), "a c");
}

TEST(HfPipeline, ARunOfByteTokensIsTextAsAWholeOrNotAtAll) {
  auto tokenizer = LoadedFile(LlamaParts());
  EXPECT_EQ(tokenizer->kind(), "sentencepiece-bpe");
  auto decoded = [&](const std::vector<TokenId>& ids) { return DecodedBothWays(*tokenizer, ids); };
  constexpr TokenId kByte = 3;  // the token of the byte 0
  EXPECT_EQ(decoded({260, kByte + 0xC3, kByte + 0xA9, kByte + '!', 261}), "a\u00E9!b");
  EXPECT_EQ(decoded({260, kByte + 0xF0, kByte + 0x19, 259}), "a\uFFFD\uFFFD ");
  EXPECT_EQ(decoded({kByte + 'x', kByte + 0xC3}), "\uFFFD\uFFFD");
  EXPECT_EQ(decoded({kByte + 0xC3, kByte + 'x', 261, kByte + 'x'}), "\uFFFD\uFFFDbx") << "another token ends the run";
  EXPECT_EQ(decoded({260, kByte + 0xC3, 0, kByte + 0xA9}), "a\u00E9") << "one that is left out does not";
}

FileParts BertParts(bool single_word) {
  return {.model = R"({"type":"WordPiece","unk_token":"[UNK]","continuing_subword_prefix":"##",
              "max_input_chars_per_word":100,"vocab":{"[UNK]":0,"_":1,"##o":2,"un":3}})",
          .added = fmt::format(R"({{"id":4,"content":"eod","special":true,"normalized":false}},
              {{"id":5,"content":"hello","special":false,"normalized":false,"single_word":{}}})",
                               single_word),
          .normalizer = R"({"type":"BertNormalizer"})",
          .pre_tokenizer = R"({"type":"BertPreTokenizer"})",
          .decoder = R"({"type":"WordPiece","prefix":"##","cleanup":true})"};
}

TEST(HfPipeline, WordsOfDocumentsForgeNoSpecialToken) {
  auto tokenizer = LoadedFile(BertParts(true));
  EXPECT_THAT(Encoded(*tokenizer, "eod un eod"), ElementsAre(0, 3, 0));
  EXPECT_THAT(Encoded(*tokenizer, "un eod", true), ElementsAre(3, 4));
  EXPECT_THAT(Encoded(*tokenizer, "hello _hello helloo"), ElementsAre(5, 1, 0, 0)) << "the model does not know it";
  EXPECT_THAT(Encoded(*LoadedFile(BertParts(false)), "helloo"), ElementsAre(5, 0));
  // Also where the model knows its name.
  FileParts known = BertParts(true);
  known.added = R"({"id":3,"content":"un","special":true,"normalized":false})";
  for (const char* pre_tokenizer : {R"({"type":"BertPreTokenizer"})", R"({"type":"Whitespace"})"}) {
    known.pre_tokenizer = pre_tokenizer;
    EXPECT_THAT(Encoded(*LoadedFile(known), "un uno"), Not(Contains(3))) << pre_tokenizer;
    EXPECT_THAT(Encoded(*LoadedFile(known), "un", true), ElementsAre(3));
  }
}

FileParts SmallBpe(std::string options = "", std::string merges = R"("a b","b c")") {
  return {.model = fmt::format(R"({{"type":"BPE",{}"unk_token":"?","vocab":{{"?":0,"a":1,"b":2,"c":3,"ab":4,"bc":5,
              "a</w>":6,"##b":7,"abb":8}},"merges":[{}]}})",
                               options, merges)};
}

TEST(HfPipeline, TheLastRankOfAMergeThatIsListedTwiceCounts) {
  EXPECT_THAT(Encoded(*LoadedFile(SmallBpe()), "abc"), ElementsAre(4, 3));
  EXPECT_THAT(Encoded(*LoadedFile(SmallBpe("", R"("a b","b c","a b")")), "abc"), ElementsAre(1, 5));
}

TEST(HfPipeline, BpeOfCharactersHasAllOptions) {
  EXPECT_THAT(Encoded(*LoadedFile(SmallBpe()), "xyab"), ElementsAre(0, 0, 4));
  EXPECT_THAT(Encoded(*LoadedFile(SmallBpe(R"("fuse_unk":true,)")), "xyab"), ElementsAre(0, 4));
  EXPECT_THAT(Encoded(*LoadedFile(SmallBpe(R"("ignore_merges":true,)")), "abb"), ElementsAre(8));
  EXPECT_THAT(Encoded(*LoadedFile(SmallBpe()), "abb"), ElementsAre(4, 2));
  EXPECT_THAT(Encoded(*LoadedFile(SmallBpe(R"("end_of_word_suffix":"</w>",)")), "aa"), ElementsAre(1, 6));
  EXPECT_THAT(Encoded(*LoadedFile(SmallBpe(R"("continuing_subword_prefix":"##",)", "[\"a\",\"##b\"]")), "ab"),
              ElementsAre(4));
  FileParts unnamed = SmallBpe();
  unnamed.model.replace(unnamed.model.find("\"?\""), 3, "null");
  EXPECT_THAT(Encoded(*LoadedFile(unnamed), "xaby"), ElementsAre(4)) << "unknown characters are left out";
}

TEST(HfPipeline, AMergeThatMakesASpecialTokenIsRefused) {
  FileParts parts = SmallBpe();
  parts.added = R"({"id":4,"content":"ab","special":true,"normalized":false})";
  EXPECT_THAT(Refusal(parts), HasSubstr("special token \"ab\""));
}

TEST(HfPipeline, AddedTokensTakeEachWhiteSpaceOnce) {
  FileParts parts = SmallBpe();
  parts.added = R"({"id":9,"content":" ","special":false,"normalized":false,"lstrip":true,"rstrip":true})";
  EXPECT_THAT(Encoded(*LoadedFile(parts), "a   b"), ElementsAre(1, 9, 2));
  parts.added = R"({"id":9,"content":" ","special":false,"normalized":false,"rstrip":true})";
  EXPECT_THAT(Encoded(*LoadedFile(parts), "a   b"), ElementsAre(1, 9, 9, 9, 2)) << "as the library has it";
}

TEST(HfPipeline, IdsThatTheLibraryWouldNotGiveAreRefused) {
  FileParts parts = SmallBpe();
  parts.added = R"({"id":12,"content":"<x>","special":true,"normalized":false})";
  EXPECT_THAT(Refusal(parts), HasSubstr("\"<x>\" has the id 12, where the library gives 9"));
  parts.added = R"({"id":8,"content":"a","special":true,"normalized":false})";
  EXPECT_THAT(Refusal(parts), HasSubstr("where the library gives 1"));
}

FileParts Words(std::string pre_tokenizer, std::string normalizer = "null") {
  return {.model = R"({"type":"WordLevel","unk_token":"?","vocab":{"?":0,"ab":1,"1":2,"12":3,".":4,"..":5,"ab.":6,
              "▁ab":7,"Ġab":8,"a":9,"b":10,".ab":11}})",
          .normalizer = std::move(normalizer),
          .pre_tokenizer = std::move(pre_tokenizer)};
}

TEST(HfPipeline, DividesTextInAllWays) {
  auto ids = [](const std::string& pre_tokenizer, std::string_view text) {
    return Encoded(*LoadedFile(Words(pre_tokenizer)), text);
  };
  EXPECT_THAT(ids(R"({"type":"Whitespace"})", "ab ..ab\n"), ElementsAre(1, 5, 1));
  EXPECT_THAT(ids(R"({"type":"WhitespaceSplit"})", " ab. ab"), ElementsAre(6, 1));
  EXPECT_THAT(ids(R"({"type":"Digits","individual_digits":false})", "ab12"), ElementsAre(1, 3));
  EXPECT_THAT(ids(R"({"type":"Digits","individual_digits":true})", "ab12"), ElementsAre(1, 2, 0));
  EXPECT_EQ(ids(R"({"type":"Digits","individual_digits":true})", "ab\U00011DE3").size(), 2u) << "since Unicode 17.0";
  EXPECT_THAT(ids(R"({"type":"FixedLength","length":2})", "ab.."), ElementsAre(1, 5));
  EXPECT_THAT(ids(R"({"type":"CharDelimiterSplit","delimiter":" "})", "ab  ab"), ElementsAre(1, 1));
  EXPECT_THAT(ids(R"({"type":"ByteLevel","add_prefix_space":true})", "ab ab"), ElementsAre(8, 8));
  EXPECT_THAT(ids(R"({"type":"Metaspace","replacement":"▁","prepend_scheme":"first"})", "ab ab"), ElementsAre(7, 7));
  EXPECT_THAT(ids("null", "ab"), ElementsAre(1));
  auto punctuation = [&](std::string_view behavior) {
    return ids(fmt::format(R"({{"type":"Punctuation","behavior":"{}"}})", behavior), "ab..ab");
  };
  EXPECT_THAT(punctuation("Removed"), ElementsAre(1, 1));
  EXPECT_THAT(punctuation("Isolated"), ElementsAre(1, 4, 4, 1));
  EXPECT_THAT(punctuation("Contiguous"), ElementsAre(1, 5, 1));
  EXPECT_THAT(punctuation("MergedWithPrevious"), ElementsAre(6, 4, 1));
  EXPECT_THAT(punctuation("MergedWithNext"), ElementsAre(1, 4, 11));
  auto split = [&](std::string_view pattern, std::string_view options, std::string_view text) {
    return ids(fmt::format(R"({{"type":"Split","pattern":{{{}}},{}}})", pattern, options), text);
  };
  EXPECT_THAT(split(R"("String":".")", R"("behavior":"Isolated","invert":false)", "ab.ab"), ElementsAre(1, 4, 1));
  EXPECT_THAT(split(R"("Regex":"[a-z]+")", R"("behavior":"Removed","invert":true)", "ab.ab"), ElementsAre(1, 1));
  EXPECT_THAT(
      ids(R"({"type":"Sequence","pretokenizers":[{"type":"WhitespaceSplit"},{"type":"Punctuation"}]})", "ab ab."),
      ElementsAre(1, 1, 4));
}

TEST(HfPipeline, PrefixesTheFirstWordByWhereItWasBeforeItWasNormalized) {
  const std::string first = R"({"type":"Metaspace","replacement":"▁","prepend_scheme":"first","split":true})";
  auto tokenizer = LoadedFile(Words(first, R"({"type":"Strip","strip_left":true,"strip_right":true})"));
  EXPECT_THAT(Encoded(*tokenizer, "ab"), ElementsAre(7));
  EXPECT_THAT(Encoded(*tokenizer, "  ab"), ElementsAre(1)) << "what was stripped was the beginning";
  auto replaced = LoadedFile(Words(first, R"({"type":"Replace","pattern":{"String":"xy"},"content":"a"})"));
  EXPECT_THAT(Encoded(*replaced, "xyb"), ElementsAre(1)) << "aligned with the last character of what it replaces";
}

/// SentencePiece's compiled rules, of which there is one: U+00BD becomes "ab ab".
std::string OneHalf() {
  std::vector<std::uint32_t> units(256);  // see character_map.cc
  constexpr std::uint32_t kLeaf = 1u << 8, kValue = 1u << 31;
  units[0xC2] = 0xC2 | 0xC3 << 10;                        // children at 0xC2 ^ 0xC3 = 1
  units[1 ^ 0xBD] = 0xBD | kLeaf | (1 ^ 0xBD ^ 2) << 10;  // the value at 2
  units[2] = kValue;
  const auto bytes = static_cast<std::uint32_t>(units.size() * sizeof(std::uint32_t));
  std::string map(AsText(std::as_bytes(std::span(&bytes, 1))));
  map += AsText(std::as_bytes(std::span(units)));
  map += "ab ab";
  map += '\0';
  return fmt::format(R"({{"type":"Precompiled","precompiled_charsmap":"{}"}})", Base64Encode(AsBytes(map)));
}

TEST(HfPipeline, PrefixesTheFirstWordByWhatAPrecompiledRuleTookItsPartsFrom) {
  auto tokenizer = LoadedFile(Words(R"({"type":"Sequence","pretokenizers":[{"type":"WhitespaceSplit"},
      {"type":"Metaspace","replacement":"▁","prepend_scheme":"first","split":true}]})",
                                    OneHalf()));
  EXPECT_THAT(Encoded(*tokenizer, "\u00BD"), ElementsAre(7, 7)) << "all of it stems from the first character";
  EXPECT_THAT(Encoded(*tokenizer, "\u00BD\u0301"), ElementsAre(7, 1)) << "the accent, which is dropped, is the second";
  EXPECT_THAT(Encoded(*tokenizer, "ab\u00BD\u0301"), ElementsAre(0, 1)) << "▁abab";
}

TEST(HfPipeline, NormalizesInFrontOfAllModels) {
  auto ids = [](const std::string& normalizer, std::string_view text) {
    return Encoded(*LoadedFile(Words(R"({"type":"WhitespaceSplit"})", normalizer)), text);
  };
  EXPECT_THAT(ids(R"({"type":"Lowercase"})", "AB"), ElementsAre(1));
  EXPECT_THAT(ids(R"({"type":"BertNormalizer","clean_text":true,"handle_chinese_chars":true,"lowercase":true})",
                  "\u00C1\u0001B"),
              ElementsAre(1));
  EXPECT_THAT(ids(R"({"type":"Nmt"})", "ab\u200Bab\u0001"), ElementsAre(1, 1));
  EXPECT_THAT(ids(R"({"type":"Prepend","prepend":"a"})", "b"), ElementsAre(1));
  EXPECT_THAT(ids(R"({"type":"Replace","pattern":{"Regex":"x+"},"content":"b"})", "axx"), ElementsAre(1));
}

TEST(HfPipeline, DecodesWithAllDecoders) {
  auto decoded = [](const std::string& decoder, std::vector<TokenId> ids) {
    FileParts parts = Words("null");
    parts.decoder = decoder;
    auto tokenizer = LoadedFile(parts);
    return DecodedBothWays(*tokenizer, ids);
  };
  EXPECT_EQ(decoded("null", {1, 4}), "ab .");
  EXPECT_EQ(decoded(R"({"type":"ByteLevel"})", {1, 8}), "ab ab");
  EXPECT_EQ(decoded(R"({"type":"WordPiece","prefix":"##","cleanup":true})", {1, 4}), "ab.");
  EXPECT_EQ(decoded(R"({"type":"Metaspace","replacement":"▁","prepend_scheme":"first"})", {7, 7}), "ab ab");
  EXPECT_EQ(decoded(R"({"type":"BPEDecoder","suffix":"b"})", {1, 1}), "a a");
  EXPECT_EQ(
      decoded(R"({"type":"Sequence","decoders":[{"type":"Fuse"},{"type":"Strip","content":"a","start":1,"stop":0}]})",
              {1, 1}),
      "bab");
  EXPECT_EQ(decoded(R"({"type":"CTC","pad_token":"1","word_delimiter_token":".","cleanup":true})", {9, 9, 2, 9, 4, 10}),
            "aa b");
}

TEST(HfPipeline, NamesWhatItDoesNotDo) {
  EXPECT_THAT(Refusal(Words(R"({"type":"UnicodeScripts"})")), HasSubstr("UnicodeScripts"));
  EXPECT_THAT(Refusal(Words(R"({"type":"Split","pattern":{"Regex":"\\h+"},"behavior":"Isolated"})")),
              HasSubstr("escaped U+0068"));
  EXPECT_THAT(Refusal(Words("null", R"({"type":"Prepend","prepend":""})")), HasSubstr("Prepend"));
  FileParts unknown = Words("null");
  unknown.model.replace(unknown.model.find("\"?\""), 3, "\"!\"");
  EXPECT_THAT(Refusal(unknown), HasSubstr("unk_token"));
}

std::vector<std::string> MatchesOf(std::string_view pattern, std::string_view text) {
  auto regex = Regex::Compile(pattern);
  if (!regex) return {regex.error().ToString()};
  std::vector<std::string> matches;
  regex->ForEach(text, [&](std::size_t begin, std::size_t end) {
    matches.emplace_back(text.substr(begin, end - begin));
    return true;
  });
  return matches;
}

TEST(RegexTest, MatchesAsOnigurumaDoes) {
  EXPECT_THAT(MatchesOf(R"('s| ?\p{L}+|\s+(?!\S)|\s+)", "it's  ok "), ElementsAre("it", "'s", " ", " ok", " "));
  EXPECT_THAT(MatchesOf("(?:ab|a)b*", "abb a"), ElementsAre("abb", "a"));
  EXPECT_THAT(MatchesOf("a{2,3}", "aaaaa a"), ElementsAre("aaa", "aa"));
  EXPECT_THAT(MatchesOf("a+?b|a++c", "aab aac"), ElementsAre("aab", "aac"));
  EXPECT_THAT(MatchesOf("a++ab", "aaab"), IsEmpty()) << "possessive: nothing is given back";
  EXPECT_THAT(MatchesOf("^a|b$", "ab\na b"), ElementsAre("a", "b", "a", "b")) << "lines";
  EXPECT_THAT(MatchesOf(R"([^\s.\]-]+)", "a-b.c]d e"), ElementsAre("a", "b", "c", "d", "e"));
  EXPECT_THAT(MatchesOf(" ?[^(\\s|[.,。])]+", "a, 数|b"), ElementsAre("a", " 数", "b"));
  EXPECT_THAT(MatchesOf(R"(\p{Lu}\p{^Lu})", "aBcÉé"), ElementsAre("Bc", "Éé"));
  EXPECT_THAT(MatchesOf(R"(\w+|\W)", "añ_1-b²\u200dc"), ElementsAre("añ_1", "-", "b²", "\u200d", "c"));
  EXPECT_THAT(MatchesOf(R"(\Aa|\bb\B.|b\b)", "aab b bc ab"), ElementsAre("a", "b", "b", "bc", "b"));
  EXPECT_THAT(MatchesOf(R"((?<=é|a)b|(?<!b)c|(?<!x)d)", "éb bc abcd xd d"), ElementsAre("b", "b", "d", "d"));
  EXPECT_THAT(MatchesOf(R"(\u00e9+|\u0800)", "éé\u0800e"), ElementsAre("éé", "\u0800"));
  EXPECT_THAT(MatchesOf(R"([\p{L}&&[^\p{Han}]&&[^a]]+|[^a-z&&b-y]+)", "ab数é"), ElementsAre("a", "b", "数é"));
  EXPECT_THAT(MatchesOf(R"(\p{Han}+|\P{Han}+)", "数々かx"), ElementsAre("数々", "かx"));
}

/// As Qwen3.5 writes it. In a group (?i: the long s is an s, and the kelvin sign a k.
TEST(RegexTest, IgnoresCaseInAGroup) {
  EXPECT_THAT(MatchesOf(R"((?i:'s|'t|'RE)|[\p{L}\p{M}]+)", "a'S'ſ're't"), ElementsAre("a", "'S", "'ſ", "'re", "'t"));
  EXPECT_THAT(MatchesOf(R"((?i:[j-k\x41]+)x)", "aJk\u212Ax jX"), ElementsAre("aJk\u212Ax"));
  EXPECT_THAT(MatchesOf("(?i:a)b", "AB Ab"), ElementsAre("Ab"));
}

TEST(RegexTest, NamesWhatItDoesNotKnow) {
  for (const char* pattern :
       {"a*",      "(?<=ab)c",  "(?<=a+)b", "(?i:é)", "(?i:ss)", R"((?i:\p{L}))", "(?i)a", R"(\p{Latin})",
        R"(\u12)", R"(\uD800)", "[a&&]",    "[&&a]",  "(a+)+",   "[[:alpha:]]",   "a{2}+", "(a",
        "a)",      "[a",        "+",        R"(\1)",  "(?<n>a)", "a{999}"}) {
    auto regex = Regex::Compile(pattern);
    ASSERT_FALSE(regex.has_value()) << pattern;
    EXPECT_EQ(regex.error().code(), Code::kUnsupported) << pattern;
    EXPECT_THAT(regex.error().ToString(), HasSubstr("pattern"));
  }
}

}  // namespace
}  // namespace millrace::tokenizer
