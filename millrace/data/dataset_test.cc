#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "millrace/data/document_reader.h"
#include "millrace/data/formats/testing.h"
#include "millrace/data/index_builder.h"
#include "millrace/data/testing.h"
#include "millrace/object/fault/fault_store.h"

namespace millrace::data {
namespace {

using testing::ByteTokenizer;
using testing::MakeTexts;
using testing::PutText;
using testing::ToJsonl;

class DatasetTest : public ::testing::Test {
 protected:
  void SetUp() override {
    store_ = object::MakeMemoryStore();
    connection_["corpus"] = store_;
  }

  Result<std::shared_ptr<Dataset>> Open(DatasetOptions options) {
    return Dataset::Open(connection_, tokenizer_, std::move(options), {});
  }
  static DatasetOptions Options(std::string url, Mode mode = Mode::kPack, std::uint64_t window = 64) {
    return {.sources = {{std::move(url), 1.0}}, .sequence_length = 32, .mode = mode, .shuffle_window = window};
  }

  /// The rows of an epoch, inputs and labels one after the other.
  static std::vector<std::vector<TokenId>> Rows(Dataset& dataset, std::uint64_t epoch) {
    std::vector<std::vector<TokenId>> rows;
    std::size_t length = dataset.options().sequence_length;
    for (std::uint64_t i = 0; i < dataset.samples_per_epoch(); ++i) {
      std::vector<TokenId> row(2 * length);
      auto read = dataset.ReadSample(epoch, i, std::span(row).first(length), std::span(row).last(length));
      if (!read) ADD_FAILURE() << read.error().ToString();
      rows.push_back(std::move(row));
    }
    return rows;
  }

  /// The stream of an epoch put together again: all inputs, and the last label.
  static std::vector<TokenId> Stream(Dataset& dataset, std::uint64_t epoch) {
    std::vector<TokenId> stream;
    auto rows = Rows(dataset, epoch);
    std::size_t length = dataset.options().sequence_length;
    for (const auto& row : rows) stream.insert(stream.end(), row.begin(), row.begin() + length);
    stream.push_back(rows.back().back());
    return stream;
  }

  /// Cuts a stream at BOS and EOS into texts; the last may be cut short.
  std::vector<std::string> Texts(const std::vector<TokenId>& stream) {
    std::vector<std::string> texts;
    std::vector<TokenId> open;
    for (std::size_t i = 0; i < stream.size(); ++i) {
      if (stream[i] == 1) {
        EXPECT_TRUE(i == 0 || stream[i - 1] == 2) << "BOS follows EOS";
        open.clear();
      } else if (stream[i] == 2) {
        texts.push_back(tokenizer_->Decode(open).value());
      } else {
        open.push_back(stream[i]);
      }
    }
    if (stream.back() != 2) texts.push_back(tokenizer_->Decode(open).value());
    return texts;
  }

