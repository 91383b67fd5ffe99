// Shards of samples: every field comes back, and damaged files are refused.
#include "millrace/data/hdf5/sample_shard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "millrace/data/hdf5/hdf5_dataset.h"
#include "millrace/data/hdf5/stored_sample.h"
#include "millrace/data/hdf5/testing.h"
#include "millrace/data/loader.h"
#include "millrace/data/testing/bert_fixture.h"

namespace millrace::data {
namespace {

using testing::BertRow;
using testing::BertTest;
using ::testing::HasSubstr;
using testing::Hdf5Table;
using testing::Hdf5Writer;
using testing::PutText;

constexpr int kTokens = 12, kPredictions = 3, kVocabulary = 20;

/// Random samples, as tables and as rows.
struct RandomShard {
  RandomShard(std::uint64_t seed, int count) : rows(count) {
    Random random(seed);
    const std::uint64_t n = static_cast<std::uint64_t>(count);
    tables = {
        {.name = "input_ids", .rows = n, .columns = kTokens, .chunk_rows = 16, .chunk_columns = 5},
        {.name = "input_mask",
         .rows = n,
         .columns = kTokens,
         .element_bytes = 1,
         .chunk_rows = 32,
         .chunk_columns = 12},
        {.name = "segment_ids", .rows = n, .columns = kTokens, .element_bytes = 1, .chunk_rows = 7, .chunk_columns = 7},
        {.name = "masked_lm_positions", .rows = n, .columns = kPredictions},
        {.name = "masked_lm_ids",
         .rows = n,
         .columns = kPredictions,
         .element_bytes = 8,
         .chunk_rows = 5,
         .chunk_columns = 2,
         .deflate = false},
        {.name = "next_sentence_labels",
         .rows = n,
         .element_bytes = 1,
         .one_dimension = true,
         .chunk_rows = 50,
         .chunk_columns = 1}};
    for (BertRow& row : rows) {
      const int length = static_cast<int>(5 + random.Below(kTokens - 4)),
                hidden = static_cast<int>(random.Below(kPredictions + 1));
      row.length = length;
      row.inputs.assign(kTokens, 0);
      row.labels.assign(kTokens, kIgnoreLabel);
      row.segments.assign(kTokens, 0);
      for (int i = 0; i < length; ++i) {
        row.inputs[i] = static_cast<TokenId>(random.Below(kVocabulary));
        row.segments[i] = i > length / 2;
        row.positions.push_back(i);
      }
      for (int i = length; i < kTokens; ++i) row.positions.push_back(i - length);
      for (int i = 0; i < kTokens; ++i) {
        tables[0].values.push_back(row.inputs[i]);
        tables[1].values.push_back(i < length);
        tables[2].values.push_back(row.segments[i]);
      }
      for (int p = 0; p < kPredictions; ++p) {
        const auto id = static_cast<TokenId>(random.Below(kVocabulary));
        tables[3].values.push_back(p < hidden ? p + 1 : 0);
        tables[4].values.push_back(p < hidden ? id : 0);
        if (p < hidden) row.labels[p + 1] = id;
      }
      row.row_label = static_cast<std::int32_t>(random.Below(2));
      tables[5].values.push_back(row.row_label);
    }
  }
  std::string Bytes() const { return Hdf5Writer().Write(tables); }

