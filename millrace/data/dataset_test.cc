// Tests the rows of an epoch, their order and their labels.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "millrace/base/log.h"
#include "millrace/data/batch/sequence_row.h"
#include "millrace/data/testing/dataset_fixture.h"

namespace millrace::data {
namespace {

using testing::ByteTokenizer;
using testing::DatasetTest;
using ::testing::HasSubstr;
using testing::MakeTexts;
using testing::PutText;
using testing::ToJsonl;

/// A simple implementation of packing: join, cut, shift.
TEST_F(DatasetTest, PacksAsTheDefinitionSays) {
  auto texts = MakeTexts("a", 200, 90, 1);
  PutText(*store_, "a.jsonl", ToJsonl(texts));
  auto dataset = Open(Options("s3://corpus/a.jsonl", SequenceMode::kPack, 0)).value();
  std::vector<TokenId> stream;
  for (const std::string& text : texts) {
    stream.push_back(1);
    ASSERT_TRUE(tokenizer_->Encode(text, stream).has_value());
    stream.push_back(2);
  }
  ASSERT_EQ(dataset->samples_per_epoch(), (stream.size() - 1) / 32);
  EXPECT_EQ(dataset->tokens_per_epoch(), dataset->samples_per_epoch() * 32);
  EXPECT_EQ(dataset->records(), 200u);
  auto rows = Rows(*dataset, 0);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    std::vector<TokenId> expected(stream.begin() + i * 32, stream.begin() + i * 32 + 32);
    expected.insert(expected.end(), stream.begin() + i * 32 + 1, stream.begin() + i * 32 + 33);
    ASSERT_EQ(rows[i], expected) << "sample " << i;
  }
}

TEST_F(DatasetTest, EveryDocumentOncePerPassInAnotherOrderEachEpoch) {
  std::multiset<std::string> all;
  std::vector<std::string> last;
  for (int o = 0; o < 4; ++o) {
    auto texts = MakeTexts(std::string(1, 'a' + o), 150, 200, o);
    all.insert(texts.begin(), texts.end());
    PutText(*store_, fmt::format("wiki/{}.jsonl", o), ToJsonl(texts));
  }
  auto dataset = Open(Options("s3://corpus/wiki/*.jsonl")).value();
  std::vector<std::vector<std::string>> orders;
  for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
    auto texts = Texts(Stream(*dataset, epoch));
    ASSERT_GE(texts.size(), all.size() - 32) << "only the tail may be missing";
    std::string partial = texts.back();
    texts.pop_back();
    std::multiset<std::string> seen(texts.begin(), texts.end());
    EXPECT_TRUE(std::ranges::includes(all, seen));
    std::uint64_t missing = 0;
    for (const std::string& text : all) {
      if (!seen.contains(text)) missing += text.size() + 2;
    }
    EXPECT_LE(missing, 32u + partial.size() + 2);
    orders.push_back(std::move(texts));
  }
  EXPECT_NE(orders[0], orders[1]);
  EXPECT_NE(orders[1], orders[2]);
}

TEST_F(DatasetTest, PadsCutsAndIgnores) {
  PutText(*store_, "a.jsonl", ToJsonl({"abc", std::string(100, 'x')}));
  auto dataset = Open(Options("s3://corpus/a.jsonl", SequenceMode::kPad, 0)).value();
  ASSERT_EQ(dataset->samples_per_epoch(), 2u);
  auto rows = Rows(*dataset, 0);
  std::vector<TokenId> expected = {1, 'a' + 3, 'b' + 3, 'c' + 3};
  expected.resize(32, 2);
  expected.insert(expected.end(), {'a' + 3, 'b' + 3, 'c' + 3, 2});
  expected.resize(64, kIgnoreLabel);
  EXPECT_EQ(rows[0], expected);
  expected.assign(64, 'x' + 3);
  expected[0] = 1;
  EXPECT_EQ(rows[1], expected) << "cut to 33 tokens: no label is ignored, EOS is not reached";
}

