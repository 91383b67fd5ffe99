// Samples of BERT's pre-training, made of text.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "millrace/data/loader.h"
#include "millrace/data/testing/bert_fixture.h"

namespace millrace::data {
namespace {

using testing::BertRow;
using testing::BertTest;
using testing::PutText;

constexpr int kDocuments = 60;
constexpr TokenId kPad = 0, kCls = 2, kSep = 3, kMask = 4;

/// A corpus in which nearly every token tells its document and its place there. Words end in up to two more pieces,
/// and some are followed by a full stop.
class Mlm : public BertTest {
 protected:
  void SetUp() override {
    BertTest::SetUp();
    std::string vocabulary = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n.\n##k\n##m\n", lines;
    constexpr TokenId kStop = 5, kFirstPiece = 6, kSecondPiece = 7;
    Random random(5);
    TokenId next = 8;
    for (int d = 0; d < kDocuments; ++d) {
      std::vector<TokenId>& tokens = documents_.emplace_back();
      std::string text;
      for (std::uint64_t n = 1 + random.Below(d % 7 == 0 ? 4 : 150), i = 0; i < n; ++i) {
        const std::string word = fmt::format("d{}x{}", d, i);
        vocabulary += word + "\n";
        text += (i > 0 ? " " : "") + word;
        places_[next] = {static_cast<std::size_t>(d), tokens.size()};
        tokens.push_back(next++);
        for (std::uint64_t pieces = random.Below(6); pieces >= 4; --pieces) {
          const bool first = tokens.back() >= 8;
          tokens.push_back(first ? kFirstPiece : kSecondPiece);
          text += first ? "k" : "m";
        }
        if (random.Below(8) == 0) {
          tokens.push_back(kStop);
          text += '.';
        }
      }
      lines += testing::ToJsonl({text});
    }
    vocab_size_ = next;
    tokenizer_ = tokenizer::Load(AsBytes(vocabulary), "vocab.txt").value();
    PutText(*store_, "wiki.jsonl", lines);
  }

  static DatasetOptions Masked(int length = 48, std::uint64_t window = 1000) {
    return {.sources = {{"s3://corpus/wiki.jsonl", 1.0}},
            .sequence_length = length,
            .objective = Objective::kMlm,
            .mlm = {.short_sequences = 0},
            .shuffle_window = window};
  }

  /// The texts of a row with its hidden tokens.
  struct Texts {
    std::vector<TokenId> a, b;
  };
  static Texts Restore(const BertRow& row) {
    Texts texts;
    for (int i = 1, segment = 0; i < row.length; ++i) {
      const TokenId id = row.labels[i] == kIgnoreLabel ? row.inputs[i] : row.labels[i];
      if (id == kSep) {
        ++segment;
      } else {
        (segment == 0 ? texts.a : texts.b).push_back(id);
      }
    }
    return texts;
  }

  /// Returns the document that holds `text` and where, by the first token that tells. Fails if the document says
  /// something else.
  std::optional<std::pair<std::size_t, std::size_t>> Find(const std::vector<TokenId>& text) const {
    for (std::size_t i = 0; i < text.size(); ++i) {
      auto place = places_.find(text[i]);
      if (place == places_.end()) continue;
      const auto [document, at] = place->second;
      EXPECT_GE(at, i);
      const std::vector<TokenId>& whole = documents_[document];
      const bool equal = at - i + text.size() <= whole.size() &&
                         std::ranges::equal(text, std::span(whole).subspan(at - i, text.size()));
      EXPECT_TRUE(equal) << "not a run of document " << document;
      return std::pair{document, at - i};
    }
    return std::nullopt;
  }

  std::vector<BertRow> Epoch(Dataset& dataset, std::uint64_t epoch) const {
    std::vector<BertRow> rows;
    for (std::uint64_t i = 0; i < dataset.samples_per_epoch(); ++i) rows.push_back(Read(dataset, epoch, i));
    return rows;
  }

