#include "millrace/tokenizer/wordpiece/wordpiece.h"

#include <gtest/gtest.h>

#include "millrace/base/hash/random.h"
#include "millrace/tokenizer/formats/load.h"

namespace millrace::tokenizer {
namespace {

using Ids = std::vector<TokenId>;

// Ids are line numbers.
constexpr std::string_view kVocabulary =
    "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nun\n##aff\n##able\nhello\n,\n!\nwant\n##ed\n数\n据\ncafe\n[\n]\nmask\n##s\n";

Ids Encode(const Tokenizer& tokenizer, std::string_view text) {
  Ids ids;
  EXPECT_TRUE(tokenizer.Encode(text, ids).has_value());
  return ids;
}

TEST(WordPiece, LongestPiecesFromTheLeft) {
  auto tokenizer = Load(AsBytes(kVocabulary), "vocab.txt").value();
  EXPECT_EQ(tokenizer->kind(), "wordpiece");
  EXPECT_EQ(tokenizer->vocab_size(), 20);
  EXPECT_EQ(tokenizer->bos(), 2);
  EXPECT_EQ(tokenizer->eos(), 3);
  EXPECT_EQ(tokenizer->unk(), 1);
  EXPECT_EQ(tokenizer->pad(), 0);
  EXPECT_EQ(Encode(*tokenizer, "UNaffable hello,  wanted!"), (Ids{5, 6, 7, 8, 9, 11, 12, 10}));
  EXPECT_EQ(Encode(*tokenizer, "unaffx hello"), (Ids{1, 8})) << "one unknown part makes the word unknown";
  EXPECT_EQ(Encode(*tokenizer, "数据wants"), (Ids{13, 14, 11, 19}));
  EXPECT_EQ(Encode(*tokenizer, "Caf\xC3\xA9 cafe\xCC\x81"), (Ids{15, 15}));
  EXPECT_EQ(Encode(*tokenizer, std::string("hel\0lo he\xEF\xBF\xBDllo", 15)), (Ids{8, 8})) << "cleaned";
  EXPECT_EQ(Encode(*tokenizer, std::string(101, 'x')), Ids{1});
  EXPECT_EQ(Encode(*tokenizer, ""), Ids{});
}

TEST(WordPiece, SpecialsOnlyWhereAskedFor) {
  auto tokenizer = Load(AsBytes(kVocabulary), "vocab.txt").value();
  EXPECT_EQ(Encode(*tokenizer, "[MASK]"), (Ids{16, 18, 17}));
  Ids ids;
  ASSERT_TRUE(tokenizer->EncodeWithSpecials("[CLS]hello[MASK][SEP]", ids).has_value());
  EXPECT_EQ(ids, (Ids{2, 8, 4, 3}));
  EXPECT_EQ(tokenizer->Decode(ids).value(), "hello");
}

TEST(WordPiece, DecodesWithTheRightSpaces) {
  auto tokenizer = Load(AsBytes(kVocabulary), "vocab.txt").value();
  Ids ids = {2, 8, 9, 5, 6, 7, 10, 11};
  EXPECT_EQ(tokenizer->Decode(ids).value(), "hello, unaffable! want");
  std::string text;
  StreamDecoder decoder(*tokenizer);
  for (TokenId id : ids) ASSERT_TRUE(decoder.Add(id, text).has_value());
  decoder.Finish(text);
  EXPECT_EQ(text, "hello, unaffable! want");
  EXPECT_EQ(tokenizer->Decode(Ids{20}).error().code(), Code::kInvalidArgument);
}

TEST(WordPiece, ACapitalInTheVocabularyKeepsThem) {
  auto tokenizer = Load(AsBytes(std::string(kVocabulary) + "Want\n"), "vocab.txt").value();
  EXPECT_EQ(Encode(*tokenizer, "Want want"), (Ids{20, 11}));
  EXPECT_EQ(Load(AsBytes(std::string(kVocabulary) + "un\n"), "twice").error().code(), Code::kInvalidArgument);
}

TEST(BertWords, SortsTheMarksThatStay) {
  // U+302E (class 224) and U+1D165 (216) stay when accents go; U+0301 between them goes, U+0903 is a barrier.
  auto words = [](std::string_view text) {
    std::string word, all;
    BertWords({}).ForEach(text, word, [&](std::string_view one) {
      all += one;
      return true;
    });
    return all;
  };
  EXPECT_EQ(words("a\xE3\x80\xAE\xCC\x81\xF0\x9D\x85\xA5"), "a\xF0\x9D\x85\xA5\xE3\x80\xAE");
  EXPECT_EQ(words("a\xE3\x80\xAE\xE0\xA4\x83\xF0\x9D\x85\xA5"), "a\xE3\x80\xAE\xE0\xA4\x83\xF0\x9D\x85\xA5");
}

}  // namespace
}  // namespace millrace::tokenizer