TEST_F(DatasetTest, PaddedEpochIsAPermutationOfTheRecords) {
  auto texts = MakeTexts("a", 300, 20, 1);
  PutText(*store_, "a.jsonl", ToJsonl(texts));
  auto dataset = Open(Options("s3://corpus/a.jsonl", SequenceMode::kPad, 1000)).value();
  std::vector<std::string> seen;
  for (const auto& row : Rows(*dataset, 1)) seen.push_back(tokenizer_->Decode(std::span(row).first(32)).value());
  EXPECT_NE(seen, texts);
  std::ranges::sort(seen);
  std::ranges::sort(texts);
  EXPECT_EQ(seen, texts);
}

/// A simple implementation of a row: the tokens of documents with their marks, joined, cut and shifted.
struct Token {
  TokenId id;
  bool starts, learnt;
};
struct RowValues {
  std::vector<TokenId> inputs, labels;
  std::vector<std::int32_t> positions;
  std::int32_t length = 0;
  bool operator==(const RowValues&) const = default;
};
RowValues Expected(std::vector<Token> tokens, std::size_t length, bool boundaries) {
  RowValues row{.length = static_cast<std::int32_t>(std::min(tokens.size(), length))};
  tokens[0].starts = true;
  std::size_t held = tokens.size();
  while (tokens.size() < length + 1) tokens.push_back({2, tokens.size() == held, false});
  for (std::size_t t = 0; t < length; ++t) {
    const Token& next = tokens[t + 1];
    row.inputs.push_back(tokens[t].id);
    bool ignored = !next.learnt || t + 1 >= held || (boundaries && next.starts);
    row.labels.push_back(ignored ? kIgnoreLabel : next.id);
    row.positions.push_back(tokens[t].starts ? 0 : row.positions.back() + 1);
  }
  return row;
}
std::vector<Token> TokensOf(const std::string& text) {
  std::vector<Token> tokens = {{1, true, true}};
  for (char c : text) tokens.push_back({static_cast<unsigned char>(c) + 3, false, true});
  tokens.push_back({2, false, true});
  return tokens;
}
RowValues ReadRow(Dataset& dataset, std::uint64_t epoch, std::uint64_t index) {
  std::size_t length = dataset.options().sequence_length;
  RowValues values{std::vector<TokenId>(length), std::vector<TokenId>(length), std::vector<std::int32_t>(length)};
  SequenceRow row{.inputs = values.inputs, .labels = values.labels, .positions = values.positions};
  auto read = dataset.ReadSample(epoch, index, row);
  if (!read) ADD_FAILURE() << read.error().ToString();
  values.length = row.length;
  return values;
}

TEST_F(DatasetTest, PackedRowsKeepDocumentsApartWhenAsked) {
  auto texts = MakeTexts("a", 200, 60, 1);
  PutText(*store_, "a.jsonl", ToJsonl(texts));
  std::vector<Token> stream;
  for (const std::string& text : texts) std::ranges::copy(TokensOf(text), std::back_inserter(stream));
  for (bool boundaries : {false, true}) {
    auto options = Options("s3://corpus/a.jsonl", SequenceMode::kPack, 0);
    options.boundaries = boundaries;
    auto dataset = Open(options).value();
    for (std::uint64_t i = 0; i < dataset->samples_per_epoch(); ++i) {
      std::vector<Token> row(stream.begin() + i * 32, stream.begin() + i * 32 + 33);
      ASSERT_EQ(ReadRow(*dataset, 0, i), Expected(row, 32, boundaries)) << "sample " << i;
    }
  }
}

TEST_F(DatasetTest, LongDocumentsAreSeveralRowsWhenAsked) {
  auto texts = MakeTexts("a", 100, 150, 1);
  texts.push_back(std::string(30, 'x'));  // 32 tokens: a row with a label to spare
  texts.push_back(std::string(31, 'y'));  // 33: a full row
  texts.push_back(std::string(32, 'z'));  // 34: one more
  PutText(*store_, "a.jsonl", ToJsonl(texts));
  auto options = Options("s3://corpus/a.jsonl", SequenceMode::kPad, 0);
  options.split_long = true;
  for (bool boundaries : {false, true}) {
    options.boundaries = boundaries;
    auto dataset = Open(options).value();
    std::uint64_t i = 0;
    for (const std::string& text : texts) {
      std::vector<Token> tokens = TokensOf(text);
      for (std::size_t at = 0; at + 1 < tokens.size(); at += 32, ++i) {
        std::vector<Token> part(tokens.begin() + at, tokens.begin() + std::min(tokens.size(), at + 33));
        ASSERT_EQ(ReadRow(*dataset, 0, i), Expected(part, 32, boundaries)) << "sample " << i;
      }
    }
    EXPECT_EQ(dataset->samples_per_epoch(), i);
  }
}

