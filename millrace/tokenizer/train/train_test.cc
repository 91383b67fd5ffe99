// Compares our reader of SentencePiece models with the library, on models that the library trains.
#include "millrace/tokenizer/train/train.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sentencepiece_processor.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "millrace/base/files/files.h"
#include "millrace/base/hash/random.h"
#include "millrace/base/text.h"
#include "millrace/tokenizer/formats/load.h"
#include "millrace/tokenizer/sentencepiece/sentencepiece_model.h"

namespace millrace::tokenizer {
namespace {

using Ids = std::vector<TokenId>;

/// Prose-like text from a small invented vocabulary, some Chinese, digits and odd spacing.
std::string SyntheticDocument(Random& random) {
  static const char* const kWords[] = {"stream", "bucket", "the",   "of",    "token", "training", "a",   "model",
                                       "数据",   "语言",   "训练",  "1234",  "x=7;",  "  ",       "\t",  "Überraschung",
                                       "naïve",  "🦙",     "don't", "(see)", "and",   "記録",     "to.", "\n"};
  std::string text;
  for (std::uint64_t i = 0, n = 5 + random.Below(120); i < n; ++i) {
    text += kWords[random.Below(std::size(kWords))];
    if (random.Below(8) != 0) text += ' ';
  }
  return text;
}

Result<std::string> TrainOn(int documents, TrainOptions options) {
  Random random(7);
  return TrainSentencePieceBpe(
      [&, left = documents](std::string& document) mutable -> Result<bool> {
        if (left-- == 0) return false;
        document = SyntheticDocument(random);
        return true;
      },
      options);
}

const std::string& TrainedModel() {
  static const std::string model = TrainOn(400, {.vocab_size = 400}).value();
  return model;
}

/// Strings that tokenizers get wrong: runs of spaces, marks that look like spaces, specials as text, broken UTF-8.
std::string OddString(Random& random) {
  static const std::string kParts[] = {" ",
                                       "  ",
                                       "                     ",
                                       "\n",
                                       "\t",
                                       "▁",
                                       "▁▁",
                                       "<s>",
                                       "</s>",
                                       "<unk>",
                                       "<0x0A>",
                                       "a",
                                       "the",
                                       "数",
                                       "🦙",
                                       std::string("\0", 1),
                                       "\xFF",
                                       "\xE2\x96",
                                       "\xE4\xB8",
                                       "\xC0\x80",
                                       "\xED\xA0\x80",
                                       "\xF4\x90\x80\x80",
                                       "é",
                                       "e\xCC\x81",
                                       "\xEF\xBF\xBD",
                                       "stream",
                                       "0",
                                       "99",
                                       "\r\n",
                                       "\xC2\xA0",
                                       "\xE3\x80\x80",
                                       ".",
                                       "ß",
                                       "\xE2\x80\x8D"};
  std::string text;
  for (std::uint64_t i = 0, n = random.Below(random.Below(20) == 0 ? 3000 : 24); i < n; ++i) {
    text += random.Below(10) == 0 ? std::string(1, static_cast<char>(random.Below(256)))
                                  : kParts[random.Below(std::size(kParts))];
  }
  return text;
}

void ExpectSameAsLibrary(const std::string& model, std::uint64_t seed, int strings) {
  auto ours = Load(AsBytes(model), "model").value();
  sentencepiece::SentencePieceProcessor library;
  ASSERT_TRUE(library.LoadFromSerializedProto(model).ok());
  Random random(seed);
  for (int i = 0; i < strings; ++i) {
    std::string text = i % 4 == 3 ? SyntheticDocument(random) + SyntheticDocument(random) : OddString(random);
    std::vector<int> expected;
    ASSERT_TRUE(library.Encode(text, &expected).ok());
    Ids ids;
    ASSERT_TRUE(ours->Encode(text, ids).has_value());
    ASSERT_EQ(ids, expected) << "string " << i << ": " << testing::PrintToString(text);
    std::size_t count = random.Below(ids.size() + 3);
    Ids first = {7};
    ASSERT_TRUE(ours->EncodeFirst(text, count, first).has_value());
    ASSERT_TRUE(std::equal(first.begin() + 1, first.end(), ids.begin(), ids.begin() + std::min(count, ids.size())));
    std::string decoded;
    ASSERT_TRUE(library.Decode(expected, &decoded).ok());
    ASSERT_EQ(ours->Decode(ids).value(), decoded) << "string " << i;
  }
}

TEST(Tokenizer, AgreesWithTheLibraryOnOddStrings) { ExpectSameAsLibrary(TrainedModel(), 1, 3000); }

TEST(Tokenizer, LongTextsAreCutWithoutChangingTheirIds) {
  auto ours = Load(AsBytes(TrainedModel()), "model").value();
  sentencepiece::SentencePieceProcessor library;
  ASSERT_TRUE(library.LoadFromSerializedProto(TrainedModel()).ok());
  Random random(3);
  std::string text(5000, ' ');
  for (int i = 0; i < 300; ++i) text += SyntheticDocument(random) + std::string(random.Below(5), ' ');
  for (std::string tail : {"", " ", "  ", "▁", " ▁ ", "\xE2\x96 x"}) {
    std::vector<int> expected;
    ASSERT_TRUE(library.Encode(text + tail, &expected).ok());
    Ids ids;
    ASSERT_TRUE(ours->Encode(text + tail, ids).has_value());
    EXPECT_EQ(ids, expected) << testing::PrintToString(tail);
  }
}

TEST(Tokenizer, AppendsAndNeverAddsSpecials) {
  auto tokenizer = Load(AsBytes(TrainedModel()), "model").value();
  Ids ids = {42};
  ASSERT_TRUE(tokenizer->Encode("", ids).has_value());
  EXPECT_EQ(ids, Ids{42});
  ASSERT_TRUE(tokenizer->Encode("<s>the</s>", ids).has_value());
  EXPECT_EQ(ids.front(), 42);
  for (std::size_t i = 1; i < ids.size(); ++i) EXPECT_GT(ids[i], 2) << "a special token in the text of a document";
  EXPECT_EQ(tokenizer->Decode(std::span(ids).subspan(1)).value(), "<s>the</s>");
}

TEST(Tokenizer, SpecialsDecodeToNothingAndForeignIdsFail) {
  auto tokenizer = Load(AsBytes(TrainedModel()), "model").value();
  EXPECT_EQ(tokenizer->bos(), 1);
  EXPECT_EQ(tokenizer->eos(), 2);
  EXPECT_EQ(tokenizer->unk(), 0);
  EXPECT_EQ(tokenizer->vocab_size(), 400);
  EXPECT_EQ(tokenizer->Decode(Ids{1, 0, 2}).value(), "");
  EXPECT_EQ(tokenizer->Piece(1).value(), "<s>");
  EXPECT_EQ(tokenizer->Piece(3 + 10).value(), "<0x0A>");
  for (TokenId id : {-1, 400, 1 << 30}) {
    EXPECT_EQ(tokenizer->Decode(Ids{id}).error().code(), Code::kInvalidArgument);
    EXPECT_EQ(tokenizer->Piece(id).error().code(), Code::kInvalidArgument);
  }
}

TEST(Tokenizer, SpecialsInTextAreRecognisedWhereAskedFor) {
  auto tokenizer = Load(AsBytes(TrainedModel()), "model").value();
  Ids ids, expected = {1};
  ASSERT_TRUE(tokenizer->EncodeWithSpecials("<s>the stream</s> a", ids).has_value());
  ASSERT_TRUE(tokenizer->Encode("the stream", expected).has_value());
  expected.push_back(2);
  ASSERT_TRUE(tokenizer->Encode(" a", expected).has_value());
  EXPECT_EQ(ids, expected);
  EXPECT_EQ(tokenizer->IdOf("</s>"), 2);
  EXPECT_EQ(tokenizer->IdOf("no such piece"), kNoToken);
  EXPECT_EQ(tokenizer->pad(), kNoToken);
}

TEST(Tokenizer, AStreamIsWhatDecodeMakesOfAllIdsAndEndsNowhereWithinACharacter) {
  auto tokenizer = Load(AsBytes(TrainedModel()), "model").value();
  Random random(4);
  for (int i = 0; i < 2000; ++i) {
    Ids ids;
    if (i % 2 == 0) {
      ASSERT_TRUE(tokenizer->Encode(OddString(random), ids).has_value());
    } else {
      for (std::uint64_t n = random.Below(12); n > 0; --n) ids.push_back(static_cast<TokenId>(random.Below(400)));
    }
    std::string text;
    StreamDecoder decoder(*tokenizer);
    for (TokenId id : ids) {
      std::string more;
      ASSERT_TRUE(decoder.Add(id, more).has_value());
      ASSERT_TRUE(IsValidUtf8(more));
      text += more;
    }
    decoder.Finish(text);
    ASSERT_EQ(text, tokenizer->Decode(ids).value());
  }
}

TEST(Tokenizer, RejectsWhatIsNotAModel) {
  EXPECT_EQ(Load({}, "empty").error().code(), Code::kInvalidArgument);
  EXPECT_EQ(Load(AsBytes("{\"version\":\"1.0\"}"), "json").error().code(), Code::kInvalidArgument);
  const std::string& model = TrainedModel();
  Random random(11);
  for (int i = 0; i < 300; ++i) {
    std::string broken = model.substr(0, random.Below(model.size()));
    for (int flips = 0; flips < 3 && !broken.empty(); ++flips) {
      broken[random.Below(broken.size())] = static_cast<char>(random.Below(256));
    }
    auto traits = ReadSentencePieceModel(AsBytes(broken));  // must not crash; may or may not see the damage
    if (!traits) {
      EXPECT_EQ(traits.error().code(), Code::kInvalidArgument);
    }
  }
}

TEST(Tokenizer, FingerprintNamesTheModel) {
  auto a = Load(AsBytes(TrainedModel()), "a").value();
  auto b = Load(AsBytes(TrainedModel()), "b").value();
  auto c = Load(AsBytes(TrainOn(400, {.vocab_size = 401}).value()), "c").value();
  EXPECT_EQ(a->fingerprint().size(), 8u);
  EXPECT_EQ(a->fingerprint(), b->fingerprint());
  EXPECT_NE(a->fingerprint(), c->fingerprint());
}

TEST(TokenizerTraining, IsRepeatableAndLikeLlama) {
  EXPECT_EQ(TrainOn(400, {.vocab_size = 400}).value(), TrainedModel());
  auto traits = ReadSentencePieceModel(AsBytes(TrainedModel())).value().traits;
  EXPECT_EQ(traits.algorithm, SentencePieceTraits::Algorithm::kBpe);
  EXPECT_FALSE(traits.has_character_map);
  EXPECT_TRUE(traits.add_dummy_prefix);
  EXPECT_FALSE(traits.remove_extra_whitespaces);
  EXPECT_TRUE(traits.escape_whitespaces);
  EXPECT_EQ(traits.pieces, 400);
  auto tokenizer = Load(AsBytes(TrainedModel()), "model").value();
  for (TokenId id = 259; id < 400; ++id) {
    std::string piece = tokenizer->Piece(id).value();
    int digits = static_cast<int>(std::ranges::count_if(piece, [](char c) { return c >= '0' && c <= '9'; }));
    EXPECT_TRUE(digits == 0 || piece.size() == 1) << "digits stand alone, not in " << piece;
  }
}

TEST(TokenizerTraining, SamplesLongInputTheSameWayEachTime) {
  TrainOptions options{.vocab_size = 380, .max_input_bytes = 20'000, .seed = 5};
  std::string once = TrainOn(800, options).value();
  EXPECT_EQ(TrainOn(800, options).value(), once);
  options.seed = 6;
  EXPECT_NE(TrainOn(800, options).value(), once);
}

TEST(TokenizerTraining, SaysWhichVocabulariesTheTextAllows) {
  const Result<std::string> large = TrainOn(20, {.vocab_size = 50'000}), small = TrainOn(800, {.vocab_size = 261});
  ASSERT_FALSE(large);
  EXPECT_THAT(large.error().message(), testing::MatchesRegex("the text gives a vocabulary of at most [0-9]+ pieces, "
                                                             "not 50000; .*"));
  ASSERT_FALSE(small);
  EXPECT_THAT(small.error().message(), testing::MatchesRegex("the text's characters need a vocabulary of at least "
                                                             "[0-9]+ pieces, not 261; .*"));
}

TEST(TokenizerTraining, TakesLinesOfAnyLengthAndSkipsBrokenText) {
  int calls = 0;
  auto model = TrainSentencePieceBpe(
      [&](std::string& document) -> Result<bool> {
        if (calls == 3) return false;
        if (calls == 0) document = "\xFF\xFE";
        if (calls == 1)
          for (int i = 0; i < 5000; ++i) document += "长句没有空格";
        if (calls == 2)
          for (int i = 0; i < 5000; ++i) document += "long lines too ";
        ++calls;
        return true;
      },
      {.vocab_size = 300});
  ASSERT_TRUE(model.has_value()) << model.error().ToString();
  Ids ids;
  ASSERT_TRUE(Load(AsBytes(*model), "m").value()->Encode("长句没有空格", ids).has_value());
  EXPECT_LT(ids.size(), 6u);
}

TEST(TokenizerTraining, SaysWhatIsWrong) {
  auto nothing = TrainSentencePieceBpe([](std::string&) -> Result<bool> { return false; }, {});
  EXPECT_EQ(nothing.error().code(), Code::kInvalidArgument);
  EXPECT_EQ(TrainOn(1, {.vocab_size = 100}).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(TrainOn(1, {.vocab_size = 30'000}).error().code(), Code::kInvalidArgument);
  auto failing = TrainSentencePieceBpe([](std::string&) -> Result<bool> { return Fail(Code::kIo, "disk"); }, {});
  EXPECT_EQ(failing.error().code(), Code::kIo);
}

/// Llama 2's own model, which cannot be distributed with the source.
class Llama2 : public testing::Test {
 protected:
  void SetUp() override {
    const char* folder = std::getenv("MILLRACE_ORACLE");
    auto path = std::filesystem::path(folder ? folder : "") / "llama2-tokenizer.model";
    if (!folder || !std::filesystem::exists(path)) GTEST_SKIP() << "no llama2-tokenizer.model in $MILLRACE_ORACLE";
    model_ = ReadFile(path).value();
  }
  std::string model_;
};

TEST_F(Llama2, KnownVectors) {
  auto tokenizer = Load(AsBytes(model_), "llama2").value();
  EXPECT_EQ(tokenizer->vocab_size(), 32000);
  const std::pair<std::string, Ids> kVectors[] = {
      {"", {}},
      {" ", {259}},
      {"\n", {29871, 13}},
      {"\t\t", {29871, 12, 12}},
      {std::string(20, ' ') + "x", {462, 268, 921}},
      {"<s>", {529, 29879, 29958}},
      {"🦙", {29871, 243, 162, 169, 156}},
      {"grabbed", {2646, 1327, 287}},
  };
  for (const auto& [text, expected] : kVectors) {
    Ids ids;
    ASSERT_TRUE(tokenizer->Encode(text, ids).has_value());
    EXPECT_EQ(ids, expected) << testing::PrintToString(text);
    EXPECT_EQ(tokenizer->Decode(ids).value(), text);
  }
}

TEST_F(Llama2, AgreesWithTheLibraryOnOddStrings) { ExpectSameAsLibrary(model_, 2, 3000); }

}  // namespace
}  // namespace millrace::tokenizer