  std::vector<Hdf5Table> tables;
  std::vector<BertRow> rows;
};

class SampleShards : public BertTest {
 protected:
  Result<std::shared_ptr<Dataset>> OpenShards(std::string url, std::uint64_t window = 0, int length = kTokens) {
    return Open({.sources = {{std::move(url), 1.0}},
                 .sequence_length = length,
                 .objective = Objective::kMlm,
                 .shuffle_window = window});
  }
  std::string Refusal(const std::string& bytes) {
    PutText(*store_, "refused.hdf5", bytes);
    auto opened = OpenShards("s3://corpus/refused.hdf5");
    if (!opened) return opened.error().ToString();
    auto read = Status();
    for (std::uint64_t i = 0; read && i < (*opened)->samples_per_epoch(); ++i) {
      std::vector<TokenId> inputs(kTokens), labels(kTokens);
      read = (*opened)->ReadSample(0, i, inputs, labels);
    }
    return read ? "read" : read.error().ToString();
  }
};

TEST_F(SampleShards, EveryFieldComesBack) {
  RandomShard a(1, 100), b(2, 1), c(3, 37);
  c.tables.pop_back();
  PutText(*store_, "shards/a.hdf5", a.Bytes());
  PutText(*store_, "shards/b.h5", b.Bytes());
  PutText(*store_, "shards/c.hdf5", c.Bytes());
  auto dataset = OpenShards("s3://corpus/shards/").value();
  std::vector<BertRow> expected = a.rows;
  expected.insert(expected.end(), b.rows.begin(), b.rows.end());
  for (BertRow row : c.rows) {
    row.row_label = kIgnoreLabel;  // without next_sentence_labels
    expected.push_back(row);
  }
  ASSERT_EQ(dataset->samples_per_epoch(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    BertRow row = Read(*dataset, 0, i);
    row.words.clear();
    ASSERT_EQ(row, expected[i]) << i;
  }
  // A longer row has more padding.
  auto longer = OpenShards("s3://corpus/shards/a.hdf5", 0, 20).value();
  const BertRow row = Read(*longer, 0, 5);
  EXPECT_EQ(row.length, a.rows[5].length);
  EXPECT_EQ(row.positions[19], 19 - row.length);
  EXPECT_EQ(row.inputs[19], 0);
}

TEST_F(SampleShards, EpochsReadEverySampleOnceInAnotherOrder) {
  RandomShard shard(4, 3000);
  PutText(*store_, "a.hdf5", shard.Bytes());
  auto dataset = OpenShards("s3://corpus/a.hdf5", 1000).value();
  std::map<std::vector<TokenId>, int> all;
  for (const BertRow& row : shard.rows) ++all[row.inputs];
  std::vector<std::vector<TokenId>> before;
  for (std::uint64_t epoch = 0; epoch < 2; ++epoch) {
    std::map<std::vector<TokenId>, int> seen;
    std::vector<std::vector<TokenId>> order;
    for (std::uint64_t i = 0; i < 3000; ++i) {
      order.push_back(Read(*dataset, epoch, i).inputs);
      ++seen[order.back()];
    }
    EXPECT_EQ(seen, all);
    EXPECT_NE(order, before);
    before = std::move(order);
  }
}

TEST_F(SampleShards, ResumesAndSplits) {
  RandomShard shard(5, 500);
  PutText(*store_, "a.hdf5", shard.Bytes());
  DatasetOptions options{.sources = {{"s3://corpus/a.hdf5", 1.0}},
                         .sequence_length = kTokens,
                         .objective = Objective::kMlm,
                         .shuffle_window = 100};
  options.split.held_out = 0.2;
  auto train = Open(options).value();
  options.split.part = SplitPart::kHeldOut;
  EXPECT_EQ(train->records() + Open(options).value()->records(), 500u);
  MemoryBudget budget(kGiB);
  auto first = Loader::Start(train, budget, {.global_batch = 4, .micro_batch = 4}, {}).value();
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(first->Next().has_value());
  const LoaderState state = first->state();
  const Batch whole = first->Next().value();
  for (int rank = 0; rank < 2; ++rank) {
    auto second =
        Loader::Start(train, budget, {.rank = rank, .ranks = 2, .global_batch = 4, .micro_batch = 2}, state).value();
    const Batch part = second->Next().value();
    EXPECT_TRUE(std::ranges::equal(part.inputs, std::span(whole.inputs).subspan(rank * 2 * kTokens, 2 * kTokens)));
    EXPECT_TRUE(std::ranges::equal(part.row_labels, std::span(whole.row_labels).subspan(rank * 2, 2)));
    EXPECT_EQ(part.cu_seqlens.back(), 2 * kTokens);
  }
}

TEST_F(SampleShards, RefusesOtherUsesByName) {
  PutText(*store_, "d/a.hdf5", RandomShard(6, 9).Bytes());
  PutText(*store_, "d/b.jsonl", testing::ToJsonl({"the cat"}));
  auto why = [&](DatasetOptions options) {
    auto opened = Open(std::move(options));
    return opened ? "opened" : opened.error().ToString();
  };
  EXPECT_THAT(why({.sources = {{"s3://corpus/d/", 1.0}}, .objective = Objective::kMlm}),
              HasSubstr("sources of one kind"));
  EXPECT_THAT(why({.sources = {{"s3://corpus/d/a.hdf5", 1.0}}}), HasSubstr("objective mlm, not for causal_lm"));
  EXPECT_THAT(why({.sources = {{"s3://corpus/d/a.hdf5", 1.0}}, .objective = Objective::kClassification}),
              HasSubstr("not for classification"));
  auto short_rows = OpenShards("s3://corpus/d/a.hdf5", 0, 8).value();
  std::vector<TokenId> inputs(8), labels(8);
  auto read = short_rows->ReadSample(0, 0, inputs, labels);
  ASSERT_FALSE(read);
  EXPECT_THAT(read.error().ToString(), HasSubstr("samples of 12 tokens do not fit"));
}

TEST_F(SampleShards, NamesWhatIsWrong) {
  RandomShard shard(7, 20);
  auto changed = [&](const std::function<void(std::vector<Hdf5Table>&)>& change) {
    auto tables = shard.tables;
    change(tables);
    return Refusal(Hdf5Writer().Write(tables));
  };
  EXPECT_EQ(changed([](auto&) {}), "read");
  EXPECT_THAT(changed([](auto& t) { t.erase(t.begin() + 3); }), HasSubstr("no masked_lm_positions"));
  EXPECT_THAT(changed([](auto& t) { t[0].values[15] = kVocabulary; }), HasSubstr("token 20 is not in"));
  EXPECT_THAT(changed([](auto& t) { t[0].values[15] = -1; }), HasSubstr("impossible number -1"));
  EXPECT_THAT(changed([](auto& t) { t[4].values[0] = std::int64_t{1} << 40; }), HasSubstr("impossible number"));
  EXPECT_THAT(changed([](auto& t) { t[1].values[0] = 0; }), HasSubstr("padding in front of tokens"));
  EXPECT_THAT(changed([](auto& t) {
                t[3].values = std::vector<std::int64_t>(60, 11);
                t[1].values.assign(240, 0);
                for (int i = 0; i < 20; ++i) t[1].values[i * 12] = 1;
              }),
              HasSubstr("a prediction at token 11"));
  EXPECT_THAT(changed([](auto& t) { t[2].rows = 19; }), HasSubstr("segment_ids has 19 rows"));
  EXPECT_THAT(changed([](auto& t) { t[5].values[3] = 2; }), HasSubstr("next_sentence_labels of sample 3"));
  EXPECT_THAT(Refusal("no HDF5 at all, but long enough to hold a superblock"), HasSubstr("does not begin"));
  EXPECT_THAT(Refusal("short"), HasSubstr("too short"));
}

/// libhdf5 takes a gigabyte for such a megabyte.
TEST(Hdf5Chunk, DecompressesToItsElementsOrNotAtAll) {
  Hdf5Dataset table{.rows = 1000, .element_bytes = 4, .chunk_rows = 1000};
  table.filters = {Hdf5Filter::kDeflate};
  table.chunks.resize(1);
  const auto decoded = [&](std::size_t bytes) {
    const std::string plain(bytes, '\0');
    std::string packed(compressBound(bytes), '\0');
    uLongf size = packed.size();
    EXPECT_EQ(compress(reinterpret_cast<Bytef*>(packed.data()), &size, reinterpret_cast<const Bytef*>(plain.data()),
                       plain.size()),
              Z_OK);
    packed.resize(size);
    return DecodeHdf5Chunk(table, 0, AsBytes(packed));
  };
  EXPECT_EQ(decoded(4000).value().size(), 4000u);
  for (const std::size_t bytes : {std::size_t{3999}, std::size_t{4001}, std::size_t{64 * kMiB}}) {
    const auto refused = decoded(bytes);
    ASSERT_FALSE(refused.has_value()) << bytes;
    EXPECT_EQ(refused.error().code(), Code::kCorrupt);
  }
}

/// Returns the content of a file.
Result<std::string> ReadShard(const std::string& bytes) {
  const auto store = object::MakeMemoryStore({.inline_completions = true});
  PutText(*store, "o", bytes);
  const auto shard = MakeSampleShard({store, *object::Head(*store, "o").value(), "s3://corpus/o"});
  std::string content;
  MR_TRY(shard->FindFrames(
      [&](const Frame& frame, const std::optional<Buffer>&) -> Status {
        content += AsText(MR_TRY(shard->ReadFrame(frame, {})));
        return {};
      },
      {}));
  return content;
}

/// Whatever a byte becomes, a file is refused or read within its bounds. Sanitizers watch.
TEST_F(SampleShards, DamagedFilesAreRefusedOrRead) {
  const std::string whole = RandomShard(8, 20).Bytes();
  const std::uint64_t content_bytes = 20 * StoredSampleLayout{kTokens, kPredictions}.bytes();
  ASSERT_EQ(ReadShard(whole).value().size(), content_bytes);
  int refused = 0, read = 0;
  auto check = [&](const std::string& bytes) {
    if (bytes == whole) return;
    auto content = ReadShard(bytes);
    ++(content ? read : refused);
    if (content) {
      EXPECT_LE(content->size(), content_bytes);
    } else {
      EXPECT_TRUE(content.error().code() == Code::kCorrupt || content.error().code() == Code::kUnsupported)
          << content.error().ToString();
    }
  };
  for (std::size_t at = 0; at < whole.size(); ++at) {
    std::string bytes = whole;
    bytes[at] = static_cast<char>(bytes[at] ^ (1 << at % 8));
    check(bytes);
  }
  for (std::size_t at = 0; at + 8 <= whole.size(); at += 8) {
    for (std::uint64_t value : {~std::uint64_t{0}, std::uint64_t{1} << 32, whole.size() - 1}) {
      std::string bytes = whole;
      StoreLittle(reinterpret_cast<std::byte*>(bytes.data() + at), value);
      check(bytes);
    }
  }
  for (std::size_t size = 0; size < whole.size(); size += 5) check(whole.substr(0, size));
  EXPECT_GT(refused, 1000);
  EXPECT_GT(read, 1000) << "many bytes are tokens or not used";
}

}  // namespace
}  // namespace millrace::data