TEST_F(DatasetTest, FittedRowsHoldEveryDocumentWhole) {
  std::map<std::string, int> all;
  std::uint64_t cut = 0;
  for (int o = 0; o < 20; ++o) {
    auto texts = MakeTexts(std::string(1, 'a' + o), 25, 20, o);
    if (o == 3) texts.push_back(std::string(100, 'x'));
    for (const std::string& text : texts) {
      ++all[text.substr(0, 32)];
      cut += text.size() + 2 > 33;
    }
    PutText(*store_, fmt::format("d/{:02}.jsonl", o), ToJsonl(texts));
  }
  for (bool boundaries : {false, true}) {
    auto options = Options("s3://corpus/d/", SequenceMode::kPad, 1000);
    options.best_fit = true;
    options.boundaries = boundaries;
    auto dataset = Open(options).value();
    EXPECT_EQ(dataset->truncated_documents(), cut);
    for (std::uint64_t epoch : {0, 1}) {
      std::map<std::string, int> seen;
      std::uint64_t padding = 0;
      for (std::uint64_t i = 0; i < dataset->samples_per_epoch(); ++i) {
        RowValues row = ReadRow(*dataset, epoch, i);
        padding += 32 - row.length;
        // The row's tokens. The last one may only be a label.
        std::vector<Token> tokens;
        std::vector<TokenId> ids(row.inputs.begin(), row.inputs.begin() + row.length);
        if (row.length == 32 && ids.back() != 2) ids.push_back(row.labels.back());
        for (std::size_t t = 0; t < ids.size(); ++t) {
          if (ids[t] == 1) tokens.clear();
          tokens.push_back({ids[t], ids[t] == 1, true});
          if (ids[t] == 2 || t + 1 == ids.size()) {
            std::string text;
            for (const Token& token : tokens) {
              if (token.id > 2) text += static_cast<char>(token.id - 3);
            }
            ++seen[text.substr(0, 32)];
          }
        }
        tokens.clear();
        for (TokenId id : ids) tokens.push_back({id, id == 1, true});
        ASSERT_EQ(row, Expected(tokens, 32, boundaries));
      }
      EXPECT_EQ(seen, all);
      EXPECT_LT(padding, dataset->samples_per_epoch() * 32 / 20) << "less than 5 % is padding";
    }
  }
}

TEST_F(DatasetTest, AnswersAloneAreLearnt) {
  std::string lines;
  Random random(4);
  std::vector<std::vector<Token>> documents;
  for (int i = 0; i < 80; ++i) {
    std::string prompt = MakeTexts("p", 1, 20, i)[0], answer = MakeTexts("r", 1, 20, i + 1000)[0];
    lines += DumpJson({{"q", prompt}, {"a", answer}}) + "\n";
    auto tokens = TokensOf(prompt + answer);
    for (std::size_t t = 0; t <= prompt.size(); ++t) tokens[t].learnt = false;
    documents.push_back(std::move(tokens));
  }
  PutText(*store_, "a.jsonl", lines);
  auto options = Options("s3://corpus/a.jsonl", SequenceMode::kSft, 0);
  options.template_text = "{q}";
  options.response_text = "{a}";
  auto dataset = Open(options).value();
  ASSERT_EQ(dataset->samples_per_epoch(), documents.size());
  for (std::size_t i = 0; i < documents.size(); ++i) {
    auto tokens = documents[i];
    if (tokens.size() > 33) tokens.resize(33);
    ASSERT_EQ(ReadRow(*dataset, 0, i), Expected(tokens, 32, false));
  }
  options.best_fit = true;
  options.sequence_length = 128;
  auto fitted = Open(options).value();
  std::uint64_t learnt = 0, expected = 0;
  for (std::uint64_t i = 0; i < fitted->samples_per_epoch(); ++i) {
    RowValues row = ReadRow(*fitted, 0, i);
    learnt += row.labels.size() - std::ranges::count(row.labels, kIgnoreLabel);
  }
  for (const auto& document : documents) expected += std::ranges::count(document, true, &Token::learnt);
  EXPECT_EQ(learnt, expected) << "every answer, whole, whatever row it is in";
}