  std::shared_ptr<object::Store> store_;
  testing::TestConnection connection_;
  std::shared_ptr<const tokenizer::Tokenizer> tokenizer_ = std::make_shared<ByteTokenizer>();
};

/// Packing as one would write it down: join, cut, shift.
TEST_F(DatasetTest, PacksAsTheDefinitionSays) {
  auto texts = MakeTexts("a", 200, 90, 1);
  PutText(*store_, "a.jsonl", ToJsonl(texts));
  auto dataset = Open(Options("s3://corpus/a.jsonl", Mode::kPack, 0)).value();
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
  auto dataset = Open(Options("s3://corpus/a.jsonl", Mode::kPad, 0)).value();
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
  auto dataset = Open(Options("s3://corpus/a.jsonl", Mode::kPad, 1000)).value();
  std::vector<std::string> seen;
  for (const auto& row : Rows(*dataset, 1)) seen.push_back(tokenizer_->Decode(std::span(row).first(32)).value());
  EXPECT_NE(seen, texts);
  std::ranges::sort(seen);
  std::ranges::sort(texts);
  EXPECT_EQ(seen, texts);
}

/// A row as one would write it down: tokens with the marks of their documents, joined, cut and shifted.
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
  Row row{.inputs = values.inputs, .labels = values.labels, .positions = values.positions};
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
    auto options = Options("s3://corpus/a.jsonl", Mode::kPack, 0);
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
  auto options = Options("s3://corpus/a.jsonl", Mode::kPad, 0);
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
    auto options = Options("s3://corpus/d/", Mode::kPad, 1000);
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
        // What the row holds, from its tokens alone: the last one may only be a label.
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
  auto options = Options("s3://corpus/a.jsonl", Mode::kSft, 0);
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

/// The parts have no record in common and miss none; which part a record is in depends on what it says alone.
TEST_F(DatasetTest, HeldOutRecordsStayHeldOutWhereverTheyGo) {
  auto texts = MakeTexts("a", 3000, 20, 1);
  PutText(*store_, "one/a.jsonl", ToJsonl(texts));
  auto part_of = [&](const std::string& url, Part part, Mode mode = Mode::kPad, std::uint64_t seed = 1) {
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
  auto train = texts_of(*part_of("s3://corpus/one/", Part::kTrain));
  auto held = texts_of(*part_of("s3://corpus/one/", Part::kHeldOut));
  EXPECT_NEAR(static_cast<double>(held.size()), 300, 5 * 17);
  std::multiset<std::string> both = train;
  both.insert(held.begin(), held.end());
  EXPECT_EQ(both, std::multiset<std::string>(texts.begin(), texts.end()));
  EXPECT_NE(texts_of(*part_of("s3://corpus/one/", Part::kHeldOut, Mode::kPad, 2)), held) << "another seed";

  // The same records in another order, in other files, with other fields, and more of them.
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
  for (const std::string& text : texts_of(*part_of("s3://corpus/other/", Part::kHeldOut))) {
    if (text.starts_with("a-")) moved.insert(text);
  }
  EXPECT_EQ(moved, held);

  std::uint64_t tokens = 0;
  for (const std::string& text : held) tokens += text.size() + 2;
  EXPECT_EQ(part_of("s3://corpus/one/", Part::kHeldOut, Mode::kPack)->samples_per_epoch(), (tokens - 1) / 32);
  auto none = Options("s3://corpus/one/");
  none.split.part = Part::kHeldOut;
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
  auto options = Options("s3://corpus/a.jsonl", Mode::kPad);
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

TEST_F(DatasetTest, BrokenRecordsAreSkippedAndCounted) {
  std::string lines = "\n  \nnot json\n" + testing::RecordLine("T", "one") + "{\"text\":\"no title\"}\n" +
                      testing::RecordLine("U", "two") + "{\"title\":\"\xFF\",\"text\":\"x\"}\n" +
                      "{\"title\":1,\"text\":\"x\"}";
  PutText(*store_, "a.jsonl", lines);
  auto options = Options("s3://corpus/a.jsonl", Mode::kPad, 0);
  options.template_text = "{title}={text}";
  auto dataset = Open(options).value();
  EXPECT_EQ(dataset->records(), 2u);
  EXPECT_EQ(dataset->broken_records(), 4u);
  auto rows = Rows(*dataset, 0);
  EXPECT_EQ(tokenizer_->Decode(std::span(rows[0]).first(32)).value(), "T=one");
  EXPECT_EQ(tokenizer_->Decode(std::span(rows[1]).first(32)).value(), "U=two");

  DocumentForm form = DocumentForm::Make(options).value();
  auto resolved = ResolveSources(connection_, options.sources).value();
  auto indexes = LoadOrBuildIndexes(connection_, resolved.objects, {.form = &form}, {}).value();
  ASSERT_EQ(indexes[0].broken().size(), 4u);
  EXPECT_EQ(indexes[0].broken()[0], (BrokenLine{4, Broken::kNotJson}));
  EXPECT_EQ(indexes[0].broken()[1].reason, Broken::kMissingField);
  EXPECT_EQ(indexes[0].broken()[2].reason, Broken::kNotUtf8);
  EXPECT_EQ(indexes[0].broken()[3].reason, Broken::kNotText);
}

/// Parts of 4 MiB meet inside lines, at their ends, and inside a line longer than any record may be.
TEST_F(DatasetTest, LinesAreFoundWhereverPartsMeet) {
  std::vector<std::string> texts;
  std::string lines;
  auto add = [&](std::size_t line_bytes) {
    std::string text = fmt::format("{}:", texts.size());
    text.resize(line_bytes - std::string_view("{\"text\":\"\"}\n").size(), 'a');
    lines += fmt::format("{{\"text\":\"{}\"}}\n", text);
    texts.push_back(text);
  };
  for (int i = 0; i < 100; ++i) add(42'001);
  add(4 * kMiB - lines.size() % (4 * kMiB));  // ends exactly where a part does
  add(100);
  add(6 * kMiB);  // spans a whole part
  add(100);
  lines += std::string(kMaxRecordBytes + 5 * kMiB, 'z') + "\n";
  add(100);
  PutText(*store_, "a.jsonl", lines);
  auto dataset = Open(Options("s3://corpus/a.jsonl", Mode::kPad, 0)).value();
  EXPECT_EQ(dataset->records(), texts.size());
  EXPECT_EQ(dataset->broken_records(), 1u);
  RecordTemplate record_template = RecordTemplate::Parse("{text}").value();
  std::vector<Source> sources = {{"s3://corpus/a.jsonl"}};
  auto reader = DocumentReader::Open(connection_, sources, record_template).value();
  std::string document;
  for (const std::string& text : texts) {
    ASSERT_TRUE(reader.Next(document).value());
    ASSERT_EQ(document, text);
  }
  EXPECT_FALSE(reader.Next(document).value());
  EXPECT_EQ(reader.broken(), 1u);
  std::size_t i = 0;
  for (const auto& row : Rows(*dataset, 0)) {
    ASSERT_EQ(tokenizer_->Decode(std::span(row).first(32)).value(), texts[i].substr(0, 31)) << i;
    ++i;
  }
}

class IndexReuse : public DatasetTest {
 protected:
  void SetUp() override {
    DatasetTest::SetUp();
    faults_ = object::FaultStore::Create(store_);
    connection_["corpus"] = faults_;
    PutText(*store_, "wiki/a.jsonl", ToJsonl(MakeTexts("a", 100, 50, 1)));
    PutText(*store_, "wiki/b.jsonl", ToJsonl(MakeTexts("b", 100, 50, 2)));
  }
  /// Ranged reads that Open needed, beyond those of the two indexes.
  std::uint64_t PartsRead() {
    std::uint64_t before = faults_->calls(object::Operation::kPut);
    EXPECT_TRUE(Open(Options("s3://corpus/wiki/")).has_value());
    return faults_->calls(object::Operation::kPut) - before;
  }
  std::vector<std::string> Keys() {
    std::vector<std::string> keys;
    object::ListPage page = object::List(*store_, {}).value();
    for (const object::ObjectInfo& info : page.objects) keys.push_back(info.key);
    return keys;
  }
  std::shared_ptr<object::FaultStore> faults_;
};

TEST_F(IndexReuse, IsBuiltOncePerVersionAndView) {
  EXPECT_EQ(PartsRead(), 2u) << "indexes built";
  EXPECT_EQ(PartsRead(), 0u) << "found beside the data";
  EXPECT_EQ(Keys().size(), 4u);
  PutText(*store_, "wiki/b.jsonl", ToJsonl(MakeTexts("c", 50, 50, 3)));
  EXPECT_EQ(PartsRead(), 1u) << "another version of one object";
  EXPECT_EQ(Open(Options("s3://corpus/wiki/")).value()->records(), 150u);
  tokenizer_ = std::make_shared<ByteTokenizer>(1, 2, "other");
  EXPECT_EQ(PartsRead(), 2u) << "another tokenizer";
}

TEST_F(IndexReuse, DamageIsRepaired) {
  EXPECT_EQ(PartsRead(), 2u);
  std::string index_key;
  for (const std::string& key : Keys()) {
    if (key.find(".millrace/") != key.npos) index_key = key;
  }
  std::string bytes = object::GetAll(*store_, index_key, kGiB).value()->bytes;
  bytes[bytes.size() / 2] ^= 1;
  PutText(*store_, index_key, bytes);
  EXPECT_EQ(PartsRead(), 1u);
  EXPECT_EQ(PartsRead(), 0u);
}

TEST_F(IndexReuse, ReadOnlyDataAreUsedAllTheSame) {
  faults_->Add({.operation = object::Operation::kPut, .times = -1, .fault = {.code = Code::kPermissionDenied}});
  EXPECT_EQ(Open(Options("s3://corpus/wiki/")).value()->records(), 200u);
  EXPECT_EQ(Keys().size(), 2u);
  connection_["cache"] = object::MakeMemoryStore();
  auto options = Options("s3://corpus/wiki/");
  options.cache_url = "s3://cache/indexes";
  EXPECT_EQ(Open(options).value()->records(), 200u);
  EXPECT_EQ(object::List(*connection_["cache"], {.prefix = "indexes/index/"}).value().objects.size(), 2u);
}

TEST_F(IndexReuse, FailuresOfTheStoreSurfaceAndLeaveNothingWrong) {
  for (Code code : {Code::kUnavailable, Code::kPermissionDenied}) {
    for (int skip = 0; skip < 4; ++skip) {
      faults_->Clear();
      faults_->Add({.operation = object::Operation::kGet, .skip = skip, .fault = {.code = code}});
      auto opened = Open(Options("s3://corpus/wiki/"));
      if (!opened) {
        EXPECT_EQ(opened.error().code(), code);
      }
    }
  }
  faults_->Clear();
  EXPECT_EQ(Open(Options("s3://corpus/wiki/")).value()->records(), 200u);
}

TEST_F(IndexReuse, AChangeUnderARunIsNoticed) {
  auto dataset = Open(Options("s3://corpus/wiki/a.jsonl")).value();
  PutText(*store_, "wiki/a.jsonl", ToJsonl(MakeTexts("z", 100, 50, 1)));
  std::vector<TokenId> row(64);
  auto read = dataset->ReadSample(0, 0, std::span(row).first(32), std::span(row).last(32));
  EXPECT_EQ(read.error().code(), Code::kStale);
}

TEST_F(IndexReuse, ATokenizerThatCountsDifferentlyIsNoticed) {
  /// Claims to be the tokenizer that the index was made with.
  struct Liar final : ByteTokenizer {
    Status Encode(std::string_view text, std::vector<TokenId>& ids) const override {
      ids.push_back(5);
      return ByteTokenizer::Encode(text, ids);
    }
  };
  ASSERT_TRUE(Open(Options("s3://corpus/wiki/")).has_value());
  tokenizer_ = std::make_shared<Liar>();
  auto dataset = Open(Options("s3://corpus/wiki/")).value();
  std::vector<TokenId> row(64);
  auto read = dataset->ReadSample(0, 0, std::span(row).first(32), std::span(row).last(32));
  EXPECT_EQ(read.error().code(), Code::kCorrupt);
}

/// A mount that is told the order can have the files at hand in time.
TEST_F(DatasetTest, SmallFilesAreAnnouncedOnceInTheOrderOfReading) {
  std::set<std::string> small;
  for (int i = 0; i < 50; ++i) {
    std::string key = fmt::format("d/small-{:02}.jsonl", i);
    PutText(*store_, key, fmt::format("{{\"text\":\"{}\"}}\n", std::string(200, static_cast<char>('a' + i % 26))));
    small.insert(std::move(key));
  }
  std::string large;
  for (int i = 0; i < 3'000; ++i) large += fmt::format("{{\"text\":\"{:0400}\"}}\n", i);
  PutText(*store_, "d/large.jsonl", large);
  auto store = object::FaultStore::Create(store_);
  connection_["corpus"] = store;
  auto dataset = *Open(Options("s3://corpus/d/"));
  auto reader = dataset->NewReader(dataset->reader_needs().best, 1);
  std::vector<TokenId> inputs(32), labels(32);
  auto read_epoch = [&](std::uint64_t epoch) {
    for (std::uint64_t i = 0; i < dataset->samples_per_epoch(); ++i) {
      Row row{.inputs = inputs, .labels = labels};
      ASSERT_TRUE(reader->Read(epoch, i, row, {}).has_value());
    }
  };
  read_epoch(0);
  auto announced = store->announced();
  ASSERT_GE(announced.size(), small.size());
  announced.resize(small.size());  // what follows is of the next epoch
  EXPECT_EQ(std::set(announced.begin(), announced.end()), small);
  EXPECT_FALSE(std::ranges::is_sorted(announced));
}

/// The same documents, however they are stored: same tokens in the same order where nothing is shuffled, and nothing is
/// lost where it is; also through an index that was kept.
TEST_F(DatasetTest, CompressionChangesNothing) {
  auto texts = MakeTexts("a", 3000, 6000, 3);
  std::string lines = ToJsonl(texts), plain;
  for (const std::string& text : texts) plain += text + "\n";
  PutText(*store_, "plain.jsonl", lines);
  PutText(*store_, "one.jsonl.gz", testing::Gzip(lines, 1));
  Random random(1);
  PutText(*store_, "many.jsonl.zst",
          testing::InPieces(random, lines, 1 << 20, [](std::string_view t) { return testing::Zstd(t, 1); }));
  PutText(*store_, "lines.txt", plain);
  auto stream = [&](std::string url, std::string format, std::uint64_t window) {
    DatasetOptions options = Options(std::move(url), Mode::kPack, window);
    options.sources[0].format = std::move(format);
    options.sequence_length = 2048;
    auto dataset = Open(options).value();
    EXPECT_EQ(dataset->records(), texts.size());
    return Stream(*dataset, 0);
  };
  const std::vector<TokenId> expected = stream("s3://corpus/plain.jsonl", "", 0);
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(stream("s3://corpus/one.jsonl.gz", "", 0), expected);
    EXPECT_EQ(stream("s3://corpus/many.jsonl.zst", "", 0), expected);
    EXPECT_EQ(stream("s3://corpus/lines.txt", "lines", 0), expected);
  }
  auto shuffled = Texts(stream("s3://corpus/one.jsonl.gz", "", 5000));
  std::set<std::string> all(texts.begin(), texts.end());
  EXPECT_GE(shuffled.size(), texts.size() - 1);
  shuffled.pop_back();
  for (const std::string& text : shuffled) EXPECT_TRUE(all.contains(text));
}

TEST_F(DatasetTest, AFolderIsReadForWhatHoldsRecords) {
  PutText(*store_, "set/a.jsonl", ToJsonl({"one"}));
  PutText(*store_, "set/sub/b.json.gz", testing::Gzip(ToJsonl({"two"})));
  for (std::string_view other : {"README.md", "dataset_info.json", "_SUCCESS", ".hidden", "sub/LICENSE"}) {
    PutText(*store_, fmt::format("set/{}", other), "not records");
  }
  EXPECT_EQ(Open(Options("s3://corpus/set/", Mode::kPad)).value()->records(), 2u);
  EXPECT_EQ(Open(Options("s3://corpus/set/*", Mode::kPad)).value()->records(), 2u);
  EXPECT_EQ(Open(Options("s3://corpus/set/*.md", Mode::kPad)).error().code(), Code::kCorrupt) << "as asked for";
}

/// Whatever the sources are, and also when nobody reads on to the end.
TEST_F(DatasetTest, DocumentsOfEveryFormatAreReadFrontToBack) {
  auto texts = MakeTexts("d", 2000, 6000, 5);
  std::string lines = ToJsonl(texts);
  std::size_t half = lines.find('\n', lines.size() / 2) + 1;
  PutText(*store_, "set/1.jsonl", lines.substr(0, half));
  PutText(*store_, "set/2.jsonl.gz", testing::Gzip(lines.substr(half), 1));
  PutText(*store_, "set/3.jsonl.zst", testing::Zstd("nonsense\n\n" + ToJsonl({"last"}), 1));
  texts.emplace_back("last");
  RecordTemplate form = RecordTemplate::Parse("{text}").value();
  std::vector<Source> sources = {{"s3://corpus/set/"}};
  auto reader = DocumentReader::Open(connection_, sources, form).value();
  std::string document;
  for (const std::string& text : texts) {
    ASSERT_TRUE(reader.Next(document).value());
    ASSERT_EQ(document, text);
  }
  EXPECT_FALSE(reader.Next(document).value());
  EXPECT_FALSE(reader.Next(document).value());
  EXPECT_EQ(reader.documents(), texts.size());
  EXPECT_EQ(reader.broken(), 1u);
  auto abandoned = DocumentReader::Open(connection_, sources, form).value();
  EXPECT_TRUE(abandoned.Next(document).value());
}

TEST_F(DatasetTest, ADamagedObjectFailsByNameAndTheOthersKeepTheirIndexes) {
  std::string packed = testing::Gzip(ToJsonl(MakeTexts("d", 300, 600, 5)));
  PutText(*store_, "set/a.jsonl.gz", packed);
  PutText(*store_, "set/z.jsonl.gz", packed.substr(0, packed.size() / 2));
  DatasetOptions options = Options("s3://corpus/set/", Mode::kPad);
  options.threads = 1;  // one object after the other
  auto failed = Open(options);
  ASSERT_FALSE(failed.has_value());
  EXPECT_EQ(failed.error().code(), Code::kCorrupt);
  EXPECT_THAT(failed.error().ToString(),
              ::testing::HasSubstr(
                  fmt::format("s3://corpus/set/z.jsonl.gz: gzip data are cut off at byte {}", packed.size() / 2)));
  auto kept = object::List(*store_, {.prefix = "set/.millrace/"}).value().objects;
  ASSERT_EQ(kept.size(), 1u);
  EXPECT_TRUE(kept[0].key.starts_with("set/.millrace/a.jsonl.gz."));
  RecordTemplate form = RecordTemplate::Parse("{text}").value();
  std::vector<Source> sources = {{"s3://corpus/set/z.jsonl.gz"}};
  auto reader = DocumentReader::Open(connection_, sources, form).value();
  std::string document;
  Result<bool> more = true;
  while (more && *more) more = reader.Next(document);
  ASSERT_FALSE(more.has_value());
  EXPECT_EQ(more.error().code(), Code::kCorrupt);
  EXPECT_EQ(reader.Next(document).error().code(), Code::kCorrupt) << "and stays so";
}

TEST_F(DatasetTest, AListNamesWhatIsRead) {
  for (std::string_view name : {"a", "b", "c"})
    PutText(*store_, fmt::format("set/{}.jsonl", name), ToJsonl({std::string(name)}));
  PutText(*store_, "set/list.txt", "# in this order\n\nc.jsonl\r\n  s3://corpus/set/a.jsonl \n?.jsonl\n");
  auto dataset = Open(Options("@s3://corpus/set/list.txt", Mode::kPad, 0)).value();
  std::string order;
  for (const auto& row : Rows(*dataset, 0)) order += static_cast<char>(row[1] - 3);
  EXPECT_EQ(order, "cab");
  EXPECT_EQ(Open(Options("@s3://corpus/set/none.txt")).error().code(), Code::kNotFound);
  PutText(*store_, "set/bad.txt", "a.jsonl\nmissing.jsonl\n");
  EXPECT_THAT(Open(Options("@s3://corpus/set/bad.txt")).error().ToString(), ::testing::HasSubstr("missing.jsonl"));
}

TEST_F(DatasetTest, BrokenRecordsAreSkippedUpToALimitAndThenNamed) {
  std::string lines;
  for (int i = 0; i < 300; ++i) lines += i % 2 ? "nonsense\n" : ToJsonl({fmt::format("text {}", i)});
  PutText(*store_, "a.jsonl", lines);
  PutText(*store_, "b.jsonl.gz", testing::Gzip(lines));
  DatasetOptions options = Options("s3://corpus/a.jsonl", Mode::kPad);
  auto refused = Open(options);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), Code::kCorrupt);
  EXPECT_THAT(
      refused.error().ToString(),
      ::testing::HasSubstr("150 of 300 records cannot be used, and 100 are allowed: s3://corpus/a.jsonl at byte 18 "
                           "not_json; s3://corpus/a.jsonl at byte "));
  options.max_broken = 149;
  EXPECT_FALSE(Open(options).has_value()) << "the kept index counts as well";
  options.max_broken = 150;
  EXPECT_EQ(Open(options).value()->broken_records(), 150u);
  options.sources[0].url = "s3://corpus/b.jsonl.gz";
  options.max_broken = 0;
  EXPECT_THAT(Open(options).error().ToString(), ::testing::HasSubstr("at byte 18 of what it decodes to not_json"));
}

TEST_F(DatasetTest, SaysWhatIsWrongWithTheSources) {
  PutText(*store_, "a.jsonl", ToJsonl({"one", "two"}));
  PutText(*store_, "b.jsonl.bz2", "x");
  PutText(*store_, "broken.jsonl", "nonsense\n");
  EXPECT_EQ(Open(Options("s3://corpus/none.jsonl")).error().code(), Code::kNotFound);
  EXPECT_EQ(Open(Options("s3://corpus/none/*.jsonl")).error().code(), Code::kNotFound);
  EXPECT_EQ(Open(Options("s3://corpus/b.jsonl.bz2")).error().code(), Code::kUnsupported);
  EXPECT_EQ(Open(Options("s3://corpus/broken.jsonl")).error().code(), Code::kCorrupt);
  DatasetOptions none = Options("x");
  none.sources.clear();
  EXPECT_EQ(Open(none).error().code(), Code::kInvalidArgument);
  tokenizer_ = std::make_shared<ByteTokenizer>(1, tokenizer::kNoToken);
  EXPECT_EQ(Open(Options("s3://corpus/a.jsonl")).error().code(), Code::kInvalidArgument) << "packing needs EOS";
}

TEST_F(DatasetTest, FingerprintFollowsContentNotPlace) {
  PutText(*store_, "a.jsonl", ToJsonl({"some text that fills a sequence of thirty-two tokens", "two"}));
  std::string base = Open(Options("s3://corpus/a.jsonl")).value()->fingerprint();
  EXPECT_EQ(Open(Options("s3://corpus/*.jsonl")).value()->fingerprint(), base);
  auto changed = [&](auto change) {
    DatasetOptions options = Options("s3://corpus/a.jsonl");
    change(options);
    return Open(options).value()->fingerprint();
  };
  EXPECT_NE(changed([](auto& o) { o.shuffle_seed = 9; }), base);
  EXPECT_NE(changed([](auto& o) { o.shuffle_window = 9; }), base);
  EXPECT_NE(changed([](auto& o) { o.sequence_length = 16; }), base);
  EXPECT_NE(changed([](auto& o) { o.mode = Mode::kPad; }), base);
  EXPECT_NE(changed([](auto& o) { o.template_text = "{text}\n"; }), base);
  EXPECT_NE(changed([](auto& o) { o.sources[0].weight = 2; }), base);
  EXPECT_EQ(changed([](auto& o) { o.threads = 7; }), base);
  PutText(*store_, "a.jsonl", ToJsonl({"some text that fills a sequence of thirty-two tokens", "2.0"}));
  EXPECT_NE(Open(Options("s3://corpus/a.jsonl")).value()->fingerprint(), base);
}

TEST_F(DatasetTest, CancellingStopsTheBuild) {
  PutText(*store_, "a.jsonl", ToJsonl(MakeTexts("a", 100, 50, 1)));
  std::stop_source stop;
  stop.request_stop();
  auto opened = Dataset::Open(connection_, tokenizer_, Options("s3://corpus/a.jsonl"), {}, {.stop = stop.get_token()});
  EXPECT_EQ(opened.error().code(), Code::kCancelled);
}

}  // namespace
}  // namespace millrace::data
