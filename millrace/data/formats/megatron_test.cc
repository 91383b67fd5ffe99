#include "millrace/data/formats/megatron.h"

#include <gmock/gmock.h>

#include "millrace/base/hash/random.h"
#include "millrace/data/sources/sources.h"
#include "millrace/data/testing/testing.h"

namespace millrace::data {
namespace {

using testing::ByteTokenizer;
using ::testing::HasSubstr;
using testing::PutText;

using DocumentTokens = std::vector<std::vector<TokenId>>;

struct Files {
  std::string bin, idx;
};
Files Write(const DocumentTokens& documents, int token_bytes) {
  Files files;
  TokenTableWriter table(token_bytes);
  for (const auto& document : documents) {
    AppendTokens(document, token_bytes, files.bin);
    table.AddDocument(static_cast<std::uint32_t>(document.size()));
  }
  auto written = table.Write([&](ByteSpan bytes) -> Status {
    files.idx += AsText(bytes);
    return {};
  });
  EXPECT_TRUE(written);
  return files;
}

class MegatronTest : public ::testing::Test {
 protected:
  void SetUp() override { connection_["corpus"] = store_; }
  void Put(const std::string& name, const Files& files) {
    PutText(*store_, name + ".bin", files.bin);
    PutText(*store_, name + ".idx", files.idx);
  }
  Result<DataObject> Open(const Files& files) {
    Put("t", files);
    std::vector<DataSource> sources = {{"s3://corpus/t.bin"}};
    auto resolved = ResolveSources(connection_, sources);
    if (!resolved) return std::unexpected(resolved.error());
    return resolved->objects.at(0);
  }
  Result<std::shared_ptr<Dataset>> OpenDataset(std::vector<std::string> urls, SequenceMode mode = SequenceMode::kPack,
                                               std::uint64_t window = 0) {
    DatasetOptions options{.sequence_length = 8, .mode = mode, .shuffle_window = window};
    for (std::string& url : urls) options.sources.push_back({std::move(url)});
    return Dataset::Open(connection_, tokenizer_, std::move(options), {});
  }
  std::shared_ptr<object::Store> store_ = object::MakeMemoryStore();
  testing::TestConnection connection_;
  std::shared_ptr<const tokenizer::Tokenizer> tokenizer_ = std::make_shared<ByteTokenizer>();
};

/// Builds the bytes from the description of the format.
TEST_F(MegatronTest, WritesTheBytesThatMegatronWrites) {
  Files files = Write({{1, 2, 300}, {}, {4, 2}}, 2);
  EXPECT_EQ(files.bin, std::string("\1\0\2\0\x2c\1\4\0\2\0", 10));
  std::string expected("MMIDIDX\0\0\1\0\0\0\0\0\0\0\x08\2\0\0\0\0\0\0\0\4\0\0\0\0\0\0\0", 34);
  for (std::uint32_t length : {3, 2}) expected.append(reinterpret_cast<const char*>(&length), 4);
  for (std::uint64_t pointer : {0, 6}) expected.append(reinterpret_cast<const char*>(&pointer), 8);
  for (std::uint64_t start : {0, 1, 1, 2}) expected.append(reinterpret_cast<const char*>(&start), 8);
  EXPECT_EQ(files.idx, expected);
  EXPECT_EQ(Write({{70'000}}, 4).bin, std::string("\x70\x11\1\0", 4));
  EXPECT_EQ(TokenBytesFor(65'499), 2);
  EXPECT_EQ(TokenBytesFor(65'500), 4);
}

TEST_F(MegatronTest, ATableAloneMakesTheIndex) {
  Random random(3);
  DocumentTokens documents;
  for (int i = 0; i < 3000; ++i) documents.emplace_back(random.Below(40), 7);
  for (int token_bytes : {2, 4}) {
    DataObject object = Open(Write(documents, token_bytes)).value();
    EXPECT_EQ(object.token_bytes, token_bytes);
    RecordIndex index = IndexTokenFile(object, {}).value();
    std::vector<RecordExtent> extents;
    for (std::size_t b = 0; b < index.blocks(); ++b) index.Decode(b, extents);
    std::uint64_t at = 0;
    std::size_t record = 0;
    for (const auto& document : documents) {
      if (document.empty()) continue;
      ASSERT_LT(record, extents.size());
      EXPECT_EQ(extents[record].offset, at);
      EXPECT_EQ(extents[record].tokens, document.size());
      at += document.size() * token_bytes;
      ++record;
    }
    EXPECT_EQ(index.records(), record);
    EXPECT_EQ(index.broken_count(), 0u);
  }
}

TEST_F(MegatronTest, ASequenceASentenceIsADocumentAllTheSame) {
  Files files = Write({{5, 6}, {7}, {8, 9, 10}}, 2);
  // Two documents. The first has the sequences 0 and 1.
  std::string idx = files.idx.substr(0, 34 + 36);
  idx[26] = 3;
  for (std::uint64_t start : {0, 2, 3}) idx.append(reinterpret_cast<const char*>(&start), 8);
  for (int modalities : {0, 3}) {
    idx.append(modalities, '\0');
    RecordIndex index = IndexTokenFile(Open({files.bin, idx}).value(), {}).value();
    EXPECT_EQ(index.records(), 2u);
    EXPECT_EQ(index.tokens(), 6u);
  }
}

TEST_F(MegatronTest, SamplesAreTheIdsAsTheyAre) {
  DocumentTokens documents;
  std::vector<TokenId> stream;
  for (int i = 0; i < 50; ++i) {
    auto& document = documents.emplace_back();
    for (int t = 0; t <= i % 7; ++t) document.push_back(3 + (i * 11 + t) % 250);
    document.push_back(2);
    stream.insert(stream.end(), document.begin(), document.end());
  }
  Put("a/t", Write(documents, 2));
  for (const char* url : {"s3://corpus/a/t.bin", "s3://corpus/a/", "s3://corpus/a/*.bin", "s3://corpus/a/t"}) {
    auto dataset = OpenDataset({url}).value();
    EXPECT_EQ(dataset->samples_per_epoch(), (stream.size() - 1) / 8) << url;
    std::vector<TokenId> inputs(8), labels(8);
    for (std::uint64_t i = 0; i < dataset->samples_per_epoch(); ++i) {
      ASSERT_TRUE(dataset->ReadSample(0, i, inputs, labels));
      EXPECT_TRUE(std::equal(inputs.begin(), inputs.end(), stream.begin() + i * 8));
      EXPECT_TRUE(std::equal(labels.begin(), labels.end(), stream.begin() + i * 8 + 1));
    }
  }
  auto padded = OpenDataset({"s3://corpus/a/"}, SequenceMode::kPad).value();
  EXPECT_EQ(padded->samples_per_epoch(), documents.size());
  std::vector<TokenId> inputs(8), labels(8);
  ASSERT_TRUE(padded->ReadSample(0, 1, inputs, labels));
  EXPECT_TRUE(std::equal(documents[1].begin(), documents[1].end(), inputs.begin()));
}

TEST_F(MegatronTest, TextAndIdsMixInOneEpoch) {
  PutText(*store_, "text/a.jsonl", testing::ToJsonl({"abc", "defgh"}));
  Put("ids/t", Write({{10, 11, 2}, {12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 2}}, 4));
  auto dataset = OpenDataset({"s3://corpus/text/", "s3://corpus/ids/"}).value();
  // Two documents of text with BOS and EOS, then ids without.
  EXPECT_EQ(dataset->samples_per_epoch(), (3 + 5 + 2 * 2 - 1) / 8u + (16 - 1) / 8u);
}

TEST_F(MegatronTest, SaysWhatIsWrong) {
  Put("t", Write({{3, 4, 400}}, 2));
  auto dataset = OpenDataset({"s3://corpus/t.bin"}, SequenceMode::kPad).value();
  std::vector<TokenId> inputs(8), labels(8);
  auto foreign = dataset->ReadSample(0, 0, inputs, labels);
  ASSERT_FALSE(foreign);
  EXPECT_THAT(foreign.error().ToString(), HasSubstr("token 400 is not in the tokenizer's vocabulary of 259"));

  Files files = Write({{3, 4}}, 2);
  PutText(*store_, "lonely/t.bin", files.bin);
  EXPECT_THAT(OpenDataset({"s3://corpus/lonely/"}).error().ToString(), HasSubstr("no .idx beside"));
  PutText(*store_, "bare/t.idx", files.idx);
  EXPECT_THAT(OpenDataset({"s3://corpus/bare/"}).error().ToString(), HasSubstr("without its .bin"));
  files.idx[17] = 7;
  EXPECT_EQ(Open(files).error().code(), Code::kUnsupported);
  files.idx.pop_back();
  EXPECT_EQ(Open(files).error().code(), Code::kCorrupt);
}

/// No damaged table makes a record outside the .bin.
TEST_F(MegatronTest, DamagedTablesAreRefusedOrHarmless) {
  Random random(11);
  const Files good = Write({{3, 4, 5}, {6}, {}, {7, 8, 9, 10}, {11}}, 2);
  for (int round = 0; round < 1000; ++round) {
    Files files = good;
    if (random.Below(8) == 0) files.idx.resize(random.Below(files.idx.size()) + 1);
    for (std::uint64_t flips = 1 + random.Below(3); flips > 0; --flips) {
      files.idx[random.Below(files.idx.size())] ^= static_cast<char>(1u << random.Below(8));
    }
    auto object = Open(files);
    if (!object) continue;
    auto index = IndexTokenFile(*object, {});
    if (!index) continue;
    std::vector<RecordExtent> extents;
    for (std::size_t b = 0; b < index->blocks(); ++b) index->Decode(b, extents);
    for (const RecordExtent& extent : extents) {
      std::uint64_t bytes = std::uint64_t{extent.tokens} * object->token_bytes;
      ASSERT_LE(bytes, extent.bytes);
      ASSERT_LE(extent.offset + bytes, files.bin.size());
    }
  }
}

}  // namespace
}  // namespace millrace::data