class LogLines final : public LogSink {
 public:
  void Write(std::string_view line) override { text_ += fmt::format("{}\n", line); }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

TEST_F(DatasetTest, ALayoutWhoseTokensTheTokenizerLacksIsWarnedOf) {
  PutText(*store_, "a.jsonl",
          R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})"
          "\n");
  for (const std::string layout : {"chatml", "zephyr"}) {
    auto options = Options("s3://corpus/a.jsonl", SequenceMode::kSft, 0);
    options.layout = layout;
    options.sequence_length = 128;  // spelled out, the marks are long
    const auto lines = std::make_shared<LogLines>();
    ASSERT_TRUE(Dataset::Open(connection_, tokenizer_, options, Logger(lines, LogLevel::kWarning)));
    EXPECT_EQ(lines->text().contains("missing=\"<|im_start|> <|im_end|>\""), layout == "chatml") << lines->text();
  }
}

/// A prompt that fills the row leaves nothing to learn.
TEST_F(DatasetTest, RecordsWithoutALabelAreLeftOutAndCounted) {
  std::string lines, unlabelled;
  for (int i = 0; i < 200; ++i) unlabelled += DumpJson({{"q", std::string(40, 'q')}, {"a", "x"}}) + "\n";
  for (int i = 0; i < 3; ++i) lines += DumpJson({{"q", "short"}, {"a", std::string(i == 0 ? 90 : 9, 'a')}}) + "\n";
  PutText(*store_, "a.jsonl", unlabelled + lines);
  auto options = Options("s3://corpus/a.jsonl", SequenceMode::kSft, 0);
  options.template_text = "{q}";
  options.response_text = "{a}";
  auto dataset = Open(options).value();
  EXPECT_EQ(dataset->samples_per_epoch(), 3u);
  EXPECT_EQ(dataset->truncated_documents(), 1u);
  EXPECT_EQ(dataset->broken_by_reason(), (std::vector<std::pair<std::string, std::uint64_t>>{{"no_label", 200}}));
  for (std::uint64_t i = 0; i < 3; ++i) {
    const RowValues row = ReadRow(*dataset, 0, i);
    EXPECT_LT(std::ranges::count(row.labels, kIgnoreLabel), 32);
  }
  options.sequence_length = 64;
  EXPECT_EQ(Open(options).value()->samples_per_epoch(), 203u) << "an index is made for one length";
  PutText(*store_, "a.jsonl", unlabelled);
  options.sequence_length = 32;
  EXPECT_THAT(Open(options).error().ToString(), HasSubstr("200 of 200 records have no label"));
}