  std::vector<std::vector<TokenId>> documents_;
  std::map<TokenId, std::pair<std::size_t, std::size_t>> places_;  ///< of the tokens that occur once
  TokenId vocab_size_ = 0;
};

TEST_F(Mlm, RowsArePairsWithRightLabels) {
  auto dataset = Open(Masked()).value();
  std::uint64_t expected = 0;
  for (const auto& document : documents_) expected += (document.size() + 44) / 45;
  ASSERT_EQ(dataset->samples_per_epoch(), expected);
  std::uint64_t rows = 0, random = 0;
  for (std::uint64_t epoch = 0; epoch < 20; ++epoch) {
    for (const BertRow& row : Epoch(*dataset, epoch)) {
      ASSERT_EQ(row.inputs[0], kCls);
      ASSERT_EQ(row.inputs[row.length - 1], kSep);
      const Texts texts = Restore(row);
      ASSERT_EQ(texts.a.size() + texts.b.size() + 3, static_cast<std::size_t>(row.length));
      ASSERT_FALSE(texts.a.empty());
      ASSERT_FALSE(texts.b.empty());
      for (int i = 0; i < 48; ++i) {
        const bool second = i >= static_cast<int>(texts.a.size()) + 2 && i < row.length;
        ASSERT_EQ(row.segments[i], second ? 1 : 0);
        ASSERT_EQ(row.positions[i], i < row.length ? i : i - row.length);
        ASSERT_TRUE(i < row.length || (row.inputs[i] == kPad && row.labels[i] == kIgnoreLabel));
      }
      ++rows;
      random += static_cast<std::uint64_t>(row.row_label);
      const auto a = Find(texts.a), b = Find(texts.b);
      if (!a || !b) continue;  // a text of pieces alone does not tell
      if (row.row_label == 0) {
        ASSERT_EQ(a->first, b->first);
        ASSERT_EQ(a->second + texts.a.size(), b->second) << "b follows a";
      } else {
        ASSERT_EQ(row.row_label, 1);
        ASSERT_NE(a->first, b->first);
      }
    }
  }
  const auto n = static_cast<double>(rows);
  EXPECT_NEAR(static_cast<double>(random), n / 2, 5 * std::sqrt(n / 4));
}

TEST_F(Mlm, HidesAsManyTokensAsDevlin) {
  for (std::optional<std::uint32_t> most : {std::optional<std::uint32_t>(), std::optional<std::uint32_t>(3)}) {
    auto options = Masked();
    options.mlm.max_predictions = most;
    auto dataset = Open(options).value();
    std::uint64_t hidden = 0, masked = 0, kept = 0, replaced = 0;
    std::vector<std::uint64_t> at(48), rows_of(49);
    for (std::uint64_t epoch = 0; epoch < 20; ++epoch) {
      for (const BertRow& row : Epoch(*dataset, epoch)) {
        const auto wanted = std::clamp<long>(std::lround(0.15 * row.length), 1, static_cast<long>(most.value_or(8)));
        ASSERT_EQ(48 - std::ranges::count(row.labels, kIgnoreLabel), wanted);
        ++rows_of[row.length];
        for (int i = 0; i < row.length; ++i) {
          if (row.labels[i] == kIgnoreLabel) continue;
          ASSERT_TRUE(row.labels[i] != kCls && row.labels[i] != kSep && row.labels[i] != kPad);
          ++hidden;
          if (row.length == 48) ++at[i];
          ++(row.inputs[i] == kMask ? masked : row.inputs[i] == row.labels[i] ? kept : replaced);
        }
      }
    }
    const auto n = static_cast<double>(hidden);
    EXPECT_NEAR(static_cast<double>(masked), 0.8 * n, 5 * std::sqrt(n * 0.16));
    EXPECT_NEAR(static_cast<double>(kept), 0.1 * n, 5 * std::sqrt(n * 0.09));
    EXPECT_NEAR(static_cast<double>(replaced), 0.1 * n, 5 * std::sqrt(n * 0.09));
    // Every place of a full row is hidden equally often, but for the [SEP] somewhere between the texts.
    const auto full = static_cast<double>(rows_of[48]), share = static_cast<double>(most.value_or(7)) / 45;
    for (int i = 1; i < 47; ++i) {
      EXPECT_NEAR(static_cast<double>(at[i]), full * share, 5 * std::sqrt(full * share) + 0.1 * full * share) << i;
    }
  }
}

TEST_F(Mlm, HidesWholeWordsTogether) {
  auto options = Masked();
  options.mlm.whole_word = true;
  options.mlm.max_predictions = 6;
  auto dataset = Open(options).value();
  std::uint64_t hidden_words = 0, long_words = 0;
  for (std::uint64_t epoch = 0; epoch < 5; ++epoch) {
    for (const BertRow& row : Epoch(*dataset, epoch)) {
      ASSERT_LE(48 - std::ranges::count(row.labels, kIgnoreLabel), 6);
      for (int i = 1; i < row.length - 1; ++i) {
        const bool hidden = row.labels[i] != kIgnoreLabel, next_hidden = row.labels[i + 1] != kIgnoreLabel;
        const TokenId next = next_hidden ? row.labels[i + 1] : row.inputs[i + 1];
        const TokenId here = hidden ? row.labels[i] : row.inputs[i];
        hidden_words += hidden;
        if ((next != 6 && next != 7) || here == kSep || here == kCls) continue;  // ##k, ##m
        long_words += hidden;
        ASSERT_EQ(hidden, next_hidden) << "pieces of one word at " << i;
      }
    }
  }
  EXPECT_GT(hidden_words, 500U);
  EXPECT_GT(long_words, 50U);
}

TEST_F(Mlm, WithoutPairsAnEpochReadsEveryTokenOnce) {
  auto options = Masked(32, 0);
  options.mlm.next_sentence = false;
  auto dataset = Open(options).value();
  std::vector<TokenId> expected, read;
  for (const auto& document : documents_) expected.insert(expected.end(), document.begin(), document.end());
  for (const BertRow& row : Epoch(*dataset, 0)) {
    EXPECT_EQ(row.row_label, kIgnoreLabel);
    EXPECT_THAT(row.segments, ::testing::Each(0));
    const Texts texts = Restore(row);
    EXPECT_TRUE(texts.b.empty());
    read.insert(read.end(), texts.a.begin(), texts.a.end());
  }
  EXPECT_EQ(read, expected);
}

TEST_F(Mlm, SomeRowsAreCutToARandomLength) {
  auto options = Masked();
  options.mlm.next_sentence = false;
  auto longest = Open(options).value();
  options.mlm.short_sequences = 0.5;
  auto mixed = Open(options).value();
  ASSERT_EQ(mixed->samples_per_epoch(), longest->samples_per_epoch());
  std::uint64_t rows = 0, cut = 0;
  for (std::uint64_t i = 0; i < mixed->samples_per_epoch(); ++i) {
    const BertRow whole = Read(*longest, 0, i), row = Read(*mixed, 0, i);
    ASSERT_LE(row.length, whole.length);
    rows += whole.length > 20;
    cut += row.length < whole.length;
    ASSERT_TRUE(Find(Restore(row).a).has_value() || row.length < 6);
  }
  EXPECT_GT(cut, rows / 5);
  EXPECT_LT(cut, rows * 4 / 5);
}

TEST_F(Mlm, ASampleIsAFunctionOfEpochAndNumber) {
  auto first = Open(Masked()).value(), second = Open(Masked()).value();
  const auto rows = Epoch(*first, 3);
  for (std::uint64_t i = rows.size(); i-- > 0;) ASSERT_EQ(Read(*second, 3, i), rows[i]);
  EXPECT_NE(Epoch(*second, 4), rows);
  // Without shuffling, the same document is hidden in another way in the next epoch.
  auto plain = Open(Masked(48, 0)).value();
  int equal = 0;
  const auto before = Epoch(*plain, 0), after = Epoch(*plain, 1);
  for (std::size_t i = 0; i < before.size(); ++i) equal += before[i].labels == after[i].labels;
  EXPECT_LT(equal, static_cast<int>(before.size()) / 10);
}

TEST_F(Mlm, ResumesExactlyOnAnotherNumberOfRanks) {
  auto dataset = Open(Masked()).value();
  MemoryBudget budget(kGiB);
  using Row = std::tuple<std::vector<TokenId>, std::vector<TokenId>, std::vector<std::int32_t>, std::int32_t>;
  auto run = [&](int ranks, LoaderState& state, int batches) {
    std::map<std::uint64_t, Row> rows;  // by batch and number in it
    LoaderState end;
    for (int rank = 0; rank < ranks; ++rank) {
      auto loader = Loader::Start(dataset, budget, {.rank = rank, .ranks = ranks, .global_batch = 12}, state).value();
      for (int b = 0; b < batches * 12 / ranks; ++b) {
        Batch batch = loader->Next().value();
        EXPECT_EQ(batch.loss_tokens, 48U - std::ranges::count(batch.labels, kIgnoreLabel));
        rows[static_cast<std::uint64_t>(b * ranks / 12) << 32 | batch.first_sample] = {
            batch.inputs, batch.labels, batch.segments, batch.row_labels[0]};
      }
      end = loader->state();
    }
    state = end;
    return rows;
  };
  LoaderState whole_state, part_state;
  const int batches = static_cast<int>(dataset->samples_per_epoch() / 12) + 3;  // into the next epoch
  const auto whole = run(1, whole_state, batches);
  std::map<std::uint64_t, Row> parts;
  int done = 0;
  for (int ranks : {3, 1, 4, 2, 6}) {
    const int some = ranks == 6 ? batches - done : 2;
    for (const auto& [key, row] : run(ranks, part_state, some)) {
      parts[key + (static_cast<std::uint64_t>(done) << 32)] = row;
    }
    done += some;
  }
  EXPECT_EQ(parts.size(), whole.size());
  EXPECT_TRUE(parts == whole);
  EXPECT_EQ(part_state.samples, whole_state.samples);
}

TEST_F(Mlm, ASingleDocumentHasNoRandomPartner) {
  PutText(*store_, "one.jsonl", testing::ToJsonl({"d1x0 d1x1 d1x2 d1x3. d1x4 d1x5 d1x6"}));
  auto options = Masked();
  options.sources = {{"s3://corpus/one.jsonl", 1.0}};
  auto dataset = Open(options).value();
  int alone = 0;
  for (std::uint64_t epoch = 0; epoch < 40; ++epoch) {
    const BertRow row = Read(*dataset, epoch, 0);
    const Texts texts = Restore(row);
    ASSERT_EQ(texts.b.empty(), row.row_label == kIgnoreLabel);
    ASSERT_NE(row.row_label, 1);
    alone += texts.b.empty();
    EXPECT_EQ(texts.a.size(), texts.b.empty() ? texts.a.size() : 5U) << "cut behind the full stop";
  }
  EXPECT_GT(alone, 5);
  EXPECT_LT(alone, 35);
}

TEST_F(Mlm, RefusesWhatCannotBeLearnt) {
  auto why = [&](const std::function<void(DatasetOptions&)>& change) {
    auto options = Masked();
    change(options);
    auto opened = Open(options);
    return opened ? "opened" : opened.error().ToString();
  };
  EXPECT_THAT(why([](auto& o) { o.mlm.probability = 0; }), ::testing::HasSubstr("between 0 and 1"));
  EXPECT_THAT(why([](auto& o) { o.mlm.max_predictions = 0; }), ::testing::HasSubstr("nothing to learn"));
  EXPECT_THAT(why([](auto& o) { o.mlm.short_sequences = 2; }), ::testing::HasSubstr("short sequences"));
  EXPECT_THAT(why([](auto& o) { o.sequence_length = 4; }), ::testing::HasSubstr("no room"));
  tokenizer_ = tokenizer::Load(AsBytes("[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\n"), "vocab.txt").value();
  EXPECT_THAT(why([](auto& o) { o.mlm.whole_word = true; }), ::testing::HasSubstr("whole_word"));
  tokenizer_ = tokenizer::Load(AsBytes("[UNK]\n[CLS]\n[SEP]\nthe\n"), "vocab.txt").value();
  EXPECT_THAT(why([](auto&) {}), ::testing::HasSubstr("[MASK]"));
}

TEST_F(Mlm, OtherMasksAreOtherData) {
  auto options = Masked();
  const std::string plain = Open(options).value()->fingerprint();
  options.mlm.whole_word = true;
  EXPECT_NE(Open(options).value()->fingerprint(), plain);
}

}  // namespace
}  // namespace millrace::data
