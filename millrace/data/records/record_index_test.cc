#include "millrace/data/records/record_index.h"

#include <gtest/gtest.h>

#include "millrace/base/hash/crc.h"
#include "millrace/base/hash/random.h"

namespace millrace::data {
namespace {

struct Model {
  std::vector<RecordExtent> records;  ///< bytes: of the line
  std::vector<BrokenLine> broken;
  std::uint64_t size = 0;
};

/// Lines of every size, with broken lines and long unusable ranges between them.
Model RandomModel(Random& random, int lines) {
  Model model;
  for (int i = 0; i < lines; ++i) {
    std::uint64_t bytes = 1 + random.Below(random.Below(50) == 0 ? 3'000'000 : 6000);
    if (random.Below(20) == 0) {
      model.broken.push_back({model.size, static_cast<BrokenReason>(random.Below(kBrokenReasons))});
    } else {
      auto tokens = static_cast<std::uint32_t>(random.Below(random.Below(30) == 0 ? 1'000'000 : 1500));
      model.records.push_back({model.size, static_cast<std::uint32_t>(bytes), tokens});
    }
    model.size += bytes;
  }
  return model;
}

void Feed(const Model& model, RecordIndexBuilder& builder, std::uint64_t from, std::uint64_t to) {
  for (const RecordExtent& r : model.records) {
    if (r.offset >= from && r.offset < to) builder.Add(r.offset, r.bytes, r.tokens);
  }
  for (const BrokenLine& b : model.broken) {
    if (b.offset >= from && b.offset < to) builder.AddBroken(b.offset, b.reason);
  }
}

void ExpectHolds(const RecordIndex& index, const Model& model) {
  ASSERT_EQ(index.records(), model.records.size());
  ASSERT_EQ(index.broken_count(), model.broken.size());
  ASSERT_EQ(index.broken(), model.broken);
  std::vector<RecordExtent> extents;
  std::uint64_t first = 0;
  for (std::size_t i = 0; i < index.blocks(); ++i) {
    ASSERT_EQ(index.block(i).first_record, first);
    index.Decode(i, extents);
    ASSERT_EQ(extents.size() - first, index.block(i).records);
    first = extents.size();
  }
  ASSERT_EQ(extents.size(), model.records.size());
  std::uint64_t tokens = 0;
  for (std::size_t i = 0; i < extents.size(); ++i) {
    ASSERT_EQ(extents[i].offset, model.records[i].offset) << i;
    ASSERT_EQ(extents[i].tokens, model.records[i].tokens) << i;
    ASSERT_GE(extents[i].bytes, model.records[i].bytes) << i;
    ASSERT_LE(extents[i].bytes, model.records[i].bytes + 64 * kKiB) << i;
    tokens += extents[i].tokens;
  }
  ASSERT_EQ(index.tokens(), tokens);
}

TEST(RecordIndex, HoldsWhatWasAddedInAnyNumberOfParts) {
  Random random(1);
  for (int round = 0; round < 40; ++round) {
    Model model = RandomModel(random, 1 + static_cast<int>(random.Below(1500)));
    RecordIndexBuilder whole;
    for (std::uint64_t at = 0; at < model.size;) {
      std::uint64_t end = round % 2 == 0 ? model.size : at + 1 + random.Below(model.size);
      RecordIndexBuilder part;
      Feed(model, part, at, end);
      whole.Append(part.Finish().value());
      at = end;
    }
    RecordIndex index = whole.Finish().value();
    ExpectHolds(index, model);
    IndexIdentity identity{"etag-1", model.size, "{text}", "0badcafe"};
    auto parsed = RecordIndex::Parse(index.Serialize(identity), identity);
    ASSERT_TRUE(parsed.has_value()) << parsed.error().ToString();
    ExpectHolds(*parsed, model);
  }
}

TEST(RecordIndex, KeepsHashesForWhoWantsThem) {
  Random random(7);
  RecordIndexBuilder whole(true);
  std::vector<std::uint16_t> hashes;
  std::uint64_t at = 0;
  for (int part = 0; part < 3; ++part) {
    RecordIndexBuilder builder(true);
    for (int i = 0; i < 300; ++i, at += 100) {
      hashes.push_back(DocumentHash(fmt::format("document {}", hashes.size())));
      builder.Add(at, 100, 7, hashes.back());
    }
    whole.Append(builder.Finish().value());
  }
  IndexIdentity with{.etag = "e", .size = at, .template_text = "{text}", .hashes = true};
  IndexIdentity without = with;
  without.hashes = false;
  RecordIndex index = whole.Finish().value();
  for (const IndexIdentity& identity : {with, without}) {
    RecordIndex parsed = RecordIndex::Parse(index.Serialize(with), identity).value();
    EXPECT_TRUE(parsed.has_hashes());
    std::vector<RecordExtent> extents;
    for (std::size_t i = 0; i < parsed.blocks(); ++i) parsed.Decode(i, extents);
    ASSERT_EQ(extents.size(), hashes.size());
    for (std::size_t i = 0; i < hashes.size(); ++i) ASSERT_EQ(extents[i].hash, hashes[i]);
  }
  RecordIndexBuilder plain;
  plain.Add(0, 100, 7);
  EXPECT_EQ(RecordIndex::Parse(plain.Finish().value().Serialize(without), with).error().code(), Code::kStale);
}

TEST(RecordIndex, HashesOfDocumentsAreSpreadAndNeverChange) {
  EXPECT_EQ(DocumentHash(""), 0u);
  EXPECT_EQ(DocumentHash("millrace"), 63616u);
  int low = 0;
  for (int i = 0; i < 20'000; ++i) low += DocumentHash(fmt::format("document {}", i)) < 655;  // 1 %
  EXPECT_NEAR(low, 200, 60);
}

TEST(RecordIndex, IsSmall) {
  Random random(2);
  for (auto [bytes, limit] : {std::pair{4000, 0.0015}, {1000, 0.005}, {300, 0.01}}) {
    RecordIndexBuilder builder;
    std::uint64_t at = 0;
    for (int i = 0; i < 20'000; ++i) {
      std::uint64_t line = bytes / 2 + random.Below(bytes);
      builder.Add(at, line, static_cast<std::uint32_t>(line / 4 + random.Below(20)));
      at += line;
    }
    std::string file = builder.Finish().value().Serialize({"e", at, "{text}", "t"});
    EXPECT_LT(file.size(), limit * at) << "records of about " << bytes << " bytes";
  }
}

TEST(RecordIndex, NamesTheFirstThousandBrokenRecordsAndCountsAll) {
  RecordIndexBuilder builder;
  for (std::uint64_t i = 0; i < 5000; ++i)
    builder.AddBroken(10 * i, i % 2 ? BrokenReason::kNotJson : BrokenReason::kMissingField);
  RecordIndex index = builder.Finish().value();
  IndexIdentity identity{"e", 50'000, "{text}", ""};
  RecordIndex parsed = RecordIndex::Parse(index.Serialize(identity), identity).value();
  EXPECT_EQ(parsed.records(), 0u);
  EXPECT_EQ(parsed.broken_count(), 5000u);
  EXPECT_EQ(parsed.broken_by_reason()[static_cast<int>(BrokenReason::kNotJson)], 2500u);
  EXPECT_EQ(parsed.broken().size(), RecordIndex::kMaxNamedBroken);
  EXPECT_EQ(parsed.broken().back().offset, 9990u);
}

TEST(RecordIndex, BelongsToOneVersionAndOneView) {
  RecordIndexBuilder builder;
  builder.Add(0, 10, 3);
  IndexIdentity identity{"v1", 10, "{text}", "tok"};
  std::string file = builder.Finish().value().Serialize(identity);
  for (IndexIdentity other : {IndexIdentity{"v2", 10, "{text}", "tok"}, IndexIdentity{"v1", 11, "{text}", "tok"},
                              IndexIdentity{"v1", 10, "{body}", "tok"}, IndexIdentity{"v1", 10, "{text}", ""}}) {
    EXPECT_EQ(RecordIndex::Parse(file, other).error().code(), Code::kStale);
  }
}

TEST(RecordIndex, DamageIsFoundAndHostileBytesDoNoHarm) {
  Random random(3);
  Model model = RandomModel(random, 600);
  RecordIndexBuilder builder;
  Feed(model, builder, 0, model.size);
  IndexIdentity identity{"e", model.size, "{text}", "t"};
  std::string file = builder.Finish().value().Serialize(identity);
  for (int i = 0; i < 400; ++i) {
    std::string damaged = file;
    damaged[random.Below(file.size())] ^= static_cast<char>(1 + random.Below(255));
    EXPECT_FALSE(RecordIndex::Parse(damaged, identity).has_value());
    // With a right checksum, bounds must still be checked.
    damaged.resize(damaged.size() - 4);
    std::uint32_t crc = Crc32c(AsBytes(damaged));
    damaged.append(reinterpret_cast<const char*>(&crc), 4);
    auto parsed = RecordIndex::Parse(damaged, identity);
    if (!parsed) continue;
    std::vector<RecordExtent> extents;
    for (std::size_t b = 0; b < parsed->blocks(); ++b) parsed->Decode(b, extents);
    for (const RecordExtent& extent : extents) ASSERT_LE(extent.offset + extent.bytes, model.size);
  }
  for (std::size_t cut : {0ul, 3ul, 8ul, 12ul, 40ul, file.size() / 2, file.size() - 1}) {
    EXPECT_EQ(RecordIndex::Parse(file.substr(0, cut), identity).error().code(), Code::kCorrupt) << cut;
  }
}

}  // namespace
}  // namespace millrace::data