/// Each record is in exactly one part. Its content alone decides the part.
TEST_F(DatasetTest, HeldOutRecordsStayHeldOutWhereverTheyGo) {
  auto texts = MakeTexts("a", 3000, 20, 1);
  PutText(*store_, "one/a.jsonl", ToJsonl(texts));
  auto part_of = [&](const std::string& url, SplitPart part, SequenceMode mode = SequenceMode::kPad,
                     std::uint64_t seed = 1) {
    auto options = Options(url, mode, 500);
    options.split = {.held_out = 0.1, .part = part, .seed = seed};
    return Open(options).value();
  };
  auto texts_of = [&](Dataset& dataset) {
    std::multiset<std::string> seen;
    for (const auto& row : Rows(dataset, 0)) seen.insert(tokenizer_->Decode(std::span(row).first(32)).value());
    EXPECT_EQ(seen.size(), dataset.samples_per_epoch());
    EXPECT_EQ(dataset.records(), dataset.samples_per_epoch());
    return seen;
  };
  auto train = texts_of(*part_of("s3://corpus/one/", SplitPart::kTrain));
  auto held = texts_of(*part_of("s3://corpus/one/", SplitPart::kHeldOut));
  EXPECT_NEAR(static_cast<double>(held.size()), 300, 5 * 17);
  std::multiset<std::string> both = train;
  both.insert(held.begin(), held.end());
  EXPECT_EQ(both, std::multiset<std::string>(texts.begin(), texts.end()));
  EXPECT_NE(texts_of(*part_of("s3://corpus/one/", SplitPart::kHeldOut, SequenceMode::kPad, 2)), held) << "another seed";

  // The same records in another order, in other files, with other fields, and further records.
  std::ranges::reverse(texts);
  std::vector<std::string> more = MakeTexts("b", 500, 20, 2);
  for (int file = 0; file < 3; ++file) {
    std::string lines;
    for (std::size_t i = file; i < texts.size(); i += 3) {
      lines += DumpJson({{"id", static_cast<int>(i)}, {"text", texts[i]}}) + "\n";
    }
    PutText(*store_, fmt::format("other/{}.jsonl", file), lines + (file == 1 ? ToJsonl(more) : ""));
  }
  std::multiset<std::string> moved;
  for (const std::string& text : texts_of(*part_of("s3://corpus/other/", SplitPart::kHeldOut))) {
    if (text.starts_with("a-")) moved.insert(text);
  }
  EXPECT_EQ(moved, held);

  std::uint64_t tokens = 0;
  for (const std::string& text : held) tokens += text.size() + 2;
  EXPECT_EQ(part_of("s3://corpus/one/", SplitPart::kHeldOut, SequenceMode::kPack)->samples_per_epoch(),
            (tokens - 1) / 32);
  auto none = Options("s3://corpus/one/");
  none.split.part = SplitPart::kHeldOut;
  EXPECT_EQ(Open(none).error().code(), Code::kInvalidArgument) << "nothing is held out";
}

TEST_F(DatasetTest, SamplesDoNotDependOnTheOrderTheyAreReadIn) {
  PutText(*store_, "a.jsonl", ToJsonl(MakeTexts("a", 400, 300, 1)));
  auto forward = Rows(*Open(Options("s3://corpus/a.jsonl")).value(), 1);
  auto again = Open(Options("s3://corpus/a.jsonl")).value();
  Random random(5);
  for (int i = 0; i < 300; ++i) {
    std::uint64_t index = random.Below(forward.size());
    std::vector<TokenId> row(64);
    ASSERT_TRUE(again->ReadSample(1, index, std::span(row).first(32), std::span(row).last(32)).has_value());
    ASSERT_EQ(row, forward[index]);
  }
  std::vector<TokenId> row(64);
  EXPECT_EQ(again->ReadSample(0, forward.size(), std::span(row).first(32), std::span(row).last(32)).error().code(),
            Code::kInvalidArgument);
  EXPECT_EQ(again->ReadSample(0, 0, std::span(row).first(31), std::span(row).last(31)).error().code(),
            Code::kInvalidArgument);
}

TEST_F(DatasetTest, WeightsArePasses) {
  PutText(*store_, "a.jsonl", ToJsonl(MakeTexts("a", 40, 5, 1)));
  PutText(*store_, "b.jsonl", ToJsonl(MakeTexts("b", 40, 5, 2)));
  auto options = Options("s3://corpus/a.jsonl", SequenceMode::kPad);
  options.sources = {{"s3://corpus/a.jsonl", 2.25}, {"s3://corpus/b.jsonl", 0.5}};
  auto dataset = Open(options).value();
  EXPECT_EQ(dataset->samples_per_epoch(), 40u * 2 + 10 + 20);
  std::map<std::string, int> seen;
  for (std::uint64_t epoch = 0; epoch < 4; ++epoch) {
    for (const auto& row : Rows(*dataset, epoch)) ++seen[tokenizer_->Decode(std::span(row).first(32)).value()];
    EXPECT_EQ(seen.size(), epoch == 0 ? 60u : 80u) << "the second epoch reads what the first left of b";
  }
  for (const auto& [text, times] : seen) EXPECT_EQ(times, text.starts_with("a") ? 9 : 2) << text;
  for (double weight : {0.0, -1.0, 1e9, std::numeric_limits<double>::quiet_NaN()}) {
    options.sources[0].weight = weight;
    EXPECT_EQ(Open(options).error().code(), Code::kInvalidArgument);
  }
}

}  // namespace
}  // namespace millrace::data
