// Rows of sequence classification, from JSON lines and from GLUE's TSV files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "millrace/data/loader.h"
#include "millrace/data/reading/bert_sampler.h"
#include "millrace/data/testing/bert_fixture.h"
#include "millrace/data/testing/stored_object.h"

namespace millrace::data {
namespace {

using testing::BertRow;
using testing::BertTest;
using testing::PutText;

class Classification : public BertTest {
 protected:
  static DatasetOptions Labelled(std::string url, int length = 12) {
    return {.sources = {{std::move(url), 1.0}},
            .sequence_length = length,
            .objective = Objective::kClassification,
            .shuffle_window = 0};
  }
};

TEST_F(Classification, ReadsGluesFiles) {
  PutText(*store_, "sst2/train.tsv",
          "sentence\tlabel\nthe cat \"sat on\t0\r\nred dog\t1\n\nthe dog\t1\textra\nno label\t\ncat {\\\t0");
  auto dataset = Open(Labelled("s3://corpus/sst2/")).value();
  EXPECT_EQ(dataset->samples_per_epoch(), 3u);
  EXPECT_EQ(dataset->broken_records(), 2u);
  auto row = Read(*dataset, 0, 0);
  EXPECT_EQ(row.words, "[CLS] the cat [UNK] sat on [SEP] [PAD] [PAD] [PAD] [PAD] [PAD]");
  EXPECT_EQ(row.row_label, 0);
  EXPECT_EQ(row.length, 7);
  EXPECT_THAT(row.labels, ::testing::Each(kIgnoreLabel));
  EXPECT_THAT(row.segments, ::testing::Each(0));
  EXPECT_EQ(row.positions, (std::vector<std::int32_t>{0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4}));
  row = Read(*dataset, 0, 1);
  EXPECT_EQ(row.words, "[CLS] red dog [SEP] [PAD] [PAD] [PAD] [PAD] [PAD] [PAD] [PAD] [PAD]");
  EXPECT_EQ(row.row_label, 1);
  EXPECT_THAT(Read(*dataset, 0, 2).words, ::testing::StartsWith("[CLS] cat [UNK] [UNK] [SEP] [PAD]"));
}

TEST_F(Classification, ReadsPairsWithNamedClasses) {
  PutText(*store_, "rte.jsonl",
          R"({"premise":"the cat sat on the mat","hypothesis":"the red dog ran","label":"not_entailment"}
{"premise":"the","hypothesis":"cat","label":"entailment"}
{"premise":"the","hypothesis":"cat","label":"perhaps"}
{"premise":"the the the the the the the the the the the the the the","hypothesis":"cat cat cat cat cat cat cat cat cat cat cat cat","label":"entailment"}
{"premise":"the","label":"entailment"}
)");
  auto options = Labelled("s3://corpus/rte.jsonl", 10);
  options.classification = {
      .text = "premise", .pair = "hypothesis", .label = "label", .classes = {"entailment", "not_entailment"}};
  auto dataset = Open(options).value();
  EXPECT_EQ(dataset->samples_per_epoch(), 3u);
  EXPECT_EQ(dataset->broken_records(), 2u);
  auto row = Read(*dataset, 0, 0);
  // Seven tokens of text: both texts have the same number, and what is left over goes to the longer one.
  EXPECT_EQ(row.words, "[CLS] the cat sat on [SEP] the red dog [SEP]");
  EXPECT_EQ(row.segments, (std::vector<std::int32_t>{0, 0, 0, 0, 0, 0, 1, 1, 1, 1}));
  EXPECT_EQ(row.row_label, 1);
  row = Read(*dataset, 0, 1);
  EXPECT_EQ(row.words, "[CLS] the [SEP] cat [SEP] [PAD] [PAD] [PAD] [PAD] [PAD]");
  EXPECT_EQ(row.segments, (std::vector<std::int32_t>{0, 0, 0, 1, 1, 0, 0, 0, 0, 0}));
  EXPECT_EQ(row.row_label, 0);
  EXPECT_EQ(Read(*dataset, 0, 2).words, "[CLS] the the the the [SEP] cat cat cat [SEP]") << "both longer than the row";
}

TEST_F(Classification, ShortensTheLongerTextFirst) {
  for (std::size_t a = 0; a < 12; ++a) {
    for (std::size_t b = 0; b < 12; ++b) {
      for (std::size_t room = 2; room < 24; ++room) {
        auto [first, second] = ShortenPair(a, b, room);
        ASSERT_EQ(first + second, std::min(a + b, room));
        ASSERT_LE(first, a);
        ASSERT_LE(second, b);
        // A text that is cut is as long as the other one, to a token.
        if (first < a) {
          ASSERT_GE(first + 1, second) << a << " " << b << " " << room;
        }
        if (second < b) {
          ASSERT_GE(second + 1, first) << a << " " << b << " " << room;
        }
      }
    }
  }
}

TEST_F(Classification, BatchesCountRowsAndKeepPaddingApart) {
  PutText(*store_, "a.tsv", "sentence\tlabel\nthe cat\t1\nthe red dog\t0\nthe cat sat on the red mat\t2\n");
  auto dataset = Open(Labelled("s3://corpus/a.tsv", 6)).value();
  MemoryBudget budget(kGiB);
  auto loader = Loader::Start(dataset, budget, {.global_batch = 3, .micro_batch = 3}, {}).value();
  Batch batch = loader->Next().value();
  EXPECT_EQ(batch.row_labels, (std::vector<std::int32_t>{1, 0, 2}));
  EXPECT_EQ(batch.loss_rows, 3u);
  EXPECT_EQ(batch.loss_tokens, 0u);
  EXPECT_EQ(batch.lengths, (std::vector<std::int32_t>{4, 5, 6}));
  EXPECT_EQ(batch.cu_seqlens, (std::vector<std::int32_t>{0, 4, 6, 11, 12, 18}));
  EXPECT_EQ(batch.segments.size(), batch.inputs.size());
}

TEST_F(Classification, TheHeldOutPartIsApart) {
  std::string lines = "sentence\tlabel\n";
  for (int i = 0; i < 400; ++i) lines += fmt::format("the {} cat\t{}\n", i, i % 3);
  PutText(*store_, "a.tsv", lines);
  auto options = Labelled("s3://corpus/a.tsv");
  options.split.held_out = 0.25;
  auto train = Open(options).value();
  options.split.part = SplitPart::kHeldOut;
  auto held = Open(options).value();
  EXPECT_EQ(train->records() + held->records(), 400u);
  EXPECT_NEAR(static_cast<double>(held->records()), 100, 30);
  EXPECT_NE(train->fingerprint(), held->fingerprint());
}

/// As transformers' tokenizer of GPT-2 makes them: no special tokens, and two texts without anything between them.
TEST_F(Classification, RowsOfDecodersAreTextAndPadding) {
  PutText(*store_, "a.jsonl", R"({"sentence":"abc","other":"xy","label":1}
{"sentence":"abcdefgh","other":"xy","label":0}
)");
  auto options = Labelled("s3://corpus/a.jsonl", 8);
  tokenizer_ = std::make_shared<testing::ByteTokenizer>();
  const auto row_of = [&](std::uint64_t sample) { return Read(*Open(options).value(), 0, sample); };
  const auto text = [&](std::string_view letters, std::size_t padding) {
    std::vector<TokenId> ids;
    EXPECT_TRUE(tokenizer_->Encode(letters, ids));
    ids.insert(ids.end(), padding, tokenizer_->eos());
    return ids;
  };
  EXPECT_EQ(row_of(0).inputs, text("abc", 5));
  EXPECT_EQ(row_of(0).length, 3);
  EXPECT_EQ(row_of(0).positions, (std::vector<std::int32_t>{0, 1, 2, 0, 1, 2, 3, 4}));
  EXPECT_EQ(row_of(1).inputs, text("abcdefgh", 0));
  options.classification.pair = "other";
  EXPECT_EQ(row_of(0).inputs, text("abcxy", 3));
  EXPECT_EQ(row_of(1).inputs, text("abcdefxy", 0));
}

TEST_F(Classification, NeedsATokenizerOfABert) {
  PutText(*store_, "a.tsv", "sentence\tlabel\nthe cat\t1\n");
  auto options = Labelled("s3://corpus/a.tsv");
  options.objective = Objective::kMlm;
  options.template_text = "{sentence}";
  auto opened = Dataset::Open(connection_, std::make_shared<testing::ByteTokenizer>(), options, {});
  ASSERT_FALSE(opened);
  EXPECT_THAT(opened.error().ToString(), ::testing::HasSubstr("[CLS]"));
  opened = Open(Labelled("s3://corpus/a.tsv", 2));
  ASSERT_FALSE(opened);
  EXPECT_THAT(opened.error().ToString(), ::testing::HasSubstr("no room"));
}

TEST_F(Classification, ALongFirstLineIsNoHeader) {
  PutText(*store_, "a.tsv", std::string(20'000, 'x'));
  auto opened = Open(Labelled("s3://corpus/a.tsv"));
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code(), Code::kUnsupported);
}

/// The records of a large file are the same wherever its frames begin.
TEST_F(Classification, FramesBehindTheFirstKnowTheHeader) {
  std::string lines = "sentence\tlabel\n", expected;
  Random random(3);
  for (int i = 0; lines.size() < 9 << 20; ++i) {
    const std::string text(1 + random.Below(3000), 'a');
    lines += fmt::format("{}\t{}\n", text, i);
    expected += fmt::format("{{\"sentence\":\"{}\",\"label\":\"{}\"}}\n", text, i);
  }
  testing::StoredObject stored(lines, {.layout = RecordLayout::kTsv, .field = "sentence\tlabel"});
  EXPECT_GE(testing::FindAll(*stored.object.content).value().frames.size(), 2u);
  EXPECT_TRUE(testing::ReadBack(*stored.object.content) == expected);
}

}  // namespace
}  // namespace millrace::data
